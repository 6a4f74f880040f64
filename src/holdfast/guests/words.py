"""What an exception of somebody else's code says, as far as it may be told (C6): on one line, bounded, without secrets.

Whoever writes an agent wants to read what it raised, and whoever asks it must not read its keys. What looks like a
secret is left out: what follows a word such as `password`, keys by their usual beginnings, the user in an address, and
long words of letters and digits. What looks like nothing of this is told: an agent that would keep more to itself
catches its exceptions. Vocabulary: imports nothing of ours.
"""

import re
from typing import Final

MAX_CHARACTERS: Final = 300
_READ: Final = 1_000
"""So much of a message is looked at."""
STAND_IN: Final = "[secret]"

_NAMES: Final = (
    r"pass(?:word|wd|phrase|code)?|pwd|secrets?|tokens?|api[-_ ]?keys?|(?:access|private|signing|secret)[-_ ]?keys?"
    r"|auth(?:orization)?|credentials?|cookies?|signature|pin|dsn"
)
_NAMED: Final = re.compile(
    rf"""(?ix)
    (?P<name> (?<![a-z]) [\w-]{{0,24}}? (?:{_NAMES}) ["']? )
    (?P<link> \s* (?: := | => | [=:] ) \s* | \s+ (?: is | was | of ) \s+ | \s+ (?=["']) )
    (?: (?: bearer | basic | token ) \s+ )?
    (?: "[^"]*" | '[^']*' | [^\s,;&)}}\]]+ )
    """
)
_PARTS: Final = (
    re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.DOTALL),
    re.compile(r"(?<=://)[^\s/@]+(?=@)"),
    re.compile(r"(?i)(?<=\bbearer )\S+|(?<=\bbasic )\S{8,}"),
    re.compile(r"\b(?:sk|pk|rk|hf|gh[opsru]|github_pat|glpat|xox[a-z]|npm|pypi|ya29|whsec)[-_.][\w.-]{4,}"),
    re.compile(r"\b(?:AKIA|ASIA|AIza|eyJ)[\w.-]{8,}"),
    re.compile(r"(?<![\w+-])(?=[\w+-]*\d)(?=[\w+-]*[A-Za-z])[\w+-]{16,}={0,2}"),
    # A password beside its name without anything in between: `password hunter2`.
    re.compile(r"(?i)(?<=\bpassword )(?=\S*[^a-z\s.,])\S+"),
)


def words_of(error: BaseException) -> str:
    """What it says; empty: nothing, or it cannot be asked."""
    try:
        said = str(error)
    except Exception:  # its own code, which may do anything
        return ""
    text = _NAMED.sub(rf"\g<name>\g<link>{STAND_IN}", said[:_READ])
    for secret in _PARTS:
        text = secret.sub(STAND_IN, text)
    text = " ".join(text.split())
    if len(text) > MAX_CHARACTERS:
        # A cut may leave the beginning of what was to be left out, so it is made where a word ends.
        text = text[:MAX_CHARACTERS].rpartition(" ")[0] + " …"
    return text
