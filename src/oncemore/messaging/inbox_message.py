"""Reads an incoming message: its content, the step's arguments, the key and the correlation id.

    CloudEvents             structured (`application/cloudevents+json`) or binary (`ce-id`, …): the `data`
    from an oncemore relay  with `oncemore-id`: the `payload`
    anything else           the whole body, as JSON

An object has the step's arguments by name; any other value is its only argument. Arguments are converted to
the step's annotations, so that a bad message becomes a dead letter and not a failure of the work.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from oncemore._redact import error_class_name, masked_message
from oncemore._values import Value
from oncemore.errors import PermanentError
from oncemore.log.plain_conversion import convert_plain
from oncemore.steps.signature import hints_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.messaging.inbox_flow import InboxMessage

MAX_ID_LENGTH = 200
CLOUDEVENTS_TYPE = "application/cloudevents+json"
#: The headers that may have a correlation id; the first one that is present is used.
CORRELATION_HEADERS = ("correlation-id", "x-correlation-id", "correlation_id", "correlationid")
_VARIADIC_KINDS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class UnreadableMessage(PermanentError):
    """A message that cannot be turned into a call of the step; the text says why."""


class ParsedMessage(Value):
    """The decoded content of a message.

    content         the content, as JSON values
    correlation_id  the sender's correlation id, or an empty string
    """

    content: Any
    correlation_id: str


class StepCall(Value):
    """The call of a step for one message.

    arguments     by name
    key_material  the value that the run's key is made of; None for the key of an ordinary call of the step
    """

    arguments: Mapping[str, Any]
    key_material: Any
    correlation_id: str


#: Levels of arrays and objects in a message. The limit of the decoder depends on the version of Python.
MAX_NESTING = 500
_TOO_DEEP = "the JSON of the message is nested too deeply"


def is_nested_deeper(content: Any, limit: int) -> bool:
    """Return whether a JSON value has more levels of arrays and objects than a limit."""
    level = [content] if isinstance(content, dict | list) else []
    while level and limit:
        members = (value.values() if isinstance(value, dict) else value for value in level)
        level = [one for values in members for one in values if isinstance(one, dict | list)]
        limit -= 1
    return bool(level)


def find_message_id(headers: Mapping[str, str]) -> str:
    """Return the id in the headers of a message, or an empty string."""
    if headers.get("oncemore-id"):
        return headers["oncemore-id"]
    if headers.get("ce-id"):
        source = headers.get("ce-source", "")
        # With the length, because both parts may contain the separator.
        return f"{len(source)}:{source} {headers['ce-id']}"
    return ""


def parse_message(message: InboxMessage) -> ParsedMessage:
    """Return the content of a message; raise `UnreadableMessage` if it is not JSON."""
    headers = message.headers
    try:
        content: Any = msgspec.json.decode(message.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableMessage(f"the message is not JSON: {error}") from None
    except RecursionError:
        raise UnreadableMessage(_TOO_DEEP) from None
    if is_nested_deeper(content, MAX_NESTING):
        raise UnreadableMessage(_TOO_DEEP)
    correlation_id = next((headers[name] for name in CORRELATION_HEADERS if headers.get(name)), "")
    correlation_id = correlation_id or unquote(headers.get("ce-correlationid", ""))
    field = _find_content_field(headers, content)
    if field:
        envelope, content = content, content.get(field)
        correlation_id = (
            correlation_id or envelope.get("correlation_id") or envelope.get("correlationid") or ""
        )
    # The sender chose it, and it is written to logs: an odd one is ignored.
    usable = (
        isinstance(correlation_id, str)
        and len(correlation_id) <= MAX_ID_LENGTH
        and correlation_id.isprintable()
    )
    return ParsedMessage(content, correlation_id if usable else "")


def _find_content_field(headers: Mapping[str, str], content: Any) -> str:
    """Return the field of the envelope that has the content; empty if the whole body is the content."""
    if not isinstance(content, dict) or "ce-id" in headers:
        return ""
    if headers.get("content-type", "").partition(";")[0].strip().lower() == CLOUDEVENTS_TYPE:
        return "data"
    return "payload" if "oncemore-id" in headers and "payload" in content and "topic" in content else ""


class MessageReader:
    """Turns messages into calls of one step.

    work       the step's function
    bound      the number of its first parameters that are bound already
    key        None: the message's id; "arguments": the step's own key; or a function of the content
    arguments  a function of the content that returns the arguments by name; None: the content itself
    """

    def __init__(
        self,
        work: Callable[..., Any],
        bound: int,
        key: Callable[[Any], Any] | str | None,
        arguments: Callable[[Any], Mapping[str, Any]] | None,
    ) -> None:
        self._signature = inspect.signature(work)
        self._parameters = dict(list(self._signature.parameters.items())[bound:])
        self._hints: dict[str, Any] | None = None
        self._work, self._key, self._arguments = work, key, arguments

    def make_call(self, message: InboxMessage) -> StepCall:
        """Return the call for a message; raise `UnreadableMessage` if that is not possible."""
        parsed = parse_message(message)
        values = parsed.content
        if self._arguments is not None:
            values = _call_user_function("arguments", self._arguments, values)
        arguments = self._convert_arguments(self._name_arguments(values))
        return StepCall(arguments, self._make_key_material(message, parsed.content), parsed.correlation_id)

    def _make_key_material(self, message: InboxMessage, content: Any) -> Any:
        if self._key == "arguments":
            return None
        if callable(self._key):
            return {"content": _call_user_function("key", self._key, content)}
        if not message.has_id:
            # Processed under a digest, two equal messages would be taken for one.
            raise UnreadableMessage(
                "the message has no id, so that a repeat cannot be recognised; its sender must give it one, "
                "or the inbox needs key="
            )
        return {"source": message.source, "message": message.id}

    def _name_arguments(self, content: Any) -> Mapping[str, Any]:
        """Return content as arguments by name: an object, or the value of the only parameter."""
        if isinstance(content, dict):
            return content
        names = [
            name for name, parameter in self._parameters.items() if parameter.kind not in _VARIADIC_KINDS
        ]
        if len(names) != 1:
            raise UnreadableMessage(
                f"the content is not an object, and the step takes {len(names)} arguments by name"
            )
        return {names[0]: content}

    def _convert_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments converted to the types of the step's annotations."""
        try:
            inspect.Signature(list(self._parameters.values())).bind(**arguments)
        except TypeError as error:
            raise UnreadableMessage(f"the content does not fit the step's parameters: {error}") from None
        # Not in `__init__`: annotations may name classes that the user's module defines later.
        if self._hints is None:
            self._hints = hints_of(self._work)
        return {name: self._convert_value(name, value) for name, value in arguments.items()}

    def _convert_value(self, name: str, value: Any) -> Any:
        assert self._hints is not None
        hint = self._hints.get(name) if name in self._parameters else None
        if hint is None or isinstance(hint, str):
            return value
        try:
            return convert_plain(value, hint)
        except msgspec.ValidationError as error:
            raise UnreadableMessage(f"argument {name!r} does not fit: {error}") from None
        except TypeError:
            # msgspec does not know the annotation; the step gets the JSON value.
            return value
        except Exception as error:  # raised by the argument's own class
            raise UnreadableMessage(f"argument {name!r} does not fit: {_describe_error(error)}") from error


def _call_user_function(option: str, function: Callable[[Any], Any], content: Any) -> Any:
    """Call the user's function with the content; its failure makes the message a dead letter."""
    try:
        return function(content)
    except Exception as error:
        raise UnreadableMessage(f"{option}= failed with {_describe_error(error)}") from error


def _describe_error(error: Exception) -> str:
    """Return the class and the masked text of an error, also of one whose `__str__` raises."""
    return f"{error_class_name(error)}: {masked_message(error)}".rstrip(": ")
