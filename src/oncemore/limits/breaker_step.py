"""The breaker of a provider in a durable call.

The claim of an attempt carries its admission: a guard on the version of the breaker, or, for a probe, the
breaker's own entry. The result of the attempt and the change of the breaker are one write. A crash therefore
never leaves one without the other: before the claim no run holds the probe; after it the run may hold the
probe, and the next caller takes that over if the worker dies.

A refused call has no attempt (BREAK-9): its run waits until the end of the cooldown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore.limits import breaker_rules as core
from oncemore.limits.breaker import CIRCUIT_OPEN, PROBE_S, open_until
from oncemore.limits.breaker_rules import PROBE, BreakerRefusal, ProbeHolder
from oncemore.limits.shared_breaker import build_breaker_change, new_breaker_record
from oncemore.policy.decide import decide_retry
from oncemore.steps.ops import AppendChange, LoadBreaker, ReadClock, WatchEntity
from oncemore.steps.ops import ReadLease as Held

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncemore.log.record import BreakerRecord, LoadedHead, RecordChange
    from oncemore.policy.decide import Decision
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.ops import Script
    from oncemore.steps.plan import StepBreaker, StepPlan

NOW = ReadClock()


class BreakerPass(NamedTuple):
    """The admission of an attempt: the breaker's head at that time, and whether it is the probe."""

    plan: StepPlan
    seen: LoadedHead
    probe: bool = False

    def build_claim(
        self, head: LoadedHead, change: RecordChange, now: float, guards: Mapping[str, int], *, late: bool
    ) -> AppendChange:
        """Return the claim of the attempt; the store refuses it if the breaker has changed."""
        breaker, sync = _breaker_of(self.plan), self.plan.effect != "pure"
        if not self.probe:
            return AppendChange(
                head, change, sync, guards={**guards, breaker.entity: self.seen.version}, late=late
            )
        run: Any = change.after
        limit = self.plan.policy.timeout_s
        # The lease outlasts the time limit, so a probe that ends on time is not taken over.
        lease_s = max(breaker.rules.cooldown_s, PROBE_S) if limit is None else limit + PROBE_S / 10
        holder = ProbeHolder(run.worker, head.entity, run.fence, lease_s)
        after = core.take_probe(breaker.rules, self.seen.record, now, holder)
        return AppendChange(
            head,
            change,
            sync,
            also=((self.seen, build_breaker_change(self.seen.record, after)),),
            guards=guards,
        )


class BreakerFailure(NamedTuple):
    """The effect of a failed attempt on the breaker and on the run.

    seen      the head of the run, marked if its failure has counted
    decision  the decision about the run, made again if the breaker has opened
    also      changes to write together with the outcome of the run
    body      fields for the entry of the run (BREAK-6)
    """

    seen: LoadedHead
    decision: Decision
    also: tuple[tuple[LoadedHead, RecordChange], ...]
    body: dict[str, Any]


def _breaker_of(plan: StepPlan) -> StepBreaker:
    assert plan.breaker is not None
    return plan.breaker


def ask_breaker(plan: StepPlan, call: PreparedCall, now: float) -> Script:
    """Return a `BreakerPass` or a `BreakerRefusal`; wait inline while a probe is running."""
    breaker, ends = _breaker_of(plan), now + plan.inline_wait_s
    ends = min(ends, call.give_up) if call.give_up else ends
    while True:
        head, circuit, held = yield from _load_breaker(breaker, now)
        admission = core.decide_admission(circuit, now, held=held)
        if type(admission) is not BreakerRefusal:
            return BreakerPass(plan, head, admission is PROBE)
        # A cooldown is too long to wait for; a probe may close the breaker at any moment.
        if not admission.probing or now >= ends:
            return admission
        yield WatchEntity(breaker.entity, head.version, min(admission.until, ends) - now)
        now = yield NOW


def _load_breaker(breaker: StepBreaker, now: float) -> Script:
    """Return the head of the breaker, its record, and whether its probe is held."""
    head = yield LoadBreaker(breaker.entity)
    circuit: BreakerRecord = head.record or new_breaker_record(breaker.entity)
    held = True
    # Only a half-open breaker has a probe, and reading a lease costs a query.
    if circuit.state == "HALF_OPEN":
        held = (
            yield Held(
                circuit.probe_worker, circuit.probe_entity, circuit.probe_fence or circuit.probe_number
            )
        ) > now
    return head, circuit, held


def refusal_body(plan: StepPlan, refusal: BreakerRefusal) -> dict[str, Any]:
    """Return the entry body of a run that waits for its provider's breaker."""
    return {
        "circuit_open": True,
        "breaker": new_breaker_record(_breaker_of(plan).entity).name,
        "until": refusal.until,
    }


def success_writes(plan: StepPlan, head: LoadedHead, now: float) -> Script:
    """Return the breaker changes to write with the COMMIT of the run; none while no call has failed."""
    if plan.breaker is None:
        return ()
    breaker_head = yield LoadBreaker(plan.breaker.entity)
    # The usual case: without recorded failures a success costs no write.
    if plan.breaker.rules.rate is None and core.is_clean(breaker_head.record):
        return ()
    circuit: BreakerRecord = breaker_head.record or new_breaker_record(plan.breaker.entity)
    after = core.after_success(plan.breaker.rules, circuit, now, _probe_number(circuit, head))
    return _breaker_write(breaker_head, circuit, after)


def release_writes(plan: StepPlan, head: LoadedHead, now: float) -> Script:
    """Return the breaker changes to write with an interrupted attempt: it gives its probe back."""
    if plan.breaker is None:
        return ()
    breaker_head, circuit, _ = yield from _load_breaker(plan.breaker, now)
    after = core.after_probe_release(plan.breaker.rules, circuit, now, _probe_number(circuit, head))
    return _breaker_write(breaker_head, circuit, after)


def _breaker_write(
    head: LoadedHead, before: BreakerRecord, after: BreakerRecord, body: dict[str, Any] | None = None
) -> tuple[Any, ...]:
    """Return the change of the breaker, if its record has changed."""
    return () if after == before else ((head, build_breaker_change(head.record, after, body)),)


def apply_failure(
    plan: StepPlan, head: LoadedHead, decision: Decision, error: dict[str, Any], now: float
) -> Script:
    """Return the effect of a failed attempt on the breaker and on the run, as a `BreakerFailure`."""
    breaker, situation = _breaker_of(plan), decision.situation
    breaker_head, circuit, held = yield from _load_breaker(breaker, now)
    probe, after = _probe_number(circuit, head), circuit
    counts = core.counts_as_failure(
        breaker.rules,
        situation.failure,
        situation.verdict,
        decision.action,
        already=head.record.failure_counted,
        probe=probe > 0,
    )
    if counts:
        code = situation.failure.code or situation.failure.kind.upper()
        after = core.after_failure(breaker.rules, circuit, now, probe, code)
        # Stored with the run, so that an operation counts once even if another worker continues it.
        head = head._replace(record=head.record._replace(failure_counted=True))
    elif probe:
        after = core.after_probe_release(breaker.rules, circuit, now, probe)
    until = open_until(after, now, held)
    if until is not None and decision.action == "retry":
        # The retry must not start before the cooldown ends, so the policy decides with that hold.
        held_situation = situation._replace(hold_until=until, hold_reason=CIRCUIT_OPEN)
        decision = decide_retry(decision.policy, held_situation)
    also = _breaker_write(breaker_head, circuit, after, {"error": error, "run": head.entity})
    return BreakerFailure(head, decision, also, {"circuit_open": core.is_open(after)})


def _probe_number(circuit: BreakerRecord, head: LoadedHead) -> int:
    """Return the number of the probe held by an attempt; 0 if it holds none."""
    # The fence tells this attempt from an earlier one of the same run that lost its lease.
    is_holder = circuit.probe_entity == head.entity and circuit.probe_fence == head.record.fence
    return circuit.probe_number if circuit.state == "HALF_OPEN" and is_holder else 0
