"""SPOOL: events wait on disk until somebody else has them, and get there in their order.

    to = oncemore.outbox.JetStream("nats://127.0.0.1:4222", form="cloudevents-binary")
    with Spool("audit.jsonl", to, topic="exoarmur.audit.append.v1") as spool:
        manager.attach(spool)

An event is a line of the file, on the disk, before whoever told it goes on; a thread of the spool's own sends
it. So a sink that is down costs its teller nothing, and neither its death nor ours costs an event:

    told, not sent            it is in the file; whoever opens the spool next sends it
    sent, not noted           it is sent again, under the same id: brokers and consumers drop it
    cut short by a crash      a line that is no event is ended, passed over and counted (`torn`)

Only one event is under way at a time, the oldest: what follows waits for it. After a failure the sink is left
alone for a while, longer each time, up to half a minute. An event that a sink refuses for good
(`PermanentError`) goes to FILE.refused with the reason, or it would hold up all others for ever. How far the
spool has come is noted in FILE.sent. The file itself stays: it is what `oncemore audit FILE` reads.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from oncemore import clock as clocks
from oncemore._redact import message_of, name_of
from oncemore.audit.events import event_from
from oncemore.errors import PermanentError, StoreError, UsageError
from oncemore.log.sqlite.files import check_links, open_private
from oncemore.messaging.message import Message
from oncemore.policy.backoff import Jitter, Schedule, jittered
from oncemore.policy.canonical_json import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from os import PathLike
    from types import TracebackType
    from typing import Any, Self

    from oncemore.audit.events import Event

#: How long a sink is left alone after its failures, and at most; nothing is given up, so none is the last.
REST, SPREAD, LONGEST_REST_S = Schedule("exponential", 0.25), Jitter("proportional", 0.1), 30.0
#: How much may wait before new events are refused, and how many are sent before that is noted.
MOST_BYTES, NOTED_EVERY = 256_000_000, 100
#: How often to look where nothing else happens, and how long closing may take.
LOOK_S, CLOSE_S = 0.5, 30.0

#: Its owner writes the spool, and its group may read it: programs that collect logs do.
MODE = 0o640

logger = logging.getLogger("oncemore.audit")


class Spool:
    """Keeps events in a file and sends them on, each under one id, in their order; itself a sink.

    path        the file, which belongs to one spool at a time
    to          what takes a `Message`: a sink of `oncemore.outbox`, or a function of one's own
    topic       what the messages are about: for JetStream, their subject
    most_bytes  how much may wait; what comes then is refused, which an outlet says in the log

    `torn` counts lines that were no events, `refused` events that the sink will never take.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        to: Callable[[Message], object],
        *,
        topic: str = "audit",
        most_bytes: int = MOST_BYTES,
    ) -> None:
        if not callable(to):
            raise UsageError(f"to is {to!r:.80}; it takes a function of one message")
        self.path = Path(path).absolute()
        self.torn = self.refused = 0
        self._to, self._topic, self._most_bytes = to, topic, most_bytes
        self._name = f"{socket.gethostname()}:{self.path}"
        self._note = self.path.with_name(self.path.name + ".sent")
        self._aside = self.path.with_name(self.path.name + ".refused")
        self._lock, self._sending, self._news = threading.Lock(), threading.Lock(), threading.Event()
        self._failures, self._not_before, self._over = 0, 0.0, False
        self._thread: threading.Thread | None = None
        for path in (self._note, self._aside):
            check_links(path)
        self._file = open_private(self.path, os.O_APPEND, MODE)
        try:
            self._claim()
            self._size = self._whole()
            self._sent = self._noted()
        except BaseException:
            os.close(self._file)
            raise

    def __repr__(self) -> str:
        return f"<oncemore.Spool {self.path}: {self.waiting} bytes wait>"

    @property
    def waiting(self) -> int:
        """How many bytes were told and not sent."""
        return self._size - self._sent

    def __call__(self, event: Event) -> None:
        """Keep an event: it is on the disk when this returns."""
        line = event.json().encode() + b"\n"
        with self._lock:
            if self._over:
                raise UsageError(f"the spool {self.path} is closed; open it again")
            if self.waiting + len(line) > self._most_bytes:
                raise StoreError(f"{self.path} holds {self.waiting:,} bytes that nobody takes; no more fits")
            self._append(line)
        self._news.set()

    def send(self) -> int:
        """Send what waits, the oldest first, until one is not taken; return how many were."""
        sent = 0
        with self._sending:
            if clocks.current.monotonic() < self._not_before:
                return 0
            try:
                for upto, line in self._unsent():
                    if not self._given(line, upto - len(line)):
                        break
                    sent, self._sent = sent + 1, upto
                    if not sent % NOTED_EVERY:
                        self._write_note()
            finally:
                if sent:
                    self._write_note()
        return sent

    def flush(self, within_s: float) -> bool:
        """Wait until nothing waits any more; say whether that is so."""
        ends = time.monotonic() + within_s
        while self.waiting and time.monotonic() < ends:
            if self._thread is None:
                self.send()
            time.sleep(0.01)
        return not self.waiting

    def close(self) -> None:
        """Stop sending, and let go of the file; what waits is sent by who opens it next."""
        with self._lock:
            over, self._over = self._over, True
        if over:
            return
        self._news.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
        with self._sending:
            os.close(self._file)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="oncemore-spool", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._over:
            try:
                self.send()
            except Exception:
                logger.exception("the spool %s cannot go on now, and tries again", self.path)
            self._news.wait(LOOK_S)
            self._news.clear()

    def _given(self, line: bytes, at: int) -> bool:
        """Give the sink one event; whether it is done with: taken, refused for good, or none at all."""
        message = self._message(line, at)
        if message is None:
            self.torn += 1
            logger.error("%s has a line at byte %d that is no event: %r", self.path, at, line[:80])
            return True
        try:
            self._to(message)
        except PermanentError as error:
            self._put_aside(line, error)
        except Exception as error:  # noqa: BLE001 - whatever it is: the event stays where it is
            self._failures += 1
            rest = jittered(REST, SPREAD, LONGEST_REST_S, message.id, self._failures)
            self._not_before = clocks.current.monotonic() + rest
            logger.warning("%s waits %.1f s: %s", self.path, rest, message_of(error) or name_of(error))
            return False
        self._failures = 0
        return True

    def _message(self, line: bytes, at: int) -> Message | None:
        try:
            event = event_from(json.loads(line))
            created = event.posix
        except (ValueError, AttributeError, TypeError):
            return None
        own = digest({"spool": self._name, "at": at, "event": line.decode()})[:32]
        lane = digest({"lane": self._name})[:32]
        ids = event.correlation_id or own, event.tenant_id or ""
        return Message(own, self._topic, event.plain(), *ids, created, lane, at, self._failures + 1)

    def _put_aside(self, line: bytes, error: PermanentError) -> None:
        self.refused += 1
        told = {"event": json.loads(line), "error": f"{name_of(error)}: {message_of(error)}"}
        with open(open_private(self._aside, os.O_APPEND, MODE), "ab", buffering=0) as aside:  # noqa: PTH123
            aside.write(json.dumps(told, ensure_ascii=False).encode() + b"\n")
            os.fsync(aside.fileno())
        logger.error("refused for good, and kept in %s: %s", self._aside, line.decode().rstrip())

    # The files ----------------------------------------------------------------------------------------

    def _claim(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{self.path} belongs to another spool; give each process its own") from None

    def _whole(self) -> int:
        """End a line that a crash cut short; return how long the file is."""
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")
            size += 1
        return size

    def _append(self, line: bytes) -> None:
        """Append a line whole or not at all."""
        try:
            rest = line
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fdatasync(self._file)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(line)

    def _unsent(self) -> Iterator[tuple[int, bytes]]:
        """Return each whole line that was not sent, and where it ends."""
        at = self._sent
        with self.path.open("rb") as lines:
            lines.seek(at)
            while at < self._size:
                line = lines.readline()
                at += len(line)
                yield at, line

    def _noted(self) -> int:
        """Return how far it had come; a note that does not fit the file is none."""
        try:
            sent: Any = json.loads(self._note.read_text(encoding="utf-8"))["bytes"]
        except (OSError, ValueError, KeyError, TypeError):
            return 0
        return sent if type(sent) is int and 0 <= sent <= self._size else 0

    def _write_note(self) -> None:
        new = self._note.with_name(self._note.name + ".new")
        with open(open_private(new, os.O_TRUNC, MODE), "w", encoding="utf-8") as note:  # noqa: PTH123
            json.dump({"bytes": self._sent}, note)
            note.flush()
            os.fsync(note.fileno())
        new.replace(self._note)
