"""Every interleaving of a few workers at one key, with a few faults anywhere: nothing is left to chance.

A state is a value: what the store, the outside and the workers hold. A worker is what it was told so far:
its script is run again from its beginning for every step, because a generator cannot be copied. States that
were met before, by whatever way, are not followed again, so that the search is complete.

One step is one operation that others can notice (a read, a write, the work, a question, a wait); what is
local to a worker (the time, a name, a body) goes with the step before. Faults, of which a state may have
had only so many:

    crash    a worker is gone; its lease passes at some later moment
    lapse    the lease of a living worker passes: it goes on as a zombie
    lost     a write is stored, or not, and its answer is lost; it is sent again, as the drivers do
    cut      cancellation, before the work or after its effect
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore.log.entry_codec import encode_entry
from oncemore.log.record import NOWHERE, LoadedHead, RunRecord
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy
from oncemore.steps.call import PreparedCall
from oncemore.steps.ops import (
    AppendChange,
    AskPermission,
    AskReconcile,
    AttemptOutcome,
    AttemptTerms,
    EndCall,
    LoadHead,
    NotifyListeners,
    Permission,
    ReadBody,
    ReadClock,
    ReadLease,
    ReconcileAnswer,
    ReserveWorker,
    RunAttempt,
    SleepSeconds,
    WatchEntity,
)
from oncemore.steps.plan import StepPlan
from tests.crash.harness import start_call
from tests.sim.judge import FINAL, Book, Judge, Violation
from tests.sim.simulator import KINDS, Cut, Fails

if TYPE_CHECKING:
    from collections.abc import Iterator

ENTITY = "run/k"
LEASE_S = 60.0
CALLS: list[Any] = [
    PreparedCall(ENTITY, None, input_hash="input", cfg_hash="cfg")  # type: ignore[arg-type]
    for _ in range(4)
]
FRESH = len(CALLS) - 1
POLICY = Policy(
    "small", max_attempts=2, max_crashes=2, schedule=Schedule("fixed", delays=(5.0,)), jitter=Jitter("none")
)
CUT = Cut("cancelled")


class Worker(NamedTuple):
    """One caller: what it was told, and what it has met."""

    told: tuple[Any, ...] = ()
    print: int = 0  # of all it was told
    state: str = "on its way"  # or: crashed, ended
    fence: int = 0
    asked_about: tuple[str, int, float, float] = ("", 0, 0.0, 0.0)
    pending: tuple[AppendChange, Any] | None = None  # a write whose answer was lost
    committed: bool = False
    cut: bool = False
    leased: bool = False


class State(NamedTuple):
    """Everything there is."""

    book: Book
    log: tuple[tuple[RunRecord, Any, bytes], ...]  # state, body and hash of every entry
    now: float
    workers: tuple[Worker, ...]
    faults: int

    def key(self) -> tuple[Any, ...]:
        """What tells it from other states."""
        book = self.book
        return (
            book.hash, tuple(book.landed), tuple(book.late), frozenset(book.cleared), book.barrier, self.now,
            self.faults, frozenset(book.executed),
            tuple((w.print, w.state, w.pending is None, w.leased, w.cut, w.fence, w.committed)
                  for w in self.workers),
        )  # fmt: skip


class Explorer:
    """Follows every way that a number of workers can go."""

    def __init__(
        self, effect: str, turns: list[str], *, asks: bool, workers: int = 2, faults: int = 1
    ) -> None:
        self.effect, self.turns, self.faults = effect, turns, faults
        self.plan = StepPlan(
            name="small", effect=effect, policy=POLICY, classify=lambda error, now: KINDS[error.args[0]],  # type: ignore[arg-type]
            encode=_encode, decode=_decode,
            describe=lambda error, failure: {"type": type(error).__name__},
            not_applied=lambda error: error.args[0] == "refused", has_reconcile=asks,
        )  # fmt: skip
        book = Book(ENTITY, effect, fencing=False)
        self.first = State(book, (), 1000.0, (Worker(),) * workers, faults)
        self.states = self.steps = self.ends = 0

    def explore(self) -> None:
        """Visit every state there is; the first violation is raised with the way to it."""
        todo: list[tuple[State, tuple[str, ...]]] = [(self.first, ())]
        met = {self.first.key()}
        while todo:
            state, way = todo.pop()
            self.states += 1
            moved = False
            for name, after in self._next(state, way):
                moved = True
                self.steps += 1
                key = after.key()
                if key not in met:
                    met.add(key)
                    todo.append((after, (*way, name)))
            if not moved:
                self._end(state, way)

    def _next(self, state: State, way: tuple[str, ...]) -> Iterator[tuple[str, State]]:
        for at, worker in enumerate(state.workers):
            if worker.leased and worker.state != "on its way":
                yield f"{at} lapses", _with(state, at, worker._replace(leased=False))
            if worker.state != "on its way":
                continue
            for fault in ("", "crash", "lapse", "lost", "lost, not stored", "cut", "cut, done"):
                if fault and not state.faults:
                    break
                try:
                    after = self._step(state, at, fault)
                except Violation as broken:
                    raise Violation(
                        f"{self.effect} {self.turns}: {broken}; {(*way, f'{at} {fault}')}"
                    ) from None
                if after is not None:
                    yield f"{at} {fault}".strip(), after

    def _script(self, at: int, worker: Worker) -> tuple[Any, Any]:
        script = start_call(self.plan, CALLS[at])
        op = next(script)
        for answer in worker.told:
            op = script.send(answer)
        return script, op

    def _step(self, state: State, at: int, fault: str) -> State | None:
        """Return the state after a worker's next operation, or after a fault before it, if there is one."""
        worker = state.workers[at]
        if fault:
            state = state._replace(faults=state.faults - 1)
        if fault == "crash":
            return _with(state, at, worker._replace(state="crashed", pending=None))
        if fault == "lapse":
            return _with(state, at, worker._replace(leased=False)) if worker.leased else None
        script, op = self._script(at, worker)
        if type(op) is AppendChange:
            done = self._save(state, at, op, fault)
        elif fault.startswith("lost"):
            return None
        elif type(op) is RunAttempt:
            done = self._work(state, at, op, fault)
        elif fault:
            return None
        else:
            done = self._other(state, at, op)
        if done is None:
            return None
        state, answer = done
        if answer is _LATER:
            return state
        return self._tell(state, at, script, answer)

    def _tell(self, state: State, at: int, script: Any, answer: Any) -> State:
        """Tell a worker the answer, and do what is its own affair."""
        while True:
            worker = state.workers[at]
            print_ = hash((worker.print, _shown(answer)))
            worker = worker._replace(told=(*worker.told, answer), print=print_)
            state = _with(state, at, worker)
            try:
                op = script.send(answer)
            except StopIteration as end:
                return self._ended(state, at, end.value)
            if type(op) is ReadClock:
                answer = state.now
            elif type(op) is ReserveWorker:
                answer = AttemptTerms(f"w{at}", f"r{at}.{len(state.log)}", {"x": 1}, "input")
                state = _with(state, at, worker._replace(leased=True))
            elif type(op) is AskPermission:
                answer = Permission({})
            elif type(op) is ReadBody:
                answer = state.log[op.version - 1][1]
            elif type(op) is NotifyListeners:
                answer = None
            elif type(op) is LoadHead and script.gi_yieldfrom is None:
                # It looks again, as if it had just come: what it was told before no longer matters.
                return _with(state, at, worker._replace(told=(), print=0))
            else:
                return state

    def _ended(self, state: State, at: int, op: EndCall) -> State:
        worker = state.workers[at]
        Judge.ended(_judge(state.book), self._lane(state, at), op.value, op.error)
        return _with(state, at, worker._replace(state="ended", leased=False))

    def _lane(self, state: State, at: int) -> Any:
        worker = state.workers[at]
        return SimpleNamespace(
            call=CALLS[at],
            kind="call",
            life=0,
            cut=CUT if worker.cut else None,
            store_failed=False,
            other=False,
            fence=worker.fence,
            committed=worker.committed,
            asked_about=worker.asked_about,
        )

    def _save(self, state: State, at: int, op: AppendChange, fault: str) -> tuple[State, Any] | None:
        worker, version, seen = state.workers[at], len(state.log), op.head
        if fault.startswith("cut") or (fault and worker.pending is not None):
            return None
        if worker.pending is None:
            nonce = at * 1000 + len(worker.told)
            made: Any = encode_entry(op.change, ENTITY, seen.version + 1, seen.hash, state.now, nonce)
        else:
            op, made = worker.pending
            if version > seen.version and state.log[seen.version][2] == made.hash:
                state = _with(state, at, worker._replace(pending=None))  # it stands there: it is ours
                return state, LoadedHead(ENTITY, seen.version + 1, made.hash, op.change.after, op.change.body)
        if fault == "lost, not stored":
            return _with(state, at, worker._replace(pending=(op, made))), _LATER
        worker = worker._replace(pending=None)
        if version != seen.version:
            return (_with(state, at, worker), None) if not fault else None
        book, lane = _copied(state.book), self._lane(state, at)
        batch = SimpleNamespace(writes=[SimpleNamespace(expect=seen.version, hash=made.hash)])
        _judge(book).stored(lane, op, batch)  # type: ignore[arg-type]
        run = op.change.after
        assert type(run) is RunRecord
        worker = worker._replace(fence=lane.fence, committed="COMMIT" in op.change.marks)
        state = state._replace(book=book, log=(*state.log, (run, op.change.body, made.hash)))
        if fault:
            return _with(state, at, worker._replace(pending=(op, made))), _LATER
        return _with(state, at, worker), LoadedHead(ENTITY, version + 1, made.hash, run, op.change.body)

    def _work(self, state: State, at: int, op: RunAttempt, fault: str) -> tuple[State, Any]:
        worker, book, run = state.workers[at], _copied(state.book), op.head.record
        judge = _judge(book)
        state = state._replace(book=book)
        if fault == "cut":
            judge.clear(book, run)
            return _with(state, at, worker._replace(cut=True)), AttemptOutcome(
                op.head, None, CUT, begun=False
            )
        turn = "cut, done" if fault else self.turns[min(len(book.executed), len(self.turns) - 1)]
        judge.executing(self._lane(state, at), op.head)
        if turn in ("ok", "transient, done", "cut, done") and self.effect == "once":
            judge.lands(book, run.attempt, run.fence)
        if turn == "ok":
            return state, AttemptOutcome(op.head, ("ok", f"{ENTITY}#{run.attempt}"))
        if turn == "cut, done":
            return _with(state, at, worker._replace(cut=True)), AttemptOutcome(op.head, None, CUT)
        if turn == "refused":
            judge.clear(book, run)
        return state, AttemptOutcome(op.head, None, Fails(turn))

    def _other(self, state: State, at: int, op: Any) -> tuple[State, Any] | None:
        worker = state.workers[at]
        if type(op) is LoadHead:
            if not state.log:
                return state, LoadedHead(ENTITY, 0, NOWHERE, None)
            run, body, entry = state.log[-1]
            return state, LoadedHead(ENTITY, len(state.log), entry, run, body)
        if type(op) is ReadLease:
            until = state.now + LEASE_S if _holds(state, op) else 0.0
            asked = (op.worker, op.fence, until, state.now)
            return _with(state, at, worker._replace(asked_about=asked)), until
        if type(op) is AskReconcile:
            book, run = _copied(state.book), op.head.record
            if run.attempt in book.landed or run.attempt in book.late:
                return state, ReconcileAnswer("applied", ("ok", f"{ENTITY}#{run.attempt}"))
            _judge(book).clear(book, run)
            return state._replace(book=book), ReconcileAnswer("not_applied")
        if type(op) is SleepSeconds:
            return state._replace(now=state.now + op.seconds), None
        assert type(op) is WatchEntity
        changed = len(state.log) != op.version or not _held(state)
        return (state, None) if changed else None

    def _end(self, state: State, way: tuple[str, ...]) -> None:
        """Nobody can go on: a fresh caller must bring the key to its end, alone."""
        self.ends += 1
        if any(worker.state == "on its way" for worker in state.workers):
            raise Violation(f"{self.effect} {self.turns}: somebody waits for ever; {way}")
        missing = (Worker(state="ended"),) * (FRESH - len(state.workers))
        state = state._replace(workers=(*state.workers, *missing, Worker()), faults=0)
        for _ in range(100):
            if state.workers[FRESH].state != "on its way":
                break
            after = self._step(state, FRESH, "")
            if after is None:
                raise Violation(f"{self.effect} {self.turns}: a fresh caller waits for ever; {way}")
            state = after
        run = state.log[-1][0]
        if state.workers[FRESH].state != "ended" or (run.state not in FINAL and not run.held_for):
            raise Violation(f"{self.effect} {self.turns}: left in {run.state}; {way}")


_LATER = object()


def _with(state: State, at: int, worker: Worker) -> State:
    return state._replace(workers=(*state.workers[:at], worker, *state.workers[at + 1 :]))


def _holds(state: State, op: ReadLease) -> bool:
    number = int(op.worker[1:])
    return number < len(state.workers) and state.workers[number].leased


def _held(state: State) -> bool:
    run = state.log[-1][0]
    return run.state == "RUNNING" and state.workers[int(run.worker[1:])].leased


def _shown(answer: Any) -> Any:
    """What tells answers apart."""
    if type(answer) is LoadedHead:
        return (answer.version, answer.hash)
    if type(answer) is AttemptOutcome:
        return (str(answer.value), repr(answer.error), answer.begun)
    if type(answer) is ReconcileAnswer:
        return answer.outcome
    return answer if type(answer) is float else repr(answer)


def _judge(book: Book) -> Judge:
    judge = Judge()
    judge.books[ENTITY] = book
    return judge


def _copied(book: Book) -> Book:
    made = Book.__new__(Book)
    fields = vars(book)
    vars(made).update({name: _copy(value) for name, value in fields.items()})
    made.lives = {name: list(life) for name, life in book.lives.items()}
    return made


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, dict | list | set) else value


def _encode(value: Any) -> Any:
    return {"it": value[1]}


def _decode(kept: Any) -> Any:
    return kept["it"]
