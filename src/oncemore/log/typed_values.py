"""Values with classes: dataclasses, structs, attrs classes, models, named tuples and enums, by annotation.

    {"$object": ["Order", {"number": 7, "lines": […]}]}
    {"$enum": ["Colour", "RED"]}   {"$enum": ["Access", ["READ", "WRITE"]]}

Arguments and results are stored in the same form. A value is written by its own class and read by the
annotation of the parameter, or of the step's result: the stored name of the class only selects between the
classes that the annotation allows. A value that would not come back equal, of the same class, is refused.

The form for keys leaves out each field whose value is its declared default, so that a class which gains a
field with a default keeps its keys. A default that a function makes counts only if the function is a class:
`list` gives the same tomorrow, `date.today` does not.
"""

from __future__ import annotations

from enum import Enum, Flag
from typing import TYPE_CHECKING, Any

import msgspec

from oncemore.log.annotations import (
    candidate_classes,
    describe_annotation,
    field_annotations,
    item_annotation,
    key_annotation,
    value_annotation,
)
from oncemore.log.class_fields import NO_DEFAULT, find_fields
from oncemore.log.tagged_json import (
    PLAIN_VALUES,
    NeedsAnnotation,
    NotEncodable,
    TaggedEncoder,
    untag_value,
    with_article,
)
from oncemore.log.type_registry import find_registered, type_name
from oncemore.policy.canonical_json import encode_canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.log.class_fields import ClassField, ClassFields
    from oncemore.policy.canonical_json import Plain

#: Factories whose value does not depend on time or state.
_EMPTY_FACTORIES = frozenset({list, dict, set, frozenset, tuple, str, bytes, bytearray, int, float, bool})
#: The JSON levels that an object takes: the tag, the pair, the fields.
_OBJECT_DEPTH = 3


class TypedEncoder(TaggedEncoder):
    """Encodes values with classes too.

    has_typed  whether it has written a value that is read by its annotation
    """

    __slots__ = ("has_typed",)

    def __init__(self, *, keyed: bool = False, advice: str = f"pass {PLAIN_VALUES}") -> None:
        super().__init__(keyed=keyed, advice=advice)
        self.has_typed = False

    def _tag_other(self, value: object, path: str, depth_left: int) -> Plain:
        kind: Any = type(value)
        if find_registered(kind) is None:
            if isinstance(value, Enum):
                self.has_typed = True
                return {"$enum": [type_name(kind), _member_names(value, path)]}
            fields = find_fields(kind)
            if fields is not None:
                self.has_typed = True
                return self._tag_object(value, fields, path, depth_left - _OBJECT_DEPTH)
        return super()._tag_other(value, path, depth_left)

    def _tag_object(self, value: object, fields: ClassFields, path: str, depth_left: int) -> Plain:
        plain: dict[str, Plain] = {}
        for field, content in fields.read_values(value):
            if self._keyed and content is field.default:
                continue
            tagged = self._tag_content(fields, field, content, f"{path}.{field.name}", depth_left)
            if not self._keyed or not _is_same_form(tagged, self._default_form(field)):
                plain[field.name] = tagged
        remainder = fields.read_remainder(value)
        if self._keyed:
            # Whether a field was set or left to its default is not a difference between arguments.
            remainder.pop("unset", None)
        elif fields.has_hidden_state(value):
            raise NotEncodable(
                f"{path} is {with_article(type(value).__name__)} whose private attributes are not as the "
                "class sets them, and only fields are stored; make them fields, or register the type "
                "(oncemore.register_type)"
            )
        rest = [self.tag_value(remainder, path, depth_left)] if remainder else []
        return {"$object": [type_name(fields.cls), plain, *rest]}

    def _tag_content(
        self, fields: ClassFields, field: ClassField, content: Any, path: str, depth_left: int
    ) -> Plain:
        try:
            return self.tag_value(content, path, depth_left)
        except NotEncodable:
            dumped = fields.dump_content(field, content)
            if dumped is None:
                raise
            # As the model writes it; the model reads it back.
            return {"$dumped": dumped}

    def _default_form(self, field: ClassField) -> Plain | object:
        """Return the keyed form of a field's constant default; `NO_DEFAULT` if it has none."""
        factory, default = field.factory, field.default
        if isinstance(factory, type):
            if factory in _EMPTY_FACTORIES:
                default = factory()
            elif find_fields(factory) is not None and find_registered(factory) is None:
                # If all its fields have their defaults, all of them are left out.
                return {"$object": [type_name(factory), {}]}
        try:
            return NO_DEFAULT if default is NO_DEFAULT else self.tag_value(default, field.name)
        except NotEncodable:
            return NO_DEFAULT


def _is_same_form(one: Any, other: Any) -> bool:
    """Return whether two tagged forms are the same; 1 and True are not."""
    return type(one) is type(other) and one == other and encode_canonical(one) == encode_canonical(other)


def _member_names(value: Enum, path: str) -> Plain:
    """Return the name of a member of an enum, or the names of the members in a flag.

    By name: the number of an `auto()` member changes when a member is added before it.
    """
    if not isinstance(value, Flag):
        return value.name
    names = [member.name for member in value]
    if _compose_flag(type(value), names) != value:
        raise NotEncodable(f"{path} is {value!r}, which has bits without a name in {type(value).__name__}")
    return names


def _compose_flag(cls: type[Flag], names: list[Any]) -> Flag:
    flag = cls(0)
    for name in names:
        flag |= cls[name]
    return flag


class ValueCodec:
    """Encodes and decodes the values of one parameter, or of a step's result, by its annotation.

    subject    what error messages call the value
    place      what has the annotation: "its parameter", "the step's result"
    namespace  names for string annotations of classes that are defined in functions
    advice     the remedy for a value without a form
    is_lenient whether fields that a class does not have any more are ignored
    """

    def __init__(
        self,
        subject: str,
        annotation: Any,
        *,
        place: str,
        advice: str,
        namespace: Mapping[str, Any] = {},
        is_lenient: bool = False,
    ) -> None:
        self._subject, self._annotation, self._advice = subject, annotation, advice
        self._source = AnnotationSource(place, namespace, is_lenient)

    def encode(self, value: object) -> Plain:
        """Return the stored form of a value; refuse one that would not be read as an equal value."""
        encoder = TypedEncoder(advice=self._advice)
        plain = encoder.tag_value(value, self._subject)
        if encoder.has_typed:
            self.check_decoded(plain)
        return plain

    def decode(self, plain: Any) -> Any:
        """Return the value of a stored form."""
        try:
            return untag_value(plain)
        except NeedsAnnotation:
            return TypedDecoder(self._source).decode(plain, self._annotation, self._subject)

    def check_decoded(self, plain: Plain) -> None:
        """Refuse a stored form that would not be read as the value that it was made of."""
        decoded = TypedDecoder(self._source, is_check=True).decode(plain, self._annotation, self._subject)
        again = TypedEncoder().tag_value(decoded, self._subject)
        if not _has_same_json(again, plain):
            place = _first_difference(plain, again, self._subject)
            raise NotEncodable(
                f"{self._subject} changes when it is stored and read, at {place}: its class does not build "
                "an equal value from its own fields; correct the class, or register it "
                "(oncemore.register_type)"
            )


def _first_difference(one: Any, other: Any, path: str) -> str:
    """Return the path of the first part in which two tagged forms differ."""
    is_mapping = type(one) is dict
    if type(one) is not type(other) or not isinstance(one, dict | list):
        return path
    if list(one) != list(other) if is_mapping else len(one) != len(other):
        return path
    parts: Any = one.items() if is_mapping else enumerate(one)  # type: ignore[union-attr]
    name, part = next((name, part) for name, part in parts if not _has_same_json(part, other[name]))
    if name == "$object":
        return _first_difference(part[1], other[name][1], path)
    if not is_mapping:
        path = f"{path}[{name}]"
    elif not name.startswith("$"):
        path = f"{path}.{name}"
    return _first_difference(part, other[name], path)


def _has_same_json(one: Any, other: Any) -> bool:
    """Return whether two tagged forms are written alike; 1 and True are equal in Python, and not in JSON."""
    return msgspec.json.encode(one) == msgspec.json.encode(other)


class AnnotationSource:
    """Finds the annotations of the fields of classes, and remembers them: resolving them is costly."""

    def __init__(self, place: str, namespace: Mapping[str, Any], is_lenient: bool) -> None:
        self.place, self.is_lenient, self._namespace = place, is_lenient, namespace
        self._annotations: dict[Any, dict[str, Any]] = {}

    def find_annotations(self, annotation: Any) -> dict[str, Any]:
        """Return the annotations of the fields of a class by their names."""
        if annotation not in self._annotations:
            self._annotations[annotation] = field_annotations(annotation, self._namespace)
        return self._annotations[annotation]


class TypedDecoder:
    """Builds values from their stored forms by annotations.

    The classes come from the annotation alone: nothing that is stored can name code to run.

    is_check  whether a new value is checked, which must have exactly the classes that were stored
    """

    def __init__(self, source: AnnotationSource, *, is_check: bool = False) -> None:
        self._source, self._is_check = source, is_check

    def decode(self, plain: Any, annotation: Any, path: str) -> Any:
        """Return the value of a tagged form."""
        if type(plain) is list:
            return self._decode_items(plain, annotation, path)
        if type(plain) is not dict:
            return plain
        if len(plain) == 1:
            (tag,) = plain
            if tag in _TYPED_READERS:
                return _TYPED_READERS[tag](self, plain[tag], annotation, path)
            if tag.startswith("$"):
                return untag_value(plain)
        return {
            name: self.decode(item, value_annotation(annotation, name), f"{path}.{name}")
            for name, item in plain.items()
        }

    def _decode_items(self, plain: list[Any], annotation: Any, path: str) -> list[Any]:
        return [
            self.decode(item, item_annotation(annotation, index), f"{path}[{index}]")
            for index, item in enumerate(plain)
        ]

    def _decode_pairs(self, pairs: list[Any], annotation: Any, path: str) -> dict[Any, Any]:
        decoded = {}
        for plain_key, item in pairs:
            key = self.decode(plain_key, key_annotation(annotation), f"a key of {path}")
            decoded[key] = self.decode(item, value_annotation(annotation, key), f"{path}[{key!r}]")
        return decoded

    def _decode_enum(self, parts: list[Any], annotation: Any, path: str) -> Enum:
        name, names = parts
        cls, _ = self._choose_class(name, annotation, path, lambda cls: issubclass(cls, Enum))
        try:
            return _compose_flag(cls, names) if isinstance(names, list) else cls[names]
        except KeyError as missing:
            raise NotEncodable(
                f"{path} is {name}.{missing.args[0]}, which {cls.__name__} does not have"
            ) from None

    def _decode_object(self, parts: list[Any], annotation: Any, path: str) -> Any:
        name, plain, *rest = parts
        cls, own_annotation = self._choose_class(
            name, annotation, path, lambda cls: find_fields(cls) is not None
        )
        fields = find_fields(cls)
        assert fields is not None
        unknown = plain.keys() - fields.by_name.keys()
        if unknown and not self._source.is_lenient:
            # The code may have changed since: a guess could do other work under the same key.
            raise NotEncodable(
                f"{path} was stored with {', '.join(sorted(unknown))}, which {cls.__name__} does not have "
                "here; is this another version of it?"
            )
        annotations = self._source.find_annotations(own_annotation)
        contents = {
            field: item["$dumped"]
            if type(item) is dict and item.keys() == {"$dumped"}
            else self.decode(item, annotations.get(field), f"{path}.{field}")
            for field, item in plain.items()
            if field not in unknown
        }
        try:
            return fields.build_value(contents, untag_value(rest[0]) if rest else {})
        except Exception as error:
            raise NotEncodable(
                f"{path} cannot be built again as {with_article(cls.__name__)} from its fields: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _choose_class(
        self, name: str, annotation: Any, path: str, is_fit: Callable[[type], bool]
    ) -> tuple[Any, Any]:
        """Return the class that the annotation allows for a stored name, with its own annotation.

        If the annotation allows one class only, the stored name does not matter: the class may have been
        renamed. A check of a new value is exact.
        """
        candidates = [(cls, part) for cls, part in candidate_classes(annotation).items() if is_fit(cls)]
        named = [pair for pair in candidates if type_name(pair[0]) == name]
        if len(named) == 1 or (len(candidates) == 1 and not self._is_check):
            return (named or candidates)[0]
        if named:
            raise NotEncodable(
                f"{path} is {with_article(name)}, and {self._source.place} allows several classes of that "
                "name; register one of them under another name (oncemore.register_type)"
            )
        raise NotEncodable(
            f"{path} is {with_article(name)}, and {self._source.place} has {describe_annotation(annotation)} "
            f"for it, by which it cannot be read again; annotate it with {name}, or register the type "
            "(oncemore.register_type)"
        )


_TYPED_READERS: dict[str, Callable[[TypedDecoder, Any, Any, str], Any]] = {
    "$object": TypedDecoder._decode_object,  # noqa: SLF001 - its own methods
    "$enum": TypedDecoder._decode_enum,  # noqa: SLF001
    "$map": TypedDecoder._decode_pairs,  # noqa: SLF001
    "$tuple": lambda self, plain, annotation, path: tuple(self._decode_items(plain, annotation, path)),
    "$set": lambda self, plain, annotation, path: set(self._decode_items(plain, annotation, path)),
    "$frozenset": lambda self, plain, annotation, path: frozenset(
        self._decode_items(plain, annotation, path)
    ),
}
