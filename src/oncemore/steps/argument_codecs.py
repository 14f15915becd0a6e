"""Check and decode the recorded arguments of a step, each by the annotation of its parameter."""

from __future__ import annotations

import inspect
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Unpack, get_origin

from oncemore.log.tagged_json import PLAIN_VALUES
from oncemore.log.typed_values import ValueCodec
from oncemore.steps.signature import find_local_types, hints_of

if TYPE_CHECKING:
    from collections.abc import Callable

ARGUMENT_ADVICE = (
    f"pass {PLAIN_VALUES}, annotate its parameter with a dataclass or a model, or register the type "
    "(oncemore.register_type); or leave it out of the key and the record (ignore=…)"
)


class ArgumentCodecs:
    """The codecs of a step's arguments.

    Annotations are resolved at the first need: they may name classes that are defined after the step.

    local_types  the classes that the functions around the step have defined
    owner        the class that has the step as a method, the annotation of `self`; None for a function
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.local_types = find_local_types(function)
        self.owner: type | None = None
        self._function = function
        self._annotations: dict[str, Any] | None = None
        self._codecs: dict[str, ValueCodec] = {}

    def check(self, name: str, plain: Any) -> None:
        """Refuse the stored form of an argument from which an equal value could not be read."""
        self._codec_of(name).check_decoded(plain)

    def decode(self, name: str, plain: Any) -> Any:
        """Return an argument from its stored form."""
        return self._codec_of(name).decode(plain)

    def _codec_of(self, name: str) -> ValueCodec:
        codec = self._codecs.get(name)
        if codec is None:
            codec = self._codecs[name] = ValueCodec(
                f"argument {name!r}",
                self._find_annotation(name),
                place="its parameter",
                advice=ARGUMENT_ADVICE,
                namespace=self.local_types,
            )
        return codec

    def _find_annotation(self, name: str) -> Any:
        if self._annotations is None:
            self._annotations = {
                "self": self.owner,
                **parameter_annotations(self._function, self.local_types),
            }
        return self._annotations.get(name)


def parameter_annotations(function: Callable[..., Any], local_types: dict[str, Any]) -> dict[str, Any]:
    """Return the annotations of the arguments of a function, as `Signature.bind` names them."""
    hints = hints_of(function, extras=True, namespace=local_types)
    for param in inspect.signature(function).parameters.values():
        hint = hints.get(param.name)
        if hint is None or isinstance(hint, str):
            continue
        if param.kind is param.VAR_POSITIONAL:
            hints[param.name] = GenericAlias(tuple, (hint, ...))
        elif param.kind is param.VAR_KEYWORD and get_origin(hint) is not Unpack:
            hints[param.name] = GenericAlias(dict, (str, hint))
    return hints
