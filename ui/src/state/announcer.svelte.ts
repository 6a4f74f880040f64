/** What is said to a screen reader, and shown for a moment: states, never tokens. */

class Announcer {
  text = $state("");
  shown = $state("");
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** For ears only. */
  say(text: string): void {
    this.text = text;
  }

  /** For ears and eyes. */
  show(text: string): void {
    this.say(text);
    this.shown = text;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => (this.shown = ""), 6000);
  }
}

export const announcer = new Announcer();
