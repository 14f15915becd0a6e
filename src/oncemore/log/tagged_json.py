"""Tagged JSON: Python values as plain JSON that decodes to equal values.

JSON has no tuples, bytes, dates or large integers, and does not distinguish 1 from 1.0. Such a value becomes
an object with one key that starts with `$`:

    {"$int": "9007199254740993"}   {"$float": "1.0"}   {"$bytes": "aGk="}   {"$decimal": "1.50"}
    {"$time": "2026-11-15T12:00:00.000000Z"}   {"$datetime": …}   {"$date": …}   {"$clock": …}
    {"$duration": [days, seconds, microseconds]}   {"$uuid": …}
    {"$tuple": […]}   {"$set": […]}   {"$frozenset": […]}   {"$map": [[key, value], …]}
    {"$artifact": {"digest": …, "size": …, "name": …}}   {"$path": "a/b"}   {"$purepath": ["windows", "C:/b"]}
    {"$registered": ["Money", …]}   for a type that the program has registered (`log.type_registry`)

A mapping whose own keys begin with `$`, or are not strings, is written as `$map`. Dataclasses, models and
enums (`$object`, `$enum`) are written and read by an annotation, in `log.typed_values`. Other types are
refused: no pickles, nothing that stored data could import. A `TaggedEncoder` with `keyed=True` writes the
form from which keys are computed: strings in Unicode NFC, sets in one order, times in UTC.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from sys import get_int_max_str_digits
from typing import TYPE_CHECKING, Any, Final
from unicodedata import is_normalized, normalize
from uuid import UUID

from oncemore.artifacts.artifact import Artifact, tag_artifact, untag_artifact
from oncemore.errors import UsageError
from oncemore.log.type_registry import find_registered, find_registered_name
from oncemore.policy.canonical_json import LARGEST_INTEGER, MAX_DEPTH, encode_canonical
from oncemore.steps.read_only_values import ReadOnlyDict, ReadOnlyList

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.log.type_registry import RegisteredType
    from oncemore.policy.canonical_json import Plain


PLAIN_VALUES: Final = "plain values (numbers, strings, dates, bytes, lists, mappings)"


class NotEncodable(UsageError):
    """A value has no tagged form; the message names the value and the remedy."""


class NeedsAnnotation(NotEncodable):
    """A stored value is of a class, and only an annotation says which one."""


class TaggedEncoder:
    """Encodes values as tagged JSON; with `keyed`, in the canonical form for keys.

    advice  the remedy in the error message for a value without a tagged form
    """

    __slots__ = ("_advice", "_keyed")

    def __init__(self, *, keyed: bool = False, advice: str = f"pass {PLAIN_VALUES}") -> None:
        self._keyed, self._advice = keyed, advice

    def tag_value(self, value: object, path: str, depth_left: int = MAX_DEPTH) -> Plain:
        """Return the tagged form of a value; `path` names it in error messages."""
        # By exact type: a subclass would decode to another type. The most common types come first.
        kind = type(value)
        if value is None or kind is bool:
            return value  # type: ignore[return-value]
        if kind is str:
            return self._tag_text(value, path)  # type: ignore[arg-type]
        if kind is int:
            is_exact = -LARGEST_INTEGER <= value <= LARGEST_INTEGER  # type: ignore[operator]
            return value if is_exact else _tag_large_integer(value, path)  # type: ignore[return-value,arg-type]
        if kind is float:
            return self._tag_float(value, path)  # type: ignore[arg-type]
        # Bounded, because a list may contain itself.
        if depth_left <= 0:
            raise NotEncodable(f"{path} is nested more than {MAX_DEPTH} deep")
        if kind is list:
            return self._tag_items(value, path, depth_left)
        if kind is dict:
            return self._tag_mapping(value, path, depth_left)  # type: ignore[arg-type]
        if kind in _CONTAINERS:
            return self._tag_container(value, _CONTAINERS[kind], path, depth_left)
        write = _WRITERS.get(kind)
        # The same moment in two time zones must give the same key.
        if self._keyed and kind is datetime:
            return _tag_datetime(_to_utc(value))  # type: ignore[arg-type]
        if kind is ReadOnlyList:
            return self._tag_items(value, path, depth_left)
        if kind is ReadOnlyDict:
            return self._tag_mapping(value, path, depth_left)  # type: ignore[arg-type]
        return self._tag_other(value, path, depth_left) if write is None else write(value)

    def _tag_other(self, value: object, path: str, depth_left: int) -> Plain:
        """Return the tagged form of a path or of a value of a registered type; refuse any other."""
        kind = type(value)
        if kind in _PATH_FLAVOURS:
            text, flavour = self._tag_text(value.as_posix(), path), _PATH_FLAVOURS[kind]  # type: ignore[attr-defined]
            return {"$purepath": [flavour, text]} if flavour else {"$path": text}
        registered = find_registered(kind)
        if registered is None:
            raise NotEncodable(
                f"{path} is {with_article(kind.__name__)}, which has no form in JSON; {self._advice}"
            )
        return self._tag_registered(value, registered, path, depth_left)

    def _tag_registered(self, value: Any, registered: RegisteredType, path: str, depth_left: int) -> Plain:
        kind = registered.cls
        try:
            plain = self.tag_value(registered.encode(value), path, depth_left - 2)
            # In a key too: two values that the codec confuses must not become the same work.
            decoded = registered.decode(registered.encode(value))
            again = self.tag_value(registered.encode(decoded), path, depth_left - 2)
        except Exception as error:
            raise NotEncodable(
                f"{path} is {with_article(kind.__name__)}, and its registered codec raised "
                f"{type(error).__name__}: {error}"
            ) from error
        if type(decoded) is not kind or again != plain:
            raise NotEncodable(
                f"{path} is {with_article(kind.__name__)}, and its registered codec changes it: decode() of "
                "encode() must return an equal value of the class"
            )
        return {"$registered": [registered.name, plain]}

    def _tag_text(self, value: str, path: str) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise NotEncodable(f"{path} has half of a surrogate pair, and UTF-8 cannot encode it") from None
        return normalize("NFC", value) if self._keyed and not is_normalized("NFC", value) else value

    def _tag_float(self, value: float, path: str) -> Plain:
        # NaN is not equal to itself, and JSON has no infinity.
        if value != value or value in (float("inf"), float("-inf")):
            if self._keyed:
                raise NotEncodable(
                    f"{path} is {value!r}; it has no canonical form and cannot be part of a key"
                )
            return {"$float": repr(value)}
        return {"$float": repr(value)} if value.is_integer() else value

    def _tag_items(self, value: Any, path: str, depth_left: int) -> list[Plain]:
        return [self.tag_value(item, f"{path}[{index}]", depth_left - 1) for index, item in enumerate(value)]

    def _tag_mapping(self, value: dict[object, object], path: str, depth_left: int) -> Plain:
        if all(type(name) is str and not name.startswith("$") for name in value):
            tagged: dict[str, Plain] = {}
            for name, item in value.items():
                key = self._tag_text(name, f"a key of {path}")  # type: ignore[arg-type]
                # Only after normalisation: a dict has no equal keys.
                if key in tagged:
                    raise NotEncodable(f"{path} has two keys that are {key!r} in Unicode NFC")
                tagged[key] = self.tag_value(item, f"{path}.{name}", depth_left - 1)
            return tagged
        pairs: list[Plain] = [
            [
                self.tag_value(name, f"a key of {path}", depth_left - 1),
                self.tag_value(item, f"{path}[{name!r}]", depth_left - 1),
            ]
            for name, item in value.items()
        ]
        # Mappings are equal in any order, so keys need one order.
        return {"$map": sorted(pairs, key=encode_canonical) if self._keyed else pairs}

    def _tag_container(self, value: object, name: str, path: str, depth_left: int) -> Plain:
        items = self._tag_items(value, path, depth_left)
        # Sets in one order too, although only keys need it: the same set has the same bytes.
        return {name: items if name == "$tuple" else sorted(items, key=encode_canonical)}


class EventEncoder(TaggedEncoder):
    """Encodes the payloads of events: a relay delivers them without the types that a program registers."""

    __slots__ = ()

    def _tag_registered(self, value: Any, registered: RegisteredType, path: str, depth_left: int) -> Plain:
        return self.tag_value(registered.encode(value), path, depth_left)


EVENT_ENCODER: Final = EventEncoder()
#: The kinds of paths by their exact types; empty for the path of this system, which is read as such anywhere.
_PATH_FLAVOURS: Final[dict[type, str]] = {
    type(Path()): "",
    PurePosixPath: "posix",
    PureWindowsPath: "windows",
}
_CONTAINERS: Final[dict[type, str]] = {tuple: "$tuple", set: "$set", frozenset: "$frozenset"}


def _to_utc(value: datetime) -> datetime:
    return value if value.tzinfo is None else value.astimezone(UTC)


def _tag_large_integer(value: int, path: str) -> Plain:
    try:
        return {"$int": str(value)}
    except ValueError:  # Python limits the digits, because the conversion is quadratic
        raise NotEncodable(
            f"{path} is an integer of more than {get_int_max_str_digits()} digits, the limit of Python's "
            "conversion; pass it as bytes (int.to_bytes), or as a string of hex digits (hex)"
        ) from None


def _tag_datetime(value: datetime) -> Plain:
    """Return the tagged form of a datetime; an aware one keeps its offset, so that its hour and day remain.

    An offset with a fraction of a second is converted to UTC: Python cannot parse all of them.
    """
    text = value.isoformat(timespec="microseconds")
    if value.tzinfo is None:
        return {"$datetime": text}
    if "." in text[26:]:
        text = _to_utc(value).isoformat(timespec="microseconds")
    return {"$time": f"{text.removesuffix('+00:00')}Z" if text.endswith("+00:00") else text}


_WRITERS: Final[dict[type, Callable[[Any], Plain]]] = {
    bytes: lambda value: {"$bytes": b64encode(value).decode()},
    bytearray: lambda value: {"$bytearray": b64encode(value).decode()},
    Decimal: lambda value: {"$decimal": str(value)},
    UUID: lambda value: {"$uuid": str(value)},
    datetime: _tag_datetime,
    date: lambda value: {"$date": value.isoformat()},
    time: lambda value: {"$clock": value.isoformat(timespec="microseconds")},
    Artifact: tag_artifact,
    timedelta: lambda value: {"$duration": [value.days, value.seconds, value.microseconds]},
}


def untag_value(plain: Any) -> Any:
    """Return the value of a tagged form; raise `NotEncodable` for an unknown tag."""
    if type(plain) is list:
        return [untag_value(item) for item in plain]
    if type(plain) is not dict:
        return plain
    if len(plain) == 1:
        (name,) = plain
        if name.startswith("$"):
            if name in TYPED_TAGS:
                raise NeedsAnnotation(
                    f"a stored value is {with_article(plain[name][0])}, and no annotation says which class "
                    "that is; read it through its step"
                )
            if name not in _READERS:
                raise NotEncodable(f"{name} is not a tag of this version; a newer oncemore wrote it")
            return _READERS[name](plain[name])
    return {name: untag_value(item) for name, item in plain.items()}


def _untag_registered(parts: Any) -> Any:
    name, plain = parts
    registered = find_registered_name(name)
    if registered is None:
        raise NotEncodable(
            f"a stored value is of the type {name!r}, which is not registered in this process; register it "
            "(oncemore.register_type), or import the module that does"
        )
    return registered.decode(untag_value(plain))


def _untag_pure_path(parts: Any) -> PurePath:
    flavour, text = parts
    return PurePosixPath(text) if flavour == "posix" else PureWindowsPath(text)


#: Tags of values that are read by an annotation (`log.typed_values`).
TYPED_TAGS: Final = frozenset({"$object", "$enum"})
_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "$int": int,
    "$float": float,
    "$bytes": lambda text: b64decode(text, validate=True),
    "$bytearray": lambda text: bytearray(b64decode(text, validate=True)),
    "$path": Path,
    "$purepath": _untag_pure_path,
    "$registered": _untag_registered,
    "$decimal": Decimal,
    "$uuid": UUID,
    "$time": datetime.fromisoformat,
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$clock": time.fromisoformat,
    "$duration": lambda parts: timedelta(*parts),
    "$artifact": untag_artifact,
    "$tuple": lambda items: tuple(untag_value(item) for item in items),
    "$set": lambda items: {untag_value(item) for item in items},
    "$frozenset": lambda items: frozenset(untag_value(item) for item in items),
    "$map": lambda pairs: {untag_value(name): untag_value(item) for name, item in pairs},
}


def has_own_form(cls: type) -> bool:
    """Return whether values of a class have a form that does not depend on registered types."""
    own = (type(None), bool, str, int, float, list, dict, ReadOnlyList, ReadOnlyDict)
    return cls in own or cls in _CONTAINERS or cls in _WRITERS or issubclass(cls, PurePath)


def with_article(name: str) -> str:
    """Return a name with its indefinite article."""
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"
