"""Mark keys as done that were done before oncemore was used, without running anything.

An imported key gets one entry, PENDING to COMPLETE, with the actor and the reason; a call of the key then
returns the imported value. Keys are stored in groups, each in one batch. A key that the log knows stays
unchanged, so that the same group may be imported again after a crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore.control.moved_log import append_if_not_moved
from oncemore.errors import UsageError
from oncemore.log.entry_codec import build_write, decode_head
from oncemore.log.record import NOWHERE, RecordChange, RunRecord
from oncemore.log.store import Stored
from oncemore.steps.transitions import new_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.log.record import LoadedHead
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.decorator import Step
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import AttemptTerms
    from oncemore.steps.plan import StepPlan

IMPORT_MARKS: tuple[Any, ...] = ("PENDING", "DECISION", "COMPLETE")


class ImportedKey(NamedTuple):
    """A key to be marked as done.

    head  the key's head in the store, as it was loaded
    body  the body of the new entry: arguments, result, actor and reason
    """

    plan: StepPlan
    call: PreparedCall
    terms: AttemptTerms
    head: LoadedHead
    body: dict[str, Any]


def build_import(
    step: Step[..., Any],
    call: PreparedCall,
    value: Any,
    reason: str,
    by: str,
    named: dict[str, Any] | None = None,
) -> ImportedKey:
    """Return the key of a prepared call, to be marked as done with a value.

    named  the arguments that are known, if not all are
    """
    terms = call.make_terms(call, "", call.engine.now())
    # Where `key=` names the arguments, the others may be unknown.
    if named is not None and not step._options.keys.keys_all_arguments:  # noqa: SLF001
        arguments = {name: plain for name, plain in terms.arguments.items() if name in named}
        terms, call.input_hash = terms._replace(input_hash="", arguments=arguments), ""
    decision = {"action": "import", "reason": reason, "actor": by}
    body = {"arguments": terms.arguments, "result": encode_value(call.plan, value), "decision": decision}
    return ImportedKey(call.plan, call, terms, call.head, body)


def build_named_import(
    step: Step[..., Any], named: dict[str, Any], value: Any, reason: str, by: str
) -> ImportedKey:
    """Return a key by the names of its arguments, to be marked as done with a value.

    named  where `key=` names some of the arguments, those are enough
    """
    options, bound_count = step._options, len(step._bound)  # noqa: SLF001
    filled = options.arguments.fill_missing(
        named, bound_count, has_dataset_function=callable(options.dataset)
    )
    call = step._prepare_call((), filled)  # noqa: SLF001
    return build_import(step, call, value, reason, by, named if filled != named else None)


def encode_value(plan: StepPlan, value: Any) -> Any:
    """Return a value in its stored form; raise `UsageError` if it cannot be encoded."""
    try:
        return plan.encode(value)
    except Exception as error:
        raise UsageError(f"the value given for {plan.name} cannot be stored: {error}") from error


def mark_keys_done(engine: Engine, group: Sequence[ImportedKey]) -> list[str]:
    """Mark keys as done; return "marked", "present" or the reason of a refusal for each."""
    results = [_describe_existing(key.call, key.head.record) for key in group]
    new: dict[str, int] = {}
    for position, key in enumerate(group):
        # A file may hold a key twice; the second one must not be in the same batch.
        if not results[position]:
            results[position] = "present" if key.call.entity in new else "marked"
            new.setdefault(key.call.entity, position)
    while new:
        now = engine.now()
        writes = tuple(_build_import_write(engine, group[position], now) for position in new.values())
        reply = append_if_not_moved(engine, "keys to be imported", writes)
        if isinstance(reply, Stored):
            break
        assert reply.head is not None
        # Another process has started this key since it was read. Its run stays; the rest is tried again.
        position = new.pop(reply.entity)
        record = decode_head(reply.head.head, RunRecord)
        results[position] = _describe_existing(group[position].call, record)
    return results


def preview_marks(group: Sequence[ImportedKey], earlier: set[str]) -> list[str]:
    """Return the results that `mark_keys_done` would return, and write nothing.

    earlier  the entities of earlier groups; those of this group are added
    """
    results = []
    for key in group:
        known = _describe_existing(key.call, key.head.record) or (
            "present" if key.call.entity in earlier else "marked"
        )
        earlier.add(key.call.entity)
        results.append(known)
    return results


def _describe_existing(call: PreparedCall, run: RunRecord | None) -> str:
    """Return the result for a key that has a run; an empty text if it has none."""
    if run is None:
        return ""
    # Without an input hash only the key's own arguments are known, so there is nothing to compare.
    if call.input_hash and run.input_hash not in (call.input_hash, ""):
        return "the key belongs to other arguments"
    if run.state == "COMPLETE":
        return "present"
    return f"the key is {run.state}{', held' if run.held_for else ''} ({run.reason or 'in progress'})"


def _build_import_write(engine: Engine, key: ImportedKey, now: float) -> Any:
    pending = new_run(key.plan, key.call, key.terms, None, now)
    after = pending._replace(state="COMPLETE", reason="imported", commit_version=1)
    change = RecordChange(IMPORT_MARKS, None, after, key.body)
    return build_write(key.call.entity, 0, NOWHERE, change, now, engine.cipher)
