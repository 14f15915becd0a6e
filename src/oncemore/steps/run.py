"""A run as the log has it: its state, its attempts, and the reasons of its decisions.

Everything here is read from the log. `records` exports one record per mark with the ten fields of a
transition (WAL-3); the log itself stores fields that are constant over a run once.
"""

from __future__ import annotations

import time
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.clock import Clock
from oncemore.control.model import Approval, SwitchBoard
from oncemore.errors import IllegalTransition, KeyExpired, ResultUnavailable, StoreError, UsageError
from oncemore.limits.cooldown_rules import ResourceRecord
from oncemore.log import record
from oncemore.log.entry_codec import decode_head, decode_header, hash_entry, read_body
from oncemore.log.record import (
    NOWHERE,
    ArtifactRecord,
    BreakerRecord,
    EventRecord,
    JobRecord,
    MaintenanceRecord,
    QuotaRecord,
    RecordedPolicy,
    StoreSecret,
    WorkerRecord,
    apply_header,
)
from oncemore.log.result_codec import result_value
from oncemore.log.tagged_json import untag_value
from oncemore.policy.canonical_json import run_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from oncemore.artifacts.artifact import Artifact
    from oncemore.log.encryption import BodyCipher
    from oncemore.log.store import Entry
    from oncemore.steps.engine import Engine

#: How long who waits looks away from a log that does not grow, and how often a task looks whether it has.
LOOK_AWAY_S, LOOK_S = 1.0, 0.02
_REAL = Clock()

#: What kind of state an entity has, by what its name begins with.
KINDS: dict[str, Any] = {
    "run": record.RunRecord,
    "worker": WorkerRecord,
    "event": EventRecord,
    "artifact": ArtifactRecord,
    "maintenance": MaintenanceRecord,
    "job": JobRecord,
    "control": SwitchBoard,
    "approval": Approval,
    "breaker": BreakerRecord,
    "quota": QuotaRecord,
    "resource": ResourceRecord,
    "secret": StoreSecret,
    "policy": RecordedPolicy,
}
#: How a mark is called in an export (WAL-4).
RECORDS = {
    "INTENT": "INTENT",
    "COMMIT": "COMMIT",
    "DECISION": "DECISION",
    "LEASE": "LEASE",
    "CHECKPOINT": "CHECKPOINT",
    "ESCALATION": "ESCALATION",
    "PRUNE": "PRUNE",
    "ERASE": "ERASE",
    "EVENT": "EVENT",
    "BREAKER": "DECISION",
    "QUOTA": "DECISION",
}


class AttemptView(Value):
    """One attempt of a run.

    outcome  "RUNNING", "COMPLETE", "SOFT_FAIL" or "HARD_FAIL"
    error    the neutral record of what went wrong, if anything did
    entry    where its outcome stands in the log: entity and version
    correlation_id  what ties all records of this work together
    """

    number: int
    began: float
    ended: float | None
    outcome: str
    reason: str
    error: dict[str, Any] | None
    worker: str
    entry: str
    correlation_id: str = ""


class Run:
    """One run of a key, as it was when this object was made.

    status          PENDING, RUNNING, SOFT_FAIL, HARD_FAIL or COMPLETE
    reason          why, as a stable code
    held_for        why it waits for a person, if it does
    not_before      the earliest time of the next attempt, where one waits

    It can be pickled, as a part of an error that another process raised: then it tells what it was, and
    nothing that would have to be read from the log.
    """

    def __init__(self, engine: Engine, entity: str, decode: Callable[[Any], Any] = result_value) -> None:
        self._at: Engine | None = engine
        self._entity, self._decode = entity, decode
        head = engine.store.load_head(entity)
        self.version = 0 if head is None else head.version
        self._state: record.RunRecord = (
            record.NEW[record.RunRecord] if head is None else decode_head(head.head)
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_at": None, "_decode": result_value}

    @property
    def _engine(self) -> Engine:
        if self._at is None:
            raise UsageError(f"{self!r} came from another process without its log; ask the step for last()")
        return self._at

    def __repr__(self) -> str:
        return f"<oncemore.Run {self.step} {self.key[:12]} {_describe_state(self)}>"

    @property
    def key(self) -> str:
        """The idempotency key."""
        return self._entity.removeprefix("run/")

    @property
    def state(self) -> record.RunRecord:
        """All fields of the state."""
        return self._state

    @property
    def status(self) -> str:
        """One of the five states."""
        return self._state.state

    @property
    def step(self) -> str:
        """The step's name."""
        return self._state.step

    @property
    def run_id(self) -> str:
        """The id of this life of the key, a UUIDv7."""
        return self._state.run_id

    @property
    def reason(self) -> str:
        """Why it is where it is."""
        return self._state.reason

    @property
    def held_for(self) -> str:
        """Why it waits for a person; empty if it does not."""
        return self._state.held_for

    @property
    def not_before(self) -> float:
        """The earliest time of the next attempt."""
        return self._state.not_before

    @property
    def correlation_id(self) -> str:
        """The correlation id of all records of this work."""
        return self._state.correlation_id

    @property
    def value(self) -> Any:
        """The result; only a COMPLETE run has one."""
        if self.status != "COMPLETE":
            raise UsageError(f"{self!r} has no value: it is not COMPLETE")
        body = self._read_body(self._state.commit_version)
        if "result_unavailable" in body:
            raise ResultUnavailable(body["result_unavailable"])
        if "spilled" in body:
            found = self._engine.artifacts.fetch_result(body["spilled"])
            if isinstance(found, Exception):
                raise ResultUnavailable(f"{self!r} is done, but its value cannot be had: {found}") from found
            return self._decode(found)
        if "result" not in body:
            raise KeyExpired(f"{self!r} is done, and its value was pruned")
        return self._decode(body["result"])

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """The artifacts of a COMPLETE run, in order."""
        if self.status != "COMPLETE":
            return ()
        with self._engine.artifact_store.use_store():
            return tuple(
                untag_value(plain)
                for plain in self._read_body(self._state.commit_version).get("artifacts", ())
            )

    @property
    def error(self) -> dict[str, Any] | None:
        """The neutral record of the failure that ended it, or None."""
        return (
            self._read_body(self._state.failure_version).get("error") if self._state.failure_version else None
        )

    @property
    def attempts(self) -> tuple[AttemptView, ...]:
        """All attempts of this run, in order."""
        return tuple(_collect_attempts(self._own_entries()))

    @property
    def proofs(self) -> tuple[dict[str, Any], ...]:
        """The proofs of all decisions of this run, in order."""
        bodies = (body for _, _, body in self._own_entries())
        return tuple(body["proof"] for body in bodies if "proof" in body)

    def explain(self) -> str:
        """Return the history of the run as text, one line for each attempt and decision."""
        return "\n".join(_explain_entries(self, self._own_entries()))

    def records(self) -> list[dict[str, Any]]:
        """Return all records of the key, as the source documents have them (WAL-3)."""
        return list(export_records(self._engine.store.read_entries(self._entity), self._engine.cipher))

    def wait(self, timeout: float | None = None) -> Run:
        """Block until the run is over or held, or time is up; return it as it is then.

        In async code `await run` does the same without blocking; the event loop's own means bound it.
        """
        looks = self._poll_positions(timeout)
        try:
            while True:
                self._engine.store.wait_for_change(*next(looks))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def __await__(self) -> Generator[Any, Any, Run]:
        return self._wait_async().__await__()

    async def _wait_async(self) -> Run:
        looks = self._poll_positions(None)
        try:
            while True:
                seen, seconds = next(looks)
                ends = time.monotonic() + seconds
                while self._engine.store.wait_for_change(seen, 0.0) <= seen and time.monotonic() < ends:
                    await _REAL.pause(LOOK_S)  # as a store looks that cannot be told by others
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _poll_positions(self, timeout: float | None) -> Generator[tuple[int, float], None, Run]:
        """Yield the log position at the last read, and how long to wait for the log to grow.

        In real time even under a test clock: another process works meanwhile.
        """
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            seen = self._engine.store.wait_for_change(0, 0.0)
            run = Run(self._engine, self._entity, self._decode)
            left = LOOK_AWAY_S if ends is None else min(LOOK_AWAY_S, ends - time.monotonic())
            if run.status in ("COMPLETE", "HARD_FAIL") or run.held_for or left <= 0:
                return run
            yield seen, left

    def _read_body(self, version: int) -> dict[str, Any]:
        for entry in self._engine.store.read_entries(self._entity, version - 1):
            return read_body(entry, self._engine.cipher)
        return {}

    def _own_entries(self) -> list[tuple[Any, record.RunRecord, dict[str, Any]]]:
        """Return header, state and body of the entries of this run: its own life only."""
        states = fold_entries(self._engine.store.read_entries(self._entity), self._engine.cipher)
        return [(h, s, b) for h, s, b in states if s.run_id == self.run_id and h.version <= self.version]


def fold_entries(
    entries: Iterable[Entry], seal: BodyCipher | None = None
) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Return header, state and body of entries; each entity's states are folded from its first entry on."""
    states: dict[str, Any] = {}
    for entry in entries:
        header = decode_header(entry.header)
        kind: Any = KINDS[header.entity.partition("/")[0]]
        state = states[header.entity] = apply_header(states.get(header.entity), header.sets, kind)
        yield header, state, read_body(entry, seal)


def _collect_attempts(entries: list[tuple[Any, record.RunRecord, dict[str, Any]]]) -> Iterator[AttemptView]:
    open_: AttemptView | None = None
    for header, state, body in entries:
        if "INTENT" in header.marks:
            begun = (state.attempt, state.started_at, None, "RUNNING", "", None, state.worker, "")
            open_ = AttemptView(*begun, state.correlation_id)
        elif open_ is not None and state.state != "RUNNING":
            where = f"{header.entity}#{header.version}"
            yield open_._replace(
                ended=header.at,
                outcome=state.state,
                reason=state.reason,
                error=body.get("error"),
                entry=where,
            )
            open_ = None
    if open_ is not None:
        yield open_


def _explain_entries(run: Run, entries: list[tuple[Any, record.RunRecord, dict[str, Any]]]) -> Iterator[str]:
    state = run.state
    yield f"{run.step}, key {run.key[:12]}, run {state.run_number} ({run.run_id}): {_describe_state(run)}"
    for header, after, body in entries:
        if "INTENT" in header.marks:
            yield (
                f"  attempt {after.attempt} began, {after.attempt_count} of {after.max_attempts} (fence "
                f"{after.fence})"
            )
        elif "CHECKPOINT" in header.marks:
            yield "  … kept a checkpoint"
        elif "PRUNE" in header.marks or "ERASE" in header.marks:
            how = "erased" if "ERASE" in header.marks else "pruned"
            yield f"  its arguments, results and errors were {how}"
        elif "BREAKER" in header.marks:
            yield f"  not tried: the breaker of {body.get('breaker', 'its provider')} is open"
        elif "QUOTA" in header.marks and "budget" in body:
            told = "waits for a token of" if after.budget_debt else "the next attempt is paid for by"
            yield f"  {told} the retry budget of {body['budget']}"
        elif "QUOTA" in header.marks:
            yield f"  not tried yet: {body.get('of', 'its provider')} takes {body.get('rate', 'no more now')}"
        elif after.reason == "imported":
            yield "  was done elsewhere, and marked as done here"
        elif after.state not in ("PENDING", "RUNNING"):  # what changes neither is told by its decision
            error = body.get("error") or {}
            why = f": {error.get('type')}: {error.get('message')}" if error else ""
            reason = f" ({after.reason})" if after.reason else ""
            yield f"  attempt {after.attempt} → {after.state}{reason}{why}"
            if "proof" in body:
                yield f"    {body['proof'].get('sentence', body['proof'].get('reason', ''))}"
        if "decision" in body:
            made = body["decision"]
            yield f"  decided by {made['actor'] or 'somebody'}: {made['action']}, because {made['reason']}"


def _describe_state(run: Run) -> str:
    if run.held_for:
        return f"held, {run.held_for.replace('_', ' ')}"
    return f"{run.status}{f', {run.reason}' if run.reason else ''}"


def export_records(entries: Iterable[Entry], seal: BodyCipher | None = None) -> Iterator[dict[str, Any]]:
    """Return one record for each mark of runs' entries, each with all ten fields of a transition."""
    entries = list(entries)
    for entry, (header, state, body) in zip(entries, fold_entries(entries, seal), strict=True):
        if type(state) is not record.RunRecord:
            continue
        for mark in header.marks:
            transition = mark not in RECORDS
            yield {
                "seq": entry.seq,
                "at": header.at,
                "kind": "TRANSITION" if transition else RECORDS[mark],
                "state": mark if transition else state.state,
                "run_id": state.run_id,
                "node_id": state.step,
                "attempt": state.attempt,
                "input_hash": state.input_hash,
                "seed": state.seed or run_seed(state.run_id),
                "cfg_hash": state.cfg_hash,
                "idempotency_key": header.entity.removeprefix("run/"),
                "checkpoint_ref": f"{header.entity}#{state.checkpoint_version}"
                if state.checkpoint_version
                else None,
                "telemetry_snapshot": {
                    "duration_s": body.get("duration_s"),
                    "circuit_open": bool(body.get("circuit_open")),
                },
                "decision_proof": body.get("proof"),
                "correlation_id": state.correlation_id,
                "reason": state.reason,
                "error": _exported_error(mark, state, body),
                **({"intent": "compute"} if mark == "INTENT" else {}),
                **_artifact_digests(mark, body),
                **(
                    {"escalation": body["escalation"]}
                    if mark == "ESCALATION" and "escalation" in body
                    else {}
                ),
            }


def _artifact_digests(mark: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the artifact digests of an entry (WAL-4)."""
    if mark not in ("COMMIT", "COMPLETE") or "artifacts" not in body:
        return {}
    return {"artifacts": [plain["$artifact"]["digest"] for plain in body["artifacts"]]}


def _exported_error(mark: str, state: record.RunRecord, body: dict[str, Any]) -> Any:
    """Return the exported error: exhaustion under its own name, with the last error of an attempt."""
    if mark not in ("SOFT_FAIL", "HARD_FAIL"):
        return None
    error = body.get("error")
    if mark == "HARD_FAIL" and state.reason == "max_attempts_exceeded":
        return {"error": "max_attempts_exceeded", "last": error}
    return error


def verify_chain(
    entries: Iterable[Entry], heads: dict[str, tuple[int, bytes, Any]] | None = None
) -> dict[str, tuple[int, bytes, Any]]:
    """Check every link of a log and fold it; return version, hash and state of each entity.

    heads  what earlier entries have led to, which is gone on from

    Raises `StoreError` with the number of the first entry that does not fit.
    """
    heads = {} if heads is None else heads
    for seq, entity, number, before, own, header, body, digest in entries:
        version, prev, state = heads.get(entity, _NOTHING)
        if number != version + 1:
            raise StoreError(f"entry {seq} ({entity}) is out of order: a part of the log is missing")
        try:
            if body is not None:
                digest = sha256(body).digest()
            fits = digest is not None and before == prev and own == hash_entry(prev, header, digest)
        except TypeError:  # somebody has put a text where bytes were
            fits = False
        if not fits:
            raise StoreError(f"entry {seq} ({entity}) was altered: its hash does not fit")
        kind: Any = KINDS.get(entity.partition("/")[0])
        if kind is None:
            raise StoreError(f"entry {seq} is about {entity}, of a kind that is not known here")
        try:
            heads[entity] = number, own, _fold_entry(entity, number, header, state, kind)
        except (StoreError, IllegalTransition, TypeError) as fault:
            raise StoreError(f"entry {seq} ({entity}) makes no sense: {fault}") from None
    return heads


_NOTHING = (0, NOWHERE, None)


def _fold_entry(entity: str, version: int, data: bytes, state: Any, kind: Any) -> Any:
    """Return the state after an entry with a valid hash; refuse an entry with impossible content."""
    header = decode_header(data)
    if header.entity != entity or header.version != version:
        raise StoreError(f"it is about version {header.version} of {header.entity}")
    return apply_header(state, header.sets, kind)


def find_opening(entries: Iterable[Entry], seal: BodyCipher | None = None) -> dict[str, Any]:
    """Return what the last run of an entity began with: its arguments, and what else goes with it.

    It is empty where that was pruned.
    """
    found: dict[str, Any] = {}
    for entry in entries:
        header = decode_header(entry.header)
        if "PENDING" in header.marks and "run_id" in header.sets:  # what was held has begun before
            found = read_body(entry, seal)
    return found
