"""Convert JSON from outside (a message, a file, a command line) by an annotation.

Such JSON is written by people and other programs: it has no tags. msgspec converts to most annotations;
pydantic models, paths and registered types are added here.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import PurePath
from typing import Any

import msgspec

from oncemore.log.type_registry import find_registered


def convert_plain(value: Any, annotation: Any, *, exact: bool = True) -> Any:
    """Return a value of JSON converted by an annotation; raise `msgspec.ValidationError` if it does not fit.

    exact  whether the value must have the annotated type; otherwise texts are converted
    """
    return msgspec.convert(
        value, annotation, strict=exact, dec_hook=_convert_other if exact else _convert_other_text
    )


def _convert_other(cls: Any, value: Any) -> Any:
    """Return a value as a type that msgspec does not know; any other is unchanged, and msgspec refuses it."""
    registered = find_registered(cls)
    if registered is not None:
        return registered.decode(value)
    if hasattr(cls, "model_validate") and hasattr(cls, "__pydantic_validator__"):
        return cls.model_validate(value)
    return cls(value) if issubclass(cls, PurePath) and isinstance(value, str) else value


def _convert_other_text(cls: Any, value: Any) -> Any:
    """Convert a text that may be JSON, for a registered type: its decoder takes numbers and lists too."""
    if isinstance(value, str) and find_registered(cls) is not None:
        with suppress(msgspec.DecodeError):
            value = msgspec.json.decode(value)
    return _convert_other(cls, value)
