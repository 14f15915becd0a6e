"""What must hold of every schedule, checked at every write, every execution and every end of a call.

The judge sees what was *acknowledged by the store* and what *happened outside*, never what the engine
believes. It keeps a book of its own for each key, and a write that does not continue that book is a
violation, whoever made it and however it got past the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.errors import (
    Cancelled,
    ConfigChanged,
    DeadlineExceeded,
    Deferred,
    InProgress,
    KeyConflict,
    LeaseLost,
    NotPermitted,
    OutcomeUnknown,
    PermanentFailure,
    Quarantined,
    ResultUnavailable,
    RetriesExhausted,
    StoreError,
    UsageError,
)
from oncemore.governance.dataset_model import GATE_HOLDS
from oncemore.log.entry_codec import decode_head, decode_header, hash_entry
from oncemore.log.record import NOWHERE, EventRecord, RunRecord, apply_header
from oncemore.policy.canonical_json import hash_bytes
from oncemore.policy.model import TRANSITIONS

if TYPE_CHECKING:
    from oncemore.log.memory import MemoryStore
    from oncemore.log.record import LoadedHead
    from oncemore.log.store import Batch
    from oncemore.steps.ops import AppendChange, WatchEntity

FINAL = ("COMPLETE", "HARD_FAIL")
UNAVAILABLE = "(no value)"
#: Why a run may be held before its first attempt: a person has not approved it, or has blocked its dataset.
PERSONS_HOLDS = ("approval_needed", *GATE_HOLDS.values())


class Violation(AssertionError):
    """A promise was broken."""


class Book:
    """What the judge knows of one key."""

    def __init__(self, entity: str, effect: str, *, fencing: bool) -> None:
        self.entity, self.effect, self.fencing = entity, effect, fencing
        self.version, self.hash = 0, NOWHERE
        self.run: RunRecord | None = None
        self.begun: dict[int, object] = {}  # fence → the call that wrote its INTENT
        self.executed: set[int] = set()  # fences whose work has begun
        self.lives: dict[str, list[int]] = {}  # run id → executions, allowed
        self.commits: dict[int, str] = {}  # life → value
        self.failures: dict[int, str] = {}  # life → reason
        self.hashes: list[bytes] = []
        self.events: dict[str, int] = {}  # event id → the version of its COMMIT
        self.event_ids: dict[tuple[int, int], str] = {}
        # Outside: what the other side holds.
        self.landed: list[int] = []  # attempts of a `once` effect that took effect
        self.late: list[int] = []  # … of a worker that had been declared dead and was not
        self.cleared: set[int] = set()  # attempts that are known not to have taken effect
        self.barrier = 0  # a remote that checks fences refuses all up to this one

    @property
    def poison(self) -> bool:
        run = self.run
        if run is None or run.held_for != "poison":
            return False
        if run.max_crashes:
            return run.crash_count == run.max_crashes
        return run.attempt_count == run.max_attempts

    @property
    def life(self) -> int:
        return 0 if self.run is None else self.run.run_number


class Judge:
    """Holds a world to its promises; `people` says that somebody may have stopped what is done in it."""

    people = False

    def __init__(self) -> None:
        self.books: dict[str, Book] = {}
        self.decisions = 0

    def stored(self, lane: Any, op: AppendChange, batch: Batch) -> None:
        """A change of a run was stored, whether or not its writer will hear of it."""
        seen, change = op.head, op.change
        book = self.books[seen.entity]
        last, after, marks = book.run, change.after, change.marks
        assert type(after) is RunRecord
        if (seen.version, seen.hash) != (book.version, book.hash) or change.before != last:
            raise Violation(f"{marks} is written over what its writer has not seen")
        if batch.writes[0].expect != book.version:
            raise Violation(f"{marks} lands at version {batch.writes[0].expect + 1}, not {book.version + 1}")
        if last is not None and lane.call.input_hash != last.input_hash:
            raise Violation(f"{marks} by a call with other arguments")
        same = last is not None and after.run_id == last.run_id
        (self._goes_on if same else self._begins)(book, last, after, change)
        if "INTENT" in marks:
            self._intent(lane, book, last if same else None, after)
        else:
            self._not_intent(lane, book, last, after, marks, same=same)
        if "COMMIT" in marks:
            self._commit(book, after, change, op)
        elif op.events:
            raise Violation("events leave without a COMMIT")
        if "HARD_FAIL" in marks:
            if "ESCALATION" not in marks or after.failure_version != book.version + 1:
                raise Violation("a final failure without an escalation, or without its record")
            book.failures[after.run_number] = after.reason
        self.decisions += "DECISION" in marks
        book.run, book.version, book.hash = after, book.version + 1, batch.writes[0].hash
        book.hashes.append(book.hash)

    def _begins(self, book: Book, last: RunRecord | None, after: RunRecord, change: Any) -> None:
        if last is not None:
            if last.state not in FINAL:
                raise Violation(f"a new run begins while the last is {last.state}")
            if last.state == "COMPLETE" and book.effect != "pure":
                raise Violation("work that is done begins again")
            if book.effect == "once" and "decision" not in change.body:
                raise Violation("a `once` effect begins again without anybody's decision")
        if after.run_number != book.life + 1 or after.run_id in book.lives:
            raise Violation(f"life {after.run_number} ({after.run_id}) follows life {book.life}")
        if change.marks[0] != "PENDING" or after.checkpoint_version:
            raise Violation(f"a run begins with {change.marks}")
        book.lives[after.run_id] = [0, after.max_attempts + after.max_crashes]

    def _goes_on(self, book: Book, last: RunRecord, after: RunRecord, change: Any) -> None:
        if (
            after.run_number != last.run_number
            or (after.max_attempts, after.max_crashes) != (last.max_attempts, last.max_crashes)
            or after.deadline != last.deadline
        ):
            raise Violation("a run changes its number, its budget or its deadline")
        if last.state in FINAL:
            raise Violation(f"{last.state} is not final: {change.marks} follows")
        if after.state != last.state:
            if after.state not in TRANSITIONS[last.state]:
                raise Violation(f"{last.state} → {after.state} is no legal move")
        elif change.marks == ("DECISION",):
            if (
                last.cancelled_at
                or not after.cancelled_at
                or after != last._replace(cancelled_at=after.cancelled_at)
            ):
                raise Violation("a decision about a run under way that does not only cancel it")
        elif self.people and after == last._replace(held_for=after.held_for, reason=after.reason, worker=""):
            if after.held_for not in PERSONS_HOLDS or last.held_for:
                raise Violation(f"{change.marks} holds the run for {after.held_for!r}")
        elif change.marks != ("CHECKPOINT",) and not last.held_for:
            raise Violation(f"{change.marks} moves nothing")

    def _intent(self, lane: Any, book: Book, last: RunRecord | None, after: RunRecord) -> None:
        before = book.run
        fence, attempt = (before.fence, before.attempt) if before is not None else (0, 0)
        if after.fence != fence + 1:
            raise Violation(f"fence {after.fence} follows fence {fence}")
        if after.attempt != attempt + 1:
            raise Violation(f"attempt {after.attempt} follows attempt {attempt}")
        if (
            after.attempt_count != (last.attempt_count if last is not None else 0) + 1
            or after.attempt_count > after.max_attempts
        ):
            raise Violation(f"attempt {after.attempt_count} of {after.max_attempts}")
        if after.max_crashes and after.crash_count >= after.max_crashes:
            raise Violation(f"it is tried again after crash {after.crash_count} of {after.max_crashes}")
        if last is not None and last.held_for:
            raise Violation("a held run is tried again")
        if last is not None and last.cancelled_at:
            raise Violation("a cancelled run is tried again")
        if last is not None and after.started_at < last.not_before:
            raise Violation(f"it begins {last.not_before - after.started_at:.3f} s before its time")
        if after.deadline and after.started_at >= after.deadline:
            raise Violation(f"it begins {after.started_at - after.deadline:.3f} s after its deadline")
        if book.effect == "once":
            doubtful = [n for n in range(1, after.attempt) if n not in book.cleared]
            if doubtful:
                raise Violation(f"`once` is tried again though attempts {doubtful} may have taken effect")
        book.begun[after.fence] = lane.call
        lane.fence = after.fence

    def _not_intent(
        self,
        lane: Any,
        book: Book,
        last: RunRecord | None,
        after: RunRecord,
        marks: tuple[str, ...],
        *,
        same: bool,
    ) -> None:
        if last is None:
            waits = marks == ("PENDING", "ESCALATION") and after.held_for in PERSONS_HOLDS and self.people
            if not waits and (marks != ("PENDING",) or lane.kind != "submit"):
                raise Violation(f"{marks} as the first entry")
            return
        if (after.fence, after.attempt) != (last.fence, last.attempt):
            raise Violation(f"{marks} changes the fence or the attempt's number")
        if not same:
            return
        counts = self._expect_counts(lane, book, last, after)
        if (after.attempt_count, after.crash_count) != counts:
            raise Violation(
                f"{marks} ({after.reason}) makes {last.attempt_count} tried attempts {after.attempt_count} "
                f"and {last.crash_count} crashes {after.crash_count}, not {counts}"
            )
        if after.reason == "released" and last.fence in book.executed and last.state == "RUNNING":
            raise Violation("an attempt that had begun is released as if it had not")
        if last.state == "SOFT_FAIL" and after.state == "COMPLETE" and not last.held_for:
            raise Violation("COMPLETE without an attempt")
        if last.state == "RUNNING":
            self._closes(lane, book, last, after, marks)

    def _expect_counts(self, lane: Any, book: Book, last: RunRecord, after: RunRecord) -> tuple[int, int]:
        """The attempts and crashes of a run after a write: what an attempt costs that has no outcome."""
        attempts, crashes = last.attempt_count, last.crash_count
        if last.state != "RUNNING" or after.state in ("RUNNING", "COMPLETE"):
            return attempts, crashes
        if after.reason == "released":
            return attempts - 1, crashes
        if not last.max_crashes:
            return attempts, crashes
        if book.begun[last.fence] is not lane.call:
            return attempts - 1, crashes + 1
        if after.reason == "interrupted":
            book.lives[last.run_id][1] += 1  # it costs nothing, so it may be made once more
            return attempts - 1, crashes
        return attempts, crashes

    def _closes(
        self, lane: Any, book: Book, last: RunRecord, after: RunRecord, marks: tuple[str, ...]
    ) -> None:
        """A run under way changes: by its own holder, or because that one is gone."""
        if marks == ("DECISION",):
            return
        if book.begun[last.fence] is lane.call:
            if after.reason == "lease_expired":
                raise Violation("an attempt is closed as lost by the very call that has it")
            return
        taken = after.reason in ("lease_expired", "max_attempts_exceeded", "max_crashes_exceeded")
        if not (taken or (after.state == "COMPLETE" and after.reason == "reconciled")):
            raise Violation(f"{marks} ({after.reason}) by a call that does not hold the run")
        worker, fence, until, read = lane.asked_about
        if (worker, fence) != (last.worker, last.fence) or until > read:
            raise Violation("an attempt is closed whose worker was not found gone")

    def _commit(self, book: Book, after: RunRecord, change: Any, op: AppendChange) -> None:
        version = book.version + 1
        if after.run_number in book.commits:
            raise Violation(f"life {after.run_number} commits twice")
        if after.commit_version != version:
            raise Violation("COMMIT does not say where its result is")
        book.commits[after.run_number] = change.body.get("result", {}).get("it", UNAVAILABLE)
        if book.effect == "once" and after.attempt not in (*book.landed, *book.late):
            raise Violation(f"COMMIT of attempt {after.attempt}, which did not take effect")
        for event, _ in op.events:
            if event.event_id in book.events:
                raise Violation(f"event {event.event_id} is given away twice")
            book.events[event.event_id] = version

    # The work and the outside -----------------------------------------------------------------------

    def executing(self, lane: Any, seen: LoadedHead) -> None:
        """The work begins: its INTENT must be in the log, and it must be its only execution."""
        book, run = self.books[seen.entity], seen.record
        if book.begun.get(run.fence) is not lane.call:
            raise Violation(f"attempt {run.attempt} runs without an INTENT of its own")
        if run.fence in book.executed:
            raise Violation(f"attempt {run.attempt} runs twice")
        book.executed.add(run.fence)
        life = book.lives[run.run_id]
        life[0] += 1
        if life[0] > life[1]:
            raise Violation(f"{life[0]} executions of {life[1]} allowed")

    def watching(self, lane: Any, op: WatchEntity) -> None:
        """A call waits for somebody else's attempt: for its own it would wait for ever."""
        book = self.books[op.entity]
        if (
            book.run is not None
            and book.version == op.version
            and book.run.state == "RUNNING"
            and book.begun[book.run.fence] is lane.call
        ):
            raise Violation("a call waits for its own attempt, which nobody brings to its end")

    def lands(self, book: Book, attempt: int, fence: int) -> bool:
        """A `once` effect reaches the other side; return False if that one refuses it."""
        if book.fencing and fence <= book.barrier:
            return False
        if attempt in book.cleared:
            book.late.append(attempt)  # a zombie's call outside is not promised to be stopped
            return True
        if book.landed:
            raise Violation(f"attempts {[*book.landed, attempt]} took effect, of work declared once")
        book.landed.append(attempt)
        return True

    def clear(self, book: Book, run: RunRecord) -> None:
        """Somebody knows that an attempt has not taken effect."""
        book.cleared.add(run.attempt)
        book.barrier = max(book.barrier, run.fence)

    # The ends of calls ------------------------------------------------------------------------------

    def ended(self, lane: Any, value: Any, error: BaseException | None) -> None:
        """A call is over: what its caller was told must be true."""
        book = self.books[lane.call.entity]
        run = book.run
        ours = run is not None and run.state == "RUNNING" and book.begun[run.fence] is lane.call
        if ours and not lane.store_failed:
            raise Violation(f"the caller got {error or value!r} and leaves its attempt RUNNING")
        if lane.cut is not None:
            if error is not lane.cut:
                raise Violation(f"{lane.cut!r} was swallowed: the caller got {error or value!r}")
            return
        if error is None:
            if lane.kind == "call":
                self._returned(lane, book, value)
            return
        allowed = _TOLD.get(type(error))
        if allowed is None:
            raise Violation(f"the caller got {error!r}, which is nobody's to tell") from error
        if not allowed(self, lane, book, error):
            raise Violation(f"the caller was told {type(error).__name__}: {error}")

    def _returned(self, lane: Any, book: Book, value: Any) -> None:
        true = [told for life, told in book.commits.items() if life >= lane.life]
        if type(value) is not str or value not in true:
            raise Violation(f"the caller got {value!r}; committed are {true}")

    def _failed(self, lane: Any, book: Book, error: BaseException) -> bool:
        return any(life >= lane.life for life in book.failures)

    def _deadline(self, lane: Any, book: Book, error: BaseException) -> bool:
        return bool(lane.call.deadline) or self._failed(lane, book, error)

    def _lease_lost(self, lane: Any, book: Book, error: BaseException) -> bool:
        """Only a holder that somebody took over from: its attempt must be closed, and not by itself."""
        return book.effect == "once" and lane.fence in book.executed and not lane.committed

    # The end of a schedule --------------------------------------------------------------------------

    def closing(self, store: MemoryStore) -> None:
        """The whole log: links, versions, heads that are the fold of their entries, events as committed."""
        chains: dict[str, tuple[int, bytes, Any]] = {}
        hashes: dict[str, list[bytes]] = {entity: [] for entity in self.books}
        for seq, entry in enumerate(store.read_entries(), 1):
            version, prev, state = chains.get(entry.entity, (0, NOWHERE, None))
            body = entry.body
            if (entry.seq, entry.version, entry.prev) != (seq, version + 1, prev) or body is None:
                raise Violation(f"entry {seq} is not where it should be")
            if entry.hash != hash_entry(prev, entry.header, hash_bytes(body)):
                raise Violation(f"entry {seq} has a broken link")
            if entry.entity in hashes:
                header = decode_header(entry.header)
                state = apply_header(state, header.sets)
                if (header.version, header.entity) != (entry.version, entry.entity):
                    raise Violation(f"entry {seq} says it is another")
                hashes[entry.entity].append(entry.hash)
            chains[entry.entity] = version + 1, entry.hash, state
        for entity, (version, last, state) in chains.items():
            head = store.load_head(entity)
            if head is None or (head.version, head.hash) != (version, last):
                raise Violation(f"the head of {entity} is not its last entry")
            if entity in hashes and decode_head(head.head) != state:
                raise Violation(f"the head of {entity} is not the fold of its entries")
        given = {event: True for book in self.books.values() for event in book.events}
        there = {entity[6:]: True for entity in chains if entity.startswith("event/")}
        if given != there:
            raise Violation(f"events stored {list(there)}, committed {list(given)}")
        for entity, book in self.books.items():
            if hashes[entity] != book.hashes:
                raise Violation(f"{entity}: an acknowledged entry is not in the log, or another is")

    def event(self, book: Book, letter: EventRecord, life: int) -> None:
        """An event is given away: its id is the same in every attempt."""
        known = book.event_ids.setdefault((life, letter.ordinal), letter.event_id)
        if known != letter.event_id:
            raise Violation(f"event {letter.ordinal} of life {life} has two ids")


def _is_gated(book: Book) -> bool:
    return book.run is not None and book.run.held_for in GATE_HOLDS.values()


_TOLD: dict[type, Any] = {
    PermanentFailure: Judge._failed,
    RetriesExhausted: Judge._failed,
    Cancelled: lambda judge, lane, book, error: "cancelled" in book.failures.values(),
    DeadlineExceeded: Judge._deadline,
    OutcomeUnknown: lambda judge, lane, book, error: book.effect == "once",
    # Only what its workers died of: nobody else is held here, and no `once` effect is.
    # A `once` step is held as poison only after each lost attempt was found not to have taken effect.
    # A run whose dataset a person has blocked is held as well.
    Quarantined: lambda judge, lane, book, error: book.poison or (judge.people and _is_gated(book)),
    LeaseLost: Judge._lease_lost,
    ResultUnavailable: lambda judge, lane, book, error: UNAVAILABLE in book.commits.values(),
    Deferred: lambda judge, lane, book, error: True,
    NotPermitted: lambda judge, lane, book, error: judge.people,
    InProgress: lambda judge, lane, book, error: True,
    KeyConflict: lambda judge, lane, book, error: lane.other,
    ConfigChanged: lambda judge, lane, book, error: False,
    UsageError: lambda judge, lane, book, error: lane.kind != "call",
    StoreError: lambda judge, lane, book, error: lane.store_failed,
}
