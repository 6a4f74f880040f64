/** Where a growing Markdown text may be cut, so that only its last block is drawn again. Pure. */
import MarkdownIt from "markdown-it";
import { extend } from "./markdown_rules";

const parser = extend(new MarkdownIt("default", { html: false }));

/**
 * How much of the text can never look different, whatever follows it.
 *
 * Everything before the last top-level block. A block that has only its unfinished line is not yet known to be one
 * ("2" may become "2. …" and join the list above), so then the block before it stays open too.
 */
export function settledLength(text: string): number {
  const newline = text.lastIndexOf("\n");
  if (newline < 0) return 0;
  const unfinishedLine = lineCount(text, newline + 1);
  let start = 0;
  for (const token of parser.parse(text, {})) {
    if (token.level !== 0 || !token.map || token.nesting < 0) continue;
    if (token.map[0] < unfinishedLine) start = token.map[0];
  }
  return offsetOfLine(text, start);
}

function lineCount(text: string, end: number): number {
  let lines = 0;
  for (let at = text.indexOf("\n"); at >= 0 && at < end; at = text.indexOf("\n", at + 1)) lines++;
  return lines;
}

function offsetOfLine(text: string, line: number): number {
  let offset = 0;
  for (; line > 0; line--) offset = text.indexOf("\n", offset) + 1;
  return offset;
}
