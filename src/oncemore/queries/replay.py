"""Replay one run, the runs of a time window, or a whole log, with a verdict for each run.

agrees    every hash, state and decision is reproduced
drift     a value is computed differently than it is recorded; both values are reported
damaged   the log was altered, so there is nothing to compare

A replay has policies of its own in the profile `exoarmur` (REPLAY-7): reading a log is tried once, because a
log that cannot be read needs a person. Computing a result is tried twice if the process is lost.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import PolicyError, StoreError, UsageError
from oncemore.queries.entries import list_entities_between, load_cipher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    from oncemore.log.store import Entry, Store
    from oncemore.maintenance.replay import ReplayDifference, ReplayedEntry
    from oncemore.policy.policy import Policy

    Progress = Callable[[int, int], object]
    T = TypeVar("T")

AGREES, DRIFT, DAMAGED = "agrees", "drift", "damaged"
MAX_STATES = 1_000


class ReplayedState(Value):
    """The state of a run after one of its entries."""

    seq: int
    at: float
    state: str
    attempt: int
    reason: str
    marks: tuple[str, ...]
    sentence: str


class ReplayVerdict(Value):
    """The result of replaying a key, and the facts of its last run."""

    run_id: str
    key: str
    step: str
    state: str
    verdict: str
    entries: int
    decisions: int
    differences: tuple[ReplayDifference, ...]
    fault: str = ""
    states: tuple[ReplayedState, ...] = ()


class ReplayTotals(Value):
    """The numbers of runs by verdict, and of all entries and decisions."""

    runs: int
    agrees: int
    drift: int
    damaged: int
    entries: int
    decisions: int


class ReplayWindow(Value):
    """The verdicts of several runs, those that do not agree first, and their totals.

    events  the audit events of reading the log (REPLAY-7)
    """

    totals: ReplayTotals
    verdicts: tuple[ReplayVerdict, ...]
    events: tuple[dict[str, Any], ...] = ()

    @property
    def all_agree(self) -> bool:
        """Whether every run agrees."""
        return self.totals.agrees == self.totals.runs


def retry_part(
    name: str,
    category: str,
    function: Callable[[], T],
    *,
    on: type[Exception],
    events: list[dict[str, Any]],
) -> T:
    """Call a part of a replay as often as the policy of its category permits; add the audit events."""
    from oncemore.policy.files.loader import load_policy_no_warnings
    from oncemore.profiles.exoarmur.policy import RetryCategory
    from oncemore.retries.decorator import retrying

    # Without the timeout of the policy: the caller has its own, and can end the process that computes.
    policy = load_policy_no_warnings(f"exoarmur/{category}").replace(timeout_s=None)
    return retrying(
        function,
        on=on,
        policy=policy,
        category=RetryCategory[category].value,
        name=name,
        on_event=lambda event: events.append(event.to_dict()),
    )()


def replay_run(store: Store, entity: str, *, current: bool = False) -> ReplayVerdict:
    """Replay all runs of a key, and compare its head with its entries.

    current  whether decisions are also computed under today's policies
    """
    from oncemore.maintenance.rebuild import check_head
    from oncemore.maintenance.replay import LogReplay

    replay = LogReplay(_find_current_policies(store) if current else None, load_cipher())
    entries: list[ReplayedEntry] = []
    fault = ""
    try:
        entries.extend(replay.replay_entries(store.read_entries(entity)))
        # Without this, a head that was altered alone would not be noticed.
        for mismatch in check_head(store, entity, replay.heads.get(entity)):
            fields = f": {', '.join(mismatch.fields)}" if mismatch.fields else ""
            fault = f"its head is {mismatch.what}{fields}; `oncemore store doctor --rebuild` shows details"
    except StoreError as error:
        fault = str(error)
    return _make_verdict(entity, entries, fault)


def _make_verdict(entity: str, entries: list[ReplayedEntry], fault: str) -> ReplayVerdict:
    differences = tuple(difference for entry in entries for difference in entry.differences)
    last = entries[-1].state if entries else None
    return ReplayVerdict(
        run_id=getattr(last, "run_id", ""),
        key=entity.removeprefix("run/"),
        step=getattr(last, "step", ""),
        state=getattr(last, "state", ""),
        verdict=DAMAGED if fault else DRIFT if differences else AGREES,
        entries=len(entries),
        decisions=sum(entry.decision is not None for entry in entries),
        differences=differences,
        fault=fault,
        states=tuple(map(_make_state, entries[:MAX_STATES])),
    )


def _make_state(entry: ReplayedEntry) -> ReplayedState:
    # Entities of other kinds have neither attempts nor reasons.
    return ReplayedState(
        seq=entry.seq,
        at=entry.at,
        state=entry.state.state,
        attempt=getattr(entry.state, "attempt", 0),
        reason=getattr(entry.state, "reason", ""),
        marks=entry.marks,
        sentence="" if entry.decision is None else str(entry.decision.get("sentence", "")),
    )


def replay_window(
    store: Store,
    since: float,
    until: float,
    *,
    current: bool = False,
    progress: Progress = lambda done, of: None,
) -> ReplayWindow:
    """Replay every key that has an entry between two times."""
    if until < since:
        raise UsageError("the window ends before it begins; give --since first.")
    events: list[dict[str, Any]] = []
    entities = retry_part(
        "replay",
        "REPLAY_PROCESSING",
        lambda: list_entities_between(store, since, until),
        on=StoreError,
        events=events,
    )
    verdicts = []
    for done, entity in enumerate(entities, 1):
        # Without the states: a window may have many runs, and only their verdicts are shown.
        verdicts.append(replay_run(store, entity, current=current)._replace(states=()))
        progress(done, len(entities))
    return _make_window(verdicts)._replace(events=tuple(events))


def _make_window(verdicts: list[ReplayVerdict]) -> ReplayWindow:
    counts = {name: sum(verdict.verdict == name for verdict in verdicts) for name in (AGREES, DRIFT, DAMAGED)}
    totals = ReplayTotals(
        runs=len(verdicts),
        agrees=counts[AGREES],
        drift=counts[DRIFT],
        damaged=counts[DAMAGED],
        entries=sum(verdict.entries for verdict in verdicts),
        decisions=sum(verdict.decisions for verdict in verdicts),
    )
    return ReplayWindow(totals, tuple(sorted(verdicts, key=lambda verdict: verdict.verdict == AGREES)))


def replay_all(
    store: Store, *, current: bool = False, progress: Progress = lambda done, of: None
) -> ReplayWindow:
    """Replay the whole log in one pass; list only the entities that do not agree."""
    from oncemore.maintenance.rebuild import rebuild_heads
    from oncemore.maintenance.replay import LogReplay

    replay = LogReplay(_find_current_policies(store) if current else None, load_cipher())
    events: list[dict[str, Any]] = []
    runs = entries = decisions = 0
    differing: dict[str, list[ReplayedEntry]] = {}

    def fold_page(page: Iterable[Entry], known: Any) -> None:
        nonlocal runs, entries, decisions
        for entry in replay.replay_entries(page):
            entries += 1
            # A run begins with a PENDING entry; a key may have several runs.
            runs += entry.marks[0] == "PENDING"
            decisions += entry.decision is not None
            if entry.differences:
                differing.setdefault(entry.entity, []).append(entry)

    wrong_heads: dict[str, str] = {}
    fault = ""
    try:
        report = retry_part(
            "replay",
            "REPLAY_PROCESSING",
            lambda: rebuild_heads(store, progress, fold_page, replay.heads),
            on=StoreError,
            events=events,
        )
        wrong_heads = {mismatch.entity: f"its head is {mismatch.what}" for mismatch in report.wrong}
    except StoreError as error:
        fault = str(error)
    verdicts = [
        _make_verdict(entity, differing.get(entity, []), wrong_heads.get(entity, ""))
        for entity in {**differing, **wrong_heads}
    ]
    # The fault is of the log and not of one run.
    if fault:
        verdicts.append(_make_verdict("", [], fault))
    damaged, drift = (sum(verdict.verdict == name for verdict in verdicts) for name in (DAMAGED, DRIFT))
    # After a fault the pass ends early, and a damaged run may not have been counted.
    runs = max(runs, damaged + drift)
    totals = ReplayTotals(
        runs=runs,
        agrees=runs - damaged - drift,
        drift=drift,
        damaged=damaged,
        entries=entries,
        decisions=decisions,
    )
    return ReplayWindow(totals, tuple(verdicts), tuple(events))


def _find_current_policies(store: Store) -> Callable[[dict[str, Any]], Policy | None]:
    """Return a function that finds today's version of a recorded policy."""
    from oncemore.policy.policy import STANDARD
    from oncemore.queries.policies import find_policy

    def find_current(recorded: dict[str, Any]) -> Policy | None:
        address = _load_policy_address(store, str(recorded["digest"])) or str(recorded["name"])
        # The standard policy is built in and has no file.
        if address == STANDARD.name:
            return STANDARD
        try:
            return find_policy(address).policy
        except (PolicyError, UsageError):
            return None  # made in code, or its file is gone: there is nothing to compare with

    return find_current


def _load_policy_address(store: Store, digest: str) -> str:
    """Return the address under which a step named its policy; an empty text if the log has none."""
    from oncemore.log.entry_codec import decode_head
    from oncemore.log.record import RecordedPolicy
    from oncemore.steps.recorded_policies import entity_of

    head = store.load_head(entity_of(digest[:12]))
    return "" if head is None else decode_head(head.head, RecordedPolicy).source
