"""HTML as text that a model can read: title, headings, paragraphs, lists, links, code.

Takes what comes, as browsers do, and drops what is neither seen nor read. Some pages take for ever, so fetching runs
it as a program of its own (see tools/subprograms.py): the address in the first argument, the page on stdin, the text on
stdout. This module therefore imports only the standard library.
"""

import sys
from html.parser import HTMLParser
from typing import Final
from urllib.parse import urljoin

MAX_INDENT: Final = 8
_NEVER_TEXT: Final = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "canvas", "object"})
_AROUND_TEXT: Final = frozenset({"nav", "aside", "footer"})
_BLOCKS: Final = frozenset(
    "address article blockquote body dd details div dl dt fieldset figcaption figure footer form header hr main "
    "nav ol p section summary table tbody tfoot thead tr ul".split()
)
_HEADINGS: Final = {f"h{level}": "#" * level + " " for level in range(1, 7)}


def readable_text(html: str, base_url: str) -> str:
    """The text of a page. May take very long."""
    text = _parse(html, base_url, _NEVER_TEXT | _AROUND_TEXT)
    # On some pages everything is inside what is elsewhere only decoration, or it is never closed.
    return text if len(text) > 200 else _parse(html, base_url, _NEVER_TEXT) or text


def _parse(html: str, base_url: str, dropped: frozenset[str]) -> str:
    extractor = _TextExtractor(base_url, dropped)
    extractor.feed(html)
    extractor.close()
    return extractor.text()


class _TextExtractor(HTMLParser):
    def __init__(self, base_url: str, dropped: frozenset[str]) -> None:
        super().__init__(convert_charrefs=True)
        self._base_url = base_url
        self._dropped = dropped
        self._pieces: list[str] = []
        self._title: list[str] = []
        self._in_title = False
        self._dropping: list[str] = []
        self._preformatted = 0
        self._links: list[tuple[int, str]] = []
        """Where the text of an open link begins, and where it leads."""
        self._lists: list[int | None] = []
        """The next number of an ordered list; None for one without numbers."""

    def text(self) -> str:
        lines: list[str] = []
        fenced = False
        for line in "".join(self._pieces).split("\n"):
            fenced ^= line.strip() == "```"
            line = line.rstrip() if fenced else line.strip() if not line.startswith("  ") else line.rstrip()
            if line or (lines and lines[-1]):
                lines.append(line)
        title = " ".join("".join(self._title).split())
        body = "\n".join(lines).strip()
        return f"{title}\n\n{body}".strip() if title and not body.startswith(f"# {title}") else body

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self._dropped:
            self._dropping.append(tag)
        if tag == "title" and not self._title:
            self._in_title = True
        if self._dropping:
            return
        values = dict(attrs)
        if tag in _HEADINGS:
            self._add("\n\n" + _HEADINGS[tag])
        elif tag == "br":
            self._add("\n")
        elif tag == "hr":
            self._add("\n\n---\n\n")
        elif tag == "pre":
            self._preformatted += 1
            self._add("\n```\n")
        elif tag == "code" and not self._preformatted:
            self._add("`")
        elif tag in ("ul", "ol"):
            self._lists.append(1 if tag == "ol" else None)
            self._add("\n")
        elif tag == "li":
            self._add("\n" + "  " * min(len(self._lists) - 1, MAX_INDENT) + self._bullet())
        elif tag in ("td", "th"):
            self._add(" | ")
        elif tag == "img" and values.get("alt"):
            self._add(f"[image: {values['alt']}]")
        elif tag == "a" and values.get("href"):
            self._links.append((len(self._pieces), values["href"] or ""))
        elif tag in _BLOCKS:
            self._add("\n\n" if tag == "p" else "\n")

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        if self._dropping:
            if tag in self._dropping:
                # What was opened inside and never closed ends with it.
                while self._dropping.pop() != tag:
                    pass
            return
        if tag == "pre" and self._preformatted:
            self._preformatted -= 1
            self._add("\n```\n")
        elif tag == "code" and not self._preformatted:
            self._add("`")
        elif tag in ("ul", "ol"):
            if self._lists:
                self._lists.pop()
            self._add("\n")
        elif tag == "a" and self._links:
            self._end_link()
        elif tag in _HEADINGS or tag == "p":
            self._add("\n\n")
        elif tag in _BLOCKS:
            self._add("\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self._title.append(data)
        elif not self._dropping:
            self._add(data if self._preformatted else _folded(data))

    def _add(self, piece: str) -> None:
        self._pieces.append(piece)

    def _bullet(self) -> str:
        number = self._lists[-1] if self._lists else None
        if number is None:
            return "- "
        self._lists[-1] = number + 1
        return f"{number}. "

    def _end_link(self) -> None:
        start, target = self._links.pop()
        shown = " ".join("".join(self._pieces[start:]).split())
        del self._pieces[start:]
        try:
            url = urljoin(self._base_url, target)
        except ValueError:  # a page may write anything there
            url = ""
        useful = shown and url.startswith(("http://", "https://")) and not target.startswith("#")
        self._add(f"[{shown}]({url})" if useful else shown)


def _folded(text: str) -> str:
    """White space as browsers show it: one space."""
    folded = " ".join(text.split())
    if not folded:
        return " " if text else ""
    return f"{' ' if text[0].isspace() else ''}{folded}{' ' if text[-1].isspace() else ''}"


def main() -> int:
    """Read a page, print its text."""
    html = sys.stdin.buffer.read().decode("utf-8", "replace")
    sys.stdout.buffer.write(readable_text(html, sys.argv[1]).encode("utf-8", "replace"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
