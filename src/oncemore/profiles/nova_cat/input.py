"""What comes into a `nova-cat` workflow, checked before anybody is asked; and what its errors are called.

A malformed input is TERMINAL (CLASS-6): it will not get better, and there is nothing for a person to review.
What a provider says that makes no sense is QUARANTINE (CLASS-7): a person looks at it first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from oncemore.classifiers.classify import register
from oncemore.errors import NeedsReview, PermanentError, TransientError, UsageError
from oncemore.policy.model import Failure
from oncemore.profiles.nova_cat import names

if TYPE_CHECKING:
    from oncemore.classifiers.classify import Look

SCHEMA_VERSIONS = ("1",)
SCHEMES = ("http://", "https://")
LONGEST = 2000


class RetryableError(TransientError):
    """It may pass: it is tried again."""


class TerminalError(PermanentError):
    """It will not pass, and there is nothing to review; `code` is one of `names.TERMINAL_REASONS`."""

    def __init__(self, code: str, message: str = "") -> None:
        if code not in names.TERMINAL_REASONS:
            raise UsageError(f"code is {code!r}; the reasons are {', '.join(names.TERMINAL_REASONS)}")
        super().__init__(message or code)
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.args[0])


class QuarantineError(NeedsReview):
    """A person has to look first; `code` is one of `nova_cat_names.QUARANTINE_REASONS`."""

    def __init__(self, code: str, message: str = "") -> None:
        if code not in names.QUARANTINE_REASONS:
            raise UsageError(f"code is {code!r}; the reasons are {', '.join(names.QUARANTINE_REASONS)}")
        super().__init__(code, message)


def _terminal(error: BaseException, _look: Look, rule: str) -> Failure:
    return Failure("permanent", "maybe", None, str(getattr(error, "code", "")), rule)


register("oncemore", {"TerminalError": _terminal})


# What a workflow is told ----------------------------------------------------------------------------


def is_uuid(text: object) -> bool:
    """Whether a text is a UUID in its usual form."""
    try:
        return isinstance(text, str) and str(UUID(text)) == text.lower()
    except ValueError:
        return False


def check_mapping(given: object) -> None:
    """Refuse what is not an input at all; that is a mistake of the caller's code, not an outcome."""
    if not isinstance(given, Mapping):
        raise UsageError(
            f"given is {given!r:.80}; it takes a mapping with schema_version and the other fields"
        )


def check_version(given: Mapping[str, Any]) -> None:
    """Refuse an input of a schema that nobody here knows."""
    version = given.get("schema_version")
    if version not in SCHEMA_VERSIONS:
        raise TerminalError(
            names.UNSUPPORTED_SCHEMA_VERSION,
            f"schema_version is {version!r:.40}; {', '.join(SCHEMA_VERSIONS)} is supported",
        )


def check_uuids(given: Mapping[str, Any], *fields: str) -> None:
    """Refuse an input whose ids are none."""
    for field in fields:
        if not is_uuid(given.get(field)):
            raise TerminalError(names.INVALID_UUID, f"{field} is {given.get(field)!r:.60}; it takes a UUID")


def check_text(given: Mapping[str, Any], *fields: str) -> None:
    """Refuse an input that lacks a field, or has too much in it."""
    for field in fields:
        value = given.get(field)
        if not isinstance(value, str) or not 1 <= len(value) <= LONGEST:
            raise TerminalError(
                names.INVALID_FIELD, f"{field} is {value!r:.60}; it takes a text of 1 to {LONGEST} characters"
            )


def check_product(product: Mapping[str, Any]) -> None:
    """Refuse a data product that cannot be acquired as it is told; nobody is asked before this."""
    check_version(product)
    check_uuids(product, "data_product_id", "nova_id")
    check_text(product, "provider", "locator", "provenance")
    if not product["locator"].lower().startswith(SCHEMES):
        raise TerminalError(
            names.INVALID_FIELD, f"locator is {product['locator']!r:.80}; it takes an http or https address"
        )
    digest = product.get("sha256")
    if digest is not None and not _is_digest(digest):
        raise TerminalError(names.INVALID_FIELD, f"sha256 is {digest!r:.80}; it takes 64 hex digits")


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and set(text.lower()) <= set("0123456789abcdef")


def check_record(provider: str, record: Any) -> dict[str, Any]:
    """Return what a provider says of one of its products; a record that makes no sense waits for a person."""
    if not isinstance(record, dict):
        raise QuarantineError(names.MALFORMED_PROVIDER_RECORD, f"{provider}: {record!r:.80} is no record")
    for field in ("native_id", "locator", "provenance"):
        value = record.get(field)
        if not isinstance(value, str) or not 1 <= len(value) <= LONGEST:
            raise QuarantineError(
                names.MALFORMED_PROVIDER_RECORD, f"{provider}: a record has {field} {value!r:.60}"
            )
    digest = record.get("sha256")
    if digest is not None and not _is_digest(digest):
        raise QuarantineError(
            names.MALFORMED_PROVIDER_RECORD, f"{provider}: {record['native_id']} has sha256 {digest!r:.60}"
        )
    return {field: record.get(field) for field in ("native_id", "locator", "provenance", "sha256")}
