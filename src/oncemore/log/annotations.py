"""Read annotations: resolve texts, and find the classes that a value at some place of an annotation may have.

The tag of a stored value says whether it is a list, a mapping or an object; the annotation says which classes
the program allows at that place. So the functions here return annotations of parts: of items, of the values
of a mapping, of the fields of a class. An annotation that says nothing (`Any`, or none) has no parts.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from types import SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    ForwardRef,
    Literal,
    NewType,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from oncemore.log.class_fields import find_fields

#: Names that string annotations may use besides those of their module.
Namespace = Mapping[str, Any]

_SAYS_NOTHING = (None, Any, object)
_MAPPINGS = (dict, Mapping, MutableMapping)
_SEQUENCES = (list, tuple, set, frozenset, Sequence, MutableSequence, AbstractSet, Collection, Iterable)
#: Wrappers around one annotation, by name: some exist only in newer versions of Python.
_WRAPPERS = ("Final", "ClassVar", "Required", "NotRequired", "ReadOnly", "Unpack")


def annotations_of(definition: Any) -> dict[str, Any]:
    """Return the annotations of a function or a class, as strings where Python does not evaluate them."""
    try:
        return dict(getattr(definition, "__annotations__", {}))
    except NameError:  # pragma: no cover - from Python 3.14 on
        as_written: Any = {"format": 4}
        return dict(inspect.get_annotations(definition, **as_written))


def resolve_hint(hint: Any, module: Mapping[str, Any], namespace: Namespace) -> Any:
    """Return one annotation resolved; as it is if a name of it does not exist at run time."""
    holder = SimpleNamespace(__annotations__={"hint": hint})
    try:
        return get_type_hints(holder, dict(module), dict(namespace), include_extras=True)["hint"]
    except Exception:  # noqa: BLE001 - the name is imported for type checkers only
        return hint


def expand_annotation(annotation: Any) -> list[Any]:
    """Return the alternatives of an annotation: the parts of a union, without wrappers and aliases."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation in _SAYS_NOTHING:
        return []
    if origin is Union or origin is UnionType:
        return [alternative for arg in args for alternative in expand_annotation(arg)]
    if origin is Annotated or getattr(origin, "_name", None) in _WRAPPERS:
        return expand_annotation(args[0])
    if origin is Literal:
        # A literal may name a member of an enum.
        return list({type(arg): None for arg in args if isinstance(arg, Enum)})
    if isinstance(annotation, TypeVar):
        bounds = annotation.__constraints__ or (annotation.__bound__,)
        return [alternative for bound in bounds for alternative in expand_annotation(bound)]
    if isinstance(annotation, NewType):
        return expand_annotation(annotation.__supertype__)
    alias = origin or annotation
    if type(alias).__name__ == "TypeAliasType":  # `type Alias = …`, from Python 3.12 on
        arguments = dict(zip(alias.__type_params__, args, strict=False))
        return expand_annotation(substitute_variables(alias.__value__, arguments))
    return [annotation]


def substitute_variables(annotation: Any, arguments: Mapping[Any, Any]) -> Any:
    """Return an annotation with type variables replaced."""
    if isinstance(annotation, TypeVar):
        return arguments.get(annotation, annotation)
    variables = getattr(annotation, "__parameters__", ())
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation
    if not variables or not any(variable in arguments for variable in variables):
        return annotation
    return annotation[tuple(arguments.get(variable, variable) for variable in variables)]


def item_annotation(annotation: Any, index: int) -> Any:
    """Return the annotation of an item of a list, tuple or set."""
    parts: list[Any] = []
    for alternative in expand_annotation(annotation):
        origin, args = get_origin(alternative), get_args(alternative)
        if origin is tuple and args[-1:] != (...,):
            parts += args[index : index + 1]
        elif origin in _SEQUENCES:
            parts += args[:1]
    return _join_parts(parts)


def key_annotation(annotation: Any) -> Any:
    """Return the annotation of the keys of a mapping."""
    return _join_parts([args[0] for args in _mapping_arguments(annotation)])


def value_annotation(annotation: Any, key: object) -> Any:
    """Return the annotation of a value of a mapping."""
    parts = [args[1] for args in _mapping_arguments(annotation)]
    for alternative in expand_annotation(annotation):
        if is_typeddict(get_origin(alternative) or alternative):
            hints = get_type_hints(get_origin(alternative) or alternative, include_extras=True)
            parts += [hints[key]] if key in hints else []
    return _join_parts(parts)


def _mapping_arguments(annotation: Any) -> list[tuple[Any, ...]]:
    """Return the arguments of the alternatives of an annotation that are mappings."""
    alternatives = expand_annotation(annotation)
    return [get_args(part) for part in alternatives if get_origin(part) in _MAPPINGS]


def _join_parts(parts: list[Any]) -> Any:
    return Union[tuple(parts)] if parts else None  # noqa: UP007 - of any number of parts


def candidate_classes(annotation: Any) -> dict[type, Any]:
    """Return the classes that an annotation allows for an object or an enum, with their annotations."""
    candidates = {}
    for alternative in expand_annotation(annotation):
        cls = get_origin(alternative) or alternative
        if isinstance(cls, type):
            candidates[cls] = alternative
    return candidates


def field_annotations(annotation: Any, namespace: Namespace) -> dict[str, Any]:
    """Return the annotations of the fields of a class, with the arguments of a generic class put in."""
    cls = get_origin(annotation) or annotation
    arguments: dict[type, dict[Any, Any]] = {}
    _collect_arguments(cls, get_args(annotation), arguments)
    hints: dict[str, Any] = {}
    # The bases first, so that a field that is declared again has the annotation of the subclass.
    for owner in reversed(cls.__mro__):
        for name, hint in _own_annotations(owner, namespace).items():
            hints[name] = substitute_variables(hint, arguments.get(owner, {}))
    fields = find_fields(cls)
    declared = {} if fields is None else {f.name: f.annotation for f in fields.fields if f.annotation}
    return {**hints, **declared}


def _collect_arguments(cls: Any, args: tuple[Any, ...], arguments: dict[type, dict[Any, Any]]) -> None:
    """Record the arguments of a generic class and of its generic bases."""
    own = arguments.setdefault(cls, dict(zip(getattr(cls, "__parameters__", ()), args, strict=False)))
    for base in vars(cls).get("__orig_bases__", cls.__bases__):
        origin = get_origin(base) or base
        if isinstance(origin, type) and origin is not object:
            _collect_arguments(
                origin, tuple(substitute_variables(arg, own) for arg in get_args(base)), arguments
            )


def _own_annotations(cls: type, namespace: Namespace) -> dict[str, Any]:
    """Return the annotations that a class itself declares, resolved as far as their names exist."""
    module = vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else {}
    names = {**namespace, cls.__name__: cls} if "<locals>" in cls.__qualname__ else {}
    return {name: resolve_hint(hint, module, names) for name, hint in annotations_of(cls).items()}


def describe_annotation(annotation: Any) -> str:
    """Return an annotation as an error message names it."""
    if annotation is None:
        return "no annotation"
    if isinstance(annotation, str | ForwardRef):
        text = annotation if isinstance(annotation, str) else annotation.__forward_arg__
        return f"the annotation {text!r}, a name that does not exist at run time"
    return f"the annotation {annotation.__name__ if isinstance(annotation, type) else annotation}".replace(
        "typing.", ""
    )
