/** Where the page is: the part of the address after #. Reloading lands there again. */

const OTHERS = ["compare", "runs", "keys"] as const;

export type View = "chat" | (typeof OTHERS)[number];

class Route {
  view = $state<View>("chat");
  id = $state<string | null>(null);

  constructor() {
    this.#read();
    addEventListener("hashchange", () => this.#read());
  }

  go(view: View, id: string | null = null): void {
    location.hash = address(view, id);
  }

  /** The same place under a better name: a new chat that has got its id. */
  rename(view: View, id: string): void {
    const there = parse(location.hash);
    if (there.view !== this.view || there.id !== this.id) return; // somebody is on the way to another place
    history.replaceState(null, "", address(view, id));
    this.#read();
  }

  #read(): void {
    Object.assign(this, parse(location.hash));
  }
}

function parse(hash: string): { view: View; id: string | null } {
  const [view, id] = hash.replace(/^#\/?/, "").split("/");
  return { view: OTHERS.find((name) => name === view) ?? "chat", id: id ? decode(id) : null };
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a stray % in an address that somebody typed; the server will say that there is no such thing
  }
}

export function address(view: View, id: string | null = null): string {
  return `#/${view}${id === null ? "" : `/${encodeURIComponent(id)}`}`;
}

export const route = new Route();
