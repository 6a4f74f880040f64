/** Colours for code. The languages are a chunk of their own that is loaded when the first code block is shown. */
import type { HLJSApi } from "highlight.js";

let loaded: HLJSApi | null = null;
let loading: Promise<HLJSApi | null> | null = null;
const cache = new Map<string, string>();
const CACHED = 200;

/** Longer code stays plain: colouring it would hold up the page. */
const MAX_CHARACTERS = 60_000;

/** Resolves when `highlight` can answer; null when the chunk did not come, and code then stays plain. */
export function loadHighlighter(): Promise<HLJSApi | null> {
  loading ??= import("./languages").then(
    (module) => (loaded = module.default),
    () => (loading = null),
  );
  return loading;
}

export function isHighlighterLoaded(): boolean {
  return loaded !== null;
}

/** The code as HTML, or null when the language is not known (or not there yet). */
export function highlight(code: string, language: string): string | null {
  if (!loaded?.getLanguage(language) || code.length > MAX_CHARACTERS) return null;
  const key = `${language}\n${code}`;
  let html = cache.get(key);
  if (html === undefined) {
    html = loaded.highlight(code, { language, ignoreIllegals: true }).value;
    if (cache.size >= CACHED) cache.delete(cache.keys().next().value!);
    cache.set(key, html);
  }
  return html;
}
