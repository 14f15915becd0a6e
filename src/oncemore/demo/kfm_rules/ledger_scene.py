"""The last scene of the demo: the two ledgers of the rules, and a signature that an auditor can check."""

from __future__ import annotations

import io
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from oncemore.demo.kfm_rules.gate_scene import PUBLIC_LABEL
from oncemore.demo.kfm_rules.stac_server import COLLECTION
from oncemore.errors import LedgerMismatch, MissingExtra
from oncemore.governance import keys
from oncemore.governance.checkpoints import LedgerSigner, make_checkpoint
from oncemore.governance.ledger_export import export_ledger, verify_export
from oncemore.governance.record_checks import check_records
from oncemore.queries.ledger_reports import FOLDER, RETRIES, VERSIONING, write_reports

if TYPE_CHECKING:
    from oncemore.demo.kfm_rules.demo_output import DemoOutput
    from oncemore.demo.kfm_rules.scenes import KfmRulesDemo

#: Fields that both ledgers have for a failed operation (GOV-6).
EVIDENCE_FIELDS = ("attempts", "error_classes", "dataset_ids", "care_labels")
#: States of the breaker during the outage, as the ledger must have them.
BREAKER_STATES = ["OPEN", "HALF_OPEN", "OPEN", "HALF_OPEN", "CLOSED"]


def play_ledgers(demo: KfmRulesDemo) -> None:
    """Write both ledgers, print their entries about the bad item, and sign the log."""
    ledgers = read_ledgers(demo)
    output = demo.output
    for name, entries in ledgers.items():
        output.write_row(f"{FOLDER}/{name}.json  {len(entries)} entries")
        kinds = Counter(str(entry.get("kind", entry.get("outcome"))) for entry in entries)
        output.write_row(", ".join(f"{count} {kind}" for kind, count in kinds.items()), "dim", "  ")
        output.expect(f"entries of {name}, each once", len({entry["id"] for entry in entries}), len(entries))
        check_bad_item(output, name, entries)
    states = [entry["state"] for entry in ledgers[VERSIONING] if entry["kind"] == "breaker"]
    output.write_row(f"the breaker in the ledger: {', '.join(states)}")
    output.expect("breaker in the ledger", states, BREAKER_STATES)
    report = check_records(demo.engine.store)
    output.write_row(
        f"record checks: {report.runs} runs, {report.entries} entries, {len(report.findings)} findings"
    )
    output.expect("findings of the record checks", [finding.text for finding in report.findings], [])
    sign_log(demo)


def read_ledgers(demo: KfmRulesDemo) -> dict[str, list[dict[str, Any]]]:
    """Write both ledgers and return their entries as read from the files."""
    write_reports(demo.engine, demo.folder)
    files = {name: demo.folder / FOLDER / f"{name}.json" for name in (RETRIES, VERSIONING)}
    return {name: json.loads(file.read_text(encoding="utf-8"))["entries"] for name, file in files.items()}


def check_bad_item(output: DemoOutput, name: str, entries: list[dict[str, Any]]) -> None:
    """Print the entry about the item with bad data; it must have attempts, classes, dataset and label."""
    about_item = [entry for entry in entries if entry.get("error_classes") == ["SCHEMA_INVALID"]]
    output.expect(f"entries about the bad item in {name}", len(about_item), 1)
    for entry in about_item:
        evidence = {field: entry[field] for field in EVIDENCE_FIELDS}
        output.write_row(json.dumps(evidence, ensure_ascii=False), "", "  ")
        output.expect(f"attempts in {name}", entry["attempts"], 1)
        output.expect(f"dataset in {name}", entry["dataset_ids"], [COLLECTION])
        output.expect(f"CARE label in {name}", entry["care_labels"], [PUBLIC_LABEL])


def sign_log(demo: KfmRulesDemo) -> None:
    """Sign the log; verify an export of it with the public key alone, and once more after a change."""
    try:
        key = keys.generate_key()
    except MissingExtra:
        demo.output.write_row("not signed: that needs pip install 'oncemore[sign]'", "dim")
        return
    signed = make_checkpoint(demo.engine, LedgerSigner(key, None))
    file = io.BytesIO()
    export_ledger(demo.engine, file)
    exported = file.getvalue()
    report = verify_export(io.BytesIO(exported), [key.public])
    demo.output.write_row(
        f"signed: {signed.checkpoint.size} entries; an export verifies with the public key alone", "green"
    )
    demo.output.expect("entries in the export", report.entries, signed.checkpoint.size)
    # The last place is the failed run; the first one is the policy, which lists the class.
    before, _, after = exported.rpartition(b"SCHEMA_INVALID")
    forged = before + b"SCHEMA_CORRECT" + after
    try:
        verify_export(io.BytesIO(forged), [key.public])
        fault = ""
    except LedgerMismatch as error:
        fault = str(error)
    demo.output.write_row(f"SCHEMA_INVALID changed in the export: {fault or 'not noticed'}", "red")
    demo.output.expect("forged export refused", bool(fault), True)
