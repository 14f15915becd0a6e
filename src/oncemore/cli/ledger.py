"""`oncemore ledger`: sign the log, verify it, prove entries of it, and write it out for an auditor."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from oncemore.cli.commands import (
    CommandReport,
    LazyGroup,
    documented_command,
    flag_option,
    json_option,
    store_command,
    store_option,
    value_option,
    write_report,
)
from oncemore.cli.maintenance import EVIDENCE_HINT
from oncemore.cli.output import OutputWriter
from oncemore.errors import StoreError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.governance.keys import VerifyKey
    from oncemore.governance.ledger_export import ExportVerification
    from oncemore.governance.ledger_proofs import ProvenGrowth, ProvenHistory
    from oncemore.governance.ledger_verify import LedgerReport
    from oncemore.steps.engine import Engine

LEDGER_EXAMPLES = """
oncemore ledger checkpoint --key ledger-key --copy /mnt/audit/checkpoints
oncemore ledger verify --key ledger-key.pub --against november.checkpoint
oncemore ledger export november.jsonl
oncemore ledger verify --export november.jsonl --key ledger-key.pub
"""
VERIFY_EXAMPLES = """
oncemore ledger verify
oncemore ledger verify --key ledger-key.pub --against november.checkpoint
oncemore ledger verify --key ledger-key.pub --export november.jsonl
oncemore ledger verify --key ledger-key.pub --proof payment.tlog-proof
"""
PROVE_EXAMPLES = """
oncemore ledger prove 9f86d081884c7d65… --out payment.tlog-proof
oncemore ledger prove 1204 --out entry.tlog-proof
oncemore ledger prove --since october.checkpoint --out growth.json
"""
#: For a file that is not genuine.
FILE_HINT = "This file proves nothing. Keep it, and ask for another one."
#: The largest checkpoint or proof that is read.
MAX_FILE_BYTES = 100 * 1024 * 1024

_copy_option = value_option(
    "--copy", "PLACE", "Second place of checkpoints: a folder, s3://… or nats://host:port/BUCKET.", default=""
)


@click.group(
    "ledger",
    cls=LazyGroup,
    modules={
        "checkpoint": "ledger:checkpoint",
        "verify": "ledger:verify",
        "prove": "ledger:prove",
        "export": "ledger:export",
        "reports": "ledger:reports",
    },
    examples=LEDGER_EXAMPLES,
)
def ledger() -> None:
    """Prove that the log was not changed.

    A checkpoint signs all entries of the log with one key. A copy of it in a second place shows later
    whether the log was changed, cut or replaced. An auditor needs an exported file and the public key.
    """


@store_command(
    "checkpoint",
    "oncemore ledger checkpoint\noncemore ledger checkpoint --key ledger-key --copy /mnt/audit/checkpoints",
)
@value_option("--key", "FILE", "Private key; default: the setting ledger_key.", default="")
@_copy_option
@value_option("--out", "FILE", "Also write the checkpoint to this file.", default="")
def checkpoint(engine: Engine, key: str, copy: str, out: str) -> CommandReport:
    """Sign the log as it is now.

    A log without new entries gets no new checkpoint. Exit code 1 if the log does not match its last
    checkpoint or the newest copy in the second place; nothing is signed then. A worker does the same
    regularly if the setting ledger_key is set.
    """
    from oncemore._replace_file import replace_file
    from oncemore.governance.checkpoints import load_signer, make_checkpoint
    from oncemore.governance.signed_note import format_vkey
    from oncemore.queries.stores import settings_for

    settings = settings_for()
    signer = load_signer(key or settings.ledger_key, copy or settings.ledger_copy)
    report = make_checkpoint(engine, signer)
    made = report.checkpoint
    if out:
        replace_file(Path(out), report.note.encode())
    value = {
        "origin": made.origin,
        "size": made.size,
        "root": made.root.hex(),
        "is_new": report.is_new,
        "copied": report.copied,
        "key_id": signer.key.key_id,
        "vkey": format_vkey(made.origin, signer.key.public),
        "note": report.note,
    }

    def print_text(writer: OutputWriter) -> None:
        action = "signed" if report.is_new else "no new entries; the last checkpoint covers"
        writer.write_line(f"{action} {made.size:,} entries of {made.origin}", "green")
        writer.write_line(f"root {made.root.hex()}")
        writer.write_line(f"copied to {report.copied}" if report.copied else "not copied to a second place")

    return CommandReport(value, print_text)


def _load_keys(files: Sequence[str]) -> list[VerifyKey]:
    """Return the public keys in files; without files, that of the setting `ledger_key` if there is one."""
    from oncemore.governance.keys import load_verify_key
    from oncemore.queries.ledger import load_ledger_keys

    return [load_verify_key(file) for file in files] if files else load_ledger_keys()


def _read_text(file: str) -> str:
    path = Path(file)
    if path.stat().st_size > MAX_FILE_BYTES:
        raise UsageError(f"{file} is too large for a checkpoint or a proof")
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not a checkpoint or a proof: it is not text") from None


@documented_command("verify", VERIFY_EXAMPLES)
@value_option(
    "--key keys", "FILE", "Public key; can be repeated; default: that of ledger_key.", multiple=True
)
@value_option("--against", "FILE", "Checkpoint that was kept outside; can be repeated.", multiple=True)
@_copy_option
@value_option("--export export_file", "FILE", "Verify an exported file instead of a store.", default="")
@value_option("--proof proof_file", "FILE", "Verify a proof instead of a store.", default="")
@store_option
@json_option
def verify(
    keys: tuple[str, ...],
    against: tuple[str, ...],
    copy: str,
    export_file: str,
    proof_file: str,
    store: str | None,
    in_json: bool,
) -> int:
    """Verify every chain, head, checkpoint and signature.

    With --against or a second place, a deleted entity, a rewritten history, a cut end and a replaced store
    are found too. --export and --proof need no store: only the file and the public key. Exit code 1 for
    the first fault.
    """
    if export_file and proof_file:
        raise click.UsageError("--export and --proof exclude each other.", click.get_current_context())
    try:
        if export_file:
            report = _verify_export(export_file, keys, against)
        elif proof_file:
            report = _verify_proof(proof_file, keys)
        else:
            report = _verify_store(store, keys, against, copy)
    except StoreError as error:
        # A damaged log gets the hint about evidence instead of the usual message of the program. An auditor
        # with a file has no store that could be restored.
        hint = FILE_HINT if export_file or proof_file else EVIDENCE_HINT
        OutputWriter(sys.stderr, in_json=in_json).write_error(f"{error}.", hint)
        return 1
    return write_report(report, in_json)


def _read_notes(files: Sequence[str]) -> list[tuple[str, str]]:
    return [(file, _read_text(file)) for file in files]


def _verify_store(store: str | None, keys: Sequence[str], against: Sequence[str], copy: str) -> CommandReport:
    from oncemore.governance.checkpoint_copies import open_place
    from oncemore.governance.ledger_verify import verify_ledger
    from oncemore.queries.stores import open_existing, settings_for

    address = copy or settings_for().ledger_copy
    place = open_place(address) if address else None
    with open_existing(store) as engine:
        report = verify_ledger(engine, _load_keys(keys), _read_notes(against), place)
    return CommandReport(report, lambda out: _print_verified(out, report))


def _print_verified(out: OutputWriter, report: LedgerReport) -> None:
    from oncemore.queries.times import format_time

    out.write_line(f"intact: {report.entries:,} entries of {report.entities:,} entities", "green")
    if report.decisions:
        out.write_line(f"{report.decisions:,} signed decisions are genuine")
    if not report.checkpoints:
        out.write_line(
            "no checkpoint: only the hash chains were checked (oncemore ledger checkpoint)", "yellow"
        )
        return
    out.write_line(
        f"{report.covered:,} entries are covered by {report.checkpoints} checkpoints, the last of "
        f"{format_time(report.covered_at)}; {report.uncovered:,} came after it"
    )
    if report.key_ids:
        out.write_line(f"signatures: valid ({', '.join(report.key_ids)})")
    else:
        out.write_line("signatures: NOT checked; give the public key with --key", "yellow")
    _print_outside(out, report.outside, "a cut or replaced store would not be noticed (--against, --copy)")
    for removed in report.removed:
        out.write_line(
            f"{removed.entry_count:,} entries deleted by a prune of {removed.actor}: {removed.reason}"
        )
    for run in report.forgotten:
        if run.how == "erased":
            out.write_line(f"erased {run.key[:12]} of {run.step}, by {run.actor or '?'}: {run.reason or '?'}")


def _print_outside(out: OutputWriter, count: int, risk: str) -> None:
    """Print how many checkpoints from outside were compared, or what is not noticed without one."""
    if count:
        out.write_line(f"{count} checkpoint{'s match' if count > 1 else ' matches'} from outside")
    else:
        out.write_line(f"no checkpoint from outside: {risk}", "yellow")


def _verify_export(file: str, keys: Sequence[str], against: Sequence[str]) -> CommandReport:
    from oncemore.governance.ledger_export import verify_export

    with Path(file).open("rb") as opened:
        report = verify_export(opened, _load_keys(keys), _read_notes(against))
    return CommandReport(report, lambda out: _print_export_verified(out, report))


def _print_export_verified(out: OutputWriter, report: ExportVerification) -> None:
    from oncemore.queries.times import format_time

    out.write_line(f"genuine: {report.entries:,} entries of {report.origin}", "green")
    out.write_line(
        f"{report.checkpoints} checkpoints, the last of {format_time(report.covered_at)}, signed by "
        f"{', '.join(report.key_ids)}"
    )
    _print_outside(out, report.outside, "an older export would not be noticed (--against)")
    if report.decisions:
        out.write_line(f"{report.decisions:,} signed decisions are genuine")
    if report.bodies < report.entries:
        out.write_line(f"{report.entries - report.bodies:,} entries are without their bodies")
    if report.removed:
        out.write_line(f"{report.removed:,} entries were deleted by prunes, which are recorded")
    if report.unexplained:
        out.write_line(f"the records of {report.unexplained:,} deletions are encrypted", "yellow")


def _verify_proof(file: str, keys: Sequence[str]) -> CommandReport:
    from oncemore.governance.ledger_proofs import verify_entry_proof, verify_growth_proof

    text = _read_text(file)
    loaded = _load_keys(keys)
    if not loaded:
        raise UsageError("give the public key of the log: --key FILE")
    if text.startswith("{"):
        growth = verify_growth_proof(text, loaded)
        return CommandReport(growth, lambda out: _print_growth(out, growth))
    history = verify_entry_proof(text, loaded)
    return CommandReport(history, lambda out: _print_history(out, history))


def _print_growth(out: OutputWriter, growth: ProvenGrowth) -> None:
    out.write_line(
        f"proven: the log of {growth.new_size:,} entries begins with the {growth.old_size:,} of the old "
        "checkpoint",
        "green",
    )


def _print_history(out: OutputWriter, history: ProvenHistory) -> None:
    from oncemore.queries.times import format_time

    out.write_line(f"proven: {history.entity}, {history.version} entries", "green")
    out.write_line(
        f"position {history.position:,} of {history.size:,} in {history.origin}, signed "
        f"{format_time(history.covered_at)}"
    )
    for record in history.entries:
        out.write_line(str(record["header"]))
        if record["body"] is not None:
            out.write_line(str(record["body"]), "dim")


@store_command("prove", PROVE_EXAMPLES)
@click.argument("subject", metavar="[KEY|SEQ]", default="", help="Key of a run, seq, or entity.")
@value_option("--since", "FILE", "Prove that the log begins with that of this checkpoint.", default="")
@value_option("--out", "FILE", "File of the proof.", required=True)
def prove(engine: Engine, subject: str, since: str, out: str) -> CommandReport:
    """Write a proof that an entry is in the signed log.

    The proof of a KEY holds the whole history of the run and verifies without the store:
    `oncemore ledger verify --proof FILE --key PUB`. With --since, it proves instead that the log still
    begins with the entries of an older checkpoint.
    """
    from oncemore._replace_file import replace_file
    from oncemore.governance.ledger_proofs import prove_entry, prove_growth

    if bool(subject) == bool(since):
        raise click.UsageError("give KEY or SEQ, or --since FILE.", click.get_current_context())
    text = prove_growth(engine, _read_text(since)) if since else prove_entry(engine, subject)
    replace_file(Path(out), text.encode())
    return CommandReport({"file": out}, lambda writer: writer.write_line(f"wrote {out}", "green"))


@store_command(
    "export", "oncemore ledger export november.jsonl\noncemore ledger export --without-bodies a.jsonl"
)
@click.argument(
    "file", type=click.Path(dir_okay=False), help="The file to write; an existing one is replaced."
)
@flag_option("--without-bodies", "Leave out arguments, results and errors; the file verifies as well.")
def export(engine: Engine, file: str, without_bodies: bool) -> CommandReport:
    """Write the log into one file for an auditor.

    The public key alone is needed to verify it.

    The file ends with the newest checkpoint; make one first (`oncemore ledger checkpoint`).
    """
    from oncemore.governance.ledger_export import export_to_path

    report = export_to_path(engine, Path(file), with_bodies=not without_bodies)
    text = f"{file}: {report.size:,} entries, {report.checkpoints} checkpoints of {report.origin}"
    return CommandReport(
        {"file": file, "size": report.size, "checkpoints": report.checkpoints, "origin": report.origin},
        lambda out: out.write_line(text, "green"),
    )


@store_command(
    "reports",
    "oncemore ledger reports\noncemore ledger reports --root /srv/project\n"
    "oncemore ledger reports --policy policies/ingest.yaml",
)
@value_option("--root", "DIR", "Folder below which the files are written.", default=".")
@value_option("--policy", "NAME", "Write the files that this policy lists as `ledgers:`.", default="")
def reports(engine: Engine, root: str, policy: str) -> CommandReport:
    """Write the ledgers of the KFM rules.

    They are versioning_ledger.json and pipeline_retry_log.json, below docs/reports/audit.

    Each file is replaced as a whole: a reader sees the old or the new one. The same log gives the same
    bytes.
    """
    from oncemore.queries.ledger_reports import write_reports

    written = write_reports(engine, Path(root), policy)

    def print_text(out: OutputWriter) -> None:
        for path, count in written.items():
            out.write_line(f"{path}: {count:,} entries", "green")

    return CommandReport(written, print_text)
