/** The server as this tab knows it: the key to it, and whether it can be reached. */
import { Api } from "../lib/api";
import { Http } from "../lib/http";

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
  lost = $state(false);
  /** Milliseconds since the epoch at which the next attempt is made. */
  retryAt = $state(0);
  #wait = 1;
  #timer: ReturnType<typeof setTimeout> | undefined;

  reached(): void {
    this.lost = false;
    this.#wait = 1;
    clearTimeout(this.#timer);
  }

  /** Keeps asking for the health page until something answers. */
  unreachable(): void {
    if (this.lost) return;
    this.lost = true;
    this.#later();
  }

  async retry(): Promise<void> {
    clearTimeout(this.#timer);
    try {
      await fetch("/health", { cache: "no-store" });
      this.reached();
    } catch {
      this.#wait = Math.min(this.#wait * 2, 10);
      this.#later();
    }
  }

  #later(): void {
    clearTimeout(this.#timer);
    this.retryAt = Date.now() + this.#wait * 1000;
    this.#timer = setTimeout(() => void this.retry(), this.#wait * 1000);
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
