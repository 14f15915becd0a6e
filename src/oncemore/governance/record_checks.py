"""Checks of the records of all runs: `oncemore check records`.

The checks read the log and nothing else. Each rule is about entries that a correct engine writes in every
case, so that a finding is a bug, a foreign writer, or an edit of the log:

    telemetry_missing    an attempt ended, and its entry lacks the duration, or class and type of its error;
                         or entries of a run are gone, or have lost their bodies without a prune or an erase
    forbidden_retry      an attempt followed an error that no policy retries, without a decision of a person
    too_many_attempts    an attempt began beyond the bound of its run
    bound_raised         the bound of a run was raised without a recorded decision (GOV-13)
    proof_missing        a run failed, was held or was deferred after a failure without a proof of that
    signature_invalid    a decision of a key lacks its signature, or has one that is not valid

Entries whose bodies were pruned or erased are checked as far as their headers go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.governance.signed_decisions import find_decision_faults
from oncemore.log.entry_codec import decode_head, decode_header, read_body
from oncemore.log.record import RunRecord, apply_header
from oncemore.maintenance.tasks import read_head_pages
from oncemore.policy.verdict import NEVER_RETRIED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oncemore.log.encryption import BodyCipher
    from oncemore.log.store import Entry, Head, Store

#: The largest number of findings of a report; the rest is only counted.
MAX_FINDINGS = 1000
#: Codes of attempts that were stopped from outside: such work goes on by itself, which is not a retry.
_STOPPED = ("CANCELLED", "INTERRUPTED", "EXIT", "GENERATOR_EXIT")
#: Marks of the entry that says that the bodies before it were removed on purpose.
_REMOVALS = frozenset(("PRUNE", "ERASE"))
_FORBIDDEN = frozenset(NEVER_RETRIED) - frozenset(_STOPPED)


class RecordFinding(Value):
    """One finding: the rule, the run and the entry that breaks it, and what is wrong."""

    rule: str
    step: str
    run_id: str
    entity: str
    version: int
    text: str


class RecordReport(Value):
    """The result of checking all runs of a store.

    findings  at most `MAX_FINDINGS`; `more` is the number of the remaining ones
    """

    runs: int
    entries: int
    findings: tuple[RecordFinding, ...]
    more: int = 0


def check_records(store: Store, cipher: BodyCipher | None = None) -> RecordReport:
    """Check the records of all runs of a store."""
    runs = entries = more = 0
    findings: list[RecordFinding] = []
    for page in read_head_pages(store, "run"):
        for head in page:
            checked = list(store.read_entries(head.entity))
            runs, entries = runs + 1, entries + len(checked)
            for finding in check_run(head, checked, cipher):
                if len(findings) < MAX_FINDINGS:
                    findings.append(finding)
                else:
                    more += 1
    # Decisions are about entities of all kinds, and the keys were registered at a place in the whole log.
    faults = find_decision_faults(store, cipher)
    signatures = [
        RecordFinding("signature_invalid", "", "", fault.entity, fault.version, fault.text)
        for fault in faults
    ]
    more += max(0, len(findings) + len(signatures) - MAX_FINDINGS)
    return RecordReport(runs, entries, tuple([*findings, *signatures][:MAX_FINDINGS]), more)


def check_run(
    head: Head, entries: Iterable[Entry], cipher: BodyCipher | None = None
) -> Iterator[RecordFinding]:
    """Yield the findings about the entries of one run's entity, in order."""
    before: RunRecord | None = None
    # Entries without a body, until a later one says that they were pruned or erased.
    bare: list[RecordFinding] = []
    present = 0
    # The error of the last failed attempt, if no policy retries it and no person has decided since.
    forbidden = ""
    for entry in entries:
        header = decode_header(entry.header)
        run = apply_header(before, header.sets)
        body = None if entry.body is None else read_body(entry, cipher)
        problems = [*_check_bounds(before, run, header.marks, body)]
        if before is None or before.run_id != run.run_id:
            # A new run of the key: its policy says whether failed work may begin again.
            forbidden = ""
        if "INTENT" in header.marks:
            if forbidden:
                problems.append(("forbidden_retry", f"an attempt began after {forbidden}"))
            forbidden = ""
        elif body is not None:
            problems += _check_outcome(before, run, header.marks, body)
            code = (body.get("error") or {}).get("code", "")
            forbidden = code if code in _FORBIDDEN else forbidden
        if body is None or "decision" in body:
            # A person has decided. An entry without a body may have held a decision.
            forbidden = ""
        if header.version != present + 1:
            problems.append(("telemetry_missing", _describe_gap(present + 1, header.version - 1)))
        present = header.version
        for rule, text in problems:
            yield RecordFinding(rule, run.step, run.run_id, header.entity, header.version, text)
        if body is None:
            text = "the entry has lost its body, and the run was neither pruned nor erased"
            bare.append(
                RecordFinding("telemetry_missing", run.step, run.run_id, header.entity, header.version, text)
            )
        if not _REMOVALS.isdisjoint(header.marks):
            bare.clear()
        before = run
    yield from bare
    if present < head.version:
        # The head remembers how many entries there were, so that a run is found of which none is left.
        run = before or decode_head(head.head, RunRecord)
        text = _describe_gap(present + 1, head.version)
        yield RecordFinding("telemetry_missing", run.step, run.run_id, head.entity, head.version, text)


def _describe_gap(first: int, last: int) -> str:
    if first == last:
        return f"entry {first} of the run is not in the log"
    return f"entries {first} to {last} of the run are not in the log"


def _check_bounds(
    before: RunRecord | None, run: RunRecord, marks: tuple[str, ...], body: dict[str, Any] | None
) -> Iterator[tuple[str, str]]:
    """Yield the problems with the number of attempts."""
    if "INTENT" in marks and run.max_attempts and run.attempt_count > run.max_attempts:
        # A person has allowed one more attempt of a run that had none left; it is the next one.
        was_decided = before is not None and before.reason == "decided"
        if not was_decided:
            yield (
                "too_many_attempts",
                f"attempt {run.attempt_count} began, and the bound is {run.max_attempts}",
            )
    is_same_run = before is not None and before.run_id == run.run_id
    if is_same_run and before is not None and run.max_attempts > before.max_attempts:
        decision = {} if body is None else body.get("decision", {})
        if body is not None and not (decision.get("reason") and decision.get("actor")):
            text = f"the bound rose from {before.max_attempts} to {run.max_attempts} without a decision"
            yield "bound_raised", text


def _check_outcome(
    before: RunRecord | None, run: RunRecord, marks: tuple[str, ...], body: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield the problems with the entry that ends an attempt, or a run."""
    was_running = before is not None and before.state == "RUNNING" and before.run_id == run.run_id
    ended = was_running and run.state != "RUNNING"
    if ended and "COMMIT" in marks and "duration_s" not in body and run.reason != "reconciled":
        yield "telemetry_missing", "the entry of the result has no duration_s"
    failed = run.state in ("SOFT_FAIL", "HARD_FAIL") and (ended or run.state != getattr(before, "state", ""))
    if failed:
        error = body.get("error") or {}
        missing = [] if "type" in error else ["error.type"]
        # A result that cannot be stored is an error of no class.
        if not error.get("code") and run.reason != "result_unavailable":
            missing.append("error.code")
        if missing:
            yield "telemetry_missing", f"the entry of a failure has no {', '.join(missing)}"
    is_new_hold = bool(run.held_for) and (before is None or before.held_for != run.held_for)
    if (failed or is_new_hold) and not body.get("proof"):
        yield (
            "proof_missing",
            f"{run.state}{f', held for {run.held_for}' if run.held_for else ''} has no proof",
        )
