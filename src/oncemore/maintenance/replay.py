"""Replay a log: verify every entry and compute every recorded decision again.

Nothing is run and nothing is written. A proof holds every input of its decision, so the decision can be
computed again and its bytes compared with the stored ones. The entry must agree with the decision, and the
inputs must agree with the log at that place. Every difference is reported with both values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.json import encode

from oncemore._values import Value, make
from oncemore.errors import PolicyError, UsageError
from oncemore.log.encryption import decrypt_bytes, is_encrypted
from oncemore.log.entry_codec import decode_body, decode_header
from oncemore.log.record import RunRecord
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.canonical_json import run_seed
from oncemore.policy.closing import (
    closing_of,
    closing_proof,
    count_lost_attempt,
    decide_closing,
    is_closing,
)
from oncemore.policy.decide import Situation, decide_retry
from oncemore.policy.model import Failure
from oncemore.policy.policy import Policy
from oncemore.policy.proof import build_recorded_proof
from oncemore.policy.tuning import Signals, Tuning
from oncemore.steps.history import verify_chain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from oncemore.log.encryption import BodyCipher
    from oncemore.log.entry_codec import EntryHeader
    from oncemore.log.store import Entry
    from oncemore.policy.decide import Decision
    from oncemore.steps.history import FoldedHeads

    #: Maps a recorded policy (name, version, digest) to the policy of that name today, or to None.
    Current = Callable[[dict[str, Any]], Policy | None]

MAX_DIFFERENCES = 100
#: The state of a run after a decision, by the action.
_STATE_AFTER = {"retry": "SOFT_FAIL", "defer": "SOFT_FAIL", "stop": "HARD_FAIL", "quarantine": "SOFT_FAIL"}


class ReplayDifference(Value):
    """A value that differs between the log and the replay, and the entry where it stands."""

    seq: int
    entity: str
    run_id: str
    attempt: int
    what: str
    recorded: Any
    computed: Any


class ReplayedEntry(NamedTuple):
    """One replayed entry, the state after it, and its differences.

    decision  the recorded proof; None if the entry has none, or if it cannot be read
    sealed    whether the body is encrypted with a key that is not available
    """

    # A NamedTuple, because one is made per entry of the log and `Value` is slow with keywords (4 µs).

    seq: int
    entity: str
    at: float
    marks: tuple[str, ...]
    state: Any
    decision: dict[str, Any] | None
    differences: tuple[ReplayDifference, ...]
    sealed: bool = False


class LogReplay:
    """Replays entries in log order.

    heads    version, hash and state of each entity so far
    current  finds today's policy: each decision is then also computed under it
    cipher   decrypts bodies
    """

    def __init__(self, current: Current | None = None, cipher: BodyCipher | None = None) -> None:
        self.heads: FoldedHeads = {}
        self._current, self._cipher = current, cipher

    def replay_entries(self, entries: Iterable[Entry]) -> Iterator[ReplayedEntry]:
        """Yield the replayed entries; raise `StoreError` for the first one that was altered."""
        heads = self.heads
        for entry in entries:
            before = heads[entry.entity][2] if entry.entity in heads else None
            verify_chain((entry,), heads)
            state = heads[entry.entity][2]
            header = decode_header(entry.header)
            proof, body = None, entry.body
            differences: list[ReplayDifference] = []
            is_sealed_body = False
            if body and (self._cipher is not None or is_encrypted(body)):
                body = self._decrypt_body(entry)
                is_sealed_body = body is None
            # Most bodies have no proof; searching the bytes is cheaper than decoding all of them.
            if body and b'"proof":' in body:
                proof = decode_body(body).get("proof")
            if proof is not None:
                decrypted = entry._replace(body=body)
                differences = list(_compare_decision(decrypted, before, state, proof, self._current))
            if type(state) is RunRecord and "INTENT" in header.marks:
                differences += _compare_claim(entry, before, state, header)
            yield ReplayedEntry(
                seq=entry.seq,
                entity=entry.entity,
                at=header.at,
                marks=header.marks,
                state=state,
                decision=proof,
                differences=tuple(differences[:MAX_DIFFERENCES]),
                sealed=is_sealed_body,
            )

    def _decrypt_body(self, entry: Entry) -> bytes | None:
        """Return the plain body of an encrypted entry, or None without its key."""
        assert entry.body is not None
        try:
            return decrypt_bytes(entry.body, self._cipher, entry.entity, entry.version)
        except UsageError:
            return None


def recompute_decision(proof: dict[str, Any], policy: Policy | None = None) -> Decision:
    """Return the decision for a proof's inputs, under the recorded policy or under another one."""
    return decide_retry(policy or policy_from_proof(proof), read_situation(proof))


def read_situation(proof: dict[str, Any]) -> Situation:
    """Return the inputs of a recorded decision."""
    inputs, signals = proof["inputs"], proof["inputs"]["signals"]
    # In the order of the fields: `make` costs a third of keywords, and every attempt of a log passes here.
    return make(
        Situation,
        (
            *(proof["attempt"], Failure(**proof["failure"]), proof["verdict"], inputs["now"], inputs["seed"]),
            *(inputs["started"], inputs["deadline"], inputs["expected_s"], inputs["tokens"]),
            *(inputs["hold_until"], inputs["held_for"], None if signals is None else Signals(**signals)),
            *(inputs.get("readings"), inputs.get("autonomy")),
        ),
    )


#: Policies rebuilt from proofs: a log has few of them, and building one costs more than a decision.
_policy_cache: dict[bytes, Policy] = {}
_MAX_POLICIES = 1000


def policy_from_proof(proof: dict[str, Any]) -> Policy:
    """Return a policy that decides as the recorded one did; the proof holds all of its bounds."""
    # The digest alone is not enough: a forged proof could name a digest with other thresholds.
    key = encode((proof["policy"], proof["thresholds"]))
    known = _policy_cache.get(key)
    if known is None:
        if len(_policy_cache) >= _MAX_POLICIES:
            _policy_cache.clear()
        bounds = dict(proof["thresholds"])
        schedule = dict(bounds.pop("schedule"))
        schedule["delays"] = tuple(schedule["delays"])
        tuning = bounds.pop("tuning")
        known = _policy_cache[key] = Policy(
            proof["policy"]["name"],
            proof["policy"]["version"],
            schedule=Schedule(**schedule),
            jitter=Jitter(**bounds.pop("jitter")),
            tuning=None if tuning is None else Tuning(**tuning),
            **bounds,
        )
    return known


def _compare_decision(
    entry: Entry, before: Any, state: Any, proof: dict[str, Any], current: Current | None
) -> Iterator[ReplayDifference]:
    """Compare a recorded decision with the recomputed one, and both with the state after the entry."""
    try:
        if is_closing(proof):
            yield from _compare_closing(entry, before, state, proof)
            return
        decision = recompute_decision(proof)
        computed = build_recorded_proof(decision, proof["policy"])
    except (KeyError, TypeError, ValueError, PolicyError) as error:
        yield _make_difference(entry, state, "proof", "cannot be read", f"{type(error).__name__}: {error}")
        return
    assert entry.body is not None
    # The stored bytes are compared, not the values: the proof must be reproduced to the byte.
    if b'"proof":' + encode(computed) not in entry.body:
        yield from _compare_values(entry, state, "proof", proof, computed)
    if type(state) is RunRecord:
        yield from _compare_entry(entry, before, state, proof, decision)
    if current is not None:
        yield from _compare_policy(entry, state, proof, decision, current)


def _compare_closing(
    entry: Entry, before: Any, state: RunRecord, proof: dict[str, Any]
) -> Iterator[ReplayDifference]:
    """Compare a decision that ended a run without a failed attempt, such as after a lost lease."""
    decision = decide_closing(closing_of(proof))
    computed_proof = closing_proof(decision)
    if b'"proof":' + encode(computed_proof) not in (entry.body or b""):
        yield from _compare_values(entry, state, "proof", proof, computed_proof)
    # The inputs are those of the run before this entry, unless this entry begins the run.
    run: RunRecord = before if before is not None and before.run_id == state.run_id else state
    counts = count_lost_attempt(run, decision.closing.event)
    open_states = (run.state, "SOFT_FAIL")
    after = "HARD_FAIL" if decision.action == "stop" else state.state if state.state in open_states else ""
    waits = state.not_before if decision.not_before is None else decision.not_before
    rows = (
        ("proof.attempt", proof["attempt"], run.attempt_count),
        ("proof.thresholds.max_attempts", proof["thresholds"]["max_attempts"], run.max_attempts),
        ("proof.thresholds.max_crashes", decision.closing.max_crashes, run.max_crashes),
        ("proof.inputs.crashes", decision.closing.crashes, run.crash_count if run.max_crashes else 0),
        ("proof.policy", decision.closing.policy, run.policy),
        ("tried", state.attempt_count, counts.get("attempt_count", run.attempt_count)),
        ("crashes", state.crash_count, counts.get("crash_count", run.crash_count)),
        ("state", state.state, after),
        ("reason", state.reason, decision.reason),
        ("held_for", state.held_for, decision.held_for),
        ("not_before", state.not_before, waits),
    )
    yield from _compare_rows(entry, state, rows)


def _compare_entry(
    entry: Entry, before: Any, state: RunRecord, proof: dict[str, Any], decision: Decision
) -> Iterator[ReplayDifference]:
    """Compare the inputs and the result of a decision with the run in the log."""
    inputs = proof["inputs"]
    run: RunRecord = before or state
    # Only a run that is still waiting has a due time; a final state keeps its last one.
    waits = (decision.not_before or 0.0) if state.state == "SOFT_FAIL" else state.not_before
    rows = (
        ("proof.attempt", proof["attempt"], run.attempt_count),
        ("proof.thresholds.max_attempts", proof["thresholds"]["max_attempts"], run.max_attempts),
        ("proof.inputs.seed", inputs["seed"], run.seed or run_seed(run.run_id)),
        ("proof.inputs.started", inputs["started"], run.created_at),
        ("proof.inputs.deadline", inputs["deadline"], run.deadline or None),
        ("proof.inputs.expected_s", inputs["expected_s"], state.expected_duration_s or None),
        ("state", state.state, _STATE_AFTER.get(decision.action, state.state)),
        ("reason", state.reason, inputs["held_for"] if decision.reason == "held" else decision.reason),
        ("not_before", state.not_before, waits),
    )
    yield from _compare_rows(entry, state, rows)


def _compare_policy(
    entry: Entry, state: Any, proof: dict[str, Any], decision: Decision, current: Current
) -> Iterator[ReplayDifference]:
    """Compare a decision with the decision under today's policy, if that differs from the recorded one."""
    policy = current(proof["policy"])
    # An unchanged policy decides as it did, and is already compared.
    if policy is not None and policy.digest != proof["policy"]["digest"]:
        yield _make_difference(entry, state, "policy.digest", proof["policy"]["digest"], policy.digest)
        now = recompute_decision(proof, policy)
        yield from _compare_values(entry, state, "now", proof, build_recorded_proof(now, proof["policy"]))


def _compare_claim(
    entry: Entry, before: Any, state: RunRecord, header: EntryHeader
) -> Iterator[ReplayDifference]:
    """Compare an attempt's number, fence, count and start with the state before it."""
    last: RunRecord = before or RunRecord()
    is_same_run = last.run_id == state.run_id  # attempts and fences count per key, tries per run
    rows: tuple[tuple[str, Any, Any], ...] = (
        ("attempt", state.attempt, last.attempt + 1),
        ("fence", state.fence, last.fence + 1),
        ("tried", state.attempt_count, last.attempt_count + 1 if is_same_run else 1),
    )
    yield from _compare_rows(entry, state, rows)
    if state.attempt_count > state.max_attempts:
        yield _make_difference(entry, state, "tried", state.attempt_count, f"{state.max_attempts} at most")
    if is_same_run and header.at < last.not_before:
        yield _make_difference(entry, state, "began", header.at, f"{last.not_before} at the earliest")


def _compare_rows(
    entry: Entry, state: Any, rows: Iterable[tuple[str, Any, Any]]
) -> Iterator[ReplayDifference]:
    """Yield the rows of name, recorded value and computed value in which both values differ."""
    for what, recorded, computed in rows:
        if recorded != computed:
            yield _make_difference(entry, state, what, recorded, computed)


def _compare_values(
    entry: Entry, state: Any, path: str, recorded: Any, computed: Any
) -> Iterator[ReplayDifference]:
    """Yield every value in which two proofs differ; 1 and 1.0 differ as well, because their bytes do."""
    if isinstance(recorded, dict) and isinstance(computed, dict):
        for name in dict.fromkeys((*recorded, *computed)):
            yield from _compare_values(entry, state, f"{path}.{name}", recorded.get(name), computed.get(name))
    elif encode(recorded) != encode(computed):
        yield _make_difference(entry, state, path, recorded, computed)


def _make_difference(entry: Entry, state: Any, what: str, recorded: Any, computed: Any) -> ReplayDifference:
    return ReplayDifference(
        seq=entry.seq,
        entity=entry.entity,
        run_id=state.run_id if type(state) is RunRecord else "",
        attempt=getattr(state, "attempt", 0),
        what=what,
        recorded=recorded,
        computed=computed,
    )
