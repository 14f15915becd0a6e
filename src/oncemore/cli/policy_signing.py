"""`oncemore policy keygen | sign | verify | accepted`: keys, signatures, remembered versions."""

from __future__ import annotations

import os
import sys

import click

from oncemore.cli.commands import (
    CommandReport,
    WholeNumber,
    choice_option,
    documented_command,
    flag_option,
    json_option,
    report_command,
    store_option,
    value_option,
    write_report,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.cli.output import OutputWriter
    from oncemore.log.record import AcceptedPolicy
    from oncemore.queries.policy_signatures import NewKey, NewSignature, PolicyVerification

KEYGEN_EXAMPLES = """
oncemore policy keygen keys/steward --principal data-steward
oncemore policy keygen keys/steward --principal data-steward >> allowed_signers
"""


@report_command("keygen", KEYGEN_EXAMPLES)
@click.argument("file", metavar="FILE", help="New file of the private key; FILE.pub is the public one.")
@value_option("--principal", "NAME", "Name of the signer in the file of trusted keys.", required=True)
@flag_option("--no-passphrase", "Do not encrypt the private key.")
def keygen(file: str, principal: str, no_passphrase: bool) -> CommandReport:
    """Make a key pair for signing policies.

    The private key is encrypted with the passphrase in ONCEMORE_KEY_PASSPHRASE, or with one that is asked
    for. Standard output is the line that trusts the key; it belongs into the file that the setting
    policy_signers names. Existing files are never replaced.
    """
    from oncemore.queries.policy_signatures import make_key

    key = make_key(file, "" if no_passphrase else _ask_new_passphrase(), principal)
    return CommandReport(key, lambda out: _print_key(out, key))


def _ask_new_passphrase() -> str:
    """Return the passphrase of a new key: of the environment, or typed twice; refuse to have none."""
    from oncemore.governance.keys import PASSPHRASE_VARIABLE

    passphrase = os.environ.get(PASSPHRASE_VARIABLE, "")
    if not passphrase and sys.stdin.isatty():
        passphrase = click.prompt(
            "Passphrase of the new key", hide_input=True, confirmation_prompt=True, err=True
        )
    if not passphrase:
        raise click.UsageError(
            f"A private key needs a passphrase: set {PASSPHRASE_VARIABLE}, or give --no-passphrase.",
            click.get_current_context(),
        )
    return str(passphrase)


def _print_key(out: OutputWriter, key: NewKey) -> None:
    # The line alone is standard output, so that it can be appended to the file of trusted keys.
    plain = "" if key.encrypted else ", not encrypted"
    click.echo(f"{key.private} is the private key{plain}; keep it secret.", err=True)
    click.echo(f"{key.public} is the public key {key.key_id}.", err=True)
    out.write_line(key.signer_line)


SIGN_EXAMPLES = """
oncemore policy sign policies/mine.yaml --key keys/steward
oncemore policy sign policies/mine.yaml --key keys/steward --expires 2027-12-31
oncemore policy sign policies/mine.yaml --key keys/steward --format ssh
"""


@report_command("sign", SIGN_EXAMPLES)
@click.argument("file", metavar="FILE", help="Policy file.")
@value_option("--key", "FILE", "File of the private key.", required=True)
@choice_option("--format form", ("dsse", "ssh"), "Form of the signature: dsse or ssh.", default="dsse")
@value_option("--expires", "DAY", "First day on which the signatures are void (dsse).", default="")
@value_option("--signer", "NAME", "Write FILE.NAME.sig instead of FILE.sig (ssh).", default="")
def sign(file: str, key: str, form: str, expires: str, signer: str) -> CommandReport:
    """Sign a policy file with a key.

    dsse adds the signature to FILE.dsse.json, which holds the signatures of all signers. ssh writes FILE.sig,
    which `ssh-keygen -Y verify -n oncemore-policy` can check. Both cover the exact bytes of the file. A file
    with faults is not signed.
    """
    from oncemore.queries.policy_signatures import sign_policy

    unused = {"dsse": "--signer" if signer else "", "ssh": "--expires" if expires else ""}[form]
    if unused:
        hint = "; an SSH signature has no room for it: write expires: into the file" if form == "ssh" else ""
        raise click.UsageError(f"{unused} is not for {form}{hint}.", click.get_current_context())
    signed = sign_policy(file, key, _ask_passphrase(key), form, expires=expires, signer=signer)
    return CommandReport(signed, lambda out: _print_signature(out, signed))


def _ask_passphrase(key: str) -> str | None:
    """Return the passphrase of an encrypted key, asked for in a terminal; None: from the environment."""
    from oncemore.governance.keys import PASSPHRASE_VARIABLE, is_passphrase_needed

    if os.environ.get(PASSPHRASE_VARIABLE) or not sys.stdin.isatty() or not is_passphrase_needed(key):
        return None
    return str(click.prompt(f"Passphrase of {key}", hide_input=True, err=True))


def _print_signature(out: OutputWriter, signed: NewSignature) -> None:
    until = f", void from {signed.expires}" if signed.expires else ""
    text = f"{signed.profile} {signed.version} signed by {signed.key_id}{until}"
    out.write_line(f"{signed.file}: {text}", "green")
    out.write_line(f"  {signed.signature}")
    if not signed.usable:
        out.write_paragraph(f"not usable yet: {signed.missing}", "yellow")


VERIFY_EXAMPLES = """
oncemore policy verify policies/*.yaml
oncemore policy verify policies/mine.yaml --signers allowed_signers --threshold 2
oncemore policy verify policies/mine.yaml --store runs.db
"""


@documented_command("verify", VERIFY_EXAMPLES)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", help="Policy files.")
@value_option("--signers", "FILE", "File of the trusted keys; default: from the settings.")
@value_option(
    "--threshold", "N", "Different keys that are needed; default: from the settings.", type=WholeNumber(1, 16)
)
@store_option
@json_option
def verify(
    files: tuple[str, ...], signers: str | None, threshold: int | None, store: str | None, in_json: bool
) -> int:
    """Verify the signatures and dates of policy files.

    Exit code 1 if a file is not signed, was changed after it was signed, has expired, or has too few
    signatures of trusted keys. With --store, also if the store remembers a higher version.
    """
    from oncemore.queries.policy_signatures import verify_policy

    results = [verify_policy(file, signers, threshold, store) for file in files]
    is_good = all(result.good for result in results)
    report = CommandReport(results, lambda out: _print_verified(out, results), 0 if is_good else 1)
    return write_report(report, in_json)


def _print_verified(out: OutputWriter, results: Sequence[PolicyVerification]) -> None:
    for result in results:
        for note in result.notes:
            out.write_line(f"{result.file}: note: {note}", "yellow")
        if result.good:
            until = f", until {result.expires}" if result.expires else ""
            text = f"{result.name} {result.version} signed by {', '.join(result.signers)}{until}"
            out.write_line(f"{result.file}: valid: {text}", "green")
        else:
            fault = result.fault.removeprefix(result.file).strip(": ")
            out.write_line(f"{result.file}: refused: {fault}", "red")


@documented_command("accepted", "oncemore policy accepted\noncemore policy accepted --store runs.db --json")
@store_option
@json_option
def accepted(store: str | None, in_json: bool) -> int:
    """List the versions of governed policies that a store remembers.

    No lower version is used with the store again, even if the newer file has expired or is gone.
    """
    from oncemore.queries.policy_signatures import list_accepted

    records = list_accepted(store)
    rows = [{name: value for name, value in each._asdict().items() if name != "content"} for each in records]
    return write_report(CommandReport(rows, lambda out: _print_accepted(out, records)), in_json)


def _print_accepted(out: OutputWriter, records: Sequence[AcceptedPolicy]) -> None:
    from oncemore.cli.policy_tables import SIGNATURE_WORDS
    from oncemore.queries.times import format_time

    if not records:
        out.write_line("No governed policy was used with this store.")
        return
    cells = [
        (
            record.name,
            record.version,
            format_time(record.accepted_at),
            SIGNATURE_WORDS.get(record.signature, record.signature.removeprefix("signed by ")),
        )
        for record in records
    ]
    out.write_table([("name", "version", "since", "signed"), *cells])
