"""The two governance ledgers as files: `versioning_ledger.json` and `pipeline_retry_log.json` (GOV-7).

Both are views of the log, so that they need no writes of their own and cannot disagree with it:

    pipeline_retry_log   one entry for each run that made a second attempt, was refused, failed, or is held
    versioning_ledger    one entry for each change of a policy's version, each decision of a person, each
                         quarantine, each change of a breaker's state, and each removal of data

An entry is named by the log's entry that it comes from, which makes it unique; the same log gives the same
bytes. Files are replaced as a whole: after a kill at any point each holds its old or its new content.

Attempts, error classes, dataset ids and CARE labels (GOV-6) are in every entry, and never empty without a
reason: the field `without` has the reasons. A label is the one that the dataset had when the entry was
written, or at the last failure of a run: the datasets are read in the order of the log, like everything else.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from oncemore._replace_file import replace_file
from oncemore.errors import UsageError
from oncemore.governance.dataset_model import DatasetRecord, dataset_entity
from oncemore.log.entry_codec import decode_header, read_body
from oncemore.log.record import (
    AcceptedPolicy,
    BreakerRecord,
    RecordedPolicy,
    RunRecord,
    WorkerRecord,
    apply_header,
)
from oncemore.steps.history import KINDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.log.store import Entry
    from oncemore.steps.engine import Engine

FOLDER = Path("docs/reports/audit")
VERSIONING, RETRIES = "versioning_ledger", "pipeline_retry_log"
FORMAT = 1
#: Marks of entries by which an attempt was refused before it began.
_REFUSAL_MARKS = {"BREAKER", "QUOTA"}
_REMOVAL_MARKS = {"PRUNE": "prune", "ERASE": "erase"}
NO_DATASET = "the step names no dataset"
NO_ATTEMPT = "no attempt has begun"
NO_ERROR = "no attempt has failed"
NO_LABEL = "the dataset had no label in the registry"
NO_RUN = "the entry is not about a run"
ERASED = "the entries were pruned or erased"


def list_ledger_files(policy: str = "") -> tuple[Path, ...]:
    """Return the paths of the ledger files, relative to their root.

    policy  the address of a policy whose file lists them (`ledgers:`); both, if it is empty
    """
    listed: list[str] = [f"{VERSIONING}.json", f"{RETRIES}.json"]
    if policy:
        from oncemore.policy import files

        listed = files.load(policy).sections.get("ledgers") or []
        if not listed:
            raise UsageError(f"{policy} lists no ledgers; add `ledgers: [{VERSIONING}.json, {RETRIES}.json]`")
    # A plain name has its place in the documents; a path is below the root.
    return tuple(Path(name) if "/" in name else FOLDER / name for name in listed)


def write_reports(engine: Engine, root: Path, policy: str = "") -> dict[str, int]:
    """Write the ledger files below a folder; return the number of entries of each.

    policy  the address of a policy that lists the files; both are written, if it is empty
    """
    # The list is checked before the log is read, which may take long.
    paths = list_ledger_files(policy)
    reports = build_reports(engine)
    written = {}
    for relative in paths:
        path, name = root / relative, relative.stem
        entries = reports[name]
        document = {"ledger": name, "format": FORMAT, "entries": entries}
        replace_file(path, (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())
        written[str(path)] = len(entries)
    return written


def build_reports(engine: Engine) -> dict[str, list[dict[str, Any]]]:
    """Return the entries of both ledgers, in the order of the log."""
    builder = _ReportBuilder(engine)
    for entry in engine.store.read_entries():
        builder.add_entry(entry)
    return {VERSIONING: builder.versioning, RETRIES: builder.list_retries()}


class _RunTally:
    """The attempts, error classes and refusals of one run, as far as the log was read."""

    def __init__(self, position: int, entry: Entry, at: float) -> None:
        self.position, self.key = position, entry.entity.removeprefix("run/")
        self.began_at = self.ended_at = at
        self.error_classes: list[str] = []
        self.is_refused = self.is_removed = False
        self.run = RunRecord()
        #: The label of each dataset of the run, at its last failure, refusal or hold.
        self.labels: dict[str, str] = {}

    @property
    def is_reported(self) -> bool:
        run = self.run
        is_trouble = run.state == "HARD_FAIL" or bool(run.held_for) or bool(self.error_classes)
        return run.attempt_count > 1 or self.is_refused or is_trouble


class _ReportBuilder:
    """Collects the entries of both ledgers in one pass over the log."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.versioning: list[dict[str, Any]] = []
        self._records: dict[str, Any] = {}
        self._tallies: dict[str, _RunTally] = {}
        self._retries: list[tuple[int, dict[str, Any]]] = []
        self._policies: dict[str, RecordedPolicy] = {}
        self._last_decision: tuple[Any, ...] = ()
        self._count = 0

    def add_entry(self, entry: Entry) -> None:
        """Add what an entry says to the ledgers."""
        self._count += 1
        header = decode_header(entry.header)
        kind = KINDS.get(entry.entity.partition("/")[0])
        # The entries of workers are many and say nothing for these ledgers.
        if kind is None or kind is WorkerRecord:
            return
        before = self._records.get(entry.entity)
        after = self._records[entry.entity] = apply_header(before, header.sets, kind)
        body = self._read_body(entry)
        if kind is RunRecord:
            self._add_run_entry(entry, header, before, after, body)
        elif kind is BreakerRecord:
            self._add_breaker(entry, header, before, after)
        elif kind is RecordedPolicy:
            self._add_policy(entry, header, after, body)
        if kind is AcceptedPolicy:
            self._add_accepted(entry, header, before, after, body.get("decision", {}))
        elif "decision" in body:
            self._add_decision(entry, header, after, body["decision"])

    def _read_body(self, entry: Entry) -> dict[str, Any]:
        try:
            return read_body(entry, self._engine.cipher)
        except UsageError:
            # Encrypted, and the key is not here; what headers say is reported all the same.
            return {}

    # Runs -------------------------------------------------------------------------------------------

    def _add_run_entry(
        self, entry: Entry, header: Any, before: RunRecord | None, run: RunRecord, body: dict[str, Any]
    ) -> None:
        tally = self._tallies.get(entry.entity)
        if tally is None or before is None or before.run_id != run.run_id:
            self._close_tally(entry.entity)
            tally = self._tallies[entry.entity] = _RunTally(self._count, entry, header.at)
        tally.run, tally.ended_at = run, header.at
        tally.is_refused = tally.is_refused or bool(_REFUSAL_MARKS & set(header.marks))
        tally.is_removed = tally.is_removed or entry.body is None
        error = body.get("error")
        is_new_hold = run.held_for and (before is None or not before.held_for)
        if error and (run.state in ("SOFT_FAIL", "HARD_FAIL") or is_new_hold):
            tally.error_classes.append(str(error.get("code") or error.get("type") or "unknown"))
        if error or is_new_hold or tally.is_refused or not tally.labels:
            names = {run.dataset, body.get("gate", {}).get("dataset", "")} - {""}
            tally.labels |= {name: self._find_label(name) for name in sorted(names)}
        if is_new_hold or "quarantine" in body:
            self._add_version_entry(
                entry, header, "quarantine", {"reason": run.reason or run.held_for, **self._describe(tally)}
            )
        for mark, name in _REMOVAL_MARKS.items():
            if mark in header.marks:
                removal = body.get(name, {})
                details = {"by": removal.get("actor", ""), "reason": removal.get("reason", "")}
                self._add_version_entry(entry, header, name, {**details, **self._describe(tally)})

    def _close_tally(self, entity: str) -> None:
        tally = self._tallies.pop(entity, None)
        if tally is not None and tally.is_reported:
            run = tally.run
            details = {
                "id": run.run_id,
                "idempotency_key": tally.key,
                "stage_name": run.step,
                "policy": run.policy,
                "began_at": _format_utc(tally.began_at),
                "ended_at": _format_utc(tally.ended_at),
                "outcome": _name_outcome(run, tally),
                "reason": run.reason,
                **self._describe(tally),
            }
            self._retries.append((tally.position, details))

    def list_retries(self) -> list[dict[str, Any]]:
        """Return the entries of the retry log, ordered by the beginning of their runs."""
        for entity in list(self._tallies):
            self._close_tally(entity)
        return [details for _, details in sorted(self._retries, key=lambda pair: pair[0])]

    def _describe(self, tally: _RunTally) -> dict[str, Any]:
        """Return attempts, error classes, dataset ids and CARE labels, and why one of them is empty."""
        run, datasets = tally.run, sorted(tally.labels)
        labels = [label for dataset in datasets if (label := tally.labels[dataset])]
        without = {} if run.attempt_count else {"attempts": NO_ATTEMPT}
        if not tally.error_classes:
            without["error_classes"] = ERASED if tally.is_removed else NO_ERROR
        if not datasets:
            without["dataset_ids"] = NO_DATASET
        if not labels:
            without["care_labels"] = NO_LABEL if datasets else NO_DATASET
        return {
            "attempts": run.attempt_count,
            "error_classes": list(tally.error_classes),
            "dataset_ids": datasets,
            "care_labels": labels,
            "without": without,
        }

    def _find_label(self, dataset: str) -> str:
        """Return the CARE label that a dataset has at this place of the log; empty if it has none."""
        record = self._records.get(dataset_entity(dataset))
        return "" if record is None else str(record.care_label)

    # Everything else --------------------------------------------------------------------------------

    def _add_breaker(
        self, entry: Entry, header: Any, before: BreakerRecord | None, breaker: BreakerRecord
    ) -> None:
        if breaker.state != (before.state if before is not None else "CLOSED"):
            until = _format_utc(breaker.open_until) if breaker.state != "CLOSED" else ""
            details = {"provider": breaker.name, "state": breaker.state, "failures": breaker.failures}
            details |= {"error_class": breaker.last_error_code, "open_until": until}
            self._add_version_entry(entry, header, "breaker", details)

    def _add_policy(self, entry: Entry, header: Any, policy: RecordedPolicy, body: dict[str, Any]) -> None:
        # A version of a governed profile has its own entry, with who and why (`_add_accepted`).
        if policy.fields.get("governed") and policy.source:
            return
        old = self._policies.get(policy.name)
        self._policies[policy.name] = policy
        details = {
            "policy": policy.name,
            "old_version": None if old is None else old.version,
            "new_version": policy.version,
            "old_digest": None if old is None else old.digest,
            "new_digest": policy.digest,
            "source": policy.source,
            "by": body.get("actor", ""),
            "reason": body.get("reason", ""),
        }
        self._add_version_entry(entry, header, "policy_version", details)

    def _add_accepted(
        self,
        entry: Entry,
        header: Any,
        before: AcceptedPolicy | None,
        policy: AcceptedPolicy,
        decision: dict[str, Any],
    ) -> None:
        """Add a version of a governed policy that the store has accepted (VER-4)."""
        details = {
            "policy": policy.name,
            "old_version": None if before is None else before.version,
            "new_version": policy.version,
            "old_digest": None if before is None else before.digest,
            "new_digest": policy.digest,
            "source": policy.source,
            "signature": policy.signature,
            "by": decision.get("actor", ""),
            "reviewer": decision.get("reviewer", ""),
            "reason": decision.get("reason") or "the policy file has no change_reason",
        }
        self._add_version_entry(entry, header, "policy_version", details)

    def _add_decision(self, entry: Entry, header: Any, after: Any, decision: dict[str, Any]) -> None:
        # The entries of one batch repeat the decision: an approval and its run, a run and its artifact.
        identity = (decision.get("action"), decision.get("actor"), decision.get("reason"), header.at)
        if identity == self._last_decision:
            return
        self._last_decision = identity
        named = ("actor", "reason", "action", "signed")
        more = {name: value for name, value in decision.items() if name not in named}
        # The actor has the key id of a signed decision; the signature itself is in the log.
        if "signed" in decision:
            more["signed_at"] = decision["signed"].get("at", "")
        details = {
            "action": decision.get("action", ""),
            "by": decision.get("actor", ""),
            "reason": decision.get("reason", ""),
            "subject": entry.entity,
            "step": getattr(after, "step", ""),
            **({"details": more} if more else {}),
            **self._describe_subject(entry, after),
        }
        self._add_version_entry(entry, header, "decision", details)

    def _describe_subject(self, entry: Entry, record: Any) -> dict[str, Any]:
        """Return the four fields of an entry about a decision: of the run, or of the dataset."""
        # An approval, an escalation, an event and an artifact name the run that they belong to.
        run = getattr(record, "run_entity", "") or entry.entity
        tally = self._tallies.get(run)
        if tally is not None:
            return self._describe(tally)
        if isinstance(record, DatasetRecord):
            described = _describe_no_run()
            described |= {"dataset_ids": [record.dataset_id], "care_labels": [record.care_label]}
            del described["without"]["dataset_ids"], described["without"]["care_labels"]
            return described
        return _describe_no_run()

    def _add_version_entry(self, entry: Entry, header: Any, kind: str, details: dict[str, Any]) -> None:
        identity = {"id": f"{entry.entity}#{entry.version}/{kind}", "kind": kind}
        # Entries about runs have described themselves already.
        if "without" not in details:
            details |= _describe_no_run()
        self.versioning.append({**identity, "at": _format_utc(header.at), **details})


def _describe_no_run() -> dict[str, Any]:
    """Return the four fields of an entry that is not about a run, with the reason for each."""
    names = ("attempts", "error_classes", "dataset_ids", "care_labels")
    empty: dict[str, Any] = {"attempts": 0, **{name: [] for name in names[1:]}}
    return {**empty, "without": dict.fromkeys(names, NO_RUN)}


def _format_utc(at: float) -> str:
    """Return a time as ISO 8601 in UTC, with milliseconds."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _name_outcome(run: RunRecord, tally: _RunTally) -> str:
    """Return the outcome of a run in one word."""
    if run.held_for:
        return "quarantined"
    if run.state == "COMPLETE":
        return "success"
    if run.state == "HARD_FAIL":
        return "exhausted" if run.reason == "max_attempts_exceeded" else "failed"
    return "refused" if tally.is_refused and not run.attempt_count else "open"
