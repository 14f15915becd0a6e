"""The options of commands that record a decision of a person: the name, a token, or a signature.

--sign-with KEY                      the decision is signed with a private key at once
--sign-with KEY.pub --prepare FILE   nothing is decided: FILE has what is to be signed elsewhere
--signed FILE                        the decision is made with the signature in FILE.sig
--token-file FILE                    the decision is made by the holder of a token
"""

from __future__ import annotations

import sys
from functools import wraps
from pathlib import Path

import click

from oncemore.cli.commands import by_option, combine_options, value_option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

IDENTITY_OPTIONS = "sign_with prepare signed token_file"
#: The title of these options in the help of a command.
IDENTITY_GROUP = {"Identity (in a store with roles)": IDENTITY_OPTIONS}

_identity_options = combine_options(
    value_option("--sign-with", "KEY", "Sign the decision with this private key."),
    value_option("--prepare", "FILE", "Decide nothing: write what to sign; --sign-with names KEY.pub."),
    value_option("--signed", "FILE", "The prepared decision, with its signature in FILE.sig."),
    value_option("--token-file", "FILE", "Decide as the holder of the token in this file."),
)


def identity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say who decides, and run the command as that identity."""

    @wraps(command)
    def run_as_identity(
        *args: Any,
        sign_with: str | None,
        prepare: str | None,
        signed: str | None,
        token_file: str | None,
        **options: Any,
    ) -> Any:
        # click cannot say that at most one of several options may be given.
        given = [name for name in (sign_with, signed, token_file) if name is not None]
        if not given and prepare is None:
            return command(*args, **options)
        if len(given) != 1 or (prepare is not None and sign_with is None):
            raise click.UsageError(
                "Give one of --sign-with KEY, --sign-with KEY.pub --prepare FILE, --signed FILE and "
                "--token-file FILE.",
                click.get_current_context(),
            )
        return _run_command(command, args, options, (sign_with, prepare, signed, token_file))

    return _identity_options(run_as_identity)


def decision_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --by and the options that say who decides."""
    return by_option(identity_options(command))


def _run_command(command: Any, args: Any, options: dict[str, Any], given: tuple[str | None, ...]) -> Any:
    from oncemore.governance.identity import decide_as
    from oncemore.governance.keys import load_signing_key, load_verify_key
    from oncemore.governance.signed_decisions import (
        KeySigner,
        PresentedSignature,
        StatementPrepared,
        StatementWriter,
    )

    sign_with, prepare, signed, token_file = given
    if token_file is not None:
        # A token is looked up in the store that the command opens, which is not open yet.
        from oncemore.governance.identity import PresentedToken

        credential: Any = PresentedToken(Path(token_file).read_text("utf-8").strip())
    elif signed is not None:
        where = f"{signed}.sig"
        credential = PresentedSignature(Path(signed).read_bytes(), Path(where).read_bytes(), where)
    elif prepare is not None:
        credential = StatementWriter(load_verify_key(str(sign_with)))
    else:
        credential = KeySigner(load_signing_key(str(sign_with)))
    try:
        with decide_as(credential):
            return command(*args, **options)
    except StatementPrepared as prepared:
        _write_statement(Path(str(prepare)), prepared.statement)
        raise click.exceptions.Exit(0) from None


def _write_statement(path: Path, statement: bytes) -> None:
    """Write a prepared decision to a file, and print what to do with it."""
    from oncemore._replace_file import replace_file
    from oncemore.cli.output import OutputWriter
    from oncemore.governance.signed_decisions import NAMESPACE

    # Replaced as a whole: a signer must never see a part of a statement.
    replace_file(path, statement)
    # On standard error: with --json, standard output has the report of a decision, and none was made.
    out = OutputWriter(sys.stderr)
    out.write_line(f"Nothing was decided. {path} has the decision to sign:", "yellow")
    out.write_line(f"  ssh-keygen -Y sign -f KEY -n {NAMESPACE} {path}")
    out.write_paragraph(
        f"Then give the same command with --signed {path} instead of --sign-with and --prepare, within a day."
    )
