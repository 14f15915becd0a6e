"""`oncemore escalations`: list the tickets and escalations that wait for a person, and acknowledge them."""

from __future__ import annotations

import click

from oncemore.cli.commands import (
    CommandReport,
    LazyGroup,
    choice_option,
    flag_option,
    ids_option,
    reason_option,
    report_ids,
    store_command,
    value_option,
)
from oncemore.cli.decisions import decision_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from oncemore.cli.output import OutputWriter
    from oncemore.governance.escalations import Escalation, EscalationCase
    from oncemore.steps.engine import Engine

EXAMPLES = """
oncemore escalations
oncemore escalations list --kind CARE_ESCALATION --json
oncemore escalations show 01a1e211
oncemore escalations ack 01a1e211 --reason "the council has agreed to a new run"
"""
COMMANDS = {"list": "escalations:list_", "show": "escalations:show", "ack": "escalations:ack"}


@click.group("escalations", cls=LazyGroup, modules=COMMANDS, examples=EXAMPLES, default_command="list")
def escalations() -> None:
    """List tickets and escalations, and acknowledge them.

    A run that the gate refuses, that is quarantined, or that fails opens one, if it has a dataset or a
    governed policy. Conflicts with governance and failures on sensitive data are a CARE_ESCALATION to the
    FAIR+CARE Council. A failed run of sensitive data is not run again before it is acknowledged. The default
    command is `list`.
    """


_id_argument = click.argument("escalation", metavar="ID", help="Id of the list or of a run, or a prefix.")


@store_command("list", "oncemore escalations list\noncemore escalations list --acknowledged --json")
@choice_option("--kind", ("CARE_ESCALATION", "TICKET"), "Only this kind: CARE_ESCALATION or TICKET.")
@value_option("--role", "NAME", "Only those addressed to this role.")
@value_option("--dataset", "ID", "Only those about this dataset.")
@value_option("--step", "NAME", "Only those of this step.")
@flag_option("--acknowledged", "List the acknowledged ones instead of the open ones.")
@ids_option
def list_(engine: Engine, only_ids: bool, **filters: Any) -> CommandReport:
    """List escalations, the oldest first."""
    found = engine.escalations.list(**filters)
    # For a loop that acknowledges several of them.
    if only_ids:
        return report_ids(escalation.id for escalation in found)
    return CommandReport(found, lambda out: _print_escalations(out, found))


@store_command("show", "oncemore escalations show 01a1e211")
@_id_argument
def show(engine: Engine, escalation: str) -> CommandReport:
    """Show one escalation with its evidence.

    The error, the decision of the gate, the proof and the attempts.
    """
    case = engine.escalations.show(escalation)
    return CommandReport(case, lambda out: _print_case(out, case))


@store_command("ack", 'oncemore escalations ack 01a1e211 --reason "the council has agreed"')
@_id_argument
@reason_option
@decision_options
def ack(engine: Engine, escalation: str, reason: str, by: str | None) -> CommandReport:
    """Acknowledge an escalation: record who has decided, and why. Exit code 1 if that was done before."""
    done = engine.escalations.acknowledge(escalation, reason=reason, by=by)
    text = f"acknowledged {done.kind} {done.id} of {done.step}, by {done.by}"
    return CommandReport(done, lambda out: out.write_line(text, "green"))


def _print_escalations(out: OutputWriter, found: Sequence[Escalation]) -> None:
    from oncemore.queries.times import format_time

    if not found:
        out.write_line("No escalations match.", "green")
        return
    heads = ("id", "kind", "for", "step", "dataset", "care label", "attempts", "errors", "since")
    rows = [
        (
            escalation.id,
            escalation.kind,
            escalation.role,
            escalation.step,
            escalation.dataset or "-",
            escalation.care_label or "-",
            str(escalation.attempts),
            ", ".join(escalation.error_classes) or escalation.cause,
            format_time(escalation.opened_at),
        )
        for escalation in found
    ]
    out.write_table([heads, *rows], right=(6,))
    out.write_line()
    out.write_paragraph(f"Details: `oncemore escalations show {found[0].id}`", "dim")


def _print_case(out: OutputWriter, case: EscalationCase) -> None:
    from oncemore.queries.times import format_time

    escalation = case.escalation
    out.write_line(f"{escalation.kind} {escalation.id}: {escalation.state}", "bold")
    rows = [
        ("for", escalation.role),
        ("policy", escalation.policy),
        ("step", escalation.step),
        ("run", f"{escalation.run_id} {case.run_state} {case.held_for}".strip()),
        ("dataset", escalation.dataset or "none: the step names no dataset"),
        ("care label", escalation.care_label or "none: the dataset is not registered"),
        ("attempts", str(escalation.attempts)),
        ("errors", ", ".join(escalation.error_classes) or "none: no attempt has failed"),
        ("cause", escalation.cause),
        ("message", str(case.error.get("message", ""))),
        ("opened", format_time(escalation.opened_at)),
    ]
    if escalation.state != "OPEN":
        at = format_time(escalation.acknowledged_at)
        rows.append(("decided", f"{at} by {escalation.by}: {escalation.reason}"))
    out.write_table([(name, text) for name, text in rows if text])
    # The next step of the reader, as a command to copy.
    if escalation.state == "OPEN":
        out.write_line()
        out.write_paragraph(f"Decide: `oncemore escalations ack {escalation.id} --reason …`", "dim")
