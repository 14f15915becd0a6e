"""Frozen records that cost almost nothing to import.

`typing` alone is a third of what `import tenacity` costs, and `dataclasses` half of it, so the
modules behind `oncemore.retry` use neither at run time. `Value` is written like a
`typing.NamedTuple` and is one to the type checker; at run time it is built on
`collections.namedtuple`. A subclass may check its fields in `__new__`; `but()` is the way to a
changed copy that runs those checks again.

`make(Kind, (field, field, …))` makes a value from all its fields in order, past its `__new__`: at a
third of the cost of a call, for the few lines that every failed attempt passes.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as Value
else:
    from collections import namedtuple

    class _Named(type):
        """Turns the annotations of a class body into the fields of a named tuple."""

        def __new__(mcls, name, bases, body):
            fields = tuple(body.get("__annotations__", ()))
            plain = namedtuple(
                name,
                fields,
                defaults=[body[field] for field in fields if field in body],
                module=body["__module__"],
            )
            kept = {k: v for k, v in body.items() if k not in fields and k != "__slots__"}
            return type(name, (plain,), {**kept, "__slots__": ()})

    Value = type.__new__(_Named, "Value", (), {"__slots__": ()})

make = tuple.__new__

__all__ = ["Value", "make"]
