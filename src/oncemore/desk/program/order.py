"""What a user has ordered: a program, its key, and what may be written down of its command line.

The log keeps the words of the command without secrets: the values of the variables that `--secret-env` names,
and what looks like a secret (`core.redact`). These words are also what a key is held against: the same
key for another command is refused, and a changed password is no other command. The environment is never
written down.
"""

from __future__ import annotations

import os
from hashlib import sha256
from typing import TYPE_CHECKING

from oncemore.core.redact import MASK, clean, masked
from oncemore.core.value import Value
from oncemore.engine.artifact_places import digest_of
from oncemore.errors import UsageError
from oncemore.evidence.neutral import without

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from oncemore.core.policy import Policy
    from oncemore.desk.program.rules import Rules

#: The longest word that is written down as it is, and how many of them.
LONGEST_WORD, MOST_WORDS = 2_000, 200


class Order(Value):
    """What is to be done; the options of `oncemore exec` have the same names.

    key      what the user calls the work; None where the command and its inputs are the key
    keep     whose output is kept: "always", "failed", "never"
    most     how many bytes of each stream are kept
    after    what a new call makes of work that failed: "raise", or "new_run" where the policy says so
    """

    command: tuple[str, ...]
    key: str | None
    rules: Rules
    policy: Policy
    name: str = "exec"
    bucket: str | float | None = None
    inputs: tuple[str, ...] = ()
    stdin: str | None = None
    cwd: str | None = None
    env: Mapping[str, str] = {}
    secrets: tuple[str, ...] = ()
    if_running: str = "wait"
    grace_s: float = 10.0
    linger_s: float = 2.0
    leave: bool = False
    keep: str = "always"
    most: int = 10 * 1024 * 1024
    after: str = "raise"
    through: tuple[int | None, int | None] = (None, None)

    def arguments(self) -> tuple[str, list[str], dict[str, str]]:
        """Return what counts of it: the key, the command as it is written down, digests of the inputs."""
        files = (*self.inputs, *((self.stdin,) if self.stdin is not None else ()))
        return self.key or "", words_of(self.command, self.secrets), {file: _digest(file) for file in files}


def words_of(command: Iterable[str], secrets: tuple[str, ...]) -> list[str]:
    """Return a command line without secrets; the same line always gives the same words."""
    words, before = [], ""
    for raw in command:
        word = os.fsencode(raw).decode("utf-8", "backslashreplace")
        words.append(_shown(before, word, secrets))
        before = word
    if len(words) > MOST_WORDS:
        rest = sha256("\0".join(words[MOST_WORDS:]).encode()).hexdigest()
        words[MOST_WORDS:] = [f"… and {len(words) - MOST_WORDS} more words, sha256 {rest}"]
    return words


def _shown(before: str, word: str, secrets: tuple[str, ...]) -> str:
    """Return one word: as it is, or masked where it holds a secret or follows the name of one."""
    word = without(secrets, word) if secrets else word
    if len(word) > LONGEST_WORD:
        # By its digest too: two long words that differ at their ends are two.
        return f"{_alone(word[:200])}… {len(word)} characters, sha256 {sha256(word.encode()).hexdigest()}"
    if before.startswith("-") and masked(f"{before} {word}", 10_000) == f"{clean(before, 10_000)} {MASK}":
        return MASK
    return _alone(word)


def _alone(word: str) -> str:
    hidden = masked(word, LONGEST_WORD * 2)
    return word if hidden == clean(word, LONGEST_WORD * 2) else hidden


def _digest(file: str) -> str:
    try:
        with open(file, "rb") as content:  # noqa: PTH123 - bytes that are no text have no Path
            return digest_of(content)[0]
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}; it was named as an input") from None
