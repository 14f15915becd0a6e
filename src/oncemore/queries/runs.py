"""Find runs by step, state, error, dataset, tenant, correlation id and time, newest first.

The store's index answers step, state, dataset and time. For the rest the store searches the bytes of all
heads, and the results are compared here again, because the bytes may occur in another field.
"""

from __future__ import annotations

import re
from heapq import merge
from itertools import islice

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.queries import normalize_names
from oncemore.queries.entries import find_seq, read_body

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from oncemore.control.model import SwitchBoard
    from oncemore.log.record import RunRecord
    from oncemore.log.store import Head, HeadQuery, Store

MAX_LIMIT = 100_000
FIRST_PAGE, LARGEST_PAGE = 100, 20_000
MIN_NAME_LENGTH = 4
#: The number of entries of a key in which its last arguments are searched.
MAX_SEARCHED = 1_000
#: The index lists runs that wait for a person under HELD, although their state is SOFT_FAIL.
HELD = "HELD"
STORED_STATES = {"SOFT_FAIL": ("SOFT_FAIL", HELD)}
FAILED_STATES = ("SOFT_FAIL", HELD, "HARD_FAIL")
WAITING_STATES = ("PENDING", "SOFT_FAIL")


class RunFilter(Value):
    """The runs to select; a field that is None matches every run. Times are those of the last change.

    before  only runs whose last entry has a lower seq: the `seq` of the last row continues a list
    """

    step: str | None = None
    state: str | None = None
    error: str | None = None
    dataset: str | None = None
    tenant: str | None = None
    correlation: str | None = None
    since: float | None = None
    until: float | None = None
    held: bool = False
    limit: int = 50
    before: int | None = None


class RunRow(Value):
    """The last run of a key, in one row.

    attempts    the number of attempts of this run
    runs        the number of runs of the key
    changed     the time of the last entry
    error       the class of the error that the run last ended with
    stopped_by  the switch that stops the run
    crashes     attempts of this run that were lost with their process, of max_crashes; max_crashes is 0 if
                lost attempts count as attempts
    arguments   the recorded arguments; None if they were not asked for, or are not readable
    """

    run_id: str
    key: str
    step: str
    state: str
    reason: str
    held_for: str
    error: str
    message: str
    attempts: int
    max_attempts: int
    runs: int
    effect: str
    created: float
    changed: float
    not_before: float
    worker: str
    tenant: str
    dataset: str
    correlation_id: str
    policy: str
    seq: int
    stopped_by: str = ""
    crashes: int = 0
    max_crashes: int = 0
    arguments: Any = None


def list_runs(store: Store, wanted: RunFilter, *, with_arguments: bool = False) -> list[RunRow]:
    """Return the runs that match a filter, most recently changed first.

    with_arguments  also read the arguments of each run, which takes one more read for each
    """
    wanted = check_filter(wanted)
    rows: list[RunRow] = []
    queries = [build_query(store, wanted, state) for state in list_stored_states(wanted)]
    sources = (read_heads(store, query) for query in queries)
    for head in merge(*sources, key=lambda head: -head.seq):
        row = make_row(store, head)
        if matches_filter(row, wanted):
            rows.append(row)
            if len(rows) == wanted.limit:
                break
    rows = add_stopping_switch(store, rows)
    if with_arguments:
        rows = [row._replace(arguments=load_arguments(store, row)) for row in rows]
    return rows


def load_arguments(store: Store, row: RunRow) -> Any:
    """Return the recorded arguments of a run; None if they were pruned, erased or encrypted."""
    entries = store.read_entries(f"run/{row.key}")
    # The first entry of a run has its arguments; only a key with several runs needs a search.
    bodies = (read_body(entry) for entry in islice(entries, 1 if row.runs == 1 else MAX_SEARCHED))
    found = [body["arguments"] for body in bodies if "arguments" in body]
    return found[-1] if found else None


def check_filter(wanted: RunFilter) -> RunFilter:
    """Return a filter with its names in NFC; raise `UsageError` for a limit out of range."""
    if not 1 <= wanted.limit <= MAX_LIMIT:
        raise UsageError(f"limit is {wanted.limit}; it takes 1 to {MAX_LIMIT}.")
    return normalize_names(wanted, "step", "dataset", "tenant")


def list_stored_states(wanted: RunFilter) -> tuple[str | None, ...]:
    """Return the states by which the store finds the wanted runs; None for every state."""
    if wanted.held:
        return (HELD,)
    if wanted.state is not None:
        return STORED_STATES.get(wanted.state, (wanted.state,))
    return FAILED_STATES if wanted.error else (None,)


def read_heads(store: Store, query: HeadQuery) -> Iterator[Head]:
    """Yield the heads that match a query, newest first, in pages that grow."""
    while True:
        page = list(store.list_heads(query))
        yield from page
        if len(page) < query.limit:
            return
        query = query._replace(before_seq=page[-1].seq, limit=min(LARGEST_PAGE, 8 * query.limit))


def build_query(store: Store, wanted: RunFilter, state: str | None) -> HeadQuery:
    """Return the query for the heads that may match a filter, newest first."""
    from msgspec.json import encode

    from oncemore.log.store import HeadQuery

    # The head is JSON, so a word is searched in its encoded form; one word per query is supported.
    words = [encode(word) for word in (wanted.correlation, wanted.tenant) if word]
    return HeadQuery(
        "run",
        state=state,
        step=wanted.step,
        dataset=wanted.dataset,
        newest_first=True,
        after_seq=0 if wanted.since is None else find_seq(store, wanted.since),
        before_seq=_find_upper_seq(store, wanted),
        head_contains=words[0] if words else b"",
        body_contains=encode(wanted.error) if wanted.error else b"",
        limit=max(FIRST_PAGE, wanted.limit),
    )


def _find_upper_seq(store: Store, wanted: RunFilter) -> int | None:
    """Return the seq below which the last entry of a run must lie; None for no limit."""
    # Two seconds more, because find_seq may stop a second early.
    until = None if wanted.until is None else find_seq(store, wanted.until + 2.0) + 1
    return min((seq for seq in (until, wanted.before) if seq is not None), default=None)


def matches_filter(row: RunRow, wanted: RunFilter) -> bool:
    """Return whether a row has the wanted values that the store has not compared."""
    pairs = (
        (wanted.tenant, row.tenant),
        (wanted.correlation, row.correlation_id),
        (wanted.error, row.error),
    )
    return (
        all(want is None or want == value for want, value in pairs)
        and (wanted.since is None or row.changed >= wanted.since)
        and (wanted.until is None or row.changed <= wanted.until)
        and (not wanted.held or bool(row.held_for))
    )


def make_row(store: Store, head: Head) -> RunRow:
    """Return the row of a run from its head and its last entry."""
    from oncemore.log.entry_codec import decode_head, decode_header

    run: RunRecord = decode_head(head.head)
    # The time and the error of the last change are in the last entry only.
    last = next(iter(store.read_entries(head.entity, head.version - 1)), None)
    body = {} if last is None else read_body(last)
    changed = run.started_at if last is None else decode_header(last.header).at
    return build_row(head.entity, run, body, changed, head.seq)


def build_row(entity: str, run: RunRecord, body: dict[str, Any], changed: float, seq: int) -> RunRow:
    """Return the row of a run, given the body, the time and the seq of its last entry."""
    error = body.get("error") or {}
    return RunRow(
        run_id=run.run_id,
        key=entity.removeprefix("run/"),
        step=run.step,
        state=run.state,
        reason=run.reason,
        held_for=run.held_for,
        error=error_class(error),
        message=str(error.get("message", "")),
        attempts=run.attempt_count,
        max_attempts=run.max_attempts,
        runs=run.run_number,
        effect=run.effect,
        created=run.created_at,
        changed=changed,
        not_before=run.not_before,
        worker=run.worker,
        tenant=run.tenant,
        dataset=run.dataset,
        correlation_id=run.correlation_id,
        policy=run.policy,
        seq=seq,
        crashes=run.crash_count,
        max_crashes=run.max_crashes,
    )


def error_class(error: dict[str, Any]) -> str:
    """Return the class that errors are grouped by: the code, or the type of an error without a code."""
    return str(error.get("code") or error.get("type") or "")


# Switches -------------------------------------------------------------------------------------------


def load_switches(store: Store) -> SwitchBoard:
    """Return the switches of a store."""
    from oncemore.control.model import SWITCHES_ENTITY, SwitchBoard
    from oncemore.log.entry_codec import decode_head

    head = store.load_head(SWITCHES_ENTITY)
    return SwitchBoard() if head is None else decode_head(head.head, SwitchBoard)


def add_stopping_switch(store: Store, rows: Sequence[RunRow]) -> list[RunRow]:
    """Return rows in which waiting runs name the switch that stops them."""
    if not any(row.state in WAITING_STATES for row in rows):
        return list(rows)
    from oncemore.control.model import find_blocking_switch

    board = load_switches(store)
    return [
        row._replace(
            stopped_by="moved" if board.moved_to else find_blocking_switch(board, (row.step,), row.tenant)
        )
        if row.state in WAITING_STATES
        else row
        for row in rows
    ]


def describe_switch(board: SwitchBoard, name: str) -> str:
    """Return a sentence with the actor that turned on a switch, and the reason."""
    decision = board.active.get(name, {})
    actor = f" by {decision['by']}" if decision.get("by") else ""
    reason = f": {decision['reason']}" if decision.get("reason") else ""
    return f"the switch {name} was turned on{actor}{reason}"


# Finding one run ------------------------------------------------------------------------------------


class FoundRun(Value):
    """A run: the entity of its key, and its id among the runs of that key."""

    entity: str
    run_id: str


def find_run(store: Store, name: str) -> FoundRun:
    """Return the run with an id or a key, given in full or as a unique prefix.

    Raise `UsageError` if no run or more than one has it.
    """
    name = name.strip().removeprefix("run/")
    if len(name) < MIN_NAME_LENGTH:
        raise UsageError(
            f"{name!r} is too short for a run; give {MIN_NAME_LENGTH} characters or more of its id."
        )
    # From the cheapest search to the most expensive one, which reads all heads.
    for search in (_find_by_key, _find_by_time, _find_by_id):
        runs = list(search(store, name))
        if len(runs) > 1 and all(run.entity != f"run/{name}" for run in runs):
            examples = ", ".join(
                (run.run_id if search is not _find_by_key else run.entity[4:20]) for run in runs[:3]
            )
            raise UsageError(f"{name!r} begins several runs ({examples}…); give more of it.")
        if runs:
            return runs[0]
    raise UsageError(f"there is no run {name!r}; `oncemore runs` lists the runs of this store.")


def _find_by_key(store: Store, name: str) -> Iterator[FoundRun]:
    from oncemore.log.entry_codec import decode_head
    from oncemore.log.store import HeadQuery

    for head in store.list_heads(HeadQuery("run", prefix=f"run/{name}", limit=4)):
        yield FoundRun(head.entity, decode_head(head.head).run_id)


def _find_by_id(store: Store, name: str) -> Iterator[FoundRun]:
    """Search the last run of every key for an id."""
    from oncemore.log.entry_codec import decode_head
    from oncemore.log.store import HeadQuery

    if re.fullmatch(r"[0-9a-f-]+", name):
        for head in store.list_heads(
            HeadQuery("run", newest_first=True, head_contains=b'"' + name.encode(), limit=16)
        ):
            run_id: str = decode_head(head.head).run_id
            if run_id.startswith(name):
                yield FoundRun(head.entity, run_id)


def _find_by_time(store: Store, name: str) -> Iterator[FoundRun]:
    """Search the log for the first entry of a run, at the time that its id begins with (UUIDv7)."""
    from oncemore.log.entry_codec import decode_header

    digits = name.replace("-", "")
    if not re.fullmatch(r"[0-9a-f]{12,32}", digits):
        return
    at = int(digits[:12], 16) / 1000.0
    for number, entry in enumerate(store.read_entries(after=find_seq(store, at - 1.0))):
        # Most headers do not contain the id, and need not be decoded; the time is looked at now and then.
        is_match = name.encode() in entry.header and entry.entity.startswith("run/")
        if not is_match and number % 100:
            continue
        header = decode_header(entry.header)
        # The id is made before the entry is written; a minute covers a slow store.
        if header.at > at + 60.0:
            return
        if is_match and str(header.sets.get("run_id", "")).startswith(name):
            yield FoundRun(entry.entity, header.sets["run_id"])
            # No second run has a whole id.
            if len(digits) == 32:
                return


#: The number of last log entries whose runs and steps are suggested.
NEWEST_ENTRIES = 10_000


# Shell completion -----------------------------------------------------------------------------------


def complete_run_ids(store: Store, prefix: str, limit: int = 20, state: str | None = None) -> list[str]:
    """Return the ids of the newest runs that begin with a prefix."""
    from oncemore.log.entry_codec import decode_head

    states: Iterator[RunRecord] = (decode_head(head.head) for head in _newest_heads(store, state))
    return [run.run_id for run in states if run.run_id.startswith(prefix)][:limit]


def complete_step_names(store: Store, prefix: str) -> list[str]:
    """Return the step names of the newest runs that begin with a prefix."""
    return sorted({head.by.step for head in _newest_heads(store, None) if head.by.step.startswith(prefix)})


def _newest_heads(store: Store, state: str | None) -> Iterator[Head]:
    from oncemore.log.store import HeadQuery

    # Failed and held heads have an index; all others are found at the end of the log, or not at all.
    after_seq = max(0, store.wait_for_change(0, 0.0) - NEWEST_ENTRIES) if state is None else 0
    query = HeadQuery("run", state=state, newest_first=True, after_seq=after_seq, limit=500)
    return iter(store.list_heads(query))
