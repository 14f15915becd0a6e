"""A recorded result as data: its JSON form, and the error for a result that could not be kept.

Results are kept as JSON text: reading one runs no code, and a caller cannot change a record through the
object that it received. A result that JSON would change (a tuple, a date, an object) is not converted: the
key is recorded as done, and every caller gets `ResultUnavailable`.
"""

from __future__ import annotations

import json
import math
from enum import Enum
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore._redact import clean_text, mask_text
from oncemore._values import Value
from oncemore.audit.recorder import OperationIds
from oncemore.errors import ResultUnavailable, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

MAX_CHARACTERS = 1_000_000
MAX_KEY_LENGTH = 500
MAX_NAME_LENGTH = 200


class RecordedNone(Enum):
    """The type of `RECORDED_NONE`."""

    RECORDED_NONE = "a recorded None"

    def __repr__(self) -> str:
        return "RECORDED_NONE"


#: `check_idempotency` returns this for a recorded None, because None means that there is no record (X-3).
RECORDED_NONE = RecordedNone.RECORDED_NONE


class KeyOwner(Value):
    """The operation, the ids and the policy of a key's work; for events, and to keep tenants apart."""

    category: str = ""
    operation: str = ""
    ids: OperationIds = OperationIds()
    policy: str | None = None


#: The owner of a result that was recorded directly: every tenant may use it.
NO_OWNER = KeyOwner()


class IdempotencyRecord(Value):
    """A recorded result with its metadata; `text` is None if the result could not be kept."""

    key: str
    text: str | None
    unavailable_reason: str
    metadata_text: str
    owner: KeyOwner
    recorded_at: float

    @property
    def result(self) -> Any:
        """The result, decoded for each caller; raises ResultUnavailable if it could not be kept."""
        if self.text is None:
            raise ResultUnavailable(
                f"the work of key {self.key} was done, but its result is not available: "
                f"{self.unavailable_reason}"
            )
        return json.loads(self.text)

    @property
    def metadata(self) -> Any:
        """The metadata that was recorded with the result."""
        return json.loads(self.metadata_text)


class RecordedResult(Value):
    """The record of a key: found ("hit"), or made by this call ("record").

    value  the value that the work returned, if this call did it
    """

    action: Literal["hit", "record"]
    record: IdempotencyRecord
    value: Any = None


class SharedFailure(Value):
    """The failure of the call that did the work, for a call that waited for it."""

    failure: Exception


def make_record(
    key: str, text: str | None, unavailable_reason: str, metadata: Mapping[str, Any] | None, owner: KeyOwner
) -> IdempotencyRecord:
    """Return a record with the current time; refuse metadata that is not plain data."""
    # Metadata is kept by the same rules as a result.
    metadata_text, problem = encode_result({} if metadata is None else dict(metadata))
    if metadata_text is None:
        raise UsageError(f"metadata cannot be kept: {problem}")
    return IdempotencyRecord(key, text, unavailable_reason, metadata_text, owner, clocks.current.wall())


def encode_record(record: IdempotencyRecord) -> dict[str, Any]:
    """Return the body of the log entry for a record."""
    owner = record.owner
    fields = {
        "category": clean_text(owner.category, MAX_NAME_LENGTH),
        "operation": mask_text(owner.operation, MAX_NAME_LENGTH),
        "ids": [*owner.ids.clean_ids()],
        "metadata": record.metadata_text,
        "at": record.recorded_at,
        "policy": owner.policy,
    }
    if record.text is None:
        return {"result_unavailable": clean_text(record.unavailable_reason), "record": fields}
    return {"result": record.text, "record": fields}


def decode_record(key: str, body: Mapping[str, Any]) -> IdempotencyRecord | None:
    """Return the record of a body; None if the body belongs to other work."""
    fields = body.get("record")
    if fields is None:
        return None
    # Records of older versions have no policy.
    owner = KeyOwner(
        fields["category"], fields["operation"], OperationIds(*fields["ids"]), fields.get("policy")
    )
    text, unavailable_reason = body.get("result"), body.get("result_unavailable", "")
    return IdempotencyRecord(key, text, unavailable_reason, fields["metadata"], owner, fields["at"])


def check_key(key: str) -> str:
    """Return a valid idempotency key; raise `UsageError` for any other value."""
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY_LENGTH:
        raise UsageError(f"an idempotency key is a text of 1 to {MAX_KEY_LENGTH} characters, not {key!r:.80}")
    return key


def encode_result(value: object) -> tuple[str | None, str]:
    """Return the JSON text of a value and an empty text, or None and the problem.

    A value has a JSON text if reading it gives an equal value of the same types.
    """
    try:
        problem = _find_misfit(value, "the result")
        text = "" if problem else json.dumps(value, allow_nan=False)
    except (RecursionError, ValueError) as error:
        return None, f"the result has no JSON form: {error}"
    if not problem and len(text) > MAX_CHARACTERS:
        problem = f"the result takes {len(text):,} characters, and {MAX_CHARACTERS:,} is the most"
    return (None, problem) if problem else (text, "")


def _find_misfit(value: Any, path: str) -> str:
    """Return the first part of a value that JSON would change or cannot hold; empty if there is none."""
    kind = type(value)
    # Exact types: JSON would turn an IntEnum or a subclass of str into its plain value.
    if value is None or kind in (bool, int, str):
        return ""
    if kind is float:
        return "" if math.isfinite(value) else f"{path} is {value}, which JSON cannot hold"
    parts: list[tuple[Any, str]]
    if kind is list:
        parts = [(inner, f"{path}[{at}]") for at, inner in enumerate(value)]
    elif kind is dict:
        not_text = [name for name in value if type(name) is not str]
        if not_text:
            return f"{path} has the key {not_text[0]!r}, which is not a string"
        parts = [(inner, f"{path}.{name}") for name, inner in value.items()]
    else:
        return f"{path} is of type {kind.__name__}, which JSON would change; return plain data"
    return next((problem for inner, inner_path in parts if (problem := _find_misfit(inner, inner_path))), "")
