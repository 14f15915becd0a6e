"""A letter becomes a call: its arguments, what makes it the same work, and what goes along with it.

What a letter holds is found by what it says of itself:

    CloudEvents            structured (`application/cloudevents+json`) or binary (`ce-id`, …): its `data`
    from an oncemore relay `oncemore-id`: the message's `payload`
    anything else          the whole body, as JSON

An object gives the step's arguments by name; anything else is its only argument. Arguments are held to the
step's annotations, so that what does not fit is a dead letter and not a failure of the work.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from oncemore._redact import message_of, name_of
from oncemore._values import Value
from oncemore.errors import PermanentError
from oncemore.steps.options import hints_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.messaging.inbox_flow import Letter

LONGEST_ID = 200
CLOUDEVENTS = "application/cloudevents+json"
#: Where a correlation id may stand, the first that is there.
CORRELATION = ("correlation-id", "x-correlation-id", "correlation_id", "correlationid")
_SPREAD = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Unreadable(PermanentError):
    """A letter from which no call can be made; the message says why."""


class Opened(Value):
    """A letter that was opened.

    content         what it is about, as JSON has it
    correlation_id  what ties it to the work that it came of; empty: it says nothing
    """

    content: Any
    correlation_id: str


class Called(Value):
    """The call that a letter is.

    arguments  by name
    same       what makes two letters the same work; None: what makes two calls of the step so
    """

    arguments: Mapping[str, Any]
    same: Any
    correlation_id: str


def id_in(headers: Mapping[str, str]) -> str:
    """Return the id that a letter gives itself, or an empty text."""
    if headers.get("oncemore-id"):
        return headers["oncemore-id"]
    if headers.get("ce-id"):
        source = headers.get("ce-source", "")
        return f"{len(source)}:{source} {headers['ce-id']}"  # with the length, or a space could be either's
    return ""


def opened(letter: Letter) -> Opened:
    """Return what a letter holds; refuse one that is no JSON."""
    headers = letter.headers
    try:
        content: Any = msgspec.json.decode(letter.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise Unreadable(f"it is no JSON: {fault}") from None
    except RecursionError:
        raise Unreadable("its JSON is nested too deeply") from None
    told = next((headers[name] for name in CORRELATION if headers.get(name)), "")
    told = told or unquote(headers.get("ce-correlationid", ""))
    inner = _wrapped(headers, content)
    if inner:
        outer, content = content, content.get(inner)
        told = told or outer.get("correlation_id") or outer.get("correlationid") or ""
    usable = isinstance(told, str) and len(told) <= LONGEST_ID and told.isprintable()
    return Opened(content, told if usable else "")


def _wrapped(headers: Mapping[str, str], content: Any) -> str:
    """Return under which name a letter's content is in it; empty if it is all of it."""
    if not isinstance(content, dict) or "ce-id" in headers:
        return ""
    if headers.get("content-type", "").partition(";")[0].strip().lower() == CLOUDEVENTS:
        return "data"
    return "payload" if "oncemore-id" in headers and "payload" in content and "topic" in content else ""


class Reader:
    """Makes calls of one step out of letters.

    same       None: the letter's own id; "arguments": what the step says; or a function of the content
    arguments  a function of the content that gives the arguments by name; None: the content itself
    """

    def __init__(
        self,
        work: Callable[..., Any],
        bound: int,
        same: Callable[[Any], Any] | str | None,
        arguments: Callable[[Any], Mapping[str, Any]] | None,
    ) -> None:
        self._signature = inspect.signature(work)
        self._parameters = dict(list(self._signature.parameters.items())[bound:])
        self._hints: dict[str, Any] | None = None
        self._work, self._same, self._arguments = work, same, arguments

    def call_of(self, letter: Letter) -> Called:
        """Return the call that a letter is; refuse one from which none can be made."""
        held = opened(letter)
        given = (
            held.content if self._arguments is None else _asked("arguments", self._arguments, held.content)
        )
        arguments = self._fitting(self._named(given))
        return Called(arguments, self._sameness(letter, held.content), held.correlation_id)

    def _sameness(self, letter: Letter, content: Any) -> Any:
        if self._same == "arguments":
            return None
        if callable(self._same):
            return {"content": _asked("key", self._same, content)}
        return {"source": letter.source, "message": letter.id}

    def _named(self, given: Any) -> Mapping[str, Any]:
        """Return content as arguments by name: it has names, or there is only one place for it."""
        if isinstance(given, dict):
            return given
        places = [name for name, each in self._parameters.items() if each.kind not in _SPREAD]
        if len(places) != 1:
            raise Unreadable(f"it is no object, and the step takes {len(places)} arguments by name")
        return {places[0]: given}

    def _fitting(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as the step's annotations want them."""
        try:
            inspect.Signature(list(self._parameters.values())).bind(**given)
        except TypeError as fault:
            raise Unreadable(f"the step does not take it: {fault}") from None
        if self._hints is None:  # annotations may name what is defined later
            self._hints = hints_of(self._work)
        return {name: self._converted(name, value) for name, value in given.items()}

    def _converted(self, name: str, value: Any) -> Any:
        assert self._hints is not None
        hint = self._hints.get(name) if name in self._parameters else None
        if hint is None or isinstance(hint, str):
            return value
        try:
            return msgspec.convert(value, hint)
        except msgspec.ValidationError as fault:
            raise Unreadable(f"argument {name!r} does not fit: {fault}") from None
        except TypeError:  # an annotation that says nothing about JSON
            return value
        except Exception as fault:  # the class of the argument raised it
            raise Unreadable(f"argument {name!r} does not fit: {_describe(fault)}") from fault


def _asked(option: str, function: Callable[[Any], Any], content: Any) -> Any:
    """Ask a function of the user's about a letter; one that it fails on is a dead letter."""
    try:
        return function(content)
    except Exception as fault:
        raise Unreadable(f"{option}= failed on it with {_describe(fault)}") from fault


def _describe(fault: Exception) -> str:
    """Return the class and the text of an error, also of one whose text cannot be read."""
    return f"{name_of(fault)}: {message_of(fault)}".rstrip(": ")
