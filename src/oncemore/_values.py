"""Frozen values that cost almost nothing to import.

`typing` alone costs a third of `import tenacity`, and `dataclasses` half of it, so that the modules behind
`oncemore.retry` use neither at run time. `Value` is written like a `typing.NamedTuple`, and is one to the
type checker; at run time it is a tuple with named getters, made without `collections.namedtuple`, because
that compiles source for every class.

`FrozenRecord` is the other kind of value: read often, made seldom, with checks. Its fields are slots, which
are read at half the cost; its `__init__` sets them once through `set_fields`.

`make(Kind, (field, field, …))` makes a `Value` from all its fields in order without its `__new__`, at a third
of the cost, for the few lines that every failed attempt passes.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as Value
    from typing import Self, TypeVar

    R = TypeVar("R", bound="FrozenRecord")
else:
    from _collections import _tuplegetter
    from _operator import itemgetter

    class _ValueTuple(tuple):
        """Base of every `Value` at run time; the subclass has the names and the defaults of its fields."""

        __slots__ = ()
        _fields = ()
        _field_defaults = {}  # noqa: RUF012 - each class gets its own
        _at = {}  # noqa: RUF012 - the same
        _rest = ()

        def __new__(cls, *values, **named):
            if named:
                if not values:
                    # All fields by name, or with their defaults: a third of the time of the general case.
                    full = {**cls._field_defaults, **named}
                    if len(full) == len(cls._fields):
                        try:
                            return tuple.__new__(cls, cls._pick(full))
                        except KeyError:
                            pass  # a wrong name stands for a right one: the general case raises
                values = _completed(cls, values, named)
            elif len(values) != len(cls._fields):
                # The common case, at a tenth of the cost: the last fields are left to their defaults.
                rest = len(values) - len(cls._fields)
                if rest > 0 or -rest > len(cls._rest):
                    values = _completed(cls, values, named)
                values = (*values, *cls._rest[rest:])
            return tuple.__new__(cls, values)

        def _replace(self, **changes):
            values, at = list(self), self._at
            try:
                for name, value in changes.items():
                    values[at[name]] = value
            except KeyError:
                raise TypeError(f"{type(self).__name__} has no field {name}") from None
            # Past `__new__`, which would complete and check the fields again.
            return tuple.__new__(type(self), values)

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def __getnewargs__(self):
            return tuple(self)

        def __repr__(self):
            shown = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
            return f"{type(self).__name__}({shown})"

    def _completed(cls, values, named):
        """Return all fields in order, from positions, names and defaults; raise `TypeError` on a mismatch."""
        given = dict(zip(cls._fields, values, strict=False))
        if (
            len(values) > len(cls._fields)
            or given.keys() & named.keys()
            or not named.keys() <= set(cls._fields)
        ):
            raise TypeError(
                f"{cls.__name__} takes {', '.join(cls._fields)}, each once; got {values} and {named}"
            )
        full = {**cls._field_defaults, **given, **named}
        missing = [name for name in cls._fields if name not in full]
        if missing:
            raise TypeError(f"{cls.__name__} needs {', '.join(missing)}")
        return [full[name] for name in cls._fields]

    def _make_picker(fields):
        """Return the function that returns the values of a dict in the order of the fields."""
        if len(fields) < 2:
            return staticmethod(lambda named: [named[name] for name in fields])
        return staticmethod(itemgetter(*fields))

    class _ValueMeta(type):
        """Turns the annotations of a class body into the fields of a tuple."""

        def __new__(mcls, name, bases, body):
            fields = tuple(body.get("__annotations__", ()))
            defaults = {field: body.pop(field) for field in fields if field in body}
            # The descriptor that `collections.namedtuple` uses: written in C, cheaper than a property.
            getters = {field: _tuplegetter(at, field) for at, field in enumerate(fields)}
            ours = {
                "__slots__": (),
                "_fields": fields,
                "__match_args__": fields,
                "_field_defaults": defaults,
                "_at": {field: at for at, field in enumerate(fields)},
                "_rest": tuple(defaults.values()),
                "_pick": _make_picker(fields),
            }
            return type(name, (_ValueTuple,), {**body, **getters, **ours})

    Value = type.__new__(_ValueMeta, "Value", (), {"__slots__": ()})

make = tuple.__new__


class FrozenRecord:
    """A frozen, comparable value whose fields are its slots."""

    __slots__: tuple[str, ...] = ()

    def set_fields(self, **values: object) -> None:
        """Set every field once; call it at the end of `__init__`."""
        # `__setattr__` of this class refuses every assignment.
        for name in self.__slots__:
            object.__setattr__(self, name, values.pop(name))
        if values:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(values)}")

    def field_values(self) -> dict[str, object]:
        """Return the fields by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    def copy_with(self, **changes: object) -> Self:
        """Return a copy with some fields changed; nothing is checked."""
        return _rebuild_record(type(self), tuple({**self.field_values(), **changes}.values()))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen; make a changed copy")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.field_values() == other.field_values()

    def __hash__(self) -> int:
        return hash(tuple(self.field_values().values()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.field_values().items())
        return f"{type(self).__name__}({shown})"

    def __reduce__(self) -> tuple[object, ...]:
        # Pickle's default sets the slots one by one, which `__setattr__` refuses.
        return _rebuild_record, (type(self), tuple(self.field_values().values()))


def _rebuild_record(kind: type[R], values: tuple[object, ...]) -> R:
    made = kind.__new__(kind)
    made.set_fields(**dict(zip(kind.__slots__, values, strict=True)))
    return made


__all__ = ["FrozenRecord", "Value", "make"]
