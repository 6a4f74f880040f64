/** Server-sent events from a byte stream: bytes in, frames out. Does no I/O of its own. */

export interface Frame {
  /** Empty when this very frame has none. */
  id: string;
  event: string;
  data: string;
}

export class SseDecoder {
  #text = new TextDecoder();
  #rest = "";
  #id = "";
  #event = "";
  #data: string[] = [];

  /** Everything that became whole with these bytes. A comment is no frame. */
  feed(bytes: Uint8Array): Frame[] {
    this.#rest += this.#text.decode(bytes, { stream: true });
    const frames: Frame[] = [];
    const lines = this.#rest.split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line === "") this.#flush(frames);
      else this.#field(line);
    }
    return frames;
  }

  #field(line: string): void {
    const colon = line.indexOf(":");
    if (colon === 0) return;
    const name = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (name === "data") this.#data.push(value);
    else if (name === "event") this.#event = value;
    else if (name === "id") this.#id = value;
  }

  #flush(frames: Frame[]): void {
    if (this.#data.length) frames.push({ id: this.#id, event: this.#event, data: this.#data.join("\n") });
    this.#data = [];
    this.#event = "";
    this.#id = "";
  }
}
