"""Guarded batches of one process go to NATS together, one crowd at a time; or each by itself, unguarded.

A guard must be a message of its own, so whoever has one is an atomic batch, and that is dear: a server with
one replica stages each on its disk, and servers with three refuse what guards the same at the same moment.
Every attempt of a step is guarded by the switches of its log.

So those who come together and rely on the same go as one batch: the guard once, each entity with what it
expects. If one of them cannot be stored none is, and each is sent again by itself. While a batch is under
way, others wait for the next. Where they are too few for that to be worth it, and each allows it, they go out
by themselves without any guard, which is looked at when they are stored (`nats_late`).
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from oncemore.log.nats import messages as frames
from oncemore.log.nats.connection import Answer, answered

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.log.nats.append import Try
    from oncemore.log.nats.reader import Log
    from oncemore.log.store import Batch

    Waiting = tuple[Try, Callable[[Answer], object]]

MOST = 300  # entries that go together
WORTH = 16  # claims that a batch is worth it for: with one replica that syncs, about where it is cheaper


class Crowd:
    """Those who wait, and whether somebody is under way; used in the line's loop only."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._waiting: list[Waiting] = []
        self._under_way = self._called = False

    def add(self, one: Try, hear: Callable[[Answer], object]) -> None:
        """Send a try, with those that come together with it; `hear` is told once how it ended."""
        self._waiting.append((one, hear))
        if not self._called:
            self._called = True
            self._log.line.at_last(self._go)

    def _go(self) -> None:
        self._called = False
        while self._waiting and not self._under_way:
            group = self._next()
            if len(group) < WORTH and all(_may_be_late(one.batch) for one, _ in group):
                for waiting in group:
                    self._send_alone(*waiting)
            else:
                self._send(group)

    def _send_alone(self, one: Try, hear: Callable[[Answer], object]) -> None:
        """Send a try without its guards; that they are no part of it holds for whatever becomes of it."""
        log = self._log
        one.late = {entity: one.known[entity] for entity in one.batch.guards}
        one.batch = one.batch._replace(guards={})
        sent = frames.frames(one.batch, one.known, one.mine, log.where, log.line.largest)
        sent = frames.together(sent, log.where.stream, one.mine)

        def heard(message: Any, why: str) -> None:
            hear(Answer(text=why) if message is None else answered(message))

        if not log.line.publish_now(sent, heard):
            hear(Answer(text="the connection is lost"))

    def _send(self, group: list[Waiting]) -> None:
        log, (first, _) = self._log, group[0]
        sent = frames.guards(first.batch, first.known, first.mine, log.where)
        for one, _ in group:
            alone = one.batch._replace(guards={})
            sent += frames.frames(alone, one.known, one.mine, log.where, log.line.largest)
        self._under_way = True
        sent = frames.together(sent, log.where.stream, secrets.token_hex(16))
        if not log.line.publish_now(sent, lambda message, why: self._heard(group, message, why)):
            self._heard(group, None, "the connection is lost")

    def _next(self) -> list[Waiting]:
        """Take those who rely on what the first relies on, and write nothing that another of them does."""
        guards = self._waiting[0][0].batch.guards
        group: list[Waiting] = []
        later: list[Waiting] = []
        taken: set[str] = set(guards)
        for waiting in self._waiting:
            batch = waiting[0].batch
            names = {write.entity for write in batch.writes}
            fits = batch.guards == guards and not names & taken and len(taken) + len(names) <= MOST
            if fits or not group:
                group.append(waiting)
                taken |= names
            else:
                later.append(waiting)
        self._waiting = later
        return group

    def _heard(self, group: list[Waiting], message: Any, why: str) -> None:
        """Let the next go, and tell these: the frames of each stand one after the other."""
        self._under_way = False
        self._go()
        answer = Answer(text=why) if message is None else answered(message)
        if not answer.seq:
            told = answer if len(group) == 1 else Answer(text=f"not together ({answer.error})")
            for _, hear in group:
                hear(told)
            return
        last = answer.seq
        for one, hear in reversed(group):
            hear(Answer(last))
            last -= len(one.batch.writes)


def _may_be_late(batch: Batch) -> bool:
    """Whether a batch can go without its guards: one entry, that is, and by its caller's leave."""
    return batch.late and len(batch.writes) == 1
