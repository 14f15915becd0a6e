"""Printing of quarantined items, for `oncemore quarantine list` and `show`."""

from __future__ import annotations

from oncemore.queries.times import format_age, format_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from oncemore.cli.output import OutputWriter
    from oncemore.control.notifications import NotificationStatus
    from oncemore.control.quarantine_items import QuarantineCase, QuarantineItem
    from oncemore.steps.history import AttemptView

COLUMN_HEADS = ("id", "since", "kind", "step", "attempts", "reason")
_CHOICE_TEXTS = {
    "release": "release  continue normally",
    "reject": "reject   end permanently",
    "rerun": "rerun    continue with more attempts",
    "approve": "approve  allow the start (`oncemore control approve`)",
    "settle": "settle   record the outcome: --applied JSON, or --not-applied",
}


def print_items(out: OutputWriter, items: Sequence[QuarantineItem], now: float) -> None:
    """Print one line per item, with the shortest prefixes that distinguish the ids."""
    if not items:
        out.write_line("No quarantined items match.", "green")
        return
    size = _unique_prefix_length([item.id for item in items])
    rows = [
        (
            item.id[:size],
            format_age(item.since, now),
            item.kind,
            item.step,
            str(item.attempts),
            _format_reason(item),
        )
        for item in items
    ]
    out.write_table([COLUMN_HEADS, *rows], right=(4,))
    out.write_line()
    out.write_paragraph(
        f"Evidence and possible decisions: `oncemore quarantine show {items[0].id[:size]}`", "dim"
    )


def _format_reason(item: QuarantineItem) -> str:
    # The code distinguishes items that are held for the same reason.
    code = item.error.get("code", "")
    return f"{item.reason}: {code}" if code else item.reason


def _unique_prefix_length(ids: list[str]) -> int:
    """Return the number of characters that distinguish all ids."""
    # Ids begin with a time, so those of one incident share more than eight characters.
    longest = max(map(len, ids))
    return next(
        (
            length
            for length in range(8, longest)
            if len({item_id[:length] for item_id in ids}) == len(set(ids))
        ),
        longest,
    )


def print_case(out: OutputWriter, case: QuarantineCase, now: float) -> None:
    """Print the evidence about an item, and the possible decisions."""
    item = case.item
    out.write_line(f"{item.kind} {item.id} of {item.step}: {item.reason}", "yellow")
    out.write_line()
    facts = [
        ("since", f"{format_time(item.since)} ({format_age(item.since, now)})"),
        ("effect", case.effect),
        ("attempts", str(item.attempts)),
        ("error", _format_error(item.error)),
        ("code", item.error.get("code", "")),
        ("rule", case.rule),
        ("input", case.input_hash),
        ("errors", _or_reason(", ".join(item.error_classes), item, "error_classes")),
        ("dataset", _or_reason(item.dataset, item, "dataset")),
        ("care label", _or_reason(item.care_label, item, "care_label")),
        ("tenant", item.tenant),
        ("correlation", item.correlation_id),
        ("entity", item.entity),
        ("version", str(item.version)),
        *_artifact_facts(case.artifact),
    ]
    out.write_table([("field", "value"), *((name, text) for name, text in facts if text)])
    if case.proof is not None:
        out.write_line()
        out.write_paragraph(str(case.proof.get("sentence", "")))
    _print_section(out, "Attempts", [_format_attempt(attempt) for attempt in case.attempts])
    notifications = [f"{status.sink}: {_format_notification(status, now)}" for status in case.notifications]
    _print_section(out, "Notifications", notifications)
    _print_section(out, "Earlier decisions", [_format_decision(decision) for decision in case.decisions])
    # Last, because it is the next step of the operator.
    _print_section(out, "Possible decisions", [_CHOICE_TEXTS[choice] for choice in case.choices])


def _or_reason(text: str, item: QuarantineItem, field: str) -> str:
    """Return a text, or why there is none."""
    return text or f"none: {item.without[field]}"


def _print_section(out: OutputWriter, title: str, lines: list[str]) -> None:
    if lines:
        out.write_line()
        out.write_line(title, "bold")
        for line in lines:
            out.write_paragraph(line, "", "  ")


def _format_error(error: dict[str, Any]) -> str:
    return f"{error.get('type', '')}: {error.get('message', '')}".strip(": ")


def _artifact_facts(artifact: dict[str, Any] | None) -> list[tuple[str, str]]:
    if artifact is None:
        return []
    return [
        ("artifact", artifact["name"]), ("expected", artifact["expected"]), ("found", artifact["found"]),
    ]  # fmt: skip


def _format_attempt(attempt: AttemptView) -> str:
    # An attempt that was lost with its process has no end.
    duration = "" if attempt.ended is None else f", {attempt.ended - attempt.began:.3f} s"
    error = f": {_format_error(attempt.error)}" if attempt.error else ""
    return f"{attempt.number}  {format_time(attempt.began)}{duration}  {attempt.outcome}{error}"


def _format_notification(status: NotificationStatus, now: float) -> str:
    # A notification may wait until it is sent together with similar ones.
    if status.state == "PENDING" and status.due > now:
        return f"due at {format_time(status.due)}, together with similar ones"
    return {"DELIVERED": "delivered", "DEAD": "not deliverable; the notification is quarantined itself"}.get(
        status.state, "not sent yet"
    )


def _format_decision(decision: dict[str, Any]) -> str:
    actor = decision["actor"] or "unknown"
    return f"{format_time(decision['at'])}  {decision['action']} by {actor}: {decision['reason']}"
