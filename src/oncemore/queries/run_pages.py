"""One page of a list of runs, within a time limit, however many runs the store has.

Failed and held runs have an index. For everything else the log is read backwards in windows; when the time is
over, the page says how far back it has searched and where the next page continues.
"""

from __future__ import annotations

import time
from heapq import merge

from oncemore._values import Value
from oncemore.queries.runs import (
    HELD,
    RunFilter,
    RunRow,
    add_stopping_switch,
    build_query,
    check_filter,
    list_runs,
    list_stored_states,
    load_arguments,
    make_row,
    matches_filter,
    read_heads,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from oncemore.log.store import Head, Store
    from oncemore.queries.activity import OngoingAttempt

#: The number of log entries of one window, and the time after which no further window is read.
WINDOW, BUDGET_S = 10_000, 0.1
#: The states for which stores have an index.
INDEXED_STATES = {HELD, "HARD_FAIL"}


class RunPage(Value):
    """A page of runs, most recently changed first.

    next_before  the `before` of the next page; None if there is none
    searched_to  the time of the oldest entry that was searched, if the time limit ended the search; else None
    """

    rows: tuple[RunRow, ...]
    next_before: int | None = None
    searched_to: float | None = None


def add_arguments(store: Store, page: RunPage) -> RunPage:
    """Return a page whose rows have their arguments; that takes one more read for each."""
    return page._replace(rows=tuple(row._replace(arguments=load_arguments(store, row)) for row in page.rows))


def load_run_page(
    store: Store,
    wanted: RunFilter,
    *,
    budget_s: float = BUDGET_S,
    clock: Callable[[], float] = time.monotonic,
) -> RunPage:
    """Return one page of the runs that match a filter."""
    wanted = check_filter(wanted)
    if set(list_stored_states(wanted)) <= INDEXED_STATES:
        rows = list_runs(store, wanted._replace(limit=wanted.limit + 1))
        return _make_page(rows, wanted.limit)
    ends_at, rows = clock() + budget_s, list[RunRow]()
    for bottom, heads in _read_windows(store, wanted):
        for head in heads:
            row = make_row(store, head)
            if matches_filter(row, wanted):
                rows.append(row)
            if len(rows) > wanted.limit:
                return _make_page(add_stopping_switch(store, rows), wanted.limit)
        if bottom > 0 and clock() >= ends_at:
            page = _make_page(add_stopping_switch(store, rows), wanted.limit)
            return page._replace(next_before=bottom + 1, searched_to=_find_time(store, bottom))
    return _make_page(add_stopping_switch(store, rows), wanted.limit)


def _read_windows(store: Store, wanted: RunFilter) -> Iterator[tuple[int, Iterator[Head]]]:
    """Yield the windows of the log, newest first: the lower end of each, and the heads of its entries."""
    # SOFT_FAIL is stored as two states, so that one window may need two queries.
    queries = [build_query(store, wanted, state) for state in list_stored_states(wanted)]
    first = queries[0]
    last_seq = store.wait_for_change(0, 0.0)
    top = last_seq if first.before_seq is None else min(last_seq, first.before_seq - 1)
    while top > first.after_seq:
        bottom = max(first.after_seq, top - WINDOW)
        parts = [read_heads(store, query._replace(after_seq=bottom, before_seq=top + 1)) for query in queries]
        yield (bottom if bottom > first.after_seq else 0), merge(*parts, key=lambda head: -head.seq)
        top = bottom


def _make_page(rows: Sequence[RunRow], limit: int) -> RunPage:
    shown = tuple(rows[:limit])
    return RunPage(shown, shown[-1].seq if len(rows) > limit else None)


def describe_arguments(row: RunRow) -> str:
    """Return the arguments of a run as `name=value`; for a program, the key that the caller gave."""
    import json

    arguments = row.arguments
    if not isinstance(arguments, dict):
        return "" if arguments is None else str(arguments)
    if "command" in arguments and isinstance(arguments.get("key"), str):
        return str(arguments["key"])
    return ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)}"
        for name, value in arguments.items()
    )


def _find_time(store: Store, seq: int) -> float:
    from oncemore.log.entry_codec import decode_header

    entry = next(iter(store.read_entries(after=seq)), None)
    return store.now() if entry is None else float(decode_header(entry.header).at)


def list_running_rows(store: Store, running: Sequence[OngoingAttempt], wanted: RunFilter) -> RunPage:
    """Return the running attempts that match a filter: they are few, and known without a search."""
    wanted = check_filter(wanted)
    rows = []
    for attempt in running:
        head = store.load_head(f"run/{attempt.key}")
        # It may have ended since the attempts were counted.
        if head is not None and head.by.state == "RUNNING" and wanted.step in (None, head.by.step):
            row = make_row(store, head)
            is_older = wanted.before is None or row.seq < wanted.before
            if is_older and wanted.dataset in (None, row.dataset) and matches_filter(row, wanted):
                rows.append(row)
    return _make_page(sorted(rows, key=lambda row: -row.seq), wanted.limit)
