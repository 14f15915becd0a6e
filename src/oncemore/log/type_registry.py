"""The types that a program has registered for arguments and results: class, name, encoder and decoder.

Stored data names a registered type, and only a type that this process has registered under that name is read:
the data chooses between decoders that the program itself has listed, and nothing is imported for it.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")

MAX_NAME_LENGTH = 200


class RegisteredType(Value):
    """A registered type with its stored name and its codec."""

    cls: type
    name: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


_BY_CLASS: dict[type, RegisteredType] = {}
_BY_NAME: dict[str, RegisteredType] = {}


def register_type(
    cls: type[T], encode: Callable[[T], Any], decode: Callable[[Any], T], *, name: str | None = None
) -> None:
    """Let values of a class be arguments and results of steps, also inside lists, mappings and models.

    encode  returns the value as plain values: numbers, texts, bytes, dates, lists, mappings, registered types
    decode  returns an equal value of the class, made from what `encode` returned
    name    the name that the log stores and that keys contain; the name of the class unless given. It must
            stay the same: another name makes other keys, and stored values are found by it

    It holds for the whole process, and for this very class: a subclass is registered on its own. A second
    registration with another codec, or of another class under the same name, raises `UsageError`.
    """
    if not isinstance(cls, type):
        raise UsageError(f"register_type takes a class, not {cls!r:.80}")
    for option, value in (("encode", encode), ("decode", decode)):
        if not callable(value):
            raise UsageError(
                f"{option} of register_type({cls.__name__}) is {value!r:.80}; it takes a function"
            )
    stored_name = type_name(cls) if name is None else name
    if not isinstance(stored_name, str) or not 1 <= len(stored_name) <= MAX_NAME_LENGTH:
        raise UsageError(
            f"name of register_type({cls.__name__}) is {name!r:.80}; it takes a text of 1 to "
            f"{MAX_NAME_LENGTH} characters"
        )
    _check_no_own_form(cls)
    entry = RegisteredType(cls, stored_name, encode, decode)
    for known in (_BY_NAME.get(stored_name), _BY_CLASS.get(cls)):
        if known is not None and not _is_same_registration(known, entry):
            raise UsageError(
                f"{known.cls.__module__}.{known.cls.__qualname__} is registered as {known.name!r} with "
                f"another codec; register {cls.__module__}.{cls.__qualname__} once, under a name of its own "
                "(name=…)"
            )
    _BY_CLASS[cls] = _BY_NAME[stored_name] = entry


def find_registered(cls: type) -> RegisteredType | None:
    """Return the registration of a class; None if it has none, also if a base class has one."""
    return _BY_CLASS.get(cls)


def find_registered_name(name: str) -> RegisteredType | None:
    """Return the type that is registered under a name, or None."""
    return _BY_NAME.get(name)


def type_name(cls: type) -> str:
    """Return the name of a class in keys and in the log: its qualified name without module and functions.

    A class may therefore move to another module, and its keys stay the same.
    """
    return cls.__qualname__.rpartition("<locals>.")[2]


def _check_no_own_form(cls: type) -> None:
    """Refuse types that tagged JSON writes already: their keys must not change."""
    from oncemore.log.tagged_json import has_own_form

    if has_own_form(cls):
        raise UsageError(f"{cls.__name__} has a form in the log already; register_type is for other types")


def _is_same_registration(one: RegisteredType, other: RegisteredType) -> bool:
    """Return whether two registrations are one line of source, executed again by a reload."""
    if one.name != other.name:
        return False
    pairs = ((one.cls, other.cls), (one.encode, other.encode), (one.decode, other.decode))
    return all(first is second or _source_of(first) == _source_of(second) for first, second in pairs)


def _source_of(definition: Any) -> Any:
    """Return what identifies the source of a class or function; the object itself if nothing does."""
    from oncemore.steps.signature import module_of

    code = getattr(definition, "__code__", None)
    # Two functions of one source differ by their closures; an object with `__call__` by its state.
    if getattr(definition, "__closure__", None) or (code is None and not isinstance(definition, type)):
        return definition
    # A program may be loaded twice, as `__main__` and under its own name.
    return module_of(definition), definition.__qualname__, code
