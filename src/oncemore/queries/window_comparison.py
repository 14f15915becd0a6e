"""Compare the recorded runs of a window with the same runs under other policies, for the dashboard."""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.queries.energy import cut_period
from oncemore.queries.recorded_runs import RecordedRunFilter, load_recorded_runs
from oncemore.queries.what_if import compare_runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.log.store import Store
    from oncemore.queries.energy import Progress
    from oncemore.queries.what_if import SimulationOptions, SimulationReport


class ComparedWindow(Value):
    """The comparison of a window; `since` is later than asked for if `is_cut`."""

    report: SimulationReport
    since: float
    is_cut: bool


def compare_window(
    store: Store, wanted: RecordedRunFilter, options: SimulationOptions, progress: Progress
) -> ComparedWindow:
    """Return the comparison of the runs that match; raise `UsageError` if there are none."""
    begins, is_cut = cut_period(store, wanted.since, wanted.until)
    runs = load_recorded_runs(store, wanted._replace(since=begins), progress)
    if not runs:
        raise UsageError("no run was recorded in this window; choose an earlier beginning")
    return ComparedWindow(compare_runs(runs, options), begins, is_cut)
