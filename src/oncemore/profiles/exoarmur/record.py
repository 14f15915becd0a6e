"""A recorded result, as data: what is kept of it, and what is said when it could not be kept.

Results are kept as JSON text: reading one runs no code, and nobody can change a record through the
object that he was given. A result that JSON would change (a tuple, a date, an object) is not guessed at:
the key is recorded as done, and whoever asks is told that the result is not available.
"""

from __future__ import annotations

import json
import math
from enum import Enum
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore._redact import clean, masked
from oncemore._values import Value
from oncemore.audit.recorder import Ids
from oncemore.errors import ResultUnavailable, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

MOST_CHARACTERS = 1_000_000
LONGEST_KEY = 500
LONGEST_NAME = 200


class RecordedNone(Enum):
    """The type of `RECORDED_NONE`."""

    RECORDED_NONE = "a recorded None"

    def __repr__(self) -> str:
        return "RECORDED_NONE"


#: What `check_idempotency` returns for a recorded None, because None means that there is no record (X-3).
RECORDED_NONE = RecordedNone.RECORDED_NONE


class About(Value):
    """What a key's work is: for events, and to keep tenants apart."""

    category: str = ""
    operation: str = ""
    ids: Ids = Ids()
    policy: str | None = None


#: What is known of a result that was recorded directly: it belongs to everybody.
NOBODY = About()


class IdempotencyRecord(Value):
    """A recorded result with all that is known of it; `text` is None where it could not be kept."""

    key: str
    text: str | None
    why: str
    metadata_text: str
    about: About
    recorded_at: float

    @property
    def result(self) -> Any:
        """The result, made anew from its text; raises ResultUnavailable where there is none."""
        if self.text is None:
            raise ResultUnavailable(
                f"the work of key {self.key} was done, but its result is lost: {self.why}"
            )
        return json.loads(self.text)

    @property
    def metadata(self) -> Any:
        """What was recorded beside it."""
        return json.loads(self.metadata_text)


class Settled(Value):
    """A key has its record: it was there (hit), or was made here, of the `value` that the work returned."""

    action: Literal["hit", "record"]
    record: IdempotencyRecord
    value: Any = None


class Shared(Value):
    """The one who was waited for failed, and this is his failure."""

    failure: Exception


def record_of(
    key: str, text: str | None, why: str, metadata: Mapping[str, Any] | None, about: About
) -> IdempotencyRecord:
    """Return a record that was made now; its metadata must be plain data."""
    kept, fault = encoded({} if metadata is None else dict(metadata))
    if kept is None:
        raise UsageError(f"metadata cannot be kept: {fault}")
    return IdempotencyRecord(key, text, why, kept, about, clocks.current.wall())


def kept_of(record: IdempotencyRecord) -> dict[str, Any]:
    """Return what the log keeps of a record: its result, and beside it all else."""
    about = record.about
    told = {
        "category": clean(about.category, LONGEST_NAME),
        "operation": masked(about.operation, LONGEST_NAME),
        "ids": [*about.ids.cleaned()],
        "metadata": record.metadata_text,
        "at": record.recorded_at,
        "policy": about.policy,
    }
    if record.text is None:
        return {"result_unavailable": clean(record.why), "record": told}
    return {"result": record.text, "record": told}


def read_record(key: str, body: Mapping[str, Any]) -> IdempotencyRecord | None:
    """Return the record that the log kept, or None where it keeps something else."""
    told = body.get("record")
    if told is None:
        return None
    about = About(told["category"], told["operation"], Ids(*told["ids"]), told.get("policy"))
    text, why = body.get("result"), body.get("result_unavailable", "")
    return IdempotencyRecord(key, text, why, told["metadata"], about, told["at"])


def checked(key: str) -> str:
    """Return a key that can be one, or say what is allowed."""
    if not isinstance(key, str) or not 1 <= len(key) <= LONGEST_KEY:
        raise UsageError(f"an idempotency key is a text of 1 to {LONGEST_KEY} characters, not {key!r:.80}")
    return key


def encoded(value: object) -> tuple[str | None, str]:
    """Return the JSON text of a value, or None and why there is none.

    There is one if reading it gives an equal value of the same types.
    """
    try:
        fault = _misfit(value, "the result")
        text = "" if fault else json.dumps(value, allow_nan=False)
    except (RecursionError, ValueError) as error:
        return None, f"the result has no JSON form: {error}"
    if not fault and len(text) > MOST_CHARACTERS:
        fault = f"the result takes {len(text):,} characters, and {MOST_CHARACTERS:,} is the most"
    return (None, fault) if fault else (text, "")


def _misfit(value: Any, path: str) -> str:
    """Say which part of a value JSON would change or cannot hold; nothing if it holds all."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return ""
    if kind is float:
        return "" if math.isfinite(value) else f"{path} is {value}, which JSON cannot hold"
    parts: list[tuple[Any, str]]
    if kind is list:
        parts = [(inner, f"{path}[{at}]") for at, inner in enumerate(value)]
    elif kind is dict:
        odd = [name for name in value if type(name) is not str]
        if odd:
            return f"{path} has the key {odd[0]!r}, which is no string"
        parts = [(inner, f"{path}.{name}") for name, inner in value.items()]
    else:
        return f"{path} is of type {kind.__name__}, which JSON would change; return plain data"
    return next((fault for inner, where in parts if (fault := _misfit(inner, where))), "")
