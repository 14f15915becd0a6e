"""What the errors of validators mean: the data is invalid (CLASS-2), and asking again does not change that.

Each is the verdict of a validator that was reached. A failure to reach one is an error of the connection and
is read as such: pystac raises `GetSchemaError` from it, which no table has, so that its cause decides
(CLASS-19).
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
    "pydantic": {"ValidationError": _INVALID},  # of pydantic.v1; that of version 2 is in pydantic_core
    "pydantic_core": {"ValidationError": _INVALID},
    "pystac": {"STACValidationError": _INVALID, "RequiredPropertyMissing": _INVALID},
}
