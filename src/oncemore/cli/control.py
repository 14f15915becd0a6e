"""`oncemore control switch` and `approve`, `oncemore workflow signal`: stop work, permit it, answer it."""

from __future__ import annotations

import click

from oncemore.cli.commands import (
    CommandReport,
    LazyGroup,
    combine_options,
    documented_command,
    flag_option,
    json_option,
    reason_option,
    store_command,
    store_option,
    value_option,
    write_report,
)
from oncemore.cli.decisions import decision_options
from oncemore.cli.params import DURATION, complete_runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from oncemore.cli.output import Color, OutputWriter
    from oncemore.control.approvals import ApprovalState, PendingApproval
    from oncemore.control.switches import ActiveSwitch
    from oncemore.steps.engine import Engine

SWITCH_EXAMPLES = """
oncemore control switch on --reason "the ledger is wrong"
oncemore control switch on --step shop.pay --reason "the bank is down until noon"
oncemore control switch status
oncemore control switch off --reason "the ledger is right again"
oncemore control switch off --pipeline ingest --reason "the bad item is in quarantine"
"""
SIGNAL_EXAMPLES = """
oncemore workflow signal 01a1e211 approved
oncemore workflow signal 01a1e211 approved '{"by": "operator", "limit": 500}' --id ticket-17
"""
APPROVE_EXAMPLES = """
oncemore control approvals
oncemore control approve 01a1e211 --reason "seen: 40 parcels" --expires 1h
oncemore control approve 01a1e211 --revoke --reason "wrong warehouse"
"""


@click.group(
    "switch",
    cls=LazyGroup,
    modules={"status": "control:status", "on": "control:on", "off": "control:off"},
    examples=SWITCH_EXAMPLES,
    default_command="status",
)
def switch() -> None:
    """Stop new attempts, and allow them again.

    While a switch is on, no attempt starts: of any step, or only of one step (--step), tenant (--tenant) or
    pipeline (--pipeline). Running attempts may finish. Waiting runs do not fail and lose no attempt; they
    continue when the switch is off. A policy with `halt_scope: pipeline` turns the switch of a pipeline on
    by itself. The default command is `status`.
    """


_scope_options = combine_options(
    value_option("--step", "NAME", "Only this step.", default=""),
    value_option("--tenant", "NAME", "Only runs of this tenant.", default=""),
    value_option("--pipeline", "NAME", "Only steps of this pipeline.", default=""),
)


@store_command("status", "oncemore control switch status\noncemore control switch status --json")
def status(engine: Engine) -> CommandReport:
    """List the switches that are on.

    Exit code 1 if a switch is on or the log has been moved to another store.
    """
    from oncemore.queries.runs import load_switches

    moved_to = load_switches(engine.store).moved_to
    switches = engine.switches.status()
    # No work starts in a log that was moved, so a script has to see it like a switch.
    is_stopped = bool(switches or moved_to)
    return CommandReport(
        {"is_stopped": is_stopped, "switches": switches, "moved_to": moved_to},
        lambda out: _print_switches(out, switches, moved_to),
        int(is_stopped),
    )


def _print_switches(out: OutputWriter, switches: Sequence[ActiveSwitch], moved_to: str) -> None:
    if moved_to:
        out.write_line(f"This log has been moved to {moved_to}; no work starts here.", "yellow")
    elif not switches:
        out.write_line("No switch is on; work starts when it is due.", "green")
    if switches:
        from oncemore.queries.times import format_time

        rows = [
            (_format_switch(active), format_time(active.at) if active.at else "", active.by, active.reason)
            for active in switches
        ]
        out.write_table([("on", "since", "by", "reason"), *rows])


@store_command(
    "on",
    'oncemore control switch on --reason "the ledger is wrong"\n'
    'oncemore control switch on --step shop.pay --reason "…"',
)
@_scope_options
@reason_option
@decision_options
def on(engine: Engine, **decision: Any) -> CommandReport:
    """Turn a switch on: no new attempt starts."""
    active = engine.switches.on(**decision)
    # A switch is read before each attempt and does not interrupt one.
    text = f"STOPPED: no new attempt{_describe_scope(active.name)} starts; running attempts may finish"
    return CommandReport(active, lambda out: out.write_line(text, "yellow"))


@store_command("off", 'oncemore control switch off --reason "the ledger is right again"')
@_scope_options
@reason_option
@decision_options
def off(engine: Engine, step: str, tenant: str, pipeline: str, reason: str, by: str | None) -> CommandReport:
    """Turn a switch off: waiting runs continue. Exit code 1 if it was not on."""
    from oncemore.control.model import switch_name

    was_on = engine.switches.off(step=step, tenant=tenant, pipeline=pipeline, reason=reason, by=by)
    # Another switch may still stop the same work, so the answer names the remaining ones.
    remaining = engine.switches.status()
    name = switch_name(step, tenant, pipeline)
    value = {"name": name, "released": was_on, "switches": remaining}
    if not was_on:
        return CommandReport(value, lambda out: out.write_line(f"The switch {name} was not on."), 1)
    rest = f"; still on: {', '.join(map(_format_switch, remaining))}" if remaining else ""
    return CommandReport(
        value, lambda out: out.write_line(f"turned off {name}{rest}", "yellow" if remaining else "green")
    )


def _format_switch(active: ActiveSwitch) -> str:
    """Return the name of a switch, with the NATS bucket that it was read from, if any."""
    return f"{active.name} in {active.kept_in}" if active.kept_in else active.name


def _describe_scope(name: str) -> str:
    # The switch of everything has a name without a colon.
    kind, _, value = name.partition(":")
    return f" of {kind} {value}" if value else ""


@documented_command("approve", APPROVE_EXAMPLES)
@click.argument("run", help="Id or key of a run, or a unique prefix of one.", shell_complete=complete_runs)
@flag_option("--revoke", "Withdraw an approval.")
@reason_option
@value_option("--expires", "TIME", "Validity: 1h, 3d; default: one day.", type=DURATION)
@decision_options
@store_option
@json_option
def approve(
    run: str,
    revoke: bool,
    reason: str,
    expires: float | None,
    by: str | None,
    store: str | None,
    in_json: bool,
) -> int:
    """Approve a run that waits for an approval.

    The approval is for the run as it was held: its key, arguments, step version, policy and number of
    attempts. If one of them changes, the run needs a new approval. A run that the autonomy matrix has paused
    can be approved too. Exit code 1 if the run does not wait for an approval.
    """
    from oncemore.queries.stores import open_existing

    if revoke and expires is not None:
        raise click.UsageError("--revoke takes only a RUN and a --reason.", click.get_current_context())
    options: Any = {"reason": reason, "by": by}
    with open_existing(store) as engine:
        if revoke:
            revoked = engine.approvals.revoke(run, **options)
            text = f"revoked the approval of {revoked.step} {revoked.key[:12]}"
            report = CommandReport(revoked, lambda out: out.write_line(text, "yellow"))
        else:
            approval = engine.approvals.approve(run, expires=expires, **options)
            report = CommandReport(approval, lambda out: _print_approval(out, approval))
    return write_report(report, in_json)


@documented_command("signal", SIGNAL_EXAMPLES)
@click.argument("run", help="Id or key of a run, or a unique prefix of one.", shell_complete=complete_runs)
@click.argument("name", help="The name that the workflow waits for.")
@click.argument("value", required=False, help="The value of the signal as JSON; null unless given.")
@value_option("--id signal_id", "TEXT", "A name of this one signal: sent twice, it is recorded once.")
@decision_options
@store_option
@json_option
def signal(
    run: str,
    name: str,
    value: str | None,
    signal_id: str | None,
    by: str | None,
    store: str | None,
    in_json: bool,
) -> int:
    """Send a signal to the run of a workflow.

    A run that waits for the signal continues in a worker, or with the next call. The signal is recorded also
    while the workflow runs or has not begun. Exit code 1 if the id was used before.
    """
    from oncemore.queries.step_commands import signal_run
    from oncemore.queries.stores import open_existing

    with open_existing(store) as engine:
        sent = signal_run(engine, run, name, value, signal_id=signal_id, by=by)
    state = sent.state
    text = f"sent {name!r} to {state.step} {state.run_id}"
    if not sent.is_new:
        text = f"{state.step} {state.run_id} has the signal {signal_id!r} already"
    document = {"run_id": state.run_id, "step": state.step, "signal": name, "recorded": sent.is_new}
    color: Color = "green" if sent.is_new else "yellow"
    report = CommandReport(document, lambda out: out.write_line(text, color), 0 if sent.is_new else 1)
    return write_report(report, in_json)


@store_command("approvals", "oncemore control approvals\noncemore control approvals --json")
def list_approvals(engine: Engine) -> CommandReport:
    """List the runs that need an approval, and the approvals.

    Runs that the autonomy matrix has paused are listed too: an approval lets one begin before the pause ends.
    """
    waiting, paused = engine.approvals.list_waiting(), engine.approvals.list_paused()
    given = engine.approvals.list()
    return CommandReport(
        {"waiting": waiting, "paused": paused, "approvals": given},
        lambda out: _print_approvals(out, (*waiting, *paused), given),
    )


def _print_approval(out: OutputWriter, approval: ApprovalState) -> None:
    from oncemore.queries.times import format_time

    out.write_line(
        f"approved {approval.step} {approval.key[:12]} until {format_time(approval.expires)}", "green"
    )
    out.write_paragraph("The run starts when the step is called again or a worker claims it.")


def _print_approvals(
    out: OutputWriter, waiting: Sequence[PendingApproval], approvals: Sequence[ApprovalState]
) -> None:
    from oncemore.queries.times import format_time

    # The waiting runs are printed first: they are the operator's next step.
    if not waiting:
        out.write_line("No run waits for an approval.", "green")
    for run in waiting:
        out.write_line(f"{run.run_id}  {run.step}  since {format_time(run.since)}", "bold")
        out.write_paragraph(f"{run.arguments}", "", "  with ")
        out.write_paragraph(run.reason, "", "  ")
    if approvals:
        out.write_line()
        rows = [
            (
                approval.state,
                approval.step,
                approval.key[:12],
                format_time(approval.expires),
                approval.by,
                approval.reason,
            )
            for approval in approvals
        ]
        out.write_table([("approval", "step", "key", "until", "by", "reason"), *rows])
