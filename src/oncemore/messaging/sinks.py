"""Where messages go: sinks that need nothing but the standard library.

A sink is a function of one `Message`. If it returns, the message is delivered; what it raises says what went
wrong, in the words that `classifiers.classify` knows. Both sinks here take what a message is, and add nothing
that
could differ from one attempt to the next, except the number of the attempt and its signature.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import threading
import time
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from oncemore import clock as clocks
from oncemore._version import __version__
from oncemore.errors import PermanentError, TransientError, UsageError
from oncemore.messaging.cloudevents import form_of
from oncemore.messaging.signature import ID, SIGNATURE, TIMESTAMP, SecretSource, decode_key, sign_message

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping, Sequence

    from oncemore.messaging.message import Message
    from oncemore.steps.secret import Secret

LONGEST_TIMEOUT_S = 600.0
#: How much of an answer is read; it is thrown away, and only its status counts.
MOST_ANSWER = 65_536
#: How long a file that somebody else has locked is waited for.
LOCK_S = 10.0
_KINDS = {"http": HTTPConnection, "https": HTTPSConnection}
_OURS = ("content-type", "content-length", "host", "oncemore-id", "oncemore-attempt")
_SIGNED = (ID, TIMESTAMP, SIGNATURE)
_LINE_ENDS = ("\r", "\n", "\0")


class Webhook:
    """Posts each message as JSON; every 2xx answer means that it arrived.

    url      http:// or https://; a redirect is not followed, it is a refusal
    headers  sent along, an `Authorization` for example; never shown
    timeout  seconds for the whole exchange; connecting to each of a host's addresses may take as long
    tls      an `ssl.SSLContext` of one's own
    signing_key  sign each attempt with this key, as Standard Webhooks has it: env:NAME or file:PATH, read at
             each attempt; of several, with each
    form     "message": our own JSON; "cloudevents": one JSON document; "cloudevents-binary": the payload, and
             attributes in header fields
    source   who sends, as CloudEvents have it: a URI
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
        if parts.scheme not in _KINDS or not parts.hostname or parts.username or parts.password:
            raise UsageError("url takes http://host/path or https://host/path; put a password into headers")
        if isinstance(timeout, bool) or not 0 < timeout <= LONGEST_TIMEOUT_S:
            raise UsageError(
                f"timeout is {timeout!r}; it takes more than 0 and up to {LONGEST_TIMEOUT_S:g} s"
            )
        self._write = form_of(form, source)
        self._keys = None if signing_key is None else SecretSource("signing_key", signing_key, decode_key)
        self._headers = _checked(headers or {}, _OURS if self._keys is None else (*_OURS, *_SIGNED))
        self._headers.setdefault("User-Agent", f"oncemore/{__version__}")
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._where: dict[str, Any] = {"host": parts.hostname, "port": parts.port, "timeout": timeout}
        if parts.scheme == "https":
            self._where["context"] = tls
        self._kind, self._timeout = _KINDS[parts.scheme], timeout
        self._shown = f"{parts.scheme}://{parts.netloc}{parts.path}"
        self._host = f"{parts.scheme}://{parts.netloc}"

    def __repr__(self) -> str:
        return f"<oncemore.Webhook {self._host}/…>"  # with many services the path is the secret

    def __call__(self, message: Message) -> None:
        """Post a message; raise `HTTPError` for an answer that is no 2xx."""
        ours = {"Oncemore-Id": message.id, "Oncemore-Attempt": str(message.attempt)}
        fields, body = self._write(message)
        ours.update(self._sign(message.id, body))
        line = self._kind(**self._where)
        with _cut_off(line, self._timeout):
            try:
                line.request("POST", self._target, body, {**self._headers, **fields, **ours})
                answer = line.getresponse()
                with suppress(OSError, HTTPException):  # the status has said it all
                    answer.read(MOST_ANSWER)
            finally:
                line.close()
        if not 200 <= answer.status < 300:
            raise HTTPError(self._host, answer.status, answer.reason, answer.headers, None)

    def _sign(self, ident: str, body: bytes) -> dict[str, str]:
        """Return the fields that sign an attempt; without the key it is not sent, and tried again later."""
        if self._keys is None:
            return {}
        try:
            keys = self._keys.read_all()
        except UsageError as fault:
            raise TransientError(str(fault)) from None
        return sign_message(keys, ident, int(clocks.current.wall()), body)


def _checked(headers: Mapping[str, str], ours: Sequence[str]) -> dict[str, str]:
    """Return headers that are safe to send and leave ours alone; what they hold is never shown."""
    for name, value in headers.items():
        texts = isinstance(name, str) and isinstance(value, str)
        if not texts or any(end in name + value for end in _LINE_ENDS):
            raise UsageError(f"header {name!r} takes a text on one line")
        if name.lower() in ours or name.lower().startswith("ce-"):
            raise UsageError(f"header {name!r} is set by the webhook itself")
    return dict(headers)


@contextmanager
def _cut_off(line: HTTPConnection, seconds: float) -> Iterator[None]:
    """Cut a connection off when its time is up: a socket's own timeout begins anew with every byte."""
    late = threading.Event()

    def cut() -> None:
        late.set()
        sock = line.sock
        if sock is not None:
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, HTTPException) as error:
        if late.is_set():
            raise TimeoutError(f"no answer within {seconds:g} s") from error
        raise
    finally:
        timer.cancel()
        timer.join()


class JsonLines:
    """Appends each message to a file, as one line of JSON that is whole and on disk when this returns.

    Any number of processes may append to one file. A line that a crash cut short is left as it is and ended,
    so that it spoils no other; a message whose line was cut short is sent again.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.path.abspath(os.fspath(path))  # noqa: PTH100 - here, whatever the folder is later

    def __repr__(self) -> str:
        return f"<oncemore.JsonLines {self._path}>"

    def __call__(self, message: Message) -> None:
        """Append a message."""
        line = message.json_line()
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise PermanentError(f"{self._path} is no regular file")
            _lock(file, self._path)
            _append(file, line)
        finally:
            os.close(file)
        _sync_folder(self._path)


def _lock(file: int, path: str) -> None:
    """Have a file to oneself; wait for others, but not for ever."""
    ends = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= ends:
                raise TimeoutError(f"{path} was locked by somebody else for {LOCK_S:g} s") from None
            time.sleep(0.002)
        else:
            return


def _append(file: int, line: bytes) -> None:
    """Append a line whole or not at all, and sync it."""
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        line = b"\n" + line
    try:
        while line:
            line = line[os.write(file, line) :]
        os.fsync(file)
    except OSError:
        os.ftruncate(file, size)
        raise


def _sync_folder(path: str) -> None:
    """Make a file's name as durable as its lines."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)  # noqa: PTH120
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
