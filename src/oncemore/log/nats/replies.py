"""Replies of a NATS server: where they arrive, and how they are parsed."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any

import msgspec

from oncemore._values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    #: Called once with the reply, or with None and the reason why there is none.
    OnReply = Callable[[Any, str], object]
    #: Called once with all replies to one request, or with None and the reason.
    OnReplies = Callable[[list[Any] | None, str], object]

NO_RESPONDERS = "503"
END_OF_REPLIES = "204"
_decode_json = msgspec.json.Decoder(dict[str, Any]).decode


class NoServerReply(Exception):
    """No reply: timeout, no responder, lost connection. The server may still carry out the request."""


class StreamMessage(Value):
    """A message as the stream stores it."""

    subject: str
    seq: int
    headers: Mapping[str, str]
    data: bytes


class ConsumedMessage(Value):
    """A message that a consumer delivered.

    number  the position among all messages that the consumer delivered, from 1
    stored  the POSIX time at which the server stored it
    left    how many messages the consumer still has
    """

    message: StreamMessage
    number: int
    stored: float
    left: int


class PublishReply(Value):
    """The server's answer to a publish: the sequence, or an error code with its text.

    Without sequence and error code the outcome is unknown, and `text` says why.
    """

    seq: int = 0
    error: int = 0
    text: str = ""


class ReplyInbox:
    """Dispatches the messages of one wildcard subscription to the requests that wait for them.

    Each request reserves a subject below `prefix` and gives a callback. The callback is called exactly once:
    with the reply, at the timeout, or when the connection is lost.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._waiting: dict[str, tuple[OnReply, asyncio.TimerHandle]] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def reserve_subject(self, timeout: float, on_reply: OnReply, subject: str = "") -> str:
        """Return a subject for one reply; given a `subject`, wait for one more reply on it."""
        if not subject:
            self._count += 1
            subject = f"{self.prefix}{self._count}"
        timer = asyncio.get_running_loop().call_later(
            timeout, self.fail_request, subject, "no answer in time"
        )
        self._waiting[subject] = (on_reply, timer)
        return subject

    def reserve_multi_subject(self, timeout: float, on_replies: OnReplies) -> str:
        """Return a subject for several replies, which are passed on when the server says that it is done."""
        replies: list[Any] = []

        def collect(message: Any, reason: str) -> None:
            status = message is not None and message.headers and message.headers.get("Status")
            if message is None or status:
                on_replies(
                    replies if status == END_OF_REPLIES else None, reason or f"the server says {status}"
                )
            else:
                replies.append(message)
                self.reserve_subject(timeout, collect, subject)

        subject = self.reserve_subject(timeout, collect)
        return subject

    def deliver_message(self, message: Any) -> None:
        """Pass a message on to the request that waits for it."""
        if message.headers and message.headers.get("Status") == NO_RESPONDERS:
            self.fail_request(message.subject, "no server answers this request")
        else:
            self._deliver_reply(message.subject, message, "")

    def fail_request(self, subject: str, reason: str) -> None:
        """Tell the request that reserved a subject that it gets no reply."""
        self._deliver_reply(subject, None, reason)

    def fail_waiting(self) -> None:
        """Tell all requests that their replies are lost with the connection."""
        for subject in list(self._waiting):
            self.fail_request(subject, "the connection was lost")

    def _deliver_reply(self, subject: str, message: Any, reason: str) -> None:
        on_reply, timer = self._waiting.pop(subject, (None, None))
        # A reply that arrives after its timeout finds no entry and is dropped.
        if on_reply is not None and timer is not None:
            timer.cancel()
            on_reply(message, reason)


def set_reply(future: asyncio.Future[Any], message: Any, reason: str) -> None:
    """Complete a future with a reply, or with `NoServerReply`."""
    if future.done():
        return
    if message is None:
        future.set_exception(NoServerReply(reason))
    else:
        future.set_result(message)


def parse_publish_reply(message: Any, reason: str = "") -> PublishReply:
    """Parse the answer to a publish; for None, return that the outcome is unknown, and the reason."""
    if message is None:
        return PublishReply(text=reason)
    fields = _decode_json(message.data)
    error = fields.get("error")
    if error is not None:
        return PublishReply(0, int(error.get("err_code", 0)), str(error.get("description", "")))
    return PublishReply(int(fields["seq"]))


def parse_consumed(subject: str, reply: str, headers: Mapping[str, str], data: bytes) -> ConsumedMessage:
    """Parse a message of a consumer; its numbers are in the reply subject, which has 9 or 11 tokens."""
    tokens = reply.split(".")
    # Servers with a domain put domain and account in front of the stream.
    seq, number, stored, left = tokens[5:9] if len(tokens) == 9 else tokens[7:11]
    return ConsumedMessage(
        StreamMessage(subject, int(seq), headers, data), int(number), int(stored) / 1e9, int(left)
    )


def parse_stored_message(fields: Mapping[str, Any]) -> StreamMessage:
    """Parse a message in a reply of `STREAM.MSG.GET`, which has headers and payload in base64."""
    headers = parse_header_lines(base64.b64decode(fields.get("hdrs", "")).partition(b"\r\n")[2])
    return StreamMessage(fields["subject"], fields["seq"], headers, base64.b64decode(fields.get("data", "")))


def parse_header_lines(raw: bytes) -> dict[str, str]:
    """Parse header lines into the same values as nats-py, whose own parser is neither public nor fast."""
    lines = (line.partition(":") for line in raw.decode("utf-8", "replace").split("\r\n"))
    return {name.strip(): value.strip() for name, colon, value in lines if colon}
