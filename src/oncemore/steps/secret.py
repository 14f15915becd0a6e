"""`Secret`: a value that steps can use and that keys, records and messages never contain."""

from __future__ import annotations

from typing import Any


class Secret:
    """Wraps a value that keys, records and messages leave out; `reveal()` returns it.

    As the annotation of a step's parameter it leaves that argument out, wrapped or not.
    """

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def reveal(self) -> Any:
        """Return the value."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and bool(self._value == other._value)

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    # Pickled with its value: an isolated attempt gets its arguments through a pipe.
    def __reduce__(self) -> tuple[object, ...]:
        return Secret, (self._value,)


def secret_texts_of(values: Any) -> tuple[str, ...]:
    """Return the texts among secret values, so that they can be removed from messages."""
    plain = (value.reveal() if isinstance(value, Secret) else value for value in values)
    return tuple(text for text in plain if isinstance(text, str))
