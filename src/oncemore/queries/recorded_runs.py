"""Read recorded runs from a log, as `oncemore.simulate` and the reports use them.

One `RecordedRun` is one run of a key, with its attempts, the inputs of their decisions and their measured
values. A run without an attempt has nothing to simulate and is left out. Bodies that were pruned, erased or
encrypted with a missing key have no decision: their attempts are kept as they were.
"""

from __future__ import annotations

from oncemore._values import Value, make
from oncemore.errors import PolicyError, UsageError
from oncemore.log.entry_codec import decode_header, read_body
from oncemore.log.record import apply_header
from oncemore.maintenance.replay import policy_from_proof, read_situation
from oncemore.policy.closing import is_closing
from oncemore.queries.entries import find_seq, load_cipher
from oncemore.simulate.recorded_runs import (
    MeasuredValues,
    RecordedAttempt,
    RecordedRun,
    SignalTimeline,
    SimulatedWorld,
)
from oncemore.telemetry.energy import read_figures, read_method

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from oncemore.log.entry_codec import EntryHeader
    from oncemore.log.record import RunRecord
    from oncemore.log.store import Entry, Store
    from oncemore.policy.policy import Policy
    from oncemore.simulate.recorded_runs import AttemptOutcome

    Progress = Callable[[int, int], object]

#: Entries between two reports of progress.
PROGRESS_STEP = 1000


class RecordedRunFilter(Value):
    """The runs to read; a field that is None or empty matches every run.

    since, until  runs with an entry between these times
    """

    since: float
    until: float
    step: str = ""
    policy: str = ""
    priority: str = ""
    tenant: str = ""
    pipeline: str = ""


def load_recorded_runs(
    store: Store, wanted: RecordedRunFilter, progress: Progress = lambda done, of: None
) -> list[RecordedRun]:
    """Return the runs that match, in the order of their first entry in the period."""
    if wanted.until < wanted.since:
        raise UsageError("the period ends before it begins; give the earlier time to --since.")
    runs: list[RecordedRun] = []
    for reader in _read_keys(store, wanted, progress):
        for run in reader.list_runs():
            last = run.attempts[-1].ended if run.attempts else run.created_at
            # A key may have older and newer runs outside of the period.
            if run.attempts and run.created_at <= wanted.until and last >= wanted.since:
                runs.append(run)
    return [run for run in runs if _matches_filter(run, wanted)]


def _read_keys(store: Store, wanted: RecordedRunFilter, progress: Progress) -> list[KeyReader]:
    """Return the keys with an entry in the period, in the order of the first one.

    One pass over the log reads them all. Only the entries of a key that is older than the period are read
    again, from its first one.
    """
    end, policies = store.wait_for_change(0, 0.0), PolicyLookup(store)
    # The whole log, the common case, needs no search. find_seq may stop a second early, and entries may be
    # out of order by a moment.
    first = find_seq(store, wanted.since) if wanted.since > 0 else 0
    last = find_seq(store, wanted.until + 2.0) if wanted.until < float("inf") else end
    readers: dict[str, KeyReader] = {}
    found: dict[str, KeyReader] = {}
    for count, entry in enumerate(store.read_entries(after=first), 1):
        if count % PROGRESS_STEP == 0:
            progress(min(entry.seq, end) - first, end - first)
        entity = entry.entity
        if not entity.startswith("run/"):
            continue
        reader = readers.get(entity)
        if reader is None:
            # After the period only the later entries of its runs count.
            if entry.seq > last:
                continue
            reader = readers[entity] = KeyReader(entity, policies, is_whole=entry.version == 1)
        header = decode_header(entry.header)
        if entity not in found and wanted.since <= header.at <= wanted.until:
            found[entity] = reader
        if reader.is_whole:
            reader.add_entry(entry, header)
    for reader in found.values():
        if not reader.is_whole:
            for entry in store.read_entries(reader.entity):
                reader.add_entry(entry, decode_header(entry.header))
    return list(found.values())


def _matches_filter(run: RecordedRun, wanted: RecordedRunFilter) -> bool:
    # A policy is named alone, or with version and digest as in `oncemore runs`.
    has_policy = not wanted.policy or run.policy == wanted.policy or policy_base(run.policy) == wanted.policy
    return (
        has_policy
        and wanted.step in ("", run.step)
        and wanted.priority in ("", run.priority)
        and wanted.tenant in ("", run.tenant)
        and wanted.pipeline in ("", run.pipeline)
    )


def policy_base(name: str) -> str:
    """Return the name of a recorded policy without version and digest."""
    return name.rpartition("@")[0] or name


class PolicyLookup:
    """Finds the policies of recorded decisions in the log, each once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[str, int], Policy] = {}
        self._recorded: dict[str, Policy | None] = {}

    def find_policy(self, proof: Mapping[str, Any]) -> Policy:
        """Return the policy of a decision: as the log has it, else from the bounds in the proof."""
        digest, max_attempts = str(proof["policy"]["digest"]), int(proof["thresholds"]["max_attempts"])
        known = self._known.get((digest, max_attempts))
        if known is None:
            recorded = self._load_recorded(digest)
            known = policy_from_proof(dict(proof)) if recorded is None else recorded
            # An operator may have granted this run more attempts than its policy has.
            if known.max_attempts != max_attempts:
                known = known.copy_with(max_attempts=max_attempts)
            self._known[digest, max_attempts] = known
        return known

    def _load_recorded(self, digest: str) -> Policy | None:
        """Return the policy with its error classes, which a proof lacks; None if it is not recorded."""
        from oncemore.log.entry_codec import decode_head
        from oncemore.log.record import RecordedPolicy
        from oncemore.policy.policy import restore_policy
        from oncemore.steps.recorded_policies import entity_of

        head = self._store.load_head(entity_of(digest[:12]))
        if head is None:
            return None
        try:
            policy = restore_policy(decode_head(head.head, RecordedPolicy).fields)
        except PolicyError:
            return None  # written by a newer version: the proof has all that a decision needs
        return policy if policy.digest == digest else None


class KeyReader:
    """Builds the runs of one key from its entries in order; it keeps the runs, and not the entries.

    is_whole  whether the entries of the period begin with the first one of the key
    """

    def __init__(self, entity: str, policies: PolicyLookup, *, is_whole: bool) -> None:
        self.entity, self.is_whole = entity, is_whole
        self._policies = policies
        self._runs: list[RecordedRun] = []
        self._run: RunRecord | None = None
        self._begun: RunRecord | None = None
        self._attempts: list[RecordedAttempt] = []
        self._complete_cfg: str | None = None
        self._state_at = self._last_at = 0.0
        self._pipeline = ""

    def add_entry(self, entry: Entry, header: EntryHeader) -> None:
        """Add the next entry of the key."""
        before, run = self._run, apply_header(self._run, header.sets)
        if before is not None and before.run_id != run.run_id:
            self._end_run(before)
            before = None
        if before is None:
            # Only the first entry of a run names its pipeline.
            self._pipeline = str(_read_body_or_nothing(entry).get("pipeline") or run.step)
        if before is None or before.state != run.state:
            self._state_at = header.at
        self._run, self._last_at = run, header.at
        if "INTENT" in header.marks:
            # The claim has the start of the attempt; the entry that ends it may change the fields.
            self._begun = run
        elif self._begun is not None and run.state != "RUNNING":
            body = _read_body_or_nothing(entry)
            self._attempts.append(_make_attempt(entry.seq, self._begun, run, header.at, body, self._policies))
            self._begun = None

    def list_runs(self) -> list[RecordedRun]:
        """Return the runs of the key, after its last entry."""
        if self._run is not None:
            self._end_run(self._run)
            self._run = None
        return self._runs

    def _end_run(self, run: RunRecord) -> None:
        is_over = run.state in ("COMPLETE", "HARD_FAIL")
        codes = [one.situation.failure.code for one in self._attempts if one.situation is not None]
        recorded = RecordedRun(
            run_id=run.run_id,
            key=self.entity.removeprefix("run/"),
            step=run.step,
            effect=run.effect,
            policy=run.policy,
            priority=run.priority,
            created_at=run.created_at,
            # Later entries of a finished run, such as PRUNE, do not make it longer. An open run is as old as
            # its last entry: the time of reading would give other bytes each time.
            ended_at=self._state_at if is_over else self._last_at,
            deadline=run.deadline or None,
            state=run.state,
            attempts=tuple(self._attempts),
            # A changed configuration is new work: computing it again is right.
            repeated=self._complete_cfg is not None and self._complete_cfg == run.cfg_hash,
            held_for=run.held_for,
            reason=run.reason,
            error_class=codes[-1] if codes else "",
            tenant=run.tenant,
            provider=run.provider,
            pipeline=self._pipeline,
        )
        self._runs.append(recorded)
        self._attempts, self._begun = [], None
        if run.state == "COMPLETE":
            self._complete_cfg = run.cfg_hash


def _read_body_or_nothing(entry: Entry) -> dict[str, Any]:
    """Return the body of an entry; empty if it is encrypted and the key is missing."""
    try:
        return read_body(entry, load_cipher())
    except UsageError:
        return {}


def _make_attempt(
    seq: int, begun: RunRecord, after: RunRecord, at: float, body: dict[str, Any], policies: PolicyLookup
) -> RecordedAttempt:
    outcome: AttemptOutcome = "COMPLETE" if after.state == "COMPLETE" else "LOST"
    policy = situation = None
    action, delay_s = "", 0.0
    proof = body.get("proof")
    if outcome == "LOST" and isinstance(proof, dict) and not is_closing(proof):
        outcome, situation, policy = "FAILED", read_situation(proof), policies.find_policy(proof)
        action, not_before = proof["action"], proof["not_before"]
        is_deferred = action == "defer" and not_before is not None
        delay_s = max(0.0, not_before - situation.now) if is_deferred else proof["delay_s"]
    counted, discarded = after.attempt_count >= begun.attempt_count, after.reason == "lease_expired"
    # In the order of the fields, at a third of the cost of keywords.
    return make(
        RecordedAttempt,
        (
            *(seq, begun.started_at, at, outcome, read_values(body), counted),
            *(policy, situation, action, delay_s, discarded),
        ),
    )


def read_values(body: Mapping[str, Any]) -> MeasuredValues:
    """Return the measured values in the body of an entry that ends an attempt."""
    # The fields have the order of the figures.
    return make(MeasuredValues, (*read_figures(body), read_method(body.get("usage") or {}) or ""))


def build_recorded_world(runs: Iterable[RecordedRun]) -> SimulatedWorld:
    """Return the grid intensity and the energy price over time, as the attempts of all runs recorded them."""
    intensity: list[tuple[float, float]] = []
    price: list[tuple[float, float]] = []
    for run in runs:
        for attempt in run.attempts:
            points = [(attempt.began, attempt.values.grid_intensity, attempt.values.energy_price)]
            if attempt.situation is not None and attempt.situation.signals is not None:
                signals = attempt.situation.signals
                points.append((attempt.situation.now, signals.grid_intensity, signals.energy_price))
            # Attempts without a signal leave no point, so that the value before still holds.
            for at, grams, usd in points:
                intensity += [(at, grams)] if grams is not None else []
                price += [(at, usd)] if usd is not None else []
    return SimulatedWorld(
        SignalTimeline(intensity) if intensity else None, SignalTimeline(price) if price else None
    )
