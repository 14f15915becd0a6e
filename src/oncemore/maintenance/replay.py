"""REPLAY: the log told again, and every decision in it computed again from what it was computed from.

Nothing is run and nothing is written. A proof holds every input of its decision, so that the decision can be
made anew and its bytes compared with those that are stored; the entry must then say what the decision says,
and the inputs must be those that the log itself has at this place. What differs is told with both values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.json import encode

from oncemore._values import Value
from oncemore.errors import PolicyError, UsageError
from oncemore.log.encryption import is_sealed, opened
from oncemore.log.entry_codec import body_of, header_of
from oncemore.log.record import Run
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.canonical_json import seed_of
from oncemore.policy.closing import closing_of, closing_proof, decide_closing, is_closing
from oncemore.policy.decide import Situation, decide
from oncemore.policy.model import Failure
from oncemore.policy.policy import Policy
from oncemore.policy.proof import proof_under
from oncemore.policy.tuning import Signals, Tuning
from oncemore.steps.run import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from oncemore.log.encryption import Seal
    from oncemore.log.entry_codec import Header
    from oncemore.log.store import Entry
    from oncemore.policy.decide import Decision

    #: A recorded policy (name, version, digest) → that policy as it is now, or None.
    Current = Callable[[dict[str, Any]], Policy | None]

MOST_DIFFERENCES = 100
#: What a run is after a decision, by its action.
_AFTER = {"retry": "SOFT_FAIL", "defer": "SOFT_FAIL", "stop": "HARD_FAIL", "quarantine": "SOFT_FAIL"}


class Difference(Value):
    """Where the log and what is computed from it part: both values, and where it stands."""

    seq: int
    entity: str
    run_id: str
    attempt: int
    what: str
    recorded: Any
    computed: Any


class Told(Value):
    """One entry told again: what it is about, and what does not agree.

    decision  what was decided, with its proof as recorded; None if nothing was, or if that cannot be read
    sealed    whether what it says is sealed with a key that is not at hand
    """

    seq: int
    entity: str
    at: float
    marks: tuple[str, ...]
    state: Any
    decision: dict[str, Any] | None
    differences: tuple[Difference, ...]
    sealed: bool = False


class Replay:
    """Tells entries again in the order of the log; knows of each entity what its last entry led to.

    heads    version, hash and state of each entity so far
    current  gives a policy as it is now: decisions are then also made under that
    seal     opens bodies that are sealed
    """

    def __init__(self, current: Current | None = None, seal: Seal | None = None) -> None:
        self.heads: dict[str, tuple[int, bytes, Any]] = {}
        self._current, self._seal = current, seal

    def tell(self, entries: Iterable[Entry]) -> Iterator[Told]:
        """Tell entries; `StoreError` names the first whose bytes are not what was written."""
        heads = self.heads
        for entry in entries:
            before = heads[entry.entity][2] if entry.entity in heads else None
            verify((entry,), heads)
            state = heads[entry.entity][2]
            header = header_of(entry.header)
            made, body = None, entry.body
            found: list[Difference] = []
            sealed = False
            if body and (self._seal is not None or is_sealed(body)):
                body = self._opened(entry)
                sealed = body is None
            if body and b'"proof":' in body:
                made = body_of(body).get("proof")
            if made is not None:
                found = list(_of_decision(entry._replace(body=body), before, state, made, self._current))
            if type(state) is Run and "INTENT" in header.marks:
                found += _of_claim(entry, before, state, header)
            yield Told(
                entry.seq, entry.entity, header.at, header.marks, state, made,
                tuple(found[:MOST_DIFFERENCES]), sealed,
            )  # fmt: skip

    def _opened(self, entry: Entry) -> bytes | None:
        """Return what a sealed body says, or None without its key."""
        assert entry.body is not None
        try:
            return opened(entry.body, self._seal, entry.entity, entry.version)
        except UsageError:
            return None


def recomputed(proof: dict[str, Any], policy: Policy | None = None) -> Decision:
    """Return the decision that a proof's inputs lead to, under its own policy or under another."""
    inputs, signals = proof["inputs"], proof["inputs"]["signals"]
    situation = Situation(
        proof["attempt"],
        Failure(**proof["failure"]),
        proof["verdict"],
        inputs["now"],
        inputs["seed"],
        inputs["started"],
        inputs["deadline"],
        inputs["expected_s"],
        inputs["tokens"],
        inputs["hold_until"],
        inputs["held_for"],
        None if signals is None else Signals(**signals),
    )
    return decide(policy or policy_of(proof), situation)


_policies: dict[bytes, Policy] = {}
_MOST_POLICIES = 1000


def policy_of(proof: dict[str, Any]) -> Policy:
    """Return a policy that decides as the recorded one did: its bounds are all in the proof."""
    key = encode((proof["policy"], proof["thresholds"]))
    known = _policies.get(key)
    if known is None:
        if len(_policies) >= _MOST_POLICIES:
            _policies.clear()
        bounds = dict(proof["thresholds"])
        schedule = dict(bounds.pop("schedule"))
        schedule["delays"] = tuple(schedule["delays"])
        tuning = bounds.pop("tuning")
        known = _policies[key] = Policy(
            proof["policy"]["name"],
            proof["policy"]["version"],
            schedule=Schedule(**schedule),
            jitter=Jitter(**bounds.pop("jitter")),
            tuning=None if tuning is None else Tuning(**tuning),
            **bounds,
        )
    return known


def _of_decision(
    entry: Entry, before: Any, state: Any, proof: dict[str, Any], current: Current | None
) -> Iterator[Difference]:
    """Compare a recorded decision with the same made anew, and with what the entry makes of it."""
    try:
        if is_closing(proof):
            yield from _of_closing(entry, before, state, proof)
            return
        decision = recomputed(proof)
        made = proof_under(decision, proof["policy"])
    except (KeyError, TypeError, ValueError, PolicyError) as fault:
        yield _difference(entry, state, "proof", "cannot be read", f"{type(fault).__name__}: {fault}")
        return
    assert entry.body is not None
    if b'"proof":' + encode(made) not in entry.body:
        yield from _parted(entry, state, "proof", proof, made)
    if type(state) is Run:
        yield from _of_entry(entry, before, state, proof, decision)
    if current is not None:
        yield from _of_policy(entry, state, proof, decision, current)


def _of_closing(entry: Entry, before: Any, state: Run, proof: dict[str, Any]) -> Iterator[Difference]:
    """Compare a decision that no failed attempt asked for with the same made again, and with the run."""
    decision = decide_closing(closing_of(proof))
    made = closing_proof(decision)
    if b'"proof":' + encode(made) not in (entry.body or b""):
        yield from _parted(entry, state, "proof", proof, made)
    run: Run = before if before is not None and before.run_id == state.run_id else state
    open_states = (run.state, "SOFT_FAIL")
    after = "HARD_FAIL" if decision.action == "stop" else state.state if state.state in open_states else ""
    waits = state.not_before if decision.not_before is None else decision.not_before
    rows = (
        ("proof.attempt", proof["attempt"], run.tried),
        ("proof.thresholds.max_attempts", proof["thresholds"]["max_attempts"], run.allowed),
        ("proof.policy", decision.closing.policy, run.policy),
        ("state", state.state, after),
        ("reason", state.reason, decision.reason),
        ("held_for", state.held_for, decision.held_for),
        ("not_before", state.not_before, waits),
    )
    for what, recorded, computed in rows:
        if recorded != computed:
            yield _difference(entry, state, what, recorded, computed)


def _of_entry(
    entry: Entry, before: Any, state: Run, proof: dict[str, Any], decision: Decision
) -> Iterator[Difference]:
    """Compare what a decision was made from, and what it leads to, with what the log says of the run."""
    given = proof["inputs"]
    run: Run = before or state
    rows = (
        ("proof.attempt", proof["attempt"], run.tried),
        ("proof.thresholds.max_attempts", proof["thresholds"]["max_attempts"], run.allowed),
        ("proof.inputs.seed", given["seed"], run.seed or seed_of(run.run_id)),
        ("proof.inputs.started", given["started"], run.created),
        ("proof.inputs.deadline", given["deadline"], run.deadline or None),
        ("proof.inputs.expected_s", given["expected_s"], state.expected_s or None),
        ("state", state.state, _AFTER.get(decision.action, state.state)),
        ("reason", state.reason, given["held_for"] if decision.reason == "held" else decision.reason),
    )
    for what, recorded, computed in rows:
        if recorded != computed:
            yield _difference(entry, state, what, recorded, computed)
    waits = (decision.not_before or 0.0) if state.state == "SOFT_FAIL" else state.not_before
    if state.not_before != waits:
        yield _difference(entry, state, "not_before", state.not_before, waits)


def _of_policy(
    entry: Entry, state: Any, proof: dict[str, Any], decision: Decision, current: Current
) -> Iterator[Difference]:
    """Compare a decision with what the policy would decide as it is now."""
    policy = current(proof["policy"])
    if policy is not None and policy.digest != proof["policy"]["digest"]:
        yield _difference(entry, state, "policy.digest", proof["policy"]["digest"], policy.digest)
        now = recomputed(proof, policy)
        yield from _parted(entry, state, "now", proof, proof_under(now, proof["policy"]))


def _of_claim(entry: Entry, before: Any, state: Run, header: Header) -> Iterator[Difference]:
    """Compare an attempt with what was due: its number, its fence, its budget, and not too early."""
    last: Run = before or Run()
    same = last.run_id == state.run_id
    rows = [
        ("attempt", state.attempt, last.attempt + 1),
        ("fence", state.fence, last.fence + 1),
        ("tried", state.tried, last.tried + 1 if same else 1),
    ]
    found = [_difference(entry, state, *row) for row in rows if row[1] != row[2]]
    if state.tried > state.allowed:
        found.append(_difference(entry, state, "tried", state.tried, f"{state.allowed} at most"))
    if same and header.at < last.not_before:
        found.append(_difference(entry, state, "began", header.at, f"{last.not_before} at the earliest"))
    yield from found


def _parted(entry: Entry, state: Any, path: str, recorded: Any, computed: Any) -> Iterator[Difference]:
    """Name every value in which two proofs differ; numbers of one value and two forms differ as well."""
    if isinstance(recorded, dict) and isinstance(computed, dict):
        for name in dict.fromkeys((*recorded, *computed)):
            yield from _parted(entry, state, f"{path}.{name}", recorded.get(name), computed.get(name))
    elif encode(recorded) != encode(computed):
        yield _difference(entry, state, path, recorded, computed)


def _difference(entry: Entry, state: Any, what: str, recorded: Any, computed: Any) -> Difference:
    run_id = state.run_id if type(state) is Run else ""
    return Difference(entry.seq, entry.entity, run_id, getattr(state, "attempt", 0), what, recorded, computed)
