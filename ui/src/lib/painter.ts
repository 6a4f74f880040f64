/** Draws a growing Markdown text into an element: what is settled once, the last block as often as there is time. */
import { settledLength } from "./blocks";
import { isHighlighterLoaded, loadHighlighter } from "./highlight";
import { colourCode, renderMarkdown } from "./markdown";
import { footnotesIn } from "./markdown_rules";

/** Drawing may take this share of the time; a long block is then drawn less often rather than slowing the page. */
const SHARE = 0.3;

export class Painter {
  #tail = document.createElement("div");
  #settled = "";
  #footnotes: ReadonlySet<string> = new Set();
  #text = "";
  #done = false;
  #rest = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #coloured = false;

  constructor(private readonly host: HTMLElement) {
    this.#tail.className = "tail";
    host.replaceChildren(this.#tail);
  }

  paint(text: string, done: boolean): void {
    this.#text = text;
    this.#done = done;
    if (!this.#coloured && /^ {0,3}(```|~~~)/m.test(text)) this.#colour();
    const wait = done ? 0 : this.#rest - performance.now();
    if (wait <= 0) this.#draw();
    else this.#timer ??= setTimeout(() => this.#draw(), wait);
  }

  close(): void {
    clearTimeout(this.#timer);
  }

  #draw(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const began = performance.now();
    if (!this.#text.startsWith(this.#settled)) this.#reset(new Set());
    let open = this.#text.slice(this.#settled.length);
    const footnotes = footnotesIn(open).filter((name) => !this.#footnotes.has(name));
    if (footnotes.length) {
      this.#reset(new Set([...this.#footnotes, ...footnotes])); // what was drawn may refer to them
      open = this.#text;
    }
    // What is done may still grow later, when a replay moves on; so nothing is settled that could then look different.
    const settled = this.#done ? 0 : settledLength(open);
    if (settled > 0) {
      const source = open.slice(0, settled);
      this.#tail.before(renderMarkdown(source, this.#footnotes));
      this.#settled += source;
      open = open.slice(settled);
    }
    this.#tail.replaceChildren(renderMarkdown(open, this.#footnotes));
    const took = performance.now() - began;
    this.#rest = performance.now() + (took * (1 - SHARE)) / SHARE;
  }

  #reset(footnotes: ReadonlySet<string>): void {
    this.#settled = "";
    this.#footnotes = footnotes;
    this.host.replaceChildren(this.#tail);
  }

  /** The colours come later than the first code. */
  #colour(): void {
    this.#coloured = true;
    if (isHighlighterLoaded()) return;
    void loadHighlighter().then((loaded) => {
      if (loaded && this.host.isConnected) colourCode(this.host);
    });
  }
}
