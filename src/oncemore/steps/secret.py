"""A value that is used and never written down."""

from __future__ import annotations

from typing import Any


class Secret:
    """Holds a value that takes no part in keys, records or messages; `reveal()` gives it back.

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

    def __reduce__(self) -> tuple[object, ...]:
        return Secret, (self._value,)


def secret_texts_of(values: Any) -> tuple[str, ...]:
    """Return the texts of secrets among values, so that messages can be cleared of them."""
    found = (value.reveal() if isinstance(value, Secret) else value for value in values)
    return tuple(text for text in found if isinstance(text, str))
