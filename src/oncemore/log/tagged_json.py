"""Tagged JSON: Python values as plain JSON, so that reading them back gives the same values.

JSON knows no tuples, bytes, dates or large integers, and does not tell 1 from 1.0. Such a value
becomes an object with one key that starts with `$`:

    {"$int": "9007199254740993"}   {"$float": "1.0"}   {"$bytes": "aGk="}   {"$decimal": "1.50"}
    {"$time": "2026-11-15T12:00:00.000000Z"}   {"$datetime": …}   {"$date": …}   {"$clock": …}
    {"$duration": [days, seconds, microseconds]}   {"$uuid": …}
    {"$tuple": […]}   {"$set": […]}   {"$frozenset": […]}   {"$map": [[key, value], …]}
    {"$artifact": {"digest": …, "size": …, "name": …}}

A mapping whose own keys begin with `$`, or are not strings, is written as `$map`. Nothing else has a
form: no pickles, no class names, nothing that runs when it is read. A `Tagger` with `keyed=True` makes
the form that keys are computed from: strings in Unicode NFC, sets in one order, times in UTC.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from sys import get_int_max_str_digits
from typing import TYPE_CHECKING, Any, Final
from unicodedata import is_normalized, normalize
from uuid import UUID

from oncemore.artifacts.artifact import Artifact, artifact_of, plain_of
from oncemore.errors import UsageError
from oncemore.policy.canonical_json import DEEPEST, LARGEST_INTEGER, canonical
from oncemore.steps.read_only_values import ReadOnlyDict, ReadOnlyList

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.policy.canonical_json import Plain


PLAIN_VALUES: Final = "plain values (numbers, strings, dates, bytes, lists, mappings)"


class NoForm(UsageError):
    """A value has no tagged form; the message says where and what to do."""


class Tagger:
    """Writes values as tagged JSON; with `keyed`, in the one form that keys are computed from.

    advice  what an error tells the user to do about a value that has no form
    """

    __slots__ = ("_advice", "_keyed")

    def __init__(self, *, keyed: bool = False, advice: str = f"pass {PLAIN_VALUES}") -> None:
        self._keyed, self._advice = keyed, advice

    def tag(self, value: object, path: str, room: int = DEEPEST) -> Plain:
        """Return the plain form of a value; `path` is what an error calls it."""
        kind = type(value)
        if value is None or kind is bool:
            return value  # type: ignore[return-value]
        if kind is str:
            return self._text(value, path)  # type: ignore[arg-type]
        if kind is int:
            fits = -LARGEST_INTEGER <= value <= LARGEST_INTEGER  # type: ignore[operator]
            return value if fits else _large(value, path)  # type: ignore[return-value,arg-type]
        if kind is float:
            return self._float(value, path)  # type: ignore[arg-type]
        if room <= 0:
            raise NoForm(f"{path} is nested more than {DEEPEST} deep")
        if kind is list:
            return self._items(value, path, room)
        if kind is dict:
            return self._mapping(value, path, room)  # type: ignore[arg-type]
        if kind in _CONTAINERS:
            return self._container(value, _CONTAINERS[kind], path, room)
        write = _WRITERS.get(kind)
        if self._keyed and kind is datetime:
            return _moment(_in_utc(value))  # type: ignore[arg-type]
        if kind is ReadOnlyList:
            return self._items(value, path, room)
        if kind is ReadOnlyDict:
            return self._mapping(value, path, room)  # type: ignore[arg-type]
        if write is None:
            raise NoForm(f"{path} is {_article(kind.__name__)}, which has no form in JSON; {self._advice}")
        return write(value)

    def _text(self, value: str, path: str) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise NoForm(f"{path} holds half a surrogate pair, which UTF-8 cannot hold") from None
        return normalize("NFC", value) if self._keyed and not is_normalized("NFC", value) else value

    def _float(self, value: float, path: str) -> Plain:
        if value != value or value in (float("inf"), float("-inf")):
            if self._keyed:
                raise NoForm(f"{path} is {value!r}, which equals nothing; it cannot be part of a key")
            return {"$float": repr(value)}
        return {"$float": repr(value)} if value.is_integer() else value

    def _items(self, value: Any, path: str, room: int) -> list[Plain]:
        return [self.tag(item, f"{path}[{at}]", room - 1) for at, item in enumerate(value)]

    def _mapping(self, value: dict[object, object], path: str, room: int) -> Plain:
        if all(type(name) is str and not name.startswith("$") for name in value):
            tagged: dict[str, Plain] = {}
            for name, item in value.items():
                key = self._text(name, f"a key of {path}")  # type: ignore[arg-type]
                if key in tagged:
                    raise NoForm(f"{path} has two keys that are {key!r} in Unicode NFC")
                tagged[key] = self.tag(item, f"{path}.{name}", room - 1)
            return tagged
        pairs: list[Plain] = [
            [self.tag(name, f"a key of {path}", room - 1), self.tag(item, f"{path}[{name!r}]", room - 1)]
            for name, item in value.items()
        ]
        return {"$map": sorted(pairs, key=canonical) if self._keyed else pairs}

    def _container(self, value: object, name: str, path: str, room: int) -> Plain:
        items = self._items(value, path, room)
        return {name: items if name == "$tuple" else sorted(items, key=canonical)}


_CONTAINERS: Final[dict[type, str]] = {tuple: "$tuple", set: "$set", frozenset: "$frozenset"}


def _in_utc(value: datetime) -> datetime:
    return value if value.tzinfo is None else value.astimezone(UTC)


def _large(value: int, path: str) -> Plain:
    try:
        return {"$int": str(value)}
    except ValueError:  # Python refuses to write it, because that takes very long
        raise NoForm(
            f"{path} is an integer of more than {get_int_max_str_digits()} digits, which Python does not "
            "write; pass it as bytes (int.to_bytes), or as a text of hex digits (hex)"
        ) from None


def _moment(value: datetime) -> Plain:
    """Return the form of a time: an aware one keeps its offset, because its hour and day depend on that.

    An offset with a part of a second is written in UTC: Python does not read each of them back.
    """
    text = value.isoformat(timespec="microseconds")
    if value.tzinfo is None:
        return {"$datetime": text}
    if "." in text[26:]:
        text = _in_utc(value).isoformat(timespec="microseconds")
    return {"$time": f"{text.removesuffix('+00:00')}Z" if text.endswith("+00:00") else text}


_WRITERS: Final[dict[type, Callable[[Any], Plain]]] = {
    bytes: lambda value: {"$bytes": b64encode(value).decode()},
    Decimal: lambda value: {"$decimal": str(value)},
    UUID: lambda value: {"$uuid": str(value)},
    datetime: _moment,
    date: lambda value: {"$date": value.isoformat()},
    time: lambda value: {"$clock": value.isoformat(timespec="microseconds")},
    Artifact: plain_of,
    timedelta: lambda value: {"$duration": [value.days, value.seconds, value.microseconds]},
}


def untag(plain: Any) -> Any:
    """Return the value that a tagged form stands for; an unknown tag is an error, never a guess."""
    if type(plain) is list:
        return [untag(item) for item in plain]
    if type(plain) is not dict:
        return plain
    if len(plain) == 1:
        (name,) = plain
        if name.startswith("$"):
            if name not in _READERS:
                raise NoForm(f"{name} is no tag of this version; it was written by a newer one")
            return _READERS[name](plain[name])
    return {name: untag(item) for name, item in plain.items()}


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "$int": int,
    "$float": float,
    "$bytes": lambda text: b64decode(text, validate=True),
    "$decimal": Decimal,
    "$uuid": UUID,
    "$time": datetime.fromisoformat,
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$clock": time.fromisoformat,
    "$duration": lambda parts: timedelta(*parts),
    "$artifact": artifact_of,
    "$tuple": lambda items: tuple(untag(item) for item in items),
    "$set": lambda items: {untag(item) for item in items},
    "$frozenset": lambda items: frozenset(untag(item) for item in items),
    "$map": lambda pairs: {untag(name): untag(item) for name, item in pairs},
}


def _article(name: str) -> str:
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"
