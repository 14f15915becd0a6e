"""HEALTH: the four criteria of a pipeline that can be trusted (TEST-6), on any store.

    1  work that is run again leaves the same artifacts and results, under the same lineage ids
    2  states follow from the log alone, without anybody's edits
    3  no work that was complete is computed a second time
    4  every decision can be explained from its proof

One pass over the log answers all four. The first can also be asked between two stores: whether a window that
failed and was run again elsewhere left what an undisturbed one has left.

Beside them it tells what people have stopped. That is no criterion: a store in which nothing begins because
somebody wants it so is as healthy as before.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import StoreError
from oncemore.queries.bodies import key
from oncemore.queries.control import control_of
from oncemore.queries.explain import LOST
from oncemore.queries.lineage import lineages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from oncemore.artifacts.store import Shelf
    from oncemore.control.switches import Thrown
    from oncemore.log.record import Run
    from oncemore.log.store import Entry, Store
    from oncemore.maintenance.lineage import Lineage
    from oncemore.maintenance.replay import Told

    Progress = Callable[[int, int], object]

MOST_EXAMPLES = 5
NAMES = (
    "the same artifacts and lineage when run again",
    "replay without edits",
    "no double spikes",
    "decisions explained by their proofs",
)
SETTLED = {*LOST, "outcome_unknown", "reconciled", "decided", "artifact_exists"}


class Criterion(Value):
    """One of the four: whether it holds, how much was looked at, and what speaks against it."""

    number: int
    name: str
    holds: bool
    seen: str
    examples: tuple[str, ...] = ()


class Health(Value):
    """The verdict.

    switches  those that are on, the oldest first; they say nothing against it
    moved     where the log has gone; empty while it is here
    """

    url: str
    healthy: bool
    criteria: tuple[Criterion, ...]
    switches: tuple[Thrown, ...] = ()
    moved: str = ""


class _Findings:
    """What one pass over the log collects."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.commits = self.again = self.ids = self.decisions = self.ends = self.sealed = 0
        self.differ: list[str] = []
        self.twice: list[str] = []
        self.unexplained: list[str] = []

    def look(self, told: Told, before: Any) -> None:
        """Look at one entry."""
        from oncemore.log.record import Run

        run = told.state
        if type(run) is not Run:
            return
        done = type(before) is Run and before.state == "COMPLETE" and before.cfg_hash == run.cfg_hash
        if "INTENT" in told.marks and done:
            self.twice.append(f"{run.step} {run.run_id}")
        if "COMMIT" in told.marks:
            self.commits += 1
            if run.effect == "pure" and run.runs > 1:
                self._compare(told)
        if told.marks[0] in ("SOFT_FAIL", "HARD_FAIL"):
            self.ends += 1
            self.decisions += told.decision is not None
            self.sealed += told.sealed
            if told.differences or not (told.decision or told.sealed or run.reason in SETTLED):
                self.unexplained.append(f"{run.step} {run.run_id}, entry {told.seq} ({run.reason})")

    def _compare(self, told: Told) -> None:
        """Compare what pure work left, and under which ids, with what its earlier runs left."""
        left = {
            lineage
            for run, lineage in lineages(self.store, told.entity)
            if run.cfg_hash == told.state.cfg_hash
        }
        self.again += 1
        self.ids += len({one for each in left for one in each.ids})
        if len(left) > 1:
            self.differ.append(f"{told.state.step} {told.state.run_id}")


def health(
    store: Store,
    shelf: Shelf | None = None,
    progress: Progress = lambda done, whole: None,
    against: Store | None = None,
) -> Health:
    """Judge a store by the four criteria.

    shelf    where its artifacts are, where that is known: every one is read and verified
    against  another store: pure work that is complete in both must have left the same
    """
    from oncemore.control.switches import thrown
    from oncemore.maintenance.rebuild import rebuild
    from oncemore.maintenance.replay import Replay

    again, findings = Replay(seal=key()), _Findings(store)

    def through(page: Iterable[Entry], known: Any) -> None:
        for entry in page:
            before = known[entry.entity][2] if entry.entity in known else None
            for told in again.tell((entry,)):
                findings.look(told, before)

    fault, entries = "", 0
    wrong: tuple[str, ...] = ()
    try:
        found = rebuild(store, progress, through, again.heads)
        entries = found.entries
        wrong = tuple(f"{one.entity} is {one.what}" for one in found.wrong)
    except StoreError as error:
        fault = str(error)
    bad, checked = _artifacts(store, shelf)
    if against is not None:
        others, compared = _elsewhere(store, against)
        bad, checked = [*others, *bad], "; ".join(filter(None, (compared, checked)))
    criteria = (
        _first(findings, bad, checked, fault),
        _second(entries, wrong, fault),
        _third(findings, fault),
        _fourth(findings, fault),
    )
    control = control_of(store)
    healthy = all(one.holds for one in criteria)
    return Health(store.facts().url, healthy, criteria, thrown(control), control.moved)


def _elsewhere(store: Store, other: Store) -> tuple[list[str], str]:
    """Compare the pure work that is complete in two stores, key by key, under the same configuration."""
    from oncemore.log.store import Query

    bad, both, ids = [], 0, 0
    for head in list(store.heads(Query("run", state="COMPLETE", limit=1_000_000))):
        here, there = _last(store, head.entity), _last(other, head.entity)
        if here is None or there is None or here[0].cfg_hash != there[0].cfg_hash:
            continue
        both, ids = both + 1, ids + len(here[1].ids)
        if here[1] != there[1]:
            bad.append(f"{here[0].step} {here[0].run_id} and {there[0].run_id}")
    return bad, f"{both:,} results compared with {other.facts().url}, {ids:,} lineage ids"


def _last(store: Store, entity: str) -> tuple[Run, Lineage] | None:
    """Return what the last COMMIT of pure work left, if it is the last word."""
    found = None
    for found in lineages(store, entity):  # noqa: B007 - the last one is wanted
        pass
    return found if found and found[0].effect == "pure" else None


def _artifacts(store: Store, shelf: Shelf | None) -> tuple[list[str], str]:
    """Verify the bytes of all artifacts that are kept, where their place is known."""
    from oncemore.log.entry_codec import head_of
    from oncemore.log.record import Kept
    from oncemore.log.store import Query

    kept = [
        head_of(head.head, Kept) for head in store.heads(Query("artifact", state="KEPT", limit=1_000_000))
    ]
    if shelf is None or not shelf.there:
        return [], f"{len(kept):,} artifacts not read: their place is not known here" if kept else ""
    bad = []
    for one in kept:
        found = shelf.verify(one.digest, one.size)
        if found != "valid":
            bad.append(f"{one.name} of {one.step}: {found if isinstance(found, str) else 'altered'}")
    return bad, f"{len(kept):,} artifacts read and verified" if kept else ""


def _first(findings: _Findings, bad: list[str], checked: str, fault: str) -> Criterion:
    seen = f"{findings.commits:,} results, {findings.again:,} of them of work run again"
    seen += f" with {findings.ids:,} lineage ids" if findings.again else ""
    seen += f"; {checked}" if checked else ""
    faults = [*findings.differ, *bad]
    return Criterion(1, NAMES[0], not faults and not fault, fault or seen, tuple(faults[:MOST_EXAMPLES]))


def _second(entries: int, wrong: tuple[str, ...], fault: str) -> Criterion:
    seen = (
        fault
        or f"{entries:,} entries told again, every head {'equal' if not wrong else 'but ' + str(len(wrong))}"
    )
    return Criterion(2, NAMES[1], not wrong and not fault, seen, wrong[:MOST_EXAMPLES])


def _third(findings: _Findings, fault: str) -> Criterion:
    count = len(findings.twice)
    seen = fault or f"{count:,} keys computed again after COMPLETE"
    return Criterion(3, NAMES[2], not count and not fault, seen, tuple(findings.twice[:MOST_EXAMPLES]))


def _fourth(findings: _Findings, fault: str) -> Criterion:
    others = findings.ends - findings.decisions - findings.sealed
    seen = f"{findings.decisions:,} decisions computed again from their proofs"
    seen += f", {findings.sealed:,} sealed with a key that is not here" if findings.sealed else ""
    seen += f", {others:,} ends that needed none" if others else ""
    examples = tuple(findings.unexplained[:MOST_EXAMPLES])
    return Criterion(4, NAMES[3], not findings.unexplained and not fault, fault or seen, examples)
