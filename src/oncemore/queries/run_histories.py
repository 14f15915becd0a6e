"""Read runs from a store for an export: one at a time, in the order of their keys.

The order depends on the keys alone, so that two exports of an unchanged log are equal. Only the entries of
one key are in memory at a time.
"""

from __future__ import annotations

from functools import lru_cache

from oncemore._values import Value
from oncemore.lineage.history import AttemptHistory, ParentRun, RunHistory
from oncemore.queries import normalize_names
from oncemore.queries.entries import build_lineage, collect_digests, find_seq, fold_runs
from oncemore.queries.runs import find_run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from oncemore.log.record import RunRecord
    from oncemore.log.store import Store

PAGE = 1000
#: The names of steps of this package; their runs are not the user's work.
OWN_STEPS = "oncemore."
FINAL_STATES = ("COMPLETE", "HARD_FAIL")


class HistoryFilter(Value):
    """The runs to export: by name, or by step and the time of their last entry; None selects every run.

    names  ids or keys of single runs; the other fields are then ignored
    """

    names: tuple[str, ...] = ()
    step: str | None = None
    since: float | None = None
    until: float | None = None


def read_histories(store: Store, wanted: HistoryFilter) -> Iterator[RunHistory]:
    """Yield the histories of runs in the order of their keys, and of one key oldest first."""
    find_parent = _make_parent_finder(store)
    if wanted.names:
        # Two names can mean the same run, by its id and by its key; it is exported once.
        for found in sorted({find_run(store, name) for name in wanted.names}):
            for history in _read_key(store, found.entity, find_parent):
                if history.run.run_id == found.run_id:
                    yield history
        return
    wanted = normalize_names(wanted, "step")
    for entity in _list_entities(store, wanted):
        for history in _read_key(store, entity, find_parent):
            if (wanted.since is None or history.changed >= wanted.since) and (
                wanted.until is None or history.changed <= wanted.until
            ):
                yield history


def _list_entities(store: Store, wanted: HistoryFilter) -> Iterator[str]:
    """Yield the entities of the wanted runs, in pages."""
    from oncemore.log.store import HeadQuery

    # A key without an entry since that time has no run since then.
    after_seq = 0 if wanted.since is None else find_seq(store, wanted.since)
    query = HeadQuery("run", step=wanted.step, after="", after_seq=after_seq, limit=PAGE)
    while True:
        page = list(store.list_heads(query))
        for head in page:
            if wanted.step is not None or not head.by.step.startswith(OWN_STEPS):
                yield head.entity
        if len(page) < PAGE:
            return
        query = query._replace(after=page[-1].entity)


def _make_parent_finder(store: Store) -> Callable[[str], ParentRun | None]:
    """Return a function that finds the run of a key; a parent has many children, so it is cached."""

    @lru_cache(maxsize=1000)
    def find_parent(key: str) -> ParentRun | None:
        from oncemore.log.entry_codec import decode_head

        head = store.load_head(f"run/{key}")
        if head is None:
            return None
        run: RunRecord = decode_head(head.head)
        return ParentRun(run.step, key, run.cfg_hash, run.run_number)

    return find_parent


def _read_key(
    store: Store, entity: str, find_parent: Callable[[str], ParentRun | None]
) -> Iterator[RunHistory]:
    """Yield the runs of a key."""
    rows = list(fold_runs(store, entity))
    records = _read_records(rows)
    runs: dict[str, list[Any]] = {}
    for row in rows:
        runs.setdefault(row[2].run_id, []).append(row)
    # By configuration, the last run of the key: an earlier one is overwritten here.
    latest = {rows[-1][2].cfg_hash: run_id for run_id, rows in runs.items()}
    for run_id, run_rows in runs.items():
        history = _build_history(entity, run_rows, records, find_parent)
        yield history._replace(is_latest=latest[history.run.cfg_hash] == run_id)


def _read_records(rows: list[Any]) -> dict[int, list[dict[str, Any]]]:
    """Return the exported records of folded entries, by the sequence number of the entry."""
    from oncemore.steps.history import export_folded

    # Encrypted, without the key: what remains is in the headers.
    if any("sealed" in body for *_, body in rows):
        return {}
    records: dict[int, list[dict[str, Any]]] = {}
    for record in export_folded(rows):
        records.setdefault(record["seq"], []).append(record)
    return records


def _build_history(
    entity: str,
    rows: list[Any],
    records: dict[int, list[dict[str, Any]]],
    find_parent: Callable[[str], ParentRun | None],
) -> RunHistory:
    _, last_header, run, _ = rows[-1]
    opening: dict[str, Any] = next((body for *_, body in rows if "arguments" in body), {})
    sealed = next((body["sealed"] for *_, body in rows if "sealed" in body), "")
    commit: dict[str, Any] = next(
        (body for _, header, _, body in reversed(rows) if "COMMIT" in header.marks), {}
    )
    is_readable = bool(commit) and "sealed" not in commit
    outcome = commit or next((body for *_, body in reversed(rows) if "used" in body), {})
    attempts = tuple(_collect_attempts(rows, records))
    key = entity.removeprefix("run/")
    return RunHistory(
        key=key,
        run=run,
        changed=last_header.at,
        pipeline=opening.get("pipeline", ""),
        parent=find_parent(opening["parent"]) if opening.get("parent") else None,
        started=attempts[0].began if attempts else None,
        ended=last_header.at if run.state in FINAL_STATES else None,
        attempts=attempts,
        used=tuple(outcome.get("used", ())),
        artifacts=tuple(plain["$artifact"] for plain in commit.get("artifacts", ())),
        result=collect_digests(commit).get("result", "") if is_readable else "",
        lineage=build_lineage(key, run, commit) if is_readable and run.state == "COMPLETE" else None,
        records=tuple(record for entry, *_ in rows for record in records.get(entry.seq, ())),
        sealed=sealed,
    )


def _collect_attempts(rows: list[Any], records: dict[int, list[dict[str, Any]]]) -> Iterator[AttemptHistory]:
    """Yield the attempts of a run."""
    active: AttemptHistory | None = None
    for entry, header, run, body in rows:
        if "INTENT" in header.marks:
            active = AttemptHistory(run.attempt, header.at)
        elif active is not None and run.state != "RUNNING":
            yield _end_attempt(active, header.at, run, body, records.get(entry.seq, []))
            active = None
    # It still runs, or its worker died and no other has closed it yet.
    if active is not None:
        yield active


def _end_attempt(
    attempt: AttemptHistory, at: float, run: RunRecord, body: dict[str, Any], records: list[dict[str, Any]]
) -> AttemptHistory:
    failed, proof = run.state in ("SOFT_FAIL", "HARD_FAIL"), body.get("proof") or {}
    retryable: bool | None = None
    if failed:
        # An attempt that was lost with its worker has no verdict: it may be tried again unless it is held.
        retryable = proof.get("verdict", "RETRYABLE" if run.state == "SOFT_FAIL" else "") == "RETRYABLE"
        retryable = retryable and not run.held_for
    telemetry = records[0]["telemetry_snapshot"] if records else {}
    return attempt._replace(
        ended=at,
        outcome=run.state,
        reason=run.reason,
        error=body.get("error"),
        delay_s=_find_delay(at, run, proof),
        retryable=retryable,
        circuit_open=bool(telemetry.get("circuit_open")),
        telemetry=telemetry,
        end_record=next((record for record in records if record["kind"] == "TRANSITION"), None),
    )


def _find_delay(at: float, run: RunRecord, proof: dict[str, Any]) -> float | None:
    """Return the wait that was decided after a failed attempt; None if no attempt follows by itself."""
    if run.state != "SOFT_FAIL" or run.held_for:
        return None
    decided = proof.get("delay_s")
    # The proof of a lost attempt has no delay: the next one is due at once, or at a recorded time.
    return float(decided) if decided is not None else max(0.0, run.not_before - at)
