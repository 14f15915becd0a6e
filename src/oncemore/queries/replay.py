"""Replay: a run, the runs of a window, or the whole log told again, with a verdict for each.

agrees    every link, every state and every decision is what it was
drift     something is computed otherwise than it is recorded; both values are told
damaged   the log is not what was written: there is nothing to compare
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import PolicyError, StoreError, UsageError
from oncemore.queries.bodies import key
from oncemore.queries.times import seq_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from oncemore.log.store import Entry, Store
    from oncemore.maintenance.replay import Difference, Told
    from oncemore.policy.policy import Policy

    Progress = Callable[[int, int], object]

AGREES, DRIFT, DAMAGED = "agrees", "drift", "damaged"
MOST_TOLD = 1_000


class State(Value):
    """A state that a run went through, as it was told again."""

    seq: int
    at: float
    state: str
    attempt: int
    reason: str
    marks: tuple[str, ...]
    sentence: str


class Verdict(Value):
    """What came of a run's replay."""

    run_id: str
    key: str
    step: str
    state: str
    verdict: str
    entries: int
    decisions: int
    differences: tuple[Difference, ...]
    fault: str = ""
    states: tuple[State, ...] = ()


class Totals(Value):
    """What came of many."""

    runs: int
    agrees: int
    drift: int
    damaged: int
    entries: int
    decisions: int


class Window(Value):
    """The verdicts of many runs, those that do not agree first, and their totals.

    events  what the audit says of reading them (REPLAY-7)
    """

    totals: Totals
    verdicts: tuple[Verdict, ...]
    events: tuple[dict[str, Any], ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether all of them agree."""
        return self.totals.agrees == self.totals.runs


def replay(store: Store, entity: str, *, current: bool = False) -> Verdict:
    """Tell a key's entries again, all of its lives, and compare its head with what they lead to."""
    from oncemore.maintenance.rebuild import rebuilt_head
    from oncemore.maintenance.replay import Replay

    again = Replay(_policies_now(store) if current else None, key())
    told: list[Told] = []
    fault = ""
    try:
        told.extend(again.tell(store.entries(entity)))
        for wrong in rebuilt_head(store, entity, again.heads.get(entity)):
            fields = f": {', '.join(wrong.fields)}" if wrong.fields else ""
            fault = f"its head is {wrong.what}{fields}; `oncemore doctor --rebuild` says more"
    except StoreError as error:
        fault = str(error)
    return _verdict(entity, told, fault)


def _verdict(entity: str, told: list[Told], fault: str) -> Verdict:
    differences = tuple(one for each in told for one in each.differences)
    last = told[-1].state if told else None
    verdict = DAMAGED if fault else DRIFT if differences else AGREES
    return Verdict(
        getattr(last, "run_id", ""), entity.removeprefix("run/"), getattr(last, "step", ""),
        getattr(last, "state", ""), verdict, len(told), sum(one.decision is not None for one in told),
        differences, fault, tuple(map(_state, told[:MOST_TOLD])),
    )  # fmt: skip


def _state(told: Told) -> State:
    run = told.state
    sentence = "" if told.decision is None else str(told.decision.get("sentence", ""))
    return State(
        told.seq,
        told.at,
        run.state,
        getattr(run, "attempt", 0),
        getattr(run, "reason", ""),
        told.marks,
        sentence,
    )


def window(
    store: Store,
    since: float,
    until: float,
    *,
    current: bool = False,
    progress: Progress = lambda done, of: None,
) -> Window:
    """Replay every run of which something was written between two times."""
    if until < since:
        raise UsageError("the window ends before it begins; give --since first.")
    from oncemore.queries.attempted import PROCESSING, tried

    events: list[dict[str, Any]] = []
    found = tried(
        PROCESSING,
        lambda: list(dict.fromkeys(entry.entity for entry in _between(store, since, until))),
        events,
    )
    verdicts = []
    for at, entity in enumerate(found):
        verdicts.append(replay(store, entity, current=current)._replace(states=()))
        progress(at + 1, len(found))
    return _window(verdicts)._replace(events=tuple(events))


def _window(verdicts: list[Verdict]) -> Window:
    counts = {name: sum(one.verdict == name for one in verdicts) for name in (AGREES, DRIFT, DAMAGED)}
    totals = Totals(
        len(verdicts), counts[AGREES], counts[DRIFT], counts[DAMAGED],
        sum(one.entries for one in verdicts), sum(one.decisions for one in verdicts),
    )  # fmt: skip
    return Window(totals, tuple(sorted(verdicts, key=lambda one: one.verdict == AGREES)))


def _between(store: Store, since: float, until: float) -> Iterator[Entry]:
    from oncemore.log.entry_codec import header_of

    last = seq_at(store, until + 2.0)
    for entry in store.entries(after=seq_at(store, since)):
        if entry.seq > last:
            return
        if entry.entity.startswith("run/") and since <= header_of(entry.header).at <= until:
            yield entry


def whole(store: Store, *, current: bool = False, progress: Progress = lambda done, of: None) -> Window:
    """Replay the whole log in one go, in its order; only what does not agree is told one by one."""
    from oncemore.maintenance.rebuild import rebuild
    from oncemore.maintenance.replay import Replay
    from oncemore.queries.attempted import PROCESSING, tried

    again = Replay(_policies_now(store) if current else None, key())
    events: list[dict[str, Any]] = []
    runs = entries = decisions = 0
    bad: dict[str, list[Told]] = {}

    def through(page: Iterable[Entry], known: Any) -> None:
        nonlocal runs, entries, decisions
        for told in again.tell(page):
            entries += 1
            runs += told.marks[0] == "PENDING"
            decisions += told.decision is not None
            if told.differences:
                bad.setdefault(told.entity, []).append(told)

    wrong: dict[str, str] = {}
    fault = ""
    try:
        found = tried(PROCESSING, lambda: rebuild(store, progress, through, again.heads), events)
        wrong = {one.entity: f"its head is {one.what}" for one in found.wrong}
    except StoreError as error:
        fault = str(error)
    verdicts = [_verdict(entity, bad.get(entity, []), wrong.get(entity, "")) for entity in {**bad, **wrong}]
    if fault:
        verdicts.append(_verdict("", [], fault))
    damaged, drift = (sum(one.verdict == name for one in verdicts) for name in (DAMAGED, DRIFT))
    runs = max(runs, damaged + drift)
    totals = Totals(runs, runs - damaged - drift, drift, damaged, entries, decisions)
    return Window(totals, tuple(verdicts), tuple(events))


def _policies_now(store: Store) -> Callable[[dict[str, Any]], Policy | None]:
    """Return what finds a recorded policy as it is now, by the address that its step named it by."""
    from oncemore.policy.policy import STANDARD
    from oncemore.queries.policies import find

    def find_now(recorded: dict[str, Any]) -> Policy | None:
        address = _source(store, str(recorded["digest"])) or str(recorded["name"])
        if address == STANDARD.name:
            return STANDARD
        try:
            return find(address).policy
        except (PolicyError, UsageError):
            return None  # made in code, or its file is gone: there is nothing to compare with

    return find_now


def _source(store: Store, digest: str) -> str:
    """Return the address that a policy was named by, where the log says so."""
    from oncemore.log.entry_codec import head_of
    from oncemore.log.record import RecordedPolicy
    from oncemore.steps.recorded_policies import entity_of

    head = store.head(entity_of(digest[:12]))
    return "" if head is None else head_of(head.head, RecordedPolicy).source
