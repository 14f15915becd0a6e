"""Checks of the input of a `nova-cat` workflow, before a provider is asked; and the profile's errors.

Malformed input is TERMINAL (CLASS-6): it does not get better, and there is nothing for an operator to review.
A provider's record that makes no sense is QUARANTINE (CLASS-7): an operator reviews it first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from oncemore.classifiers.classify import register_table
from oncemore.errors import UsageError
from oncemore.policy.model import Failure
from oncemore.profiles.nova_cat import names
from oncemore.stepfunctions.task import QuarantineError, TerminalError

if TYPE_CHECKING:
    from oncemore.classifiers.classify import Classification

SCHEMA_VERSIONS = ("1",)
SCHEMES = ("http://", "https://")
MAX_TEXT_LENGTH = 2000


class InvalidInput(TerminalError):
    """The input is wrong and does not get better; `code` is one of `names.TERMINAL_REASONS`."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(_check_reason(code, names.TERMINAL_REASONS), message)


class UnusableData(QuarantineError):
    """An operator has to review the data first; `code` is one of `names.QUARANTINE_REASONS`."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(_check_reason(code, names.QUARANTINE_REASONS), message)


def _check_reason(code: str, reasons: tuple[str, ...]) -> str:
    if code not in reasons:
        raise UsageError(f"code is {code!r}; the reasons are {', '.join(reasons)}")
    return code


def _classify_terminal(error: BaseException, _look: Classification, rule: str) -> Failure:
    return Failure("permanent", "maybe", None, str(getattr(error, "code", "")), rule)


# The reason of the profile, not the name of the class, is the code of the failure.
register_table("oncemore", {"TerminalError": _classify_terminal})


def is_uuid(text: object) -> bool:
    """Return whether a value is a UUID in its usual text form."""
    try:
        # `UUID` also accepts braces, URNs and missing hyphens, which would give one product two keys.
        return isinstance(text, str) and str(UUID(text)) == text.lower()
    except ValueError:
        return False


def check_mapping(request: object) -> None:
    """Refuse an input that is not a mapping: a mistake in the caller's code, not an outcome."""
    if not isinstance(request, Mapping):
        raise UsageError(
            f"request is {request!r:.80}; it takes a mapping with schema_version and the other fields"
        )


def check_version(request: Mapping[str, Any]) -> None:
    """Refuse an input with an unknown schema version."""
    version = request.get("schema_version")
    if version not in SCHEMA_VERSIONS:
        raise InvalidInput(
            names.UNSUPPORTED_SCHEMA_VERSION,
            f"schema_version is {version!r:.40}; {', '.join(SCHEMA_VERSIONS)} is supported",
        )


def check_uuids(request: Mapping[str, Any], *fields: str) -> None:
    """Refuse an input in which one of the fields is not a UUID."""
    for field in fields:
        if not is_uuid(request.get(field)):
            raise InvalidInput(names.INVALID_UUID, f"{field} is {request.get(field)!r:.60}; it takes a UUID")


def check_text(request: Mapping[str, Any], *fields: str) -> None:
    """Refuse an input in which one of the fields is missing or too long."""
    for field in fields:
        value = request.get(field)
        if not isinstance(value, str) or not 1 <= len(value) <= MAX_TEXT_LENGTH:
            raise InvalidInput(
                names.INVALID_FIELD,
                f"{field} is {value!r:.60}; it takes a text of 1 to {MAX_TEXT_LENGTH} characters",
            )


def check_product(product: Mapping[str, Any]) -> None:
    """Refuse a data product that cannot be acquired; called before the provider is asked."""
    check_version(product)
    check_uuids(product, "data_product_id", "nova_id")
    check_text(product, "provider", "locator", "provenance")
    # urllib would also open file: and ftp: addresses.
    if not product["locator"].lower().startswith(SCHEMES):
        raise InvalidInput(
            names.INVALID_FIELD, f"locator is {product['locator']!r:.80}; it takes an http or https address"
        )
    digest = product.get("sha256")
    if digest is not None and not _is_digest(digest):
        raise InvalidInput(names.INVALID_FIELD, f"sha256 is {digest!r:.80}; it takes 64 hex digits")


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and set(text.lower()) <= set("0123456789abcdef")


def check_record(provider: str, record: Any) -> dict[str, Any]:
    """Return a provider's record of a product with its known fields; quarantine a malformed one."""
    if not isinstance(record, dict):
        raise UnusableData(names.MALFORMED_PROVIDER_RECORD, f"{provider}: {record!r:.80} is not a record")
    for field in ("native_id", "locator", "provenance"):
        value = record.get(field)
        if not isinstance(value, str) or not 1 <= len(value) <= MAX_TEXT_LENGTH:
            raise UnusableData(
                names.MALFORMED_PROVIDER_RECORD, f"{provider}: a record has {field} {value!r:.60}"
            )
    digest = record.get("sha256")
    if digest is not None and not _is_digest(digest):
        raise UnusableData(
            names.MALFORMED_PROVIDER_RECORD, f"{provider}: {record['native_id']} has sha256 {digest!r:.60}"
        )
    # Unknown fields are dropped: they would make records of one product differ.
    return {field: record.get(field) for field in ("native_id", "locator", "provenance", "sha256")}
