"""Comments that set a finding aside: `# oncemore: allow OM102 because the provider is on this machine`.

A suppression without a reason has no effect and is itself a finding, as is one that sets nothing aside: a
rule cannot be turned off in silence.
"""

from __future__ import annotations

import io
import re
import tokenize
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

#: The grammar of a suppression in a comment and, without the words before the ids, in the settings.
COMMENT = re.compile(r"#\s*oncemore:\s*(?P<words>.*)", re.DOTALL)
_ALLOW = re.compile(r"allow\b\s*(?P<rest>.*)", re.DOTALL)
_PARTS = re.compile(r"(?P<ids>.*?)(?:\bbecause\b[:\s]*(?P<reason>.*))?$", re.DOTALL)
_RULE_ID = re.compile(r"OM\d{3}")
HOW_TO_WRITE = "write `# oncemore: allow OM102 because <reason>`"


class Suppression(NamedTuple):
    """A suppression: the rules it sets aside, the reason, and the error in it, if any.

    line     the line of the comment
    covered  the line of code it is for: its own, or the next one if it is alone on its line
    """

    line: int
    column: int
    covered: int
    rules: tuple[str, ...]
    reason: str
    fault: str


def parse_suppression(text: str, known: Collection[str]) -> tuple[tuple[str, ...], str, str]:
    """Return rules, reason and fault of the words `OM102, OM103 because <reason>`."""
    found = _PARTS.match(text)
    assert found is not None
    ids = tuple(_RULE_ID.findall(found["ids"]))
    reason = " ".join((found["reason"] or "").split())
    unknown = [one for one in ids if one not in known]
    if not ids:
        return (), "", f"it names no rule: {HOW_TO_WRITE}"
    if unknown:
        return (), "", f"{', '.join(unknown)} is not a rule: see `oncemore lint --explain list`"
    if not reason:
        return (), "", f"it has no reason: {HOW_TO_WRITE}"
    return ids, reason, ""


def find_suppressions(source: str, known: Collection[str]) -> list[Suppression]:
    """Return the suppressions of a source; the tokenizer tells comments from strings."""
    # Nearly no file has one, and the tokenizer takes longer than everything else.
    if "oncemore:" not in source:
        return []
    found = []
    lines = re.split(r"\r\n|\r|\n", source)
    for token in _read_comments(source):
        match = COMMENT.match(token.string)
        if match is None:
            continue
        line, column = token.start
        allow = _ALLOW.match(match["words"])
        if allow is None:
            parsed: tuple[tuple[str, ...], str, str] = (), "", f"it is not understood: {HOW_TO_WRITE}"
        else:
            parsed = parse_suppression(allow["rest"], known)
        covered = line
        if not lines[line - 1][:column].strip():
            # Further comment lines may stand between the suppression and its code.
            while covered < len(lines) and lines[covered - 1].lstrip()[:1] in ("#", ""):
                covered += 1
        found.append(Suppression(line, column, covered, *parsed))
    return found


def _read_comments(source: str) -> Iterator[tokenize.TokenInfo]:
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token
    except (tokenize.TokenError, SyntaxError):
        # The parser has accepted the file; the comments up to here count.
        return
