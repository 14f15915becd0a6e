"""The arguments of recorded calls: decode them, fill them in, and keep secrets out of messages."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from oncemore.errors import UsageError
from oncemore.steps.secret import Secret, secret_texts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from oncemore.steps.keys import KeyRule

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class RecordedArguments:
    """Reads the arguments of a step's calls from the log.

    The log stores the counted arguments of a run; ignored and secret ones are known to the caller alone.
    """

    def __init__(self, name: str, function: Callable[..., Any], keys: KeyRule) -> None:
        self._name, self._function, self._keys = name, function, keys

    def recall(self, stored: Kwargs, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Return the arguments of a call as the log has them, and the caller's where the log has none."""
        bound = self._keys.bind_arguments(args, kwargs)
        return self.decode(stored, {name: value for name, value in bound.items() if name not in stored})

    def decode(self, stored: Kwargs, withheld: Mapping[str, Any] = {}) -> tuple[Args, Kwargs]:
        """Return stored arguments as a call; refuse those that the function does not take.

        withheld  arguments that the log does not store
        """
        signature = inspect.signature(self._function)
        needed = {
            name
            for name, param in signature.parameters.items()
            if param.default is param.empty and param.kind not in _VARIADIC
        }
        names = stored.keys() | withheld.keys()
        # The code may have changed since the run was opened: a guess could do other work under its key.
        wrong = sorted((names - signature.parameters.keys()) | (needed - names))
        if wrong:
            raise UsageError(
                f"{self._name} was called with other arguments than it takes here ({', '.join(wrong)}); is "
                "this another version of it?"
            )
        values = self.decode_values(stored)
        values = {
            name: values[name] if name in values else withheld[name]
            for name in signature.parameters
            if name in names
        }
        bound = inspect.BoundArguments(signature, OrderedDict(values))
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def decode_values(self, stored: Mapping[str, Any]) -> Kwargs:
        """Return stored arguments by their names, each decoded by the annotation of its parameter."""
        return {name: self._keys.codecs.decode(name, plain) for name, plain in stored.items()}

    def fill_missing(
        self, named: Kwargs, bound_count: int = 0, *, has_dataset_function: bool = False
    ) -> Kwargs:
        """Return the named arguments of an imported key, with None for parameters that the key does not
        cover.

        bound_count           the number of leading parameters that are bound already, such as `self`
        has_dataset_function  whether `dataset=` is a function of the arguments
        """
        # None is safe only for a parameter that the key does not cover: any other must be in the import.
        filled, keys = dict(named), self._keys
        dependent = [*keys.depends_on_arguments(), *(["dataset"] if has_dataset_function else [])]
        for param in list(inspect.signature(self._function).parameters.values())[bound_count:]:
            name = param.name
            if name in filled or param.default is not param.empty or param.kind in _VARIADIC:
                continue
            if name not in keys.ignored and (keys.key_names is None or name in keys.key_names):
                raise UsageError(f"{name} is missing: the key of {self._name} is made of it")
            # A function of all arguments would compute another partition from None than from the real value.
            for option in dependent:
                raise UsageError(f"{name} is missing: {option} of {self._name} may be made of it")
            filled[name] = None
        return filled

    def list_withheld(self, bound: Kwargs) -> tuple[str, ...]:
        """Return the names of arguments that the log does not store and that are not their defaults.

        Without them no other process can make the same call.
        """
        params = inspect.signature(self._function).parameters
        withheld = bound.keys() - self._keys.select_arguments(bound).keys()
        return tuple(sorted(name for name in withheld if bound[name] is not params[name].default))

    def secret_texts(self, bound: Kwargs) -> tuple[str, ...]:
        """Return the texts of secret arguments, for the redaction of messages."""
        secret = self._keys.secret
        values = (value for name, value in bound.items() if name in secret or type(value) is Secret)
        return secret_texts_of(text for value in values for text in _secret_leaves(value))


def _secret_leaves(value: Any, depth: int = 4) -> Iterator[Any]:
    """Yield the values that a secret contains, down to a depth."""
    # An error message may quote a part of a structure, such as the password of a settings dict.
    value = value.reveal() if isinstance(value, Secret) else value
    if isinstance(value, bytes):
        yield value.decode(errors="replace")
    elif depth and isinstance(value, dict):
        for inner in value.values():
            yield from _secret_leaves(inner, depth - 1)
    elif depth and isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            yield from _secret_leaves(inner, depth - 1)
    else:
        yield value
