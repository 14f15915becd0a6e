"""A spool file that sends audit events to a message sink, in order and without loss.

The caller's event is synced to FILE before the call returns; a thread sends it. A crash loses nothing: an
unsent event is sent when the spool is opened again, and an event that was sent but not noted in FILE.sent is
sent again under the same id, by which brokers and consumers drop it. FILE itself stays, for `oncemore audit`.
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
from oncemore._platform import sync_data
from oncemore._redact import error_class_name, masked_message
from oncemore.audit.events import parse_event
from oncemore.errors import PermanentError, StoreError, UsageError
from oncemore.log.sqlite.files import check_links, open_private
from oncemore.messaging.message import EventMessage
from oncemore.policy.backoff import Jitter, Schedule, jittered_delay
from oncemore.policy.canonical_json import canonical_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from os import PathLike
    from typing import Any, Self

    from oncemore.audit.events import AuditEvent

#: The delays after failures of the sink. There is no last attempt: the spool never drops an event.
RETRY_SCHEDULE = Schedule("exponential", 0.25)
RETRY_JITTER = Jitter("proportional", 0.1)
MAX_RETRY_DELAY_S = 30.0
#: The unsent bytes at which new events are refused.
MAX_BYTES = 256_000_000
#: The number of events that are sent between two writes of FILE.sent; after a crash they are sent again.
OFFSET_EVERY = 100
#: How often the thread looks for unsent events without a wake-up, and how long `close()` waits for it.
POLL_S, CLOSE_S = 0.5, 30.0

#: The owner writes the spool; its group may read it, because log collectors do.
MODE = 0o640

logger = logging.getLogger("oncemore.audit")


class AuditSpool:
    """Appends events to a file and sends each under a stable id, in order; itself an audit sink.

    path       the file; only one spool at a time may have it open
    sink       a function of one `EventMessage`, for example a sink of `oncemore.outbox`
    topic      the topic of the messages; for JetStream, their subject
    max_bytes  the limit of unsent bytes, at which further events are refused with `StoreError`

    A permanently refused event (`PermanentError`) is moved to FILE.refused with the reason, because it would
    block all later ones; `refused_events` counts them. `torn_lines` counts lines that are not events.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        sink: Callable[[EventMessage], object],
        *,
        topic: str = "audit",
        max_bytes: int = MAX_BYTES,
    ) -> None:
        if not callable(sink):
            raise UsageError(f"sink is {sink!r:.80}; it takes a function of one message")
        self.path = Path(path).absolute()
        self.torn_lines = self.refused_events = 0
        self._sink, self._topic, self._max_bytes = sink, topic, max_bytes
        self._name = f"{socket.gethostname()}:{self.path}"
        self._offset_path = self.path.with_name(self.path.name + ".sent")
        self._refused_path = self.path.with_name(self.path.name + ".refused")
        self._lock, self._sending, self._wakeup = threading.Lock(), threading.Lock(), threading.Event()
        self._failures, self._not_before, self._is_closed = 0, 0.0, False
        self._thread: threading.Thread | None = None
        # Before anything is written: a symbolic link there could direct our writes to another file.
        for path in (self._offset_path, self._refused_path):
            check_links(path)
        self._file = open_private(self.path, os.O_APPEND, MODE)
        try:
            self._lock_file()
            self._size = self._repair_end()
            self._sent_bytes = self._read_offset()
        except BaseException:
            os.close(self._file)
            raise

    def __repr__(self) -> str:
        return f"<oncemore.AuditSpool {self.path}: {self.pending_bytes} bytes unsent>"

    @property
    def pending_bytes(self) -> int:
        """The number of unsent bytes."""
        return self._size - self._sent_bytes

    def __call__(self, event: AuditEvent) -> None:
        """Append an event; it is synced to the disk when this returns."""
        line = event.to_json().encode() + b"\n"
        with self._lock:
            if self._is_closed:
                raise UsageError(f"the spool {self.path} is closed; open it again")
            if self.pending_bytes + len(line) > self._max_bytes:
                raise StoreError(
                    f"{self.path} has {self.pending_bytes:,} unsent bytes and its limit is "
                    f"{self._max_bytes:,}; check its sink, or raise max_bytes"
                )
            self._append_line(line)
        self._wakeup.set()

    def send(self) -> int:
        """Send unsent events, oldest first, until the sink fails; return the number sent."""
        sent = 0
        with self._sending:
            if clocks.current.monotonic() < self._not_before:
                return 0
            try:
                for upto, line in self._unsent_lines():
                    if not self._send_line(line, upto - len(line)):
                        break
                    sent, self._sent_bytes = sent + 1, upto
                    if not sent % OFFSET_EVERY:
                        self._write_offset()
            finally:
                # Also after an error: the events before it were sent.
                if sent:
                    self._write_offset()
        return sent

    def flush(self, timeout_s: float) -> bool:
        """Wait until every event is sent; return False if that took longer than `timeout_s`."""
        ends = time.monotonic() + timeout_s
        while self.pending_bytes and time.monotonic() < ends:
            if self._thread is None:
                self.send()
            time.sleep(0.01)
        return not self.pending_bytes

    def close(self) -> None:
        """Stop sending and close the file; unsent events are sent when the spool is opened again."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            return
        self._wakeup.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
        with self._sending:
            os.close(self._file)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run_sender, name="oncemore-spool", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------

    def _run_sender(self) -> None:
        while not self._is_closed:
            try:
                self.send()
            except Exception:
                logger.exception("the audit spool %s failed to send; it tries again", self.path)
            self._wakeup.wait(POLL_S)
            self._wakeup.clear()

    def _send_line(self, line: bytes, at: int) -> bool:
        """Send one line; return False if the sink failed and the line must be sent again."""
        message = self._build_message(line, at)
        if message is None:
            self.torn_lines += 1
            logger.error("%s: skipped the line at byte %d, not an event: %r", self.path, at, line[:80])
            return True
        try:
            self._sink(message)
        except PermanentError as error:
            self._write_refused(line, error)
        except Exception as error:  # noqa: BLE001 - after any error of the sink the event stays in the file
            self._failures += 1
            delay = jittered_delay(
                RETRY_SCHEDULE, RETRY_JITTER, MAX_RETRY_DELAY_S, message.id, self._failures
            )
            self._not_before = clocks.current.monotonic() + delay
            reason = masked_message(error) or error_class_name(error)
            logger.warning("%s: the sink failed; the next try is in %.1f s: %s", self.path, delay, reason)
            return False
        self._failures = 0
        return True

    def _build_message(self, line: bytes, at: int) -> EventMessage | None:
        """Return the message of the line at a byte offset, or None if it is not an event."""
        try:
            event = parse_event(json.loads(line))
            created = event.posix_time
        except (ValueError, AttributeError, TypeError):
            return None
        # The id follows from the line and its place, so that a repeat after a crash has the same one.
        message_id = canonical_digest({"spool": self._name, "at": at, "event": line.decode()})[:32]
        return EventMessage(
            id=message_id,
            topic=self._topic,
            payload=event.to_dict(),
            correlation_id=event.correlation_id or message_id,
            tenant=event.tenant_id or "",
            created=created,
            lane=canonical_digest({"lane": self._name})[:32],
            sequence=at,
            attempt=self._failures + 1,
        )

    def _write_refused(self, line: bytes, error: PermanentError) -> None:
        """Append a permanently refused event and the reason to FILE.refused."""
        self.refused_events += 1
        entry = {"event": json.loads(line), "error": f"{error_class_name(error)}: {masked_message(error)}"}
        with open(open_private(self._refused_path, os.O_APPEND, MODE), "ab", buffering=0) as file:  # noqa: PTH123
            file.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")
            # Synced before the offset moves past the event.
            os.fsync(file.fileno())
        logger.error("permanently refused, moved to %s: %s", self._refused_path, line.decode().rstrip())

    # Files --------------------------------------------------------------------------------------------

    def _lock_file(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{self.path} is open in another spool; use one file per process") from None

    def _repair_end(self) -> int:
        """Terminate a line that a crash cut off; return the size of the file."""
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")
            size += 1
        return size

    def _append_line(self, line: bytes) -> None:
        """Append a whole line, or nothing if writing fails."""
        try:
            unwritten = line
            while unwritten:
                unwritten = unwritten[os.write(self._file, unwritten) :]
            sync_data(self._file)
        except OSError:
            # A disk that is full keeps the first part of the line; the next event must not continue it.
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(line)

    def _unsent_lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the unsent lines, each with the offset of its end."""
        end = self._sent_bytes
        with self.path.open("rb") as lines:
            lines.seek(end)
            # `_size` counts synced lines only; behind it a line may be half written.
            while end < self._size:
                line = lines.readline()
                end += len(line)
                yield end, line

    def _read_offset(self) -> int:
        """Return the offset in FILE.sent, or 0 if it is missing, unreadable or beyond the end of the file."""
        try:
            sent: Any = json.loads(self._offset_path.read_text(encoding="utf-8"))["bytes"]
        except (OSError, ValueError, KeyError, TypeError):
            return 0
        return sent if type(sent) is int and 0 <= sent <= self._size else 0

    def _write_offset(self) -> None:
        # Written beside and renamed: a crash leaves the old offset or the new one, never half of it.
        new = self._offset_path.with_name(self._offset_path.name + ".new")
        with open(open_private(new, os.O_TRUNC, MODE), "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump({"bytes": self._sent_bytes}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._offset_path)
