"""The view of `oncemore watch`: running, waiting, held and failed runs, and the rate of the last minute."""

from __future__ import annotations

from oncemore._values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.log.store import Store
    from oncemore.queries.runs import RunRow

#: The length of the window whose entries are counted, and the most entries that are read for it.
WINDOW_S, MAX_ENTRIES = 60.0, 50_000


class RecentActivity(Value):
    """The transitions of the last minute.

    retries  attempts that failed and are tried again
    """

    attempts: int
    completed: int
    retries: int
    failed: int


class WatchView(Value):
    """The runs of a store that need attention, and its recent activity.

    at  the time by the clock of the store
    """

    at: float
    activity: RecentActivity
    running: tuple[RunRow, ...]
    waiting: tuple[RunRow, ...]
    held: tuple[RunRow, ...]
    failed: tuple[RunRow, ...]


def load_watch_view(store: Store, limit: int = 10) -> WatchView:
    """Return the running, waiting, held and lately failed runs of a store, at most `limit` of each."""
    from oncemore.queries.runs import RunFilter, list_runs

    now = store.now()
    waiting = [
        *list_runs(store, RunFilter(state="PENDING", limit=limit), with_arguments=True),
        *list_runs(store, RunFilter(state="SOFT_FAIL", limit=limit), with_arguments=True),
    ]
    # Held runs have the state SOFT_FAIL too; they are listed apart, because only a person can release them.
    due_first = sorted((row for row in waiting if not row.held_for), key=lambda row: row.not_before)
    return WatchView(
        at=now,
        activity=count_activity(store, now - WINDOW_S),
        running=tuple(list_runs(store, RunFilter(state="RUNNING", limit=limit), with_arguments=True)),
        waiting=tuple(due_first[:limit]),
        held=tuple(list_runs(store, RunFilter(held=True, limit=limit), with_arguments=True)),
        failed=tuple(
            list_runs(
                store, RunFilter(state="HARD_FAIL", since=now - 86_400.0, limit=limit), with_arguments=True
            )
        ),
    )


def count_activity(store: Store, since: float) -> RecentActivity:
    """Count the transitions of runs since a time."""
    from oncemore.log.entry_codec import decode_header
    from oncemore.queries.entries import find_seq

    counts = {"INTENT": 0, "COMPLETE": 0, "SOFT_FAIL": 0, "HARD_FAIL": 0}
    for number, entry in enumerate(store.read_entries(after=find_seq(store, since))):
        if number >= MAX_ENTRIES:
            break
        if entry.entity.startswith("run/"):
            header = decode_header(entry.header)
            for mark in header.marks if header.at >= since else ():
                if mark in counts:
                    counts[mark] += 1
    return RecentActivity(
        attempts=counts["INTENT"],
        completed=counts["COMPLETE"],
        retries=counts["SOFT_FAIL"],
        failed=counts["HARD_FAIL"],
    )
