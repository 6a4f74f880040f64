"""How a search compares texts, and the terms that a memory is found by; the same in every store.

Sits on nothing of ours. Knows no SQL: a store decides how it looks for terms.
"""

import re
import unicodedata
from typing import Final

MAX_QUERY_TERMS: Final = 64
_PREFIX_CHARACTERS: Final = 3
"""Shorter words are matched whole: `a` should not find everything that begins with it."""
_UNSPACED: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff]+"
)
"""Scripts that are written without spaces, or (Hangul) with endings stuck to the word: cut into pairs of characters."""


def casefold_text(text: str) -> str:
    """A text as searches compare it: without regard to case, width and the like."""
    return unicodedata.normalize("NFKC", text).casefold()


def replace_surrogates(text: str) -> str:
    """A text that can be written as UTF-8: half a surrogate pair becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


def index_terms(text: str) -> list[str]:
    """What a text can be found by: its words, and each pair of neighbours where words have no spaces."""
    terms: list[str] = []
    for word, spaced in _words(text):
        # The last character stands alone, so that every single character begins some term.
        terms += [word] if spaced else [word[at : at + 2] for at in range(len(word))]
    return terms


class Term(str):
    """A term of a query."""

    __slots__ = ()

    @property
    def is_prefix(self) -> bool:
        """Does it also find longer words that begin with it?"""
        return len(self) >= _PREFIX_CHARACTERS or _UNSPACED.fullmatch(self) is not None


def query_terms(query: str) -> list[Term]:
    """What a query looks for, each term once; none when it holds nothing but signs."""
    terms: dict[Term, None] = {}
    for word, spaced in _words(query):
        pairs = [word] if spaced or len(word) == 1 else [word[at : at + 2] for at in range(len(word) - 1)]
        terms |= dict.fromkeys(map(Term, pairs))
    return list(terms)[:MAX_QUERY_TERMS]


def count_matches(text: str, query: str) -> int:
    """How many of a query's terms a text has."""
    terms = set(index_terms(text))
    return sum(
        any(term.startswith(wanted) for term in terms) if wanted.is_prefix else wanted in terms
        for wanted in query_terms(query)
    )


def _words(text: str) -> list[tuple[str, bool]]:
    """The words of a text, and whether its script puts spaces between them."""
    plain = casefold_text(text)
    # Letters, marks and numbers make words; a mark belongs to its letter, which `\w` does not know.
    bare = "".join(char if unicodedata.category(char)[0] in "LMN" else " " for char in plain)
    words: list[tuple[str, bool]] = []
    for word in bare.split():
        start = 0
        for match in _UNSPACED.finditer(word):
            if match.start() > start:
                words.append((word[start : match.start()], True))
            words.append((match.group(), False))
            start = match.end()
        if start < len(word):
            words.append((word[start:], True))
    return words
