"""The statements of an append in MySQL, and the meaning of their answers.

Numbers and hexadecimal literals are all that the values of an append become in a statement: no value is
ever quoted or escaped. A hexadecimal literal has twice the bytes of its value, and the server limits the
bytes of a statement (`max_allowed_packet`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore._values import make
from oncemore.log.store import Stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oncemore.log.store import Batch, EntryWrite


def _hex(data: bytes) -> str:
    return f"X'{data.hex()}'"


def _text(text: str) -> str:
    return f"X'{text.encode().hex()}'"


def _float(number: float) -> str:
    text = repr(number)
    # The exponent makes it a DOUBLE for the server; without one it would be a DECIMAL, and rounded.
    return text if "e" in text else f"{text}e0"


def write_values(write: EntryWrite) -> str:
    """Return the values of a write, in the order of the parameters of `put`."""
    entity, expect, header, body, own_hash, head, index = write
    kind, state, due, step, worker, dataset = index
    return ",".join(
        (
            *(_text(entity), str(expect), _hex(own_hash), _hex(header), _hex(body), _hex(head)),
            *(_text(kind), _text(state), "null" if due is None else _float(due)),
            *(_text(step), _text(worker), _text(dataset)),
        )
    )


def guard_values(batch: Batch) -> str:
    """Return the guard of a batch that has one at most, as the last parameters of `put_one`."""
    for entity, version in batch.guards.items():
        return f"{_text(entity)},{version}"
    return "null,null"


def is_simple(batch: Batch) -> bool:
    """Whether a batch is one write with one guard at most, as most batches are."""
    return len(batch.writes) == 1 and len(batch.guards) <= 1 and batch.joined_write is None


def compared_entities(batch: Batch) -> list[tuple[str, int]]:
    """Return the entities that a batch compares, and the versions they must have, in the order of items."""
    return [*batch.guards.items(), *((write.entity, write.expect) for write in batch.writes)]


def call_append_one(prefix: str, batch: Batch, synced: int) -> str:
    """Return the append of a single simple batch."""
    return f"call {prefix}_append_one({synced},{write_values(batch.writes[0])},{guard_values(batch)})"


def call_checks(prefix: str, batch: Batch) -> Iterable[str]:
    """Return the statements that compare the versions of a batch."""
    for entity, version in compared_entities(batch):
        yield f"call {prefix}_check_version({_text(entity)},{version})"


def call_puts(prefix: str, batch: Batch) -> Iterable[str]:
    """Return the statements that store a batch whose versions were compared."""
    for write in batch.writes:
        yield f"call {prefix}_put({write_values(write)})"
    yield f"call {prefix}_end_batch()"


def begin_append(prefix: str, synced: int) -> Iterable[str]:
    """Return the statements that begin an append: from here on it has the log for itself."""
    yield "start transaction"
    yield f"call {prefix}_take_log({synced})"


#: The statements that end an append. The answers are read first: a result set follows its own statement.
END_APPEND = ("select @oncemore_answers", "commit")


def call_append(prefix: str, batches: Sequence[Batch], synced: int) -> str:
    """Return the append of any group of batches without joined writes."""
    statements = [*begin_append(prefix, synced)]
    for batch in batches:
        if is_simple(batch):
            values = f"{write_values(batch.writes[0])},{guard_values(batch)}"
            statements.append(f"call {prefix}_put_one({values})")
        else:
            statements += (*call_checks(prefix, batch), *call_puts(prefix, batch))
    return ";".join((*statements, *END_APPEND))


def read_answers(batches: Sequence[Batch], answers: str) -> list[Stored | str]:
    """Return, for each batch, that it is stored, or the entity that had another version."""
    numbers = [int(number) for number in answers.split()]
    return [_read_answer(batch, number) for batch, number in zip(batches, numbers, strict=True)]


def _read_answer(batch: Batch, number: int) -> Stored | str:
    if number < 0:
        return compared_entities(batch)[-number - 1][0]
    # The numbers of a batch follow each other, because an append has the log for itself.
    return make(Stored, (tuple(range(number - len(batch.writes) + 1, number + 1)) if number else (),))
