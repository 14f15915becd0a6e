"""PASSING: the stations of a durable call at the breaker of its provider.

Before the claim the circuit is asked; what lets the attempt through goes into the claim itself: a guard on
the circuit's version, or, for a probe, the circuit's own entry. What comes of the attempt is written as one
with its outcome. So there is no moment at which a crash could leave one without the other:

    before the claim             nothing has begun, nobody has the probe
    from the claim to the end    the run is under way and may have the probe; if its worker dies, whoever asks
                                 next has the probe
    after the outcome            it has counted, or closed the breaker, or opened it again

A call that is not let through has no attempt (BREAK-9): its run waits until the end of the cooldown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore.limits import breaker_rules as core
from oncemore.limits.breaker import CIRCUIT_OPEN, PROBE_S, shut_until
from oncemore.limits.breaker_rules import PROBE, Holder, Refusal
from oncemore.limits.shared_breaker import change_of, fresh
from oncemore.policy.decide import decide
from oncemore.steps.ops import Consult, Now, Save, Watch
from oncemore.steps.ops import Holder as Held

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncemore.log.record import Change, Circuit
    from oncemore.policy.decide import Decision
    from oncemore.steps.ops import Barrier, Call, Plan, Script, Seen

NOW = Now()


class Way(NamedTuple):
    """What lets an attempt through: a circuit as it was seen, and whether the attempt is its probe."""

    plan: Plan
    seen: Seen
    probe: bool = False

    def claim(self, seen: Seen, change: Change, now: float, guards: Mapping[str, int], *, late: bool) -> Save:
        """Return the claim of the attempt: it holds if the circuit is as it was seen."""
        barrier, sync = _barrier(self.plan), self.plan.effect != "pure"
        if not self.probe:
            return Save(seen, change, sync, guards={**guards, barrier.entity: self.seen.version}, late=late)
        run: Any = change.after
        limit = self.plan.policy.timeout_s
        lease_s = max(barrier.rules.cooldown_s, PROBE_S) if limit is None else limit + PROBE_S / 10
        by = Holder(run.worker, seen.entity, run.fence, lease_s)
        after = core.asked(barrier.rules, self.seen.run, now, by)
        return Save(seen, change, sync, also=((self.seen, change_of(self.seen.run, after)),), guards=guards)


class Told(NamedTuple):
    """What a failed attempt means for its provider, and what that means for the run.

    seen      the run, with a note that its failure has counted
    decision  what follows, if the breaker has opened
    also      what is written with the run's own outcome
    body      what the run's own entry says of it (BREAK-6)
    """

    seen: Seen
    decision: Decision
    also: tuple[tuple[Seen, Change], ...]
    body: dict[str, Any]


def _barrier(plan: Plan) -> Barrier:
    assert plan.barrier is not None
    return plan.barrier


def ask(plan: Plan, call: Call, now: float) -> Script:
    """Return a `Way`, or a `Refusal`; who waits inline waits for a probe that is under way."""
    barrier, ends = _barrier(plan), now + plan.inline_wait_s
    ends = min(ends, call.give_up) if call.give_up else ends
    while True:
        seen, circuit, held = yield from _look(barrier, now)
        answer = core.ask(circuit, now, held=held)
        if type(answer) is not Refusal:
            return Way(plan, seen, answer is PROBE)
        if not answer.probing or now >= ends:
            return answer
        yield Watch(barrier.entity, seen.version, min(answer.until, ends) - now)
        now = yield NOW


def _look(barrier: Barrier, now: float) -> Script:
    """Return the circuit as it was seen, as a value, and whether its probe is held."""
    seen = yield Consult(barrier.entity)
    circuit: Circuit = seen.run or fresh(barrier.entity)
    held = True
    if circuit.state == "HALF_OPEN":
        held = (yield Held(circuit.worker, circuit.holder, circuit.fence or circuit.turn)) > now
    return seen, circuit, held


def told(plan: Plan, refusal: Refusal) -> dict[str, Any]:
    """Return what the log says of a run that waits for its provider's breaker."""
    return {"circuit_open": True, "breaker": fresh(_barrier(plan).entity).name, "until": refusal.until}


def passed(plan: Plan, seen: Seen, now: float) -> Script:
    """Return what is written with a COMMIT: nothing, while nothing has failed."""
    if plan.barrier is None:
        return ()
    at = yield Consult(plan.barrier.entity)
    if plan.barrier.rules.rate is None and core.clean(at.run):
        return ()  # as nearly always: nothing has failed
    circuit: Circuit = at.run or fresh(plan.barrier.entity)
    return _also(at, circuit, core.passed(plan.barrier.rules, circuit, now, _number(circuit, seen)))


def released(plan: Plan, seen: Seen, now: float) -> Script:
    """Return what is written with an attempt that was cut off: it gives a probe back."""
    if plan.barrier is None:
        return ()
    at, circuit, _ = yield from _look(plan.barrier, now)
    return _also(at, circuit, core.released(plan.barrier.rules, circuit, now, _number(circuit, seen)))


def _also(at: Seen, before: Circuit, after: Circuit, body: dict[str, Any] | None = None) -> tuple[Any, ...]:
    """Return what else is written: the circuit, if it has changed."""
    return () if after == before else ((at, change_of(at.run, after, body)),)


def failed(plan: Plan, seen: Seen, decision: Decision, error: dict[str, Any], now: float) -> Script:
    """Return what a failed attempt means for its provider, and for its own run."""
    barrier, known = _barrier(plan), decision.situation
    at, circuit, held = yield from _look(barrier, now)
    turn, after = _number(circuit, seen), circuit
    counts = core.counted(
        barrier.rules, known.failure, known.verdict, decision.action, seen.run.counted, turn > 0
    )
    if counts:
        code = known.failure.code or known.failure.kind.upper()
        after = core.failed(barrier.rules, circuit, now, turn, code)
        seen = seen._replace(run=seen.run._replace(counted=True))
    elif turn:
        after = core.released(barrier.rules, circuit, now, turn)
    until = shut_until(after, now, held)
    if until is not None and decision.action == "retry":
        decision = decide(decision.policy, known._replace(hold_until=until, held_for=CIRCUIT_OPEN))
    also = _also(at, circuit, after, {"error": error, "run": seen.entity})
    return Told(seen, decision, also, {"circuit_open": core.is_open(after)})


def _number(circuit: Circuit, seen: Seen) -> int:
    """Return the number of the probe that an attempt is; 0 if it is none, or is no longer."""
    mine = circuit.holder == seen.entity and circuit.fence == seen.run.fence
    return circuit.turn if circuit.state == "HALF_OPEN" and mine else 0
