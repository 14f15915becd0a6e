"""Read recorded runs from a log, as `oncemore.simulate` and the reports use them.

One `RecordedRun` is one run of a key, with its attempts, the inputs of their decisions and their measured
values. A run without an attempt has nothing to simulate and is left out. Bodies that were pruned, erased or
encrypted with a missing key have no decision: their attempts are kept as they were.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import PolicyError, UsageError
from oncemore.queries.entries import fold_runs, list_entities_between
from oncemore.simulate.recorded_runs import (
    MeasuredValues,
    RecordedAttempt,
    RecordedRun,
    SignalTimeline,
    SimulatedWorld,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from oncemore.log.entry_codec import EntryHeader
    from oncemore.log.record import RunRecord
    from oncemore.log.store import Entry, Store
    from oncemore.policy.policy import Policy

    Progress = Callable[[int, int], object]
    #: Entry, header, run after it, and body.
    FoldedEntry = tuple[Entry, EntryHeader, RunRecord, dict[str, Any]]

#: Names of a telemetry snapshot in the log, and of the fields that hold them here.
_SNAPSHOT_FIELDS = {
    "energy_kwh": "energy_kWh",
    "carbon_kg": "carbon_kgCO2e",
    "cost_usd": "cost_usd",
    "grid_intensity": "grid_intensity_g_per_kWh",
    "energy_price": "energy_rate_usd_per_kWh",
    "unit_cost_usd_per_h": "compute_unit_cost_usd_per_h",
}


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
    policies = PolicyLookup(store)
    entities = list_entities_between(store, wanted.since, wanted.until)
    runs: list[RecordedRun] = []
    for done, entity in enumerate(entities, 1):
        for run in _split_runs(fold_runs(store, entity), policies):
            last = run.attempts[-1].ended if run.attempts else run.created_at
            # A key may have older and newer runs outside of the period.
            if run.attempts and run.created_at <= wanted.until and last >= wanted.since:
                runs.append(run)
        progress(done, len(entities))
    return [run for run in runs if _matches_filter(run, wanted)]


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
        from oncemore.maintenance.replay import policy_from_proof

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


def _split_runs(entries: Iterable[FoldedEntry], policies: PolicyLookup) -> Iterator[RecordedRun]:
    """Yield the runs of a key, from its entries in order."""
    own: list[FoldedEntry] = []
    complete_cfg: str | None = None
    for entry in entries:
        if own and own[-1][2].run_id != entry[2].run_id:
            yield _build_run(own, policies, complete_cfg)
            complete_cfg = _complete_config(own[-1][2], complete_cfg)
            own = []
        own.append(entry)
    if own:
        yield _build_run(own, policies, complete_cfg)


def _complete_config(run: RunRecord, earlier: str | None) -> str | None:
    return run.cfg_hash if run.state == "COMPLETE" else earlier


def _build_run(entries: list[FoldedEntry], policies: PolicyLookup, complete_cfg: str | None) -> RecordedRun:
    # The last entry has the whole run: every record is the fold of all entries before it.
    entry, header, run, _ = entries[-1]
    attempts = tuple(_list_attempts(entries, policies))
    is_over = run.state in ("COMPLETE", "HARD_FAIL")
    # Later entries of a finished run, such as PRUNE, do not make it longer. An open run is as old as its last
    # entry: the time of reading would give other bytes each time.
    ended_at = next(h.at for _, h, r, _ in entries if r.state == run.state) if is_over else header.at
    codes = [one.situation.failure.code for one in attempts if one.situation is not None]
    return RecordedRun(
        run_id=run.run_id,
        key=entry.entity.removeprefix("run/"),
        step=run.step,
        effect=run.effect,
        policy=run.policy,
        priority=run.priority,
        created_at=run.created_at,
        ended_at=ended_at,
        deadline=run.deadline or None,
        state=run.state,
        attempts=attempts,
        # A changed configuration is new work: computing it again is right.
        repeated=complete_cfg is not None and complete_cfg == run.cfg_hash,
        held_for=run.held_for,
        reason=run.reason,
        error_class=codes[-1] if codes else "",
        tenant=run.tenant,
        provider=run.provider,
        # Only the first entry of a run names it; its body may have been pruned.
        pipeline=str(entries[0][3].get("pipeline") or run.step),
    )


def _list_attempts(entries: list[FoldedEntry], policies: PolicyLookup) -> Iterator[RecordedAttempt]:
    begun: RunRecord | None = None
    for entry, header, run, body in entries:
        if "INTENT" in header.marks:
            # The claim has the start of the attempt; the entry that ends it may change the fields.
            begun = run
        elif begun is not None and run.state != "RUNNING":
            yield _make_attempt(entry.seq, begun, run, header.at, body, policies)
            begun = None


def _make_attempt(
    seq: int, begun: RunRecord, after: RunRecord, at: float, body: dict[str, Any], policies: PolicyLookup
) -> RecordedAttempt:
    from oncemore.maintenance.replay import read_situation
    from oncemore.policy.closing import is_closing
    from oncemore.telemetry.energy import build_snapshot

    attempt = RecordedAttempt(
        seq=seq,
        began=begun.started_at,
        ended=at,
        outcome="COMPLETE" if after.state == "COMPLETE" else "LOST",
        values=read_values(build_snapshot(body, ends_attempt=True)),
        counted=after.attempt_count >= begun.attempt_count,
        discarded=after.reason == "lease_expired",
    )
    proof = body.get("proof")
    if after.state == "COMPLETE" or not isinstance(proof, dict) or is_closing(proof):
        return attempt
    situation, policy = read_situation(proof), policies.find_policy(proof)
    not_before, action = proof["not_before"], proof["action"]
    is_deferred = action == "defer" and not_before is not None
    return attempt._replace(
        outcome="FAILED",
        policy=policy,
        situation=situation,
        action=action,
        delay_s=max(0.0, not_before - situation.now) if is_deferred else proof["delay_s"],
    )


def read_values(snapshot: Mapping[str, Any]) -> MeasuredValues:
    """Return the measured values in a telemetry snapshot."""
    fields = {name: snapshot.get(recorded) for name, recorded in _SNAPSHOT_FIELDS.items()}
    return MeasuredValues(**fields, method=str(snapshot.get("method") or ""))


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
