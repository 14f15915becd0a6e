"""The function of a step: its name, its module, its annotations and its parameters."""

from __future__ import annotations

import inspect
import re
import sys
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NewType, TypeVar, get_args, get_origin, get_type_hints

from oncemore.errors import UsageError
from oncemore.log.annotations import annotations_of, resolve_hint
from oncemore.retries.options import function_colour
from oncemore.steps.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping


def check_function(function: Any) -> str:
    """Return the colour of a function (plain or coroutine); refuse an object that cannot be a step."""
    # The descriptor itself cannot be called like the method that users see.
    if isinstance(function, staticmethod | classmethod):
        raise UsageError(f"put @oncemore.step below @{type(function).__name__}, next to the function")
    if not callable(function) or isinstance(function, type):
        raise UsageError(f"{function!r} is not a function; a step is made of a function")
    colour = function_colour(function)
    if colour in ("generator", "async-generator"):
        raise UsageError(
            f"{getattr(function, '__qualname__', function)} is a generator function: its values are used "
            "before it ends; return a list"
        )
    return colour


def module_of(function: Any) -> str:
    """Return the module of a function, by the same name for every way to start the program."""
    module = getattr(function, "__module__", None)
    # Step names are stored: `python app.py`, `python -m app` and an import must give the same one.
    if module in ("__main__", "__mp_main__"):
        module = _import_name(
            getattr(unwrap_function(function), "__globals__", vars(sys.modules["__main__"]))
        )
    return str(module)


def _import_name(main: Mapping[str, Any]) -> str:
    """Return the name by which other programs import the main module of this one.

    A program may be started as a file or with -m, and its children know its module as `__mp_main__`.
    """
    spec = main.get("__spec__")
    if spec is not None and spec.name != "__main__":
        return str(spec.name)
    file = Path(main.get("__file__") or "main").absolute()
    packages = takewhile(lambda folder: (folder / "__init__.py").exists(), file.parents)
    return ".".join([*reversed([folder.name for folder in packages]), file.stem])


def find_ignored(name: str, function: Any, ignore: Any) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of arguments that are left out of the key, and of those that are secret."""
    ignored = frozenset(check_parameter_names(name, function, "ignore", ignore))
    hints = hints_of(function, extras=True)
    secret = frozenset(param for param, hint in hints.items() if _is_secret(hint))
    return ignored | secret, secret


def _is_secret(hint: Any) -> bool:
    """Whether an annotation is or holds `Secret`; one that cannot be resolved is judged by its text."""
    # By its text rather than not at all: an unresolved name must not put a secret into the log.
    text = getattr(hint, "__forward_arg__", hint)
    if isinstance(text, str):
        return re.search(r"\bSecret\b", text) is not None
    return hint is Secret or any(_is_secret(part) for part in get_args(hint) if part is not hint)


def check_parameter_names(name: str, function: Any, option: str, names_given: Any) -> tuple[str, ...]:
    """Return names of parameters, given as one or several; refuse other names."""
    names = (names_given,) if isinstance(names_given, str) else names_given
    if not isinstance(names, tuple | list | set | frozenset) or not all(isinstance(n, str) for n in names):
        raise UsageError(f"{option} of {name} is {names_given!r}; it takes names of parameters")
    unknown = set(names) - set(inspect.signature(function).parameters)
    if unknown:
        raise UsageError(
            f"{option} of {name} names {', '.join(sorted(unknown))}, which is not a parameter of it"
        )
    return tuple(names)


def hints_of(function: Any, *, extras: bool = False, namespace: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Return the annotations of a function; a name that only the type checker knows stays a string.

    namespace  names that string annotations may use besides those of the module
    """
    function = unwrap_function(function)
    try:
        return get_type_hints(function, localns=dict(namespace) or None, include_extras=extras)
    except Exception:  # noqa: BLE001 - one missing name must not hide the other annotations
        module = getattr(function, "__globals__", {})
        return {
            name: resolve_hint(hint, module, namespace) for name, hint in annotations_of(function).items()
        }


def find_local_types(function: Any) -> dict[str, Any]:
    """Return the classes and aliases that the functions around a function have defined so far, by name.

    String annotations may name them, and Python keeps them nowhere else. To be called while the function is
    decorated: the frames of the functions around it still exist then.
    """
    parts = getattr(unwrap_function(function), "__qualname__", "").split(".<locals>")[:-1]
    around = {".<locals>".join(parts[: count + 1]) for count in range(len(parts))}
    local_types: dict[str, Any] = {}
    frame = sys._getframe(1) if around else None  # noqa: SLF001 - documented, for this kind of use
    while frame is not None:
        if frame.f_code.co_qualname in around:
            types = {name: value for name, value in frame.f_locals.items() if _is_type(value)}
            # The innermost function comes first, and its names win.
            local_types = {**types, **local_types}
        frame = frame.f_back
    return local_types


def _is_type(value: Any) -> bool:
    return isinstance(value, type | NewType | TypeVar) or get_origin(value) is not None


def unwrap_function(function: Any) -> Any:
    """Return the function behind a partial, a bound method or an object that can be called."""
    while not hasattr(function, "__code__"):
        inner = getattr(function, "func", None) or getattr(function, "__func__", None)
        if inner is None:
            return getattr(type(function), "__call__", function)  # noqa: B004 - Python looks `__call__` up on the class
        function = inner
    return function


def mark_coroutine_function(step: Any) -> None:
    """Make `inspect.iscoroutinefunction` return True for a step."""
    import asyncio

    mark: Any = vars(inspect).get("markcoroutinefunction")  # from Python 3.12 on
    mark(step) if mark else setattr(step, "_is_coroutine", vars(asyncio.coroutines)["_is_coroutine"])
