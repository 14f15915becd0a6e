"""The groups of commands below `oncemore`: runs, workflow, control, limits and store.

A group holds only names; the module of a command is imported when the command is called.
"""

from __future__ import annotations

import click

from oncemore.cli.commands import LazyGroup

RUNS_EXAMPLES = """
oncemore runs
oncemore runs --state HARD_FAIL --since 1d
oncemore runs submit shop.orders:ship order=A-17
oncemore runs rerun shop.orders --run 01a1e211 --reason 'the carrier is back'
"""
WORKFLOW_EXAMPLES = """
oncemore workflow list
oncemore workflow signal 01a1e211 approved
oncemore workflow schedules
"""
CONTROL_EXAMPLES = """
oncemore control switch on --reason "the ledger is wrong"
oncemore control approvals
oncemore control approve 01a1e211 --reason "seen: 40 parcels" --expires 1h
oncemore control dataset block survey-2026 --reason "the community has objected"
"""
LIMITS_EXAMPLES = """
oncemore limits breakers
oncemore limits cooldowns
oncemore limits budgets
"""
SIMULATE_EXAMPLES = """
oncemore simulate --policy kfm-loop --since 7d
oncemore simulate storm --clients 100
"""
STORE_EXAMPLES = """
oncemore store doctor
oncemore store backup /backups/log-2026-11-16.db
oncemore store prune --older-than 90d
"""


@click.group(
    "runs",
    cls=LazyGroup,
    modules={
        "list": "runs:runs",
        "steps": "lists:list_steps_command",
        "jobs": "lists:list_jobs_command",
        "submit": "step_commands:submit",
        "cancel": "step_commands:cancel",
        "rerun": "step_commands:rerun",
        "key": "key:key",
    },
    examples=RUNS_EXAMPLES,
    default_command="list",
)
def runs() -> None:
    """List runs, and submit, cancel or repeat work.

    The default command is `list`; `oncemore runs list --help` shows its filters.
    """


@click.group(
    "workflow",
    cls=LazyGroup,
    modules={
        "list": "lists:list_workflows_command",
        "signal": "control:signal",
        "schedules": "schedules:schedules",
        "queues": "schedules:queues",
    },
    examples=WORKFLOW_EXAMPLES,
    default_command="list",
)
def workflow() -> None:
    """List workflows, schedules and queues, and signal a workflow.

    The default command is `list`.
    """


@click.group(
    "control",
    cls=LazyGroup,
    modules={
        "switch": "control:switch",
        "approve": "control:approve",
        "approvals": "control:list_approvals",
        "dataset": "datasets:dataset",
        "roles": "roles:roles",
        "autonomy": "carbon:autonomy",
    },
    examples=CONTROL_EXAMPLES,
)
def control() -> None:
    """Stop and approve work; govern data, roles and autonomy."""


@click.group(
    "limits",
    cls=LazyGroup,
    modules={
        "breakers": "limits:breakers",
        "cooldowns": "cooldowns:cooldowns",
        "rates": "limits:rates",
        "budgets": "limits:list_budgets",
    },
    examples=LIMITS_EXAMPLES,
)
def limits() -> None:
    """List and reset breakers, cooldowns, rates and budgets."""


@click.group(
    "store",
    cls=LazyGroup,
    modules={
        "doctor": "doctor:doctor",
        "health": "doctor:health",
        "verify": "maintenance:verify",
        "sizes": "maintenance:sizes",
        "tail": "runs:tail",
        "prune": "maintenance:prune",
        "erase": "maintenance:erase",
        "backup": "maintenance:backup",
        "accept-copy": "maintenance:accept_copy",
        "move": "maintenance:move",
        "import": "import_keys:import_",
        "import-runs": "run_documents:import_runs",
    },
    examples=STORE_EXAMPLES,
)
def store() -> None:
    """Check, verify, prune, back up and move a store."""


@click.group(
    "simulate",
    cls=LazyGroup,
    modules={"what-if": "simulate:simulate", "storm": "simulate:storm"},
    examples=SIMULATE_EXAMPLES,
    default_command="what-if",
)
def simulate() -> None:
    """Decide recorded runs again; simulate a storm.

    The default command is `what-if`.
    """
