"""Rules for validation libraries: the data is invalid (CLASS-2), and a retry does not change that.

Each class is the verdict of a validator. A failure to fetch a schema is a connection error: pystac
raises `GetSchemaError` from it, which has no rule, so its cause decides (CLASS-19).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.rules import Rule, Table

_INVALID: Rule = ("permanent", "maybe", "SCHEMA_INVALID")

TABLES: Final[dict[str, Table]] = {
    "jsonschema": {"ValidationError": _INVALID},
    "jsonschema_rs": {"ValidationError": _INVALID},
    "msgspec": {"ValidationError": _INVALID},
    "pydantic": {"ValidationError": _INVALID},  # pydantic.v1; version 2 defines it in pydantic_core
    "pydantic_core": {"ValidationError": _INVALID},
    "pystac": {"STACValidationError": _INVALID, "RequiredPropertyMissing": _INVALID},
}
