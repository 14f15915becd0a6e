"""Guards that are compared after the guarded entry is stored, for batches that allow it (`Batch.late`).

A guard in the same request makes an append an atomic batch, which costs a server with one replica several
publishes and makes a cluster serialise them. The claim of an attempt allows a cheaper way: it is a single
publish that expects the last sequence of its own subject, and before the caller learns that it is stored, the
last messages of its guards are read.

Why that is enough: the stream has one order. A switch that was changed before the claim has a lower sequence,
so every replica that has the claim has the change. One reply contains the last messages of several subjects
as they were at one moment in one server. The claim's own subject is among them, and a reply without the claim
is ignored, so any replica may answer. If the guards in the reply are as expected, they were so at the claim,
because positions only move forward. If one is not, it may have moved before or after the claim, and the
attempt does not start in either case. Without a reply the question is repeated, and the caller waits.

One reply serves all claims that wait: if it contains the last of them, it contains those before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.errors import StoreError
from oncemore.log.nats.replies import StreamMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.log.nats.append import AppendAttempt
    from oncemore.log.nats.reader import EntityPosition, NatsLog

    WaitingCheck = tuple[AppendAttempt, int, Callable[[bool | None], object]]

MAX_CHECKS = 100  # claims that one read serves: each may add a guard or two of its own


class GuardReader:
    """Checks that wait for a read, and whether one is in progress; for use in the connection's loop only."""

    def __init__(self, log: NatsLog) -> None:
        self._log = log
        self._waiting: list[WaitingCheck] = []
        self._is_reading = False

    def add_check(self, attempt: AppendAttempt, seq: int, on_result: Callable[[bool | None], object]) -> None:
        """Compare the late guards of an attempt that is stored with a sequence.

        `on_result` is called once with True if they are as expected, False if one is not, None if that is
        unknown.
        """
        self._waiting.append((attempt, seq, on_result))
        if not self._is_reading:
            self._read_guards()

    def _read_guards(self) -> None:
        checks, self._waiting = self._waiting[:MAX_CHECKS], self._waiting[MAX_CHECKS:]
        subjects = self._log.subjects
        # A reply with the newest claim contains all changes that came before any of these claims.
        newest, newest_seq, _ = max(checks, key=lambda check: check[1])
        claim_subject = subjects.entity_subject(newest.batch.writes[-1].entity)
        guards = {
            entity: subjects.entity_subject(entity)
            for attempt, _, _ in checks
            for entity in attempt.late_guards
        }

        def on_replies(replies: list[Any] | None, _reason: str) -> None:
            by_subject = (
                None if replies is None else {reply.headers["Nats-Subject"]: reply for reply in replies}
            )
            # A replica that lags behind does not have the claim yet: its guards prove nothing.
            if by_subject is not None and _parse_seq(by_subject.get(claim_subject)) < newest_seq:
                by_subject = None
            self._on_guard_messages(checks, guards, by_subject)

        self._is_reading = True
        requested = [claim_subject, *guards.values()]
        if not self._log.connection.request_last_now(subjects.stream, requested, on_replies):
            self._on_guard_messages(checks, guards, None)

    def _on_guard_messages(
        self, checks: list[WaitingCheck], guards: dict[str, str], by_subject: dict[str, Any] | None
    ) -> None:
        """Start the next read, and pass each check its result."""
        self._is_reading = False
        # First, so that the next read is in transit while the callbacks run.
        if self._waiting:
            self._read_guards()
        positions = None if by_subject is None else self._guard_positions(guards, by_subject)
        for attempt, _, on_result in checks:
            if positions is None:
                on_result(None)
            else:
                expected = attempt.late_guards.items()
                on_result(all(is_unchanged(positions[name], position) for name, position in expected))

    def _guard_positions(
        self, guards: dict[str, str], by_subject: dict[str, Any]
    ) -> dict[str, EntityPosition] | None:
        """Return the positions of the guarded entities; None if a message cannot be decoded."""
        try:
            return {
                entity: self._log.remember_message(entity, _parse_message(by_subject.get(subject)))
                for entity, subject in guards.items()
            }
        except StoreError:
            return None  # the caller asks the leader next, which raises the same error


def is_unchanged(position: EntityPosition, expected: EntityPosition) -> bool:
    """Whether an entity has the expected last entry; pruning changes its sequence but not its entry."""
    return (position.version, position.hash) == (expected.version, expected.hash)


def _parse_seq(reply: Any) -> int:
    return 0 if reply is None else int(reply.headers["Nats-Sequence"])


def _parse_message(reply: Any) -> StreamMessage | None:
    if reply is None:
        return None
    return StreamMessage(reply.headers["Nats-Subject"], _parse_seq(reply), reply.headers, reply.data)
