// @vitest-environment jsdom
import { describe, expect, it } from "vitest";
import { settledLength } from "../src/lib/blocks";
import { loadHighlighter } from "../src/lib/highlight";
import { colourCode, renderMarkdown } from "../src/lib/markdown";
import { Painter } from "../src/lib/painter";

/** What a painter has drawn, without the seam between what is settled and what is not. */
function drawn(host: HTMLElement): string {
  const copy = host.cloneNode(true) as HTMLElement;
  copy.querySelector(".tail")!.replaceWith(...copy.querySelector(".tail")!.childNodes);
  return copy.innerHTML;
}

function html(source: string): string {
  const host = document.createElement("div");
  host.append(renderMarkdown(source));
  return host.innerHTML;
}

const HOSTILE = [
  "<img src=x onerror=alert(1)>",
  "<script>alert(1)</script>",
  "[x](javascript:alert(1))",
  "[x](JaVaScRiPt:alert(1))",
  "[x](data:text/html,<script>alert(1)</script>)",
  "[x](vbscript:alert(1))",
  "![x](javascript:alert(1))",
  '![x](https://evil.example/"onerror="alert(1))',
  '```"><script>alert(1)</script>\ncode\n```',
  '```js" onclick="alert(1)\ncode\n```',
  "| <iframe src=javascript:alert(1)> | b |\n|---|---|\n| <svg onload=alert(1)> | <br><form action=x> |",
  '<a href="x" style="position:fixed" onclick="alert(1)">y</a>',
  "[x]: javascript:alert(1)\n\n[x]",
  "<style>body{display:none}</style>",
  '<math><mtext></mtext><mglyph><svg><style><img title="</style><img src onerror=alert(1)>">',
];

describe("a model's Markdown", () => {
  it.each(HOSTILE)("can do nothing: %s", (source) => {
    const host = document.createElement("div");
    host.append(renderMarkdown(source));
    expect(host.querySelector("script, style, iframe, svg, form, math, object, embed, input")).toBeNull();
    for (const element of host.querySelectorAll("*")) {
      for (const { name, value } of element.attributes) {
        expect(name).not.toMatch(/^on|^style$|^id$/);
        if (name === "href" || name === "src") expect(value).toMatch(/^(https?:|mailto:|data:image\/)/);
      }
    }
  });

  it("shows HTML as the text it is", () => {
    expect(html("use the <div> tag")).toBe("<p>use the &lt;div&gt; tag</p>\n");
  });

  it("opens links elsewhere, with no way back", () => {
    expect(html("see https://example.org")).toContain(
      '<a href="https://example.org" target="_blank" rel="noopener noreferrer">',
    );
  });

  it("does not load pictures from elsewhere, and shows those it carries", () => {
    expect(html("![plan](https://example.org/x.png)")).not.toContain("<img");
    expect(html("![dot](data:image/png;base64,AAAA)")).toContain('<img src="data:image/png;base64,AAAA" alt="dot">');
  });

  it("aligns table cells by class and breaks lines in them", () => {
    const table = html("| a | b |\n|--:|---|\n| 1<br>2 | x |");
    expect(table).toContain('<td class="align-right">1<br>2</td>');
    expect(table).not.toContain("style=");
  });

  it("colours what was drawn before the colours had come, and leaves everything else in its place", async () => {
    const host = document.createElement("div");
    host.append(renderMarkdown("```python\nimport os  # <b>\n```"));
    const [button, code] = [host.querySelector("button")!, host.querySelector("code")!];
    const text = code.textContent;
    expect(code.querySelector("span")).toBeNull();
    await loadHighlighter();
    colourCode(host);
    expect(code.innerHTML).toContain('<span class="hljs-keyword">import</span>');
    expect(code.textContent).toBe(text);
    expect(host.querySelector("button")).toBe(button);
  });

  it("colours code in a language it knows, and gives every block a copy button", async () => {
    await loadHighlighter();
    expect(html("```python\nimport os\n```")).toContain('<span class="hljs-keyword">import</span>');
    expect(html("```klingon\nnuqneH\n```")).toContain('<button type="button" class="copy">Copy</button>');
  });
});

describe("what models write beyond plain Markdown", () => {
  const math = (formula: string) => `<code class="math">${formula}</code>`;
  const block = (formula: string) => `<p class="formula">${math(formula)}</p>\n`;

  it.each([
    ["so \\(x_1 * y_1 * z\\) holds", `<p>so ${math("x_1 * y_1 * z")} holds</p>\n`],
    ["so \\[x^2\\] holds", `<p>so ${math("x^2")} holds</p>\n`],
    ["$a_1 + a_2$ and $$b$$", `<p>${math("a_1 + a_2")} and ${math("b")}</p>\n`],
    ["\\[\n\\frac{a}{b} < c_1 * d_1 * e\n\\]\nand", block("\\frac{a}{b} &lt; c_1 * d_1 * e") + "<p>and</p>\n"],
    ["as follows:\n$$x = 1$$", `<p>as follows:</p>\n${block("x = 1")}`],
    ["| a |\n|---|\n| \\(x\\) |", math("x")],
    ["it costs $5 or $10, \\$7", "<p>it costs $5 or $10, $7</p>\n"],
    ["`\\(x\\)` is written so", "<p><code>\\(x\\)</code> is written so</p>\n"],
    ["\\[ never closed", "<p>[ never closed</p>\n"],
    ["\\(<img src=x onerror=alert(1)>\\)", math("&lt;img src=x onerror=alert(1)&gt;")],
  ])("shows a formula whole: %s", (source, expected) => {
    expect(html(source)).toContain(expected);
  });

  it("marks footnotes and shows them where they stand, and takes nothing else for one", () => {
    const host = document.createElement("div");
    host.append(renderMarkdown("So it is.[^1] Not [^a-z].\n\n[^1]: Says *who*\n    and more.\n[^b]: Two.", new Set(["1", "b"])));
    expect(host.innerHTML).toBe(
      "<p>So it is.<sup>1</sup> Not [^a-z].</p>\n" +
        '<p class="footnote"><sup>1</sup> Says <em>who</em>\nand more.</p>\n<p class="footnote"><sup>b</sup> Two.</p>\n',
    );
  });

  it("marks a footnote also where it was drawn before the note had come", () => {
    const host = document.createElement("div");
    const painter = new Painter(host);
    const text = "One.[^1]\n\nTwo.\n\nThree.\n\n[^1]: Note.\n\nFour.";
    for (let end = 0; end <= text.length; end++) painter.paint(text.slice(0, end), false);
    painter.paint(text, true);
    expect(host.querySelectorAll("p > sup")).toHaveLength(2);
    expect(host.textContent).not.toContain("[^");
    painter.close();
  });

  it("shows tasks with their boxes", () => {
    expect(html("- [x] *done*\n- [ ] to do\n- [link] [x]")).toBe(
      '<ul>\n<li class="task">☑ <em>done</em></li>\n<li class="task">☐ to do</li>\n<li>[link] [x]</li>\n</ul>\n',
    );
  });
});

const ANSWER = `# Title

Some *words*
and more.

1. one
2. two

   \`\`\`python
   x = 1

   y = 2
   \`\`\`

3. three

- a

- b

| a | b |
|---|---|
| 1 | 2 |

> quoted

\\\\[
x_1 * y_1
\\\\]

- [x] a task
- [ ] another

\`\`\`
open

end
\`\`\`

Last words`;

describe("text that grows", () => {
  it("looks in the end as if it had been drawn at once, however it came", () => {
    for (const step of [1, 3, 7, 50]) {
      const host = document.createElement("div");
      let settled = 0;
      let pieces = 0;
      for (let end = 0; end <= ANSWER.length; end += step) {
        const more = settledLength(ANSWER.slice(settled, end));
        if (!more) continue;
        host.append(renderMarkdown(ANSWER.slice(settled, (settled += more))));
        pieces++;
      }
      host.append(renderMarkdown(ANSWER.slice(settled)));
      expect(host.innerHTML).toBe(html(ANSWER));
      expect(pieces).toBeGreaterThan(1);
    }
  });

  it("is whole once it is done", () => {
    const host = document.createElement("div");
    const painter = new Painter(host);
    for (let end = 0; end < ANSWER.length; end += 5) painter.paint(ANSWER.slice(0, end), false);
    painter.paint(ANSWER, true);
    expect(drawn(host)).toBe(html(ANSWER));
    painter.close();
  });

  it("grows on after it was done, as a replay does", () => {
    const host = document.createElement("div");
    const painter = new Painter(host);
    for (let end = 0; end <= ANSWER.length; end += 7) {
      painter.paint(ANSWER.slice(0, end), true);
      expect(drawn(host)).toBe(html(ANSWER.slice(0, end)));
    }
    painter.close();
  });

  it("settles everything but its last block", () => {
    expect(settledLength("one\n\ntwo\n\nthr")).toBe("one\n\n".length);
    expect(settledLength("one\n\ntwo\n\nthree\n")).toBe("one\n\ntwo\n\n".length);
    expect(settledLength("no line yet")).toBe(0);
    expect(settledLength("1. a\n2. b\n\n3")).toBe(0);
  });

  it("begins anew when the text is another one", () => {
    const host = document.createElement("div");
    const painter = new Painter(host);
    painter.paint("one\n\ntwo\n\nthree\n", true);
    painter.paint("other", true);
    expect(host.textContent?.trim()).toBe("other");
  });
});
