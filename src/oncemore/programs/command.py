"""What a user has ordered: a program, its key, and what may be written down of its command line.

What makes two command lines the same work is an HMAC of their raw bytes under the secret of the store
(`programs.store_secret`, ADR 0024): it is the key of `--key-from-args`, and two calls of one `--key` must
have
the same one. The log shows people the words of the command without secrets: without the values of the
variables that `--secret-env` names, and without what looks like a secret (`_redact`).
"""

from __future__ import annotations

import hmac
import math
import os
from typing import TYPE_CHECKING

from oncemore._redact import MASK, clean, masked
from oncemore._values import Value
from oncemore.artifacts.backends import digest_of
from oncemore.audit.neutral import without
from oncemore.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from oncemore.policy.policy import Policy
    from oncemore.programs.exit_rules import Rules

#: The longest word that is written down as it is, and how many of them.
LONGEST_WORD, MOST_WORDS = 2_000, 200


class Order(Value):
    """What is to be done; the options of `oncemore exec` have the same names.

    key      what the user calls the work; None where the command and its inputs are the key
    keep     whose output is kept: "always", "failed", "never"
    env      variables that `--env` sets
    hidden   names of variables that `--secret-env` names; `secrets` are their values
    most     how many bytes of each stream are kept
    max_wait_s  the longest wait between attempts that a call sits out
    wants_retries  whether the user asked for retries: by a policy, a number of attempts, or waits
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
    hidden: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    if_running: str = "wait"
    grace_s: float = 10.0
    linger_s: float = 2.0
    leave: bool = False
    keep: str = "always"
    most: int = 10 * 1024 * 1024
    max_wait_s: float = math.inf
    wants_retries: bool = False
    after: str = "raise"
    through: tuple[int | None, int | None] = (None, None)

    def read_inputs(self) -> dict[str, str]:
        """Return the digests of all input files, by the names that were given."""
        return {file: _digest(file) for file in (*self.inputs, *_given(self.stdin))}

    def command_hmac(self, secret: bytes, digests: Mapping[str, str]) -> str:
        """Return the HMAC of everything that makes two command lines different work.

        That is, as raw bytes: the words of the command, the variables of `--env` (of a secret one only its
        name), the text of `--cwd`, and the input files by name and content.
        """
        env = [
            part
            for name in sorted(self.env)
            for part in (name, "" if name in self.hidden else f"={self.env[name]}")
        ]
        sections = [
            [os.fsencode(text) for text in texts]
            for texts in (
                self.command, env, _given(self.cwd), _with_digests(sorted(set(self.inputs)), digests),
                _with_digests(_given(self.stdin), digests),
            )
        ]  # fmt: skip
        digest = hmac.new(secret, b"oncemore exec 1", "sha256")
        for section in sections:
            # Counts and lengths are included, so that no two lists give the same bytes.
            digest.update(len(section).to_bytes(8, "big"))
            for part in section:
                digest.update(len(part).to_bytes(8, "big") + part)
        return digest.hexdigest()

    def shown(self, digests: Mapping[str, str]) -> dict[str, object]:
        """Return what the log shows of it: words without secrets, and the digests of the input files."""
        return {
            "command": words_of(self.command, self.secrets),
            "inputs": {_text(file): digest for file, digest in digests.items()},
        }


def _given(option: str | None) -> tuple[str, ...]:
    return () if option is None else (option,)


def _with_digests(files: Iterable[str], digests: Mapping[str, str]) -> list[str]:
    return [text for file in files for text in (file, digests[file])]


def _text(raw: str) -> str:
    """Return bytes that came from a command line as text that can be stored."""
    return os.fsencode(raw).decode("utf-8", "backslashreplace")


def words_of(command: Iterable[str], secrets: tuple[str, ...]) -> list[str]:
    """Return a command line as people may see it: without secrets, and shortened."""
    words, before = [], ""
    for raw in command:
        word = _text(raw)
        words.append(_shown(before, word, secrets))
        before = word
    if len(words) > MOST_WORDS:
        words[MOST_WORDS:] = [f"… and {len(words) - MOST_WORDS} more words"]
    return words


def _shown(before: str, word: str, secrets: tuple[str, ...]) -> str:
    """Return one word: as it is, or masked where it holds a secret or follows the name of one."""
    word = without(secrets, word) if secrets else word
    if len(word) > LONGEST_WORD:
        return f"{_alone(word[:200])}… {len(word)} characters"
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
