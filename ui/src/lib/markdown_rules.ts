/**
 * What models write beyond plain Markdown: formulas, footnotes, task lists. Formulas are shown as they were written,
 * whole and in the font of code: drawing them would take more than the rest of the page together.
 */
import type { MarkdownIt, StateBlock, StateCore, StateInline, Token } from "markdown-it";

/** What `render` is told of the text around the stretch that it draws. */
export type Surroundings = {
  /** The footnotes that are defined anywhere; only these are referred to, as `[^a-z]` may be just that. */
  footnotes: ReadonlySet<string>;
};

const FOOTNOTE = /^ {0,3}\[\^([^\]\s]{1,40})\]:[ \t]*/;

/** The footnotes that a text defines. */
export function footnotesIn(text: string): string[] {
  return Array.from(text.matchAll(new RegExp(FOOTNOTE, "gm")), (match) => match[1]!);
}

export function extend(markdown: MarkdownIt): MarkdownIt {
  const { escapeHtml } = markdown.utils;
  // Before anything else is made of the backslash, and of the stars and underscores inside.
  markdown.inline.ruler.before("escape", "math", inlineMath);
  markdown.inline.ruler.before("link", "footnote_ref", footnoteReference);
  const ends = { alt: ["paragraph", "reference", "blockquote", "list"] };
  markdown.block.ruler.before("fence", "math_block", mathBlock, ends);
  markdown.block.ruler.before("reference", "footnote", footnote, ends);
  markdown.core.ruler.after("inline", "tasks", tasks);
  const math = (tokens: Token[], index: number) => `<code class="math">${escapeHtml(tokens[index]!.content)}</code>`;
  markdown.renderer.rules["math"] = math;
  markdown.renderer.rules["math_block"] = (tokens, index) => `<p class="formula">${math(tokens, index)}</p>\n`;
  markdown.renderer.rules["footnote_ref"] = (tokens, index) => `<sup>${escapeHtml(tokens[index]!.content)}</sup>`;
  markdown.renderer.rules["footnote_open"] = (tokens, index) =>
    `<p class="footnote"><sup>${escapeHtml(tokens[index]!.info)}</sup> `;
  return markdown;
}

/** Bounds, in characters and lines, so that a formula which is never closed costs little. */
const LONGEST = 2000;
const MOST_LINES = 200;
const FORMULA = /^(?:\\\(([\s\S]+?)\\\)|\\\[([\s\S]+?)\\\]|\$\$([^$]+)\$\$|\$(?=[^\s$])([^$\n]*[^\s$])\$(?!\d))/;

/** `\(…\)`, `\[…\]` within a line, and `$…$` where it cannot be an amount of money. */
function inlineMath(state: StateInline, silent: boolean): boolean {
  const first = state.src[state.pos];
  if (first !== "\\" && first !== "$") return false;
  const match = FORMULA.exec(state.src.slice(state.pos, Math.min(state.posMax, state.pos + LONGEST)));
  const formula = match?.slice(1).find((part) => part !== undefined);
  // One dollar may be money: then there is nothing in it that only formulas have.
  if (!match || !formula || (match[4] !== undefined && !/[\\^_={}]/.test(formula))) return false;
  if (!silent) state.push("math", "code", 0).content = formula.trim();
  state.pos += match[0].length;
  return true;
}

/** `\[` or `$$` at the beginning of a line, to its other half at the end of one; there is no empty line in between. */
function mathBlock(state: StateBlock, start: number, end: number, silent: boolean): boolean {
  if (state.sCount[start]! - state.blkIndent >= 4) return false;
  const line = (n: number) => state.src.slice(state.bMarks[n]! + state.tShift[n]!, state.eMarks[n]).trimEnd();
  const opening = /^(\\\[|\$\$)/.exec(line(start))?.[1];
  if (!opening) return false;
  const closing = opening === "$$" ? "$$" : "\\]";
  const lines: string[] = [];
  let next = start;
  let closed = false;
  for (; next < Math.min(end, start + MOST_LINES) && !closed && line(next); next++) {
    let words = next === start ? line(next).slice(2) : line(next);
    const at = words.indexOf(closing);
    if (at >= 0) {
      if (words.slice(at + 2).trim()) return false; // more follows on the line: it is part of a paragraph
      words = words.slice(0, at);
      closed = true;
    }
    lines.push(words);
  }
  if (!closed) return false;
  if (silent) return true;
  const token = state.push("math_block", "code", 0);
  token.content = lines.join("\n").trim();
  token.map = [start, next];
  state.line = next;
  return true;
}

function footnoteReference(state: StateInline, silent: boolean): boolean {
  if (!state.src.startsWith("[^", state.pos)) return false;
  const match = /^\[\^([^\]\s]{1,40})\]/.exec(state.src.slice(state.pos, Math.min(state.posMax, state.pos + 50)));
  const { footnotes } = state.env as Partial<Surroundings>;
  if (!match || !footnotes?.has(match[1]!)) return false;
  if (!silent) state.push("footnote_ref", "sup", 0).content = match[1]!;
  state.pos += match[0].length;
  return true;
}

/** `[^1]: text`, and the lines that follow it up to an empty one. It is shown where it stands. */
function footnote(state: StateBlock, start: number, end: number, silent: boolean): boolean {
  if (state.sCount[start]! - state.blkIndent >= 4) return false;
  const first = state.src.slice(state.bMarks[start]! + state.tShift[start]!, state.eMarks[start]);
  const match = FOOTNOTE.exec(first);
  if (!match) return false;
  if (silent) return true;
  let next = start + 1;
  while (next < end && !state.isEmpty(next) && !FOOTNOTE.test(state.getLines(next, next + 1, state.blkIndent, false))) next++;
  const more = state.getLines(start + 1, next, state.blkIndent, false);
  const open = state.push("footnote_open", "p", 1);
  open.info = match[1]!;
  open.map = [start, next];
  const inline = state.push("inline", "", 0);
  inline.content = `${first.slice(match[0].length)}\n${more}`.trim();
  inline.map = [start, next];
  inline.children = [];
  state.push("footnote_close", "p", -1);
  state.line = next;
  return true;
}

/** `- [x] done`: boxes that are only looked at. */
function tasks(state: StateCore): void {
  state.tokens.forEach((token, index) => {
    const item = state.tokens[index - 2];
    const first = token.children?.[0];
    if (token.type !== "inline" || item?.type !== "list_item_open" || first?.type !== "text") return;
    const match = /^\[([ xX])\]\s+/.exec(first.content);
    if (!match) return;
    first.content = `${match[1] === " " ? "☐" : "☑"} ${first.content.slice(match[0].length)}`;
    item.attrJoin("class", "task");
  });
}
