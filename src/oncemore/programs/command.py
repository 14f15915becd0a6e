"""The options of one `oncemore exec` call, and the two forms of its command line.

An HMAC of the raw bytes under the secret of the store (`programs.store_secret`, ADR 0024) identifies the
command line: it is the key of `--key-from-args`, and two calls with the same `--key` must have the same HMAC.
The log shows operators the words of the command without the values of `--secret-env` variables and without
text that looks like a secret (`_redact`).
"""

from __future__ import annotations

import hmac
import math
import os
from typing import TYPE_CHECKING

from oncemore._redact import MASK, clean_text, mask_text
from oncemore._values import Value
from oncemore.artifacts.backends import compute_digest
from oncemore.audit.error_record import remove_secrets
from oncemore.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from oncemore.policy.policy import Policy
    from oncemore.programs.exit_rules import ExitRules

#: The log shows at most this many words of a command, and shortens longer words.
MAX_WORD_LENGTH, MAX_WORDS = 2_000, 200


class ExecOptions(Value):
    """One call of `oncemore exec`; most fields have the name of their option.

    key               the user's name for the work; None if the command line and its inputs are the key
    env               variables that `--env` sets
    secret_names      variables that `--secret-env` names; `secrets` has their values
    linger_s          how long descendants may outlive the program before they are ended
    keep_output       when to keep output: "always", "failed" or "never"
    max_output        how many bytes of each stream to keep
    max_wait_s        the longest wait between attempts that the call waits for itself
    wants_retries     whether the user asked for retries by a policy, a number of attempts, or waits
    after_failure     how a new call treats failed work: "raise", or "new_run" if the policy says so
    output_fds        file descriptors that receive the program's stdout and stderr; None discards them
    dataset           the dataset that the program works on; the gate asks about it before every attempt
    operation         the operation that it does to the dataset; the name of the step unless given
    masking           the level at which it masks the data
    """

    command: tuple[str, ...]
    key: str | None
    rules: ExitRules
    policy: Policy
    name: str = "exec"
    bucket: str | float | None = None
    inputs: tuple[str, ...] = ()
    stdin: str | None = None
    cwd: str | None = None
    env: Mapping[str, str] = {}
    secret_names: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    if_running: str = "wait"
    grace_s: float = 10.0
    linger_s: float = 2.0
    leave_running: bool = False
    keep_output: str = "always"
    max_output: int = 10 * 1024 * 1024
    max_wait_s: float = math.inf
    wants_retries: bool = False
    after_failure: str = "raise"
    output_fds: tuple[int | None, int | None] = (None, None)
    dataset: str | None = None
    operation: str | None = None
    masking: int | None = None

    def read_inputs(self) -> dict[str, str]:
        """Return the digest of each input file, by the name that the user gave."""
        return {file: _digest_file(file) for file in (*self.inputs, *_as_tuple(self.stdin))}

    def compute_hmac(self, secret: bytes, digests: Mapping[str, str]) -> str:
        """Return the HMAC of everything that distinguishes two command lines.

        That is, as raw bytes: the words of the command, the variables of `--env` (secret ones without their
        values), the text of `--cwd`, and the input files by name and content.
        """
        # The value of a secret variable is left out: a rotated password must not make another command line.
        env = [
            part
            for name in sorted(self.env)
            for part in (name, "" if name in self.secret_names else f"={self.env[name]}")
        ]
        sections = [
            [os.fsencode(text) for text in texts]
            for texts in (
                self.command, env, _as_tuple(self.cwd), _with_digests(sorted(set(self.inputs)), digests),
                _with_digests(_as_tuple(self.stdin), digests),
            )
        ]  # fmt: skip
        digest = hmac.new(secret, b"oncemore exec 1", "sha256")
        for section in sections:
            # Counts and lengths are included, so that no two lists give the same bytes.
            digest.update(len(section).to_bytes(8, "big"))
            for part in section:
                digest.update(len(part).to_bytes(8, "big") + part)
        return digest.hexdigest()

    def describe_command(self, digests: Mapping[str, str]) -> dict[str, object]:
        """Return the fields that the log shows: the words without secrets, and digests of the input files."""
        return {
            "command": mask_command(self.command, self.secrets),
            "inputs": {_to_text(file): digest for file, digest in digests.items()},
        }


def _as_tuple(option: str | None) -> tuple[str, ...]:
    return () if option is None else (option,)


def _with_digests(files: Iterable[str], digests: Mapping[str, str]) -> list[str]:
    return [text for file in files for text in (file, digests[file])]


def _to_text(raw: str) -> str:
    """Return a word of a command line as text that every store can keep; it may not be UTF-8."""
    return os.fsencode(raw).decode("utf-8", "backslashreplace")


def mask_command(command: Iterable[str], secrets: tuple[str, ...]) -> list[str]:
    """Return a command line without secrets, shortened to `MAX_WORDS` words."""
    words, previous = [], ""
    for raw in command:
        word = _to_text(raw)
        words.append(_mask_word(previous, word, secrets))
        previous = word
    if len(words) > MAX_WORDS:
        words[MAX_WORDS:] = [f"… and {len(words) - MAX_WORDS} more words"]
    return words


def _mask_word(previous: str, word: str, secrets: tuple[str, ...]) -> str:
    """Return one word, masked if it holds a secret or follows an option that names one."""
    word = remove_secrets(secrets, word) if secrets else word

    if len(word) > MAX_WORD_LENGTH:
        return f"{_mask_single_word(word[:200])}… {len(word)} characters"
    if (
        previous.startswith("-")
        and mask_text(f"{previous} {word}", 10_000) == f"{clean_text(previous, 10_000)} {MASK}"
    ):
        return MASK
    return _mask_single_word(word)


def _mask_single_word(word: str) -> str:
    masked = mask_text(word, MAX_WORD_LENGTH * 2)
    # Masking also removes line breaks and control characters; a word without a secret keeps them.
    return word if masked == clean_text(word, MAX_WORD_LENGTH * 2) else masked


def _digest_file(file: str) -> str:
    try:
        with open(file, "rb") as content:  # noqa: PTH123 - Path refuses names that are not text
            return compute_digest(content)[0]
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read: {error.strerror}; --input or --stdin names it, so give a readable file"
        ) from None
