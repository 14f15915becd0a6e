"""Read-only copies of plain values, for the inputs of nodes (ART-5).

A retry computes from the same inputs: an attempt that changed them would give the next one other inputs than
the log has recorded.
"""

from __future__ import annotations

from typing import Any, NoReturn


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError("the inputs of a node are read-only; copy what you want to change: dict(…), list(…)")


class ReadOnlyDict(dict[Any, Any]):
    """A dict that cannot be changed; a copy of it can."""

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    # Copies and pickles are plain: they belong to the code that made them.
    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class ReadOnlyList(list[Any]):
    """A list that cannot be changed; a copy of it can."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def make_read_only(value: Any) -> Any:
    """Return a deep copy of plain data that raises TypeError on every change; sets become frozensets."""
    # By exact type: a subclass may depend on changing itself, and stays as it is.
    kind = type(value)
    if kind is dict or kind is ReadOnlyDict:
        return ReadOnlyDict({name: make_read_only(item) for name, item in value.items()})
    if kind is list or kind is ReadOnlyList:
        return ReadOnlyList([make_read_only(item) for item in value])
    if kind is tuple:
        return tuple(make_read_only(item) for item in value)
    return frozenset(value) if kind is set else value
