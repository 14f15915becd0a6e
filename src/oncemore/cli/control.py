"""`oncemore switch` and `oncemore approve`: what people say about work that has not begun."""

from __future__ import annotations

import click

from oncemore.cli.commands import Branch, json_option, leaf, store_option
from oncemore.cli.maintenance import by_option, reason_option
from oncemore.cli.output import Paper
from oncemore.cli.params import DURATION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.control.switches import Thrown

SWITCH = """
oncemore switch on --reason "the ledger is wrong"
oncemore switch on --step shop.pay --reason "the bank is down until noon"
oncemore switch status
oncemore switch off --reason "the ledger is right again"
oncemore switch off --pipeline ingest --reason "the bad item is in quarantine"
"""
APPROVE = """
oncemore approve --list
oncemore approve 01a1e211 --reason "seen: 40 parcels" --expires 1h
oncemore approve 01a1e211 --revoke --reason "wrong warehouse"
"""


@click.group(
    "switch",
    cls=Branch,
    homes={"status": "control:status", "on": "control:on", "off": "control:off"},
    examples=SWITCH,
    usual="status",
)
def switch() -> None:
    """Stop work before it begins, and let it go on.

    While a switch is on, no attempt begins: of any step, of one (--step), of one tenant's (--tenant) or of
    one pipeline's (--pipeline). What is under way may end. What waits is not failed and loses no attempt; it
    goes on when the switch is off. A policy with `halt_scope: pipeline` halts a pipeline by itself.
    Without a command it is `status`, with all of its options.
    """


def _which(command: Any) -> Any:
    for option in (
        click.option("--pipeline", metavar="NAME", default="", help="Only steps of this pipeline."),
        click.option("--tenant", metavar="NAME", default="", help="Only work of this tenant."),
        click.option("--step", metavar="NAME", default="", help="Only work of this step."),
    ):
        command = option(command)
    return command


@leaf("status", "oncemore switch status\noncemore switch status --json")
@store_option
@json_option
def status(store: str | None, in_json: bool) -> int:
    """Say which switches are on. Exit code 1 while one is, or while the log has moved."""
    from oncemore.queries.control import control_of
    from oncemore.queries.open_engine import there

    with there(store) as engine:
        moved = control_of(engine.store).moved
        found = engine.switch.status()
    paper = Paper(in_json=in_json)
    if in_json:
        paper.json({"stopped": bool(found or moved), "switches": found, "moved": moved})
        return int(bool(found or moved))
    if moved:
        paper.line(f"this log has moved to {moved}; nothing begins here any more", "yellow")
    elif not found:
        paper.line("no switch is on: work begins as it is due", "green")
    if found:
        from oncemore.queries.times import shown

        rows = [(_placed(one), shown(one.at) if one.at else "", one.by, one.reason) for one in found]
        paper.table([("on", "since", "by", "reason"), *rows])
    return int(bool(found or moved))


@leaf(
    "on", 'oncemore switch on --reason "the ledger is wrong"\noncemore switch on --step shop.pay --reason "…"'
)
@_which
@reason_option
@by_option
@store_option
@json_option
def on(
    step: str, tenant: str, pipeline: str, reason: str, by: str | None, store: str | None, in_json: bool
) -> None:
    """Throw a switch: no attempt begins any more."""
    from oncemore.queries.open_engine import there

    with there(store) as engine:
        found = engine.switch.on(step=step, tenant=tenant, pipeline=pipeline, reason=reason, by=by)
    paper = Paper(in_json=in_json)
    if in_json:
        paper.json(found)
    else:
        paper.line(f"STOPPED: {_what(found.name)} begins; attempts that are under way may end", "yellow")


@leaf("off", 'oncemore switch off --reason "the ledger is right again"')
@_which
@reason_option
@by_option
@store_option
@json_option
def off(
    step: str, tenant: str, pipeline: str, reason: str, by: str | None, store: str | None, in_json: bool
) -> int:
    """Release a switch: what waited goes on. Exit code 1 if it was not on."""
    from oncemore.control.model import switch_name
    from oncemore.queries.open_engine import there

    with there(store) as engine:
        was = engine.switch.off(step=step, tenant=tenant, pipeline=pipeline, reason=reason, by=by)
        left = engine.switch.status()
    name, paper = switch_name(step, tenant, pipeline), Paper(in_json=in_json)
    if in_json:
        paper.json({"name": name, "released": was, "switches": left})
    elif not was:
        paper.line(f"{name} was not on")
    else:
        rest = f"; still on: {', '.join(_placed(one) for one in left)}" if left else ""
        paper.line(f"released {name}{rest}", "yellow" if left else "green")
    return int(not was)


def _placed(one: Thrown) -> str:
    """Return the name of a switch, with the bucket that has it."""
    return f"{one.name} in {one.kept_in}" if one.kept_in else one.name


def _what(name: str) -> str:
    kind, _, which = name.partition(":")
    return f"nothing of {kind} {which}" if which else "nothing"


@leaf("approve", APPROVE)
@click.argument("run", required=False, help="A run's id or key, or how one of them begins.")
@click.option("--list", "listed", is_flag=True, help="Show what waits for an approval, and what has one.")
@click.option("--revoke", is_flag=True, help="Let an approval count no more.")
@click.option("--reason", metavar="TEXT", help="Why; it is recorded.")
@click.option("--expires", metavar="TIME", type=DURATION, help="For how long it holds: 1h, 3d (a day).")
@by_option
@store_option
@json_option
def approve(
    run: str | None,
    listed: bool,
    revoke: bool,
    reason: str | None,
    expires: float | None,
    by: str | None,
    store: str | None,
    in_json: bool,
) -> None:
    """Let a run begin that waits for an approval.

    It is approved as it was when it was held: this key, these arguments, this version of the step, this
    policy, so many attempts. Whatever has changed since needs another approval. Exit code 1 if it does not
    wait for one (any more).
    """
    from oncemore.queries.open_engine import there

    asked = click.get_current_context()
    if listed == (run is not None):
        raise click.UsageError("Say which RUN is approved, or --list.", asked)
    if not listed and not reason:
        raise click.UsageError("Missing option '--reason'.", asked)
    if revoke and (listed or expires is not None):
        raise click.UsageError("--revoke goes with a RUN and a --reason, and with nothing else.", asked)
    paper = Paper(in_json=in_json)
    with there(store) as engine:
        if listed:
            _list(paper, engine, in_json)
            return
        told: Any = {"reason": reason, "by": by}
        found = (
            engine.approvals.revoke(run, **told)
            if revoke
            else engine.approvals.approve(run, expires=expires, **told)
        )
    if in_json:
        paper.json(found)
    elif revoke:
        paper.line(f"revoked the approval of {found.step} {found.key[:12]}", "yellow")
    else:
        from oncemore.queries.times import shown

        paper.line(f"approved: {found.step} {found.key[:12]}, until {shown(found.expires)}", "green")
        paper.say("It goes on when the step is called again, or when a worker takes it.")


def _list(paper: Paper, engine: Any, in_json: bool) -> None:
    from oncemore.queries.times import shown

    waiting, given = engine.approvals.waiting(), engine.approvals.list()
    if in_json:
        paper.json({"waiting": waiting, "approvals": given})
        return
    if not waiting:
        paper.line("nothing waits for an approval", "green")
    for one in waiting:
        paper.line(f"{one.run_id}  {one.step}  since {shown(one.since)}", "bold")
        paper.say(f"{one.arguments}", "", "  with ")
        paper.say(one.why, "", "  ")
    if given:
        paper.line()
        rows = [(one.state, one.step, one.key[:12], shown(one.expires), one.by, one.reason) for one in given]
        paper.table([("approval", "step", "key", "until", "by", "reason"), *rows])
