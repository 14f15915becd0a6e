"""The fields of dataclasses, msgspec structs, attrs classes, pydantic models and named tuples.

A value is read as its fields and built again by its own constructor, so that what the class checks is checked
again. A field that the constructor does not take (`init=False`) is set afterwards; one that also takes no
part in comparisons is left to the constructor. attrs and pydantic are optional: their classes are recognized
by attributes, and then the library is loaded already.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncemore._values import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Stands for the default of a field that has none.
NO_DEFAULT: Final = object()
#: Types with a content besides their fields: such a class cannot be built from its fields alone.
_WITH_CONTENT = (str, bytes, bytearray, int, float, complex, list, dict, set, frozenset, tuple, BaseException)


class ClassField(Value):
    """A field of a class.

    parameter   its parameter of the constructor; empty if it is set after the construction
    default     its declared default, or `NO_DEFAULT`
    factory     the function that makes its default, or None
    annotation  its annotation as the class has it; None if only the class's own annotations say it
    """

    name: str
    parameter: str
    default: Any = NO_DEFAULT
    factory: Any = None
    annotation: Any = None


class ClassFields:
    """The fields of a class, and how its values are read and built."""

    def __init__(self, cls: type, fields: tuple[ClassField, ...]) -> None:
        self.cls, self.fields = cls, fields
        self.by_name = {field.name: field for field in fields}

    def read_values(self, value: object) -> Iterator[tuple[ClassField, Any]]:
        """Yield the fields of a value with their contents; an attribute that was never set is left out."""
        for field in self.fields:
            content = getattr(value, field.name, NO_DEFAULT)
            if content is not NO_DEFAULT:
                yield field, content

    def read_remainder(self, value: object) -> dict[str, Any]:
        """Return what a value has besides its fields: nothing, except for pydantic models."""
        return {}

    def build_value(self, contents: dict[str, Any], remainder: dict[str, Any]) -> Any:
        """Return a value of the class, made from the contents of its fields."""
        named = {
            field.parameter: contents[field.name]
            for field in self.fields
            if field.parameter and field.name in contents
        }
        value = self.cls(**named)
        for field in self.fields:
            if not field.parameter and field.name in contents:
                # Frozen classes refuse a plain assignment.
                object.__setattr__(value, field.name, contents[field.name])
        return value

    def has_hidden_state(self, value: object) -> bool:
        """Return whether a value has a state besides its fields that building it again would lose."""
        return False

    def dump_content(self, field: ClassField, content: Any) -> Any:
        """Return a content without a form of its own as its model writes it to JSON; None if it cannot."""
        return None


class ModelFields(ClassFields):
    """The fields of a pydantic model."""

    def __init__(self, cls: Any) -> None:
        fields = (
            ClassField(name, name, *_declared_default(info), info.annotation)
            for name, info in cls.model_fields.items()
        )
        super().__init__(cls, tuple(fields))

    def read_remainder(self, value: Any) -> dict[str, Any]:
        """Return additional fields (`extra="allow"`), and the names of fields that have not been set."""
        unset = sorted(self.by_name.keys() - value.model_fields_set)
        return {
            **({"extra": value.model_extra} if value.model_extra else {}),
            **({"unset": unset} if unset else {}),
        }

    def build_value(self, contents: dict[str, Any], remainder: dict[str, Any]) -> Any:
        """Return a model, validated from the contents of its fields."""
        cls: Any = self.cls
        if "root" in self.by_name and getattr(cls, "__pydantic_root_model__", False):
            return cls.model_validate(contents["root"])
        value = cls.model_validate({**contents, **remainder.get("extra", {})}, by_name=True)
        value.model_fields_set.difference_update(remainder.get("unset", ()))
        return value

    def has_hidden_state(self, value: Any) -> bool:
        """Return whether private attributes differ from those that a new model gets."""
        if not value.__pydantic_private__:
            return False
        contents = {field.name: content for field, content in self.read_values(value)}
        again = self.build_value(contents, self.read_remainder(value))
        return bool(again.__pydantic_private__ != value.__pydantic_private__)

    def dump_content(self, field: ClassField, content: Any) -> Any:
        """Return a content as pydantic writes it to JSON, if pydantic reads an equal content from it."""
        try:
            adapter = _type_adapter(self.cls, field.name)
            dumped = adapter.dump_python(content, mode="json")
            # A SecretStr is written as asterisks.
            return dumped if adapter.validate_python(dumped) == content else None
        except Exception:  # noqa: BLE001 - validators of the user may raise anything
            return None


def _declared_default(info: Any) -> tuple[Any, Any]:
    """Return the default and the default factory of a field of pydantic."""
    return NO_DEFAULT if info.is_required() or info.default_factory else info.default, info.default_factory


@lru_cache(maxsize=1024)
def _type_adapter(cls: Any, name: str) -> Any:
    """Return pydantic's adapter for a field of a model."""
    from pydantic import TypeAdapter

    return TypeAdapter(cls.model_fields[name].annotation)


@lru_cache(maxsize=4096)
def find_fields(cls: type) -> ClassFields | None:
    """Return the fields of a class; None if it is not one of the supported kinds."""
    if hasattr(cls, "__pydantic_validator__") and hasattr(cls, "model_fields"):
        return ModelFields(cls)
    if issubclass(cls, tuple):
        is_named = isinstance(getattr(cls, "_fields", None), tuple) and hasattr(cls, "_field_defaults")
        return ClassFields(cls, _named_tuple_fields(cls)) if is_named else None
    if issubclass(cls, _WITH_CONTENT):
        return None
    if issubclass(cls, msgspec.Struct):
        return ClassFields(cls, _struct_fields(cls))
    # In the class or a base of it: a subclass without a decorator has the fields of its base.
    if hasattr(cls, "__attrs_attrs__"):
        return ClassFields(cls, _attrs_fields(cls))
    return ClassFields(cls, _dataclass_fields(cls)) if dataclasses.is_dataclass(cls) else None


def _named_tuple_fields(cls: Any) -> tuple[ClassField, ...]:
    return tuple(ClassField(name, name, cls._field_defaults.get(name, NO_DEFAULT)) for name in cls._fields)


def _struct_fields(cls: Any) -> tuple[ClassField, ...]:
    return tuple(
        ClassField(
            field.name,
            field.name,
            NO_DEFAULT if field.default is msgspec.NODEFAULT else field.default,
            None if field.default_factory is msgspec.NODEFAULT else field.default_factory,
        )
        for field in msgspec.structs.fields(cls)
    )


def _attrs_fields(cls: Any) -> tuple[ClassField, ...]:
    import attr

    fields = []
    for field in cls.__attrs_attrs__:
        factory = None
        default = NO_DEFAULT if field.default is attr.NOTHING else field.default
        if isinstance(default, attr.Factory):  # type: ignore[arg-type]
            # A default made from other fields is not a constant.
            maker: Any = default
            factory = maker if maker.takes_self else maker.factory
            default = NO_DEFAULT
        if field.init or field.eq:
            annotation = None if isinstance(field.type, str) else field.type
            fields.append(
                ClassField(field.name, field.alias if field.init else "", default, factory, annotation)
            )
    return tuple(fields)


def _dataclass_fields(cls: Any) -> tuple[ClassField, ...]:
    # A dataclass of pydantic declares its defaults there.
    infos = getattr(cls, "__pydantic_fields__", {})
    fields = []
    for field in dataclasses.fields(cls):
        default = NO_DEFAULT if field.default is dataclasses.MISSING else field.default
        factory = None if field.default_factory is dataclasses.MISSING else field.default_factory
        if field.name in infos:
            default, factory = _declared_default(infos[field.name])
        if field.init or field.compare:
            fields.append(ClassField(field.name, field.name if field.init else "", default, factory))
    return tuple(fields)
