/**
 * A model's Markdown as DOM that cannot do anything: HTML in it is shown as text, the result goes through DOMPurify,
 * links open elsewhere, pictures from elsewhere are not loaded.
 */
import DOMPurify from "dompurify";
import MarkdownIt from "markdown-it";
import { highlight } from "./highlight";
import { extend, type Surroundings } from "./markdown_rules";

const markdown = extend(new MarkdownIt("default", { html: false, linkify: true, breaks: false }));
const { escapeHtml } = markdown.utils;

// Models use <br> in table cells, where Markdown has no other way to break a line.
markdown.renderer.rules["text"] = (tokens, index) =>
  escapeHtml(tokens[index]!.content).replace(/&lt;br ?\/?&gt;/g, "<br>");

// Alignment is a class: the page's policy allows no inline styles.
for (const rule of ["th_open", "td_open"]) {
  markdown.renderer.rules[rule] = (tokens, index) => {
    const align = /text-align:(\w+)/.exec(String(tokens[index]!.attrGet("style") ?? ""))?.[1];
    return `<${tokens[index]!.tag}${align ? ` class="align-${align}"` : ""}>`;
  };
}

// A picture from elsewhere would tell its host who reads this and when; it is offered as a link.
markdown.renderer.rules["image"] = (tokens, index) => {
  const url = String(tokens[index]!.attrGet("src") ?? "");
  const alt = escapeHtml(tokens[index]!.content || "picture");
  if (url.startsWith("data:image/")) return `<img src="${escapeHtml(url)}" alt="${alt}">`;
  return `<a href="${escapeHtml(url)}">${alt} (picture, not loaded)</a>`;
};

markdown.renderer.rules["fence"] = (tokens, index) => {
  const { content, info } = tokens[index]!;
  return codeBlock(content, info.trim().split(/\s+/)[0]?.toLowerCase() ?? "");
};
markdown.renderer.rules["code_block"] = (tokens, index) => codeBlock(tokens[index]!.content, "");

function codeBlock(code: string, language: string): string {
  const name = escapeHtml(language);
  return `<pre title="${name}"><code>${highlight(code, language) ?? escapeHtml(code)}</code></pre>`;
}

const NONE: ReadonlySet<string> = new Set();

const SANITIZED = {
  ALLOWED_TAGS: (
    "a blockquote br code del em h1 h2 h3 h4 h5 h6 hr img li ol p pre s span strong sub sup table tbody td th thead tr ul"
  ).split(" "),
  ALLOWED_ATTR: ["alt", "class", "href", "src", "start", "title"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|data:image\/(?:png|jpeg|gif|webp);)/i,
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true as const,
};

/** Draws one stretch of Markdown; the footnotes are those of the whole text. */
export function renderMarkdown(source: string, footnotes: ReadonlySet<string> = NONE): DocumentFragment {
  const around: Surroundings = { footnotes };
  const fragment = DOMPurify.sanitize(markdown.render(source, around), SANITIZED);
  for (const link of fragment.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  for (const table of fragment.querySelectorAll("table")) {
    table.replaceWith(scrolling(table.cloneNode(true) as HTMLElement, "Table"));
  }
  for (const pre of fragment.querySelectorAll("pre")) pre.replaceWith(codeFigure(pre.cloneNode(true) as HTMLElement));
  return fragment;
}

/** Colours code that was drawn before the highlighter had come, in place: a selection and a pressed button stay. */
export function colourCode(host: HTMLElement): void {
  for (const figure of host.querySelectorAll(".code")) {
    const code = figure.querySelector("code")!;
    const html = highlight(code.textContent, figure.querySelector(".code-bar span")!.textContent);
    if (html !== null) code.replaceChildren(DOMPurify.sanitize(html, SANITIZED));
  }
}

function codeFigure(pre: HTMLElement): HTMLElement {
  const language = pre.title;
  pre.removeAttribute("title");
  pre.tabIndex = 0; // wide code is scrolled with the keyboard too
  pre.setAttribute("aria-label", language ? `Code, ${language}` : "Code");
  pre.setAttribute("role", "region");
  const figure = document.createElement("div");
  figure.className = "code";
  const bar = document.createElement("div");
  bar.className = "code-bar";
  const name = document.createElement("span");
  name.textContent = language || "text";
  const copy = document.createElement("button");
  copy.type = "button";
  copy.className = "copy";
  copy.textContent = "Copy";
  bar.append(name, copy);
  figure.append(bar, pre);
  return figure;
}

function scrolling(element: HTMLElement, label: string): HTMLElement {
  const box = document.createElement("div");
  box.className = "scroll";
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", label);
  box.append(element);
  return box;
}
