"""The items in quarantine and their evidence, read from the log.

There are three kinds of items:

    run       its outcome is unknown, it needs review, an artifact of it was altered, or its workers died
              until no attempt was left
    artifact  its bytes were altered
    event     a dead letter: refused by its sink, or out of attempts

An artifact that a held run waits for is part of that run's item.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.control.notifications import DEAD_LETTER, load_notification_status
from oncemore.control.permits import load_dataset
from oncemore.control.review import is_held, list_choices
from oncemore.governance.dataset_model import NO_LABEL
from oncemore.log.entry_codec import decode_head, decode_header, load_head, read_body
from oncemore.log.record import ArtifactRecord, EventRecord, RunRecord
from oncemore.steps import history
from oncemore.steps.run import Run
from oncemore.steps.transitions import CHECKSUM_MISMATCH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.control.notifications import NotificationStatus
    from oncemore.log.encryption import BodyCipher
    from oncemore.log.store import Entry, Head
    from oncemore.steps.engine import Engine
    from oncemore.steps.history import AttemptView

ITEM_KINDS: dict[str, type] = {"run": RunRecord, "artifact": ArtifactRecord, "event": EventRecord}


class QuarantineItem(Value):
    """One item in quarantine.

    id        the run_id (never the key), the artifact's reference or the event id
    kind      run, artifact or event
    reason    outcome_unknown, quarantined, checksum_mismatch, poison or dead_letter
    step      the step of the item; the topic of an event
    since     when it was quarantined, in POSIX seconds
    version   the version of its entity; a decision about another version is refused
    attempts  the number of attempts made
    error     the neutral record of its error
    entity    its entity in the log
    error_classes  codes of the errors of its run, in order, each once
    care_label     the label of its dataset when it was quarantined
    without        why the error classes, the dataset or the label are empty, by name (GOV-6)
    """

    id: str
    kind: str
    reason: str
    step: str
    since: float
    version: int
    attempts: int
    error: dict[str, Any]
    tenant: str
    correlation_id: str
    dataset: str
    entity: str
    error_classes: tuple[str, ...] = ()
    care_label: str = ""
    without: dict[str, str] = {}  # noqa: RUF012 - never changed in place


class QuarantineCase(Value):
    """An item with all of its evidence.

    rule           the rule that classified the failure
    effect         the effect of the step; empty for an event
    input_hash     the digest of the run's arguments
    proof          the proof of the transition into quarantine, if there is one
    attempts       the attempts with their outcomes and errors
    artifact       name, expected digest and actual digest of an altered artifact
    decisions      earlier decisions about the item
    notifications  the notifications about the item and their states
    choices        the actions that an operator can take now
    """

    item: QuarantineItem
    rule: str
    effect: str
    input_hash: str
    proof: dict[str, Any] | None
    attempts: tuple[AttemptView, ...]
    artifact: dict[str, Any] | None
    decisions: tuple[dict[str, Any], ...]
    notifications: tuple[NotificationStatus, ...]
    choices: tuple[str, ...]


def build_item(engine: Engine, head: Head) -> QuarantineItem | None:
    """Return the item of a held entity; None if it has been decided on since it was listed."""
    item, recorded = _build_item(engine, head)
    return None if item is None else _add_governance(engine, item, recorded)


def _add_governance(engine: Engine, item: QuarantineItem, recorded: dict[str, Any]) -> QuarantineItem:
    """Return an item with error classes and label, and the reasons why one of them is empty.

    recorded  what the entry that opened its escalation says; empty if it opened none
    """
    classes = recorded.get("error_classes") or _list_error_classes(engine, item)
    label = "" if item.dataset == "" else str(recorded.get("care_label", ""))
    if item.dataset and "care_label" not in recorded:
        dataset = load_dataset(engine, item.dataset)[1]
        label = "" if dataset is None else dataset.care_label
    # The record of the escalation has a text in the place of a label that there is none of.
    label = "" if label == NO_LABEL else label
    without = {}
    if not classes:
        without["error_classes"] = "no attempt has failed"
    if not item.dataset:
        without |= dict.fromkeys(("dataset", "care_label"), "the step names no dataset")
    elif not label:
        without["care_label"] = "the dataset is not registered"
    return item._replace(error_classes=tuple(classes), care_label=label, without=without)


def _list_error_classes(engine: Engine, item: QuarantineItem) -> list[str]:
    """Return the codes of the errors of an item, in order, each once."""
    own = [str(item.error["code"])] if item.error.get("code") else []
    if item.kind != "run":
        return own
    entries = engine.store.read_entries(item.entity)
    codes = [
        str((body.get("error") or {}).get("code", ""))
        for _, state, body in history.fold_entries(entries, engine.cipher)
        if state.run_id == item.id
    ]
    return list(dict.fromkeys(code for code in (*codes, *own) if code))


def _build_item(engine: Engine, head: Head) -> tuple[QuarantineItem | None, dict[str, Any]]:
    kind, _, name = head.entity.partition("/")
    state: Any = decode_head(head.head, ITEM_KINDS[kind])
    # The last entry is the one that put the item into quarantine: its time and error are the item's.
    entry = next(iter(engine.store.read_entries(head.entity, head.version - 1)), None)
    if entry is None or not is_held(state):
        return None, {}
    body = read_body(entry, engine.cipher)
    recorded: dict[str, Any] = body.get("escalation") or {}
    item = QuarantineItem(
        id=name,
        kind=kind,
        reason=CHECKSUM_MISMATCH,
        step="",
        since=decode_header(entry.header).at,
        version=head.version,
        attempts=0,
        error=body.get("error") or {},
        tenant=state.tenant,
        correlation_id="",
        dataset="",
        entity=head.entity,
    )
    if type(state) is RunRecord:
        held = item._replace(
            id=state.run_id,
            reason=state.held_for,
            step=state.step,
            attempts=state.attempt_count + state.crash_count,
            correlation_id=state.correlation_id,
            dataset=state.dataset,
        )
        return held, recorded
    if type(state) is EventRecord:
        letter = item._replace(
            id=state.event_id,
            reason=DEAD_LETTER,
            step=state.topic,
            attempts=state.attempt,
            correlation_id=state.correlation_id,
            dataset=state.dataset,
        )
        return letter, {}
    # The entry of an altered artifact has no error record, so the item gets one of the same form.
    message = body.get("quarantine", {}).get("message", "")
    error = {"type": "PolicyViolation", "code": "CHECKSUM_MISMATCH", "message": message}
    item = item._replace(step=state.step, error=error)
    run_head = load_head(engine.store, state.run_entity, engine.cipher)
    run = run_head.record
    # The artifact belongs to the item of its held run, and is not listed a second time.
    if is_held(run) and (run_head.body or {}).get("quarantine", {}).get("artifact") == head.entity:
        return None, {}
    # The key of the run may have been forgotten since.
    known = ("", "") if run is None else (run.correlation_id, run.dataset)
    return item._replace(correlation_id=known[0], dataset=known[1]), {}


def build_case(engine: Engine, item: QuarantineItem) -> QuarantineCase:
    """Return an item with its evidence."""
    # Only up to the listed version, so that the evidence and the item describe the same state.
    entries = list(engine.store.read_entries(item.entity))[: item.version]
    last = read_body(entries[-1], engine.cipher)
    state: Any = None
    for _, state, _ in history.fold_entries(entries, engine.cipher):  # noqa: B007 - the last one is wanted
        pass
    # Only runs have attempts with records of their own.
    run: Run[Any] | None = Run(engine, item.entity) if item.kind == "run" else None
    return QuarantineCase(
        item=item,
        rule=item.error.get("rule", ""),
        effect=state.effect if type(state) is RunRecord else "",
        input_hash=state.input_hash if type(state) is RunRecord else "",
        proof=last.get("proof"),
        attempts=run.attempts if run is not None else (),
        artifact=_describe_artifact(engine, item, last),
        decisions=tuple(_list_decisions(entries, engine.cipher)),
        notifications=load_notification_status(engine, last.get("notifications", [])),
        choices=list_choices(state),
    )


def _describe_artifact(engine: Engine, item: QuarantineItem, body: dict[str, Any]) -> dict[str, Any] | None:
    """Return name, expected digest and actual digest of an item's altered artifact, or None."""
    ref = item.entity if item.kind == "artifact" else body.get("quarantine", {}).get("artifact")
    if ref is None:
        return None
    head = load_head(engine.store, ref, engine.cipher, ArtifactRecord)
    artifact, actual = head.record, (head.body or {}).get("quarantine", {})
    return {
        "reference": ref,
        "name": artifact.name,
        "expected": artifact.digest,
        "expected_size": artifact.size,
        "found": actual.get("found", ""),
        "found_size": actual.get("found_size", 0),
    }


def _list_decisions(entries: list[Entry], cipher: BodyCipher | None) -> Iterator[dict[str, Any]]:
    for entry in entries:
        decision = read_body(entry, cipher).get("decision")
        if decision is not None:
            yield {**decision, "at": decode_header(entry.header).at}
