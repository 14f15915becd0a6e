"""Sinks for outgoing events that need only the standard library: webhook, JSON lines file, program.

A sink is a function of one `EventMessage`. If it returns, the event is delivered; the class of its exception
decides on a retry (`classifiers.classify`). Two attempts of one event differ only in the number of the
attempt and the signature.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from oncemore import clock as clocks
from oncemore._platform import require_posix, sync_folder
from oncemore._version import __version__
from oncemore.errors import PermanentError, TransientError, UsageError
from oncemore.messaging.message import make_encoder
from oncemore.messaging.signature import ID, SIGNATURE, TIMESTAMP, SecretSource, decode_key, sign_message

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping, Sequence

    from oncemore.messaging.message import EventMessage
    from oncemore.steps.secret import Secret

MAX_TIMEOUT_S = 600.0
#: How much of a response body is read and dropped; only the status counts.
MAX_RESPONSE_BYTES = 65_536
#: How long to wait for the lock of a file that another process is writing to.
LOCK_TIMEOUT_S = 10.0
#: How long to wait for a killed program; one that the kernel cannot end is not waited for any longer.
KILL_WAIT_S = 5.0
_CONNECTION_CLASSES = {"http": HTTPConnection, "https": HTTPSConnection}
_RESERVED_HEADERS = ("content-type", "content-length", "host", "oncemore-id", "oncemore-attempt")
_SIGNED = (ID, TIMESTAMP, SIGNATURE)
_LINE_ENDS = ("\r", "\n", "\0")


class WebhookSink:
    """Posts each event as JSON; any 2xx response means that it was delivered.

    url          http:// or https://; a redirect is not followed and counts as a refusal
    headers      further header fields, for example `Authorization`; never shown
    timeout      seconds for the whole exchange; connecting to each of a host's addresses may take as long
    tls          an `ssl.SSLContext`
    signing_key  signs each attempt as Standard Webhooks describe: env:NAME or file:PATH, read at each
                 attempt; a list signs with every key
    form         "message": the plain JSON; "cloudevents": one JSON document; "cloudevents-binary": the
                 payload, with the attributes in header fields
    source       the sender's URI, for CloudEvents
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
        tls: ssl.SSLContext | None = None,
        form: str = "message",
        source: str = "/oncemore",
        signing_key: str | Secret | Sequence[str | Secret] | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in _CONNECTION_CLASSES or not parts.hostname or parts.username or parts.password:
            raise UsageError("url takes http://host/path or https://host/path; put a password into headers")
        if isinstance(timeout, bool) or not 0 < timeout <= MAX_TIMEOUT_S:
            raise UsageError(f"timeout is {timeout!r}; it takes more than 0 and up to {MAX_TIMEOUT_S:g} s")
        self._encode_message = make_encoder(form, source)
        self._keys = None if signing_key is None else SecretSource("signing_key", signing_key, decode_key)
        self._headers = _check_headers(
            headers or {}, _RESERVED_HEADERS if self._keys is None else (*_RESERVED_HEADERS, *_SIGNED)
        )
        self._headers.setdefault("User-Agent", f"oncemore/{__version__}")
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._connection_options: dict[str, Any] = {
            "host": parts.hostname,
            "port": parts.port,
            "timeout": timeout,
        }
        if parts.scheme == "https":
            self._connection_options["context"] = tls
        self._connection_class, self._timeout = _CONNECTION_CLASSES[parts.scheme], timeout
        self._display_url = f"{parts.scheme}://{parts.netloc}{parts.path}"
        self._host = f"{parts.scheme}://{parts.netloc}"

    def __repr__(self) -> str:
        # Without the path: with many services it is the secret.
        return f"<oncemore.WebhookSink {self._host}/…>"

    def __call__(self, message: EventMessage) -> None:
        """Post an event; raise `HTTPError` for a response other than 2xx."""
        own_fields = {"Oncemore-Id": message.id, "Oncemore-Attempt": str(message.attempt)}
        fields, body = self._encode_message(message)
        own_fields.update(self._sign_attempt(message.id, body))
        connection = self._connection_class(**self._connection_options)
        with _limit_duration(connection, self._timeout):
            try:
                connection.request("POST", self._target, body, {**self._headers, **fields, **own_fields})
                response = connection.getresponse()
                # The receiver has answered: an error while reading the body does not change the status.
                with suppress(OSError, HTTPException):
                    response.read(MAX_RESPONSE_BYTES)
            finally:
                connection.close()
        if not 200 <= response.status < 300:
            raise HTTPError(self._host, response.status, response.reason, response.headers, None)

    def _sign_attempt(self, message_id: str, body: bytes) -> dict[str, str]:
        """Return the header fields that sign an attempt, or none without a signing key."""
        if self._keys is None:
            return {}
        try:
            keys = self._keys.read_all()
        except UsageError as error:
            # The operator may restore the key: the event is sent later, but never unsigned.
            raise TransientError(str(error)) from None
        return sign_message(keys, message_id, int(clocks.current.wall()), body)


def _check_headers(headers: Mapping[str, str], reserved: Sequence[str]) -> dict[str, str]:
    """Return the caller's headers; raise for an unsafe or a reserved one, without showing its value."""
    for name, value in headers.items():
        are_texts = isinstance(name, str) and isinstance(value, str)
        # A line break would add header fields of the caller's choice.
        if not are_texts or any(end in name + value for end in _LINE_ENDS):
            raise UsageError(f"header {name!r} takes a text on one line")
        if name.lower() in reserved or name.lower().startswith("ce-"):
            raise UsageError(f"header {name!r} is set by the webhook itself")
    return dict(headers)


@contextmanager
def _limit_duration(connection: HTTPConnection, seconds: float) -> Iterator[None]:
    """Shut a connection down after some seconds and raise `TimeoutError`."""
    # A timer, because a socket's own timeout restarts with every byte that a slow server sends.
    is_late = threading.Event()

    def shut_down() -> None:
        is_late.set()
        sock = connection.sock
        if sock is not None:
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    timer = threading.Timer(seconds, shut_down)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, HTTPException) as error:
        if is_late.is_set():
            raise TimeoutError(f"no response within {seconds:g} s") from error
        raise
    finally:
        timer.cancel()
        # A timer that has just fired is waited for, so that no thread is left behind.
        timer.join()


class JsonLinesSink:
    """Appends each event to a file as one line of JSON, synced to the disk before the call returns.

    Any number of processes may append to one file. A line that a crash cut off is terminated before the next
    one; the event of that line is sent again.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        require_posix("A file as a sink", "Here, take a webhook or a queue")
        # Absolute now: the program may change its working directory later.
        self._path = os.path.abspath(os.fspath(path))  # noqa: PTH100

    def __repr__(self) -> str:
        return f"<oncemore.JsonLinesSink {self._path}>"

    def __call__(self, message: EventMessage) -> None:
        """Append an event."""
        line = message.to_json_line()
        # O_NONBLOCK: opening a FIFO without a reader would block for ever.
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise PermanentError(f"{self._path} is not a regular file")
            _lock_file(file, self._path)
            _append_line(file, line)
        finally:
            os.close(file)
        # A new file's name is durable only after its folder is.
        sync_folder(os.path.dirname(self._path))  # noqa: PTH120


def _lock_file(file: int, path: str) -> None:
    """Lock a file exclusively; raise `TimeoutError` if another process holds the lock too long."""
    import fcntl

    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{path} was locked by another process for {LOCK_TIMEOUT_S:g} s") from None
            time.sleep(0.002)
        else:
            return


def _append_line(file: int, line: bytes) -> None:
    """Append and sync a whole line, or nothing if writing fails."""
    size = os.fstat(file).st_size
    # The last writer may have crashed in the middle of a line.
    if size and os.pread(file, 1, size - 1) != b"\n":
        line = b"\n" + line
    try:
        while line:
            line = line[os.write(file, line) :]
        os.fsync(file)
    except OSError:
        os.ftruncate(file, size)
        raise


class CommandSink:
    """Runs a program for each event, with its JSON on standard input; exit code 0 means delivered.

    argv     the program and its arguments, never run through a shell; a name without a slash is searched on
             the PATH
    timeout  seconds until the program is killed, with its whole process group

    The program's output is dropped.
    """

    def __init__(self, argv: Sequence[str], *, timeout: float = 30.0) -> None:
        require_posix("A program as a sink", "Here, take a webhook or a queue")
        words = () if isinstance(argv, str | bytes) else tuple(argv)
        if not words or not all(isinstance(word, str) and "\0" not in word for word in words) or not words[0]:
            # The arguments are not shown: one of them may be a password.
            raise UsageError(
                f"argv is a {type(argv).__name__}; it takes a list of strings, the program and its "
                "arguments, not a shell command"
            )
        is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if not is_number or not 0 < timeout <= MAX_TIMEOUT_S:
            raise UsageError(f"timeout is {timeout!r}; it takes more than 0 and up to {MAX_TIMEOUT_S:g} s")
        self._argv, self._timeout = words, float(timeout)

    def __repr__(self) -> str:
        return f"<oncemore.CommandSink {self._argv[0]}>"  # the arguments may contain a password

    def __call__(self, message: EventMessage) -> None:
        """Run the program on an event; raise if it fails or exceeds its time."""
        line = message.to_json_line()
        process = subprocess.Popen(  # noqa: S603 - no shell, and the operator chose the arguments
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # A process group of its own, so that its children can be killed with it.
            start_new_session=True,
        )
        try:
            process.communicate(line, timeout=self._timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self._argv[0]} did not exit within {self._timeout:g} s") from None
        finally:
            if process.poll() is None:
                _kill_process(process)
        if process.returncode:
            raise TransientError(f"{self._argv[0]} exited with {process.returncode}")


def _kill_process(process: subprocess.Popen[bytes]) -> None:
    """Kill a program with its process group."""
    # The group's id stays reserved until the program has been waited for.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(KILL_WAIT_S)
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
