/** The server as this tab knows it: the key to it, and whether it can be reached. */
import { Api } from "../lib/api";
import { REACHED } from "../lib/follow";
import { Http, isGateway } from "../lib/http";

const KEY = "holdfast.key";

class Key {
  /** Kept for this tab alone, and gone with it. */
  value = $state(sessionStorage.getItem(KEY));
  asking = $state(false);
  wrong = $state(false);
  #given: PromiseWithResolvers<void> | null = null;

  /** Many requests may be refused at once; the person is asked once. */
  refused(key: string | null): Promise<void> {
    if (key !== this.value) return Promise.resolve(); // another has been given in the meantime
    this.wrong = key !== null;
    this.asking = true;
    this.#given ??= withResolvers();
    return this.#given.promise;
  }

  give(key: string): void {
    this.value = key;
    sessionStorage.setItem(KEY, key);
    this.asking = false;
    this.#given?.resolve();
    this.#given = null;
  }
}

class Connection {
  /** Since when there is no answer, in milliseconds since the epoch; null: there is. */
  lostAt = $state<number | null>(null);
  /** When the next attempt is made. */
  retryAt = $state(0);
  #wait = 1;
  #timer: ReturnType<typeof setTimeout> | undefined;

  get lost(): boolean {
    return this.lostAt !== null;
  }

  reached(): void {
    if (this.lostAt === null) return;
    this.lostAt = null;
    this.#wait = 1;
    clearTimeout(this.#timer);
    dispatchEvent(new Event(REACHED)); // whoever waits for the server need not wait any longer
  }

  /** Keeps asking for the health page until something answers. */
  unreachable(): void {
    if (this.lostAt !== null) return;
    this.lostAt = Date.now();
    this.#later();
  }

  async retry(): Promise<void> {
    clearTimeout(this.#timer);
    if (await isThere()) return this.reached();
    this.#wait = Math.min(this.#wait * 2, 10);
    this.#later();
  }

  #later(): void {
    clearTimeout(this.#timer);
    this.retryAt = Date.now() + this.#wait * 1000;
    this.#timer = setTimeout(() => void this.retry(), this.#wait * 1000);
  }
}

async function isThere(): Promise<boolean> {
  try {
    return !isGateway(await fetch("/health", { cache: "no-store" }));
  } catch {
    return false; // that is the answer
  }
}

function withResolvers(): PromiseWithResolvers<void> {
  let resolve!: () => void;
  let reject!: () => void;
  const promise = new Promise<void>((yes, no) => ([resolve, reject] = [yes, no]));
  return { promise, resolve, reject } as PromiseWithResolvers<void>;
}

export const key = new Key();
export const connection = new Connection();
export const api = new Api(
  new Http({
    key: () => key.value,
    refused: (refused) => key.refused(refused),
    reached: () => connection.reached(),
    unreachable: () => connection.unreachable(),
  }),
);
addEventListener("online", () => connection.lost && void connection.retry());
