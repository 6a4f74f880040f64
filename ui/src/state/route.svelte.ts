/** Where the page is: the part of the address after #. Reloading lands there again. */

export type View = "chat" | "compare" | "runs";

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
    history.replaceState(null, "", address(view, id));
    this.#read();
  }

  #read(): void {
    const [view, id] = location.hash.replace(/^#\/?/, "").split("/");
    this.view = view === "compare" || view === "runs" ? view : "chat";
    this.id = id ? decodeURIComponent(id) : null;
  }
}

export function address(view: View, id: string | null = null): string {
  return `#/${view}${id === null ? "" : `/${encodeURIComponent(id)}`}`;
}

export const route = new Route();
