"""`oncemore control dataset`: register, label and block datasets, and list what the gate asks about."""

from __future__ import annotations

import click

from oncemore.cli.commands import (
    CommandReport,
    LazyGroup,
    choice_option,
    combine_options,
    reason_option,
    store_command,
    value_option,
)
from oncemore.cli.decisions import decision_options
from oncemore.cli.params import PAIR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from oncemore.cli.output import OutputWriter
    from oncemore.governance.dataset_model import DatasetRecord
    from oncemore.governance.datasets import DatasetChange
    from oncemore.steps.engine import Engine

EXAMPLES = """
oncemore control dataset load datasets.yaml --reason "delivery of November"
oncemore control dataset register survey-2026 --set care_label="Public · Low-Risk" --reason "…"
oncemore control dataset label survey-2026 --set rights=denied --reason "letter 17"
oncemore control dataset block survey-2026 --reason "the community has objected"
oncemore control dataset show survey-2026
"""
STATUSES = ("open", "restricted", "blocked", "withdrawn")
_NAMES = ("show", "load", "register", "label", "restrict", "block", "withdraw", "release")
COMMANDS = {"list": "datasets:list_", **{name: f"datasets:{name}" for name in _NAMES}}
#: The words of a flag on the command line.
_FLAGS = {"true": True, "false": False}


@click.group("dataset", cls=LazyGroup, modules=COMMANDS, examples=EXAMPLES, default_command="list")
def dataset() -> None:
    """Register datasets and decide what may be done with them.

    A step with `dataset=` asks the registry before every attempt. A run that is refused is quarantined, and
    an escalation to the FAIR+CARE Council is opened. The default command is `list`.
    """


_id_argument = click.argument("dataset_id", metavar="ID", help="Id of the dataset.")
_decision_options = combine_options(_id_argument, reason_option, decision_options)
_fields_option = value_option(
    "--set fields", "FIELD=VALUE", "A field of the dataset; may be repeated.", type=PAIR, multiple=True
)


@store_command("list", "oncemore control dataset list\noncemore control dataset list --status blocked --json")
@choice_option("--status", STATUSES, f"Only this status: {', '.join(STATUSES)}.")
def list_(engine: Engine, status: str | None) -> CommandReport:
    """List the registered datasets."""
    found = engine.datasets.list(status=status)
    return CommandReport(found, lambda out: _print_datasets(out, found))


@store_command(
    "show", "oncemore control dataset show survey-2026\noncemore control dataset show survey-2026 --json"
)
@_id_argument
def show(engine: Engine, dataset_id: str) -> CommandReport:
    """Show one dataset and its changes, with who, when and why. Exit code 1 if it is not registered."""
    record, history = engine.datasets.get(dataset_id), engine.datasets.history(dataset_id)
    if record is None:
        # A script can ask whether a dataset is registered by the exit code.
        text = f"Dataset {dataset_id} is not registered."
        return CommandReport(None, lambda out: out.write_line(text, "yellow"), 1)
    return CommandReport(
        {**record._asdict(), "history": history}, lambda out: _print_dataset(out, record, history)
    )


@store_command("load", 'oncemore control dataset load datasets.yaml --reason "delivery of November"')
@click.argument("file", metavar="FILE", help="YAML file with `datasets:` by id.")
@reason_option
@decision_options
def load(engine: Engine, file: str, reason: str, by: str | None) -> CommandReport:
    """Register or change the datasets of a YAML file.

    All faults of the file are reported with their lines, and then nothing is changed. A file cannot open a
    dataset that is blocked in the store, grant rights that the store denies, or lower a masking level.
    """
    changed = engine.datasets.load(file, reason=reason, by=by)
    names = ", ".join(record.dataset_id for record in changed) or "nothing has changed"
    return CommandReport(changed, lambda out: out.write_line(f"loaded {file}: {names}", "green"))


@store_command(
    "register",
    'oncemore control dataset register survey-2026 --set care_label="Public · Low-Risk" --reason "…"',
)
@_decision_options
@_fields_option
def register(engine: Engine, dataset_id: str, fields: Sequence[Any], **decision: Any) -> CommandReport:
    """Register a dataset; `care_label` is required."""
    return _report_change(engine.datasets.register(dataset_id, **_parse_fields(fields), **decision))


@store_command(
    "label", 'oncemore control dataset label survey-2026 --set rights=denied --reason "the licence ended"'
)
@_decision_options
@_fields_option
def label(engine: Engine, dataset_id: str, fields: Sequence[Any], **decision: Any) -> CommandReport:
    """Change fields of a dataset other than its status."""
    return _report_change(engine.datasets.label(dataset_id, **_parse_fields(fields), **decision))


@store_command(
    "restrict", 'oncemore control dataset restrict survey-2026 --operation count --reason "only counts"'
)
@_decision_options
@value_option("--operation operations", "NAME", "A permitted operation; may be repeated.", multiple=True)
def restrict(engine: Engine, dataset_id: str, operations: Sequence[str], **decision: Any) -> CommandReport:
    """Permit only some operations on a dataset.

    Without --operation it permits none.
    """
    return _report_change(engine.datasets.restrict(dataset_id, operations=operations, **decision))


@store_command("block", 'oncemore control dataset block survey-2026 --reason "the community has objected"')
@_decision_options
def block(engine: Engine, dataset_id: str, **decision: Any) -> CommandReport:
    """Block a dataset: no attempt on it begins any more."""
    return _report_change(engine.datasets.block(dataset_id, **decision))


@store_command("withdraw", 'oncemore control dataset withdraw survey-2026 --reason "letter of the council"')
@_decision_options
def withdraw(engine: Engine, dataset_id: str, **decision: Any) -> CommandReport:
    """Mark a dataset as withdrawn: no attempt on it begins any more."""
    return _report_change(engine.datasets.withdraw(dataset_id, **decision))


@store_command("release", 'oncemore control dataset release survey-2026 --reason "the council has agreed"')
@_decision_options
def release(engine: Engine, dataset_id: str, **decision: Any) -> CommandReport:
    """Open a dataset again.

    Quarantined runs stay in quarantine until they are decided.
    """
    return _report_change(engine.datasets.release(dataset_id, **decision))


def _parse_fields(pairs: Sequence[Any]) -> dict[str, Any]:
    """Return the fields of --set with their types: flags, whole numbers, and lists with commas."""
    fields: dict[str, Any] = {}
    for name, text in pairs:
        # Only these fields are not texts.
        if name == "operations":
            fields[name] = [part.strip() for part in text.split(",") if part.strip()]
        elif name == "masking_level" and text.isdecimal():
            fields[name] = int(text)
        else:
            is_flag = name in ("indigenous_rights_flag", "redaction_required")
            fields[name] = _FLAGS.get(text.lower(), text) if is_flag else text
    return fields


def _report_change(record: DatasetRecord) -> CommandReport:
    text = f"{record.dataset_id} is {record.state.lower()}: {record.care_label} (by {record.by})"
    return CommandReport(record, lambda out: out.write_line(text, _color_of(record)))


def _color_of(record: DatasetRecord) -> Any:
    return "green" if record.state == "OPEN" else "yellow"


def _print_datasets(out: OutputWriter, records: Sequence[DatasetRecord]) -> None:
    if not records:
        out.write_line("No datasets match.", "green")
        return
    heads = ("dataset", "status", "care label", "sensitivity", "rights", "masking", "operations")
    rows = [
        (
            record.dataset_id,
            record.state,
            record.care_label,
            record.sensitivity or "-",
            record.rights,
            str(record.masking_level),
            ", ".join(record.operations) or "-",
        )
        for record in records
    ]
    out.write_table([heads, *rows])


def _print_dataset(out: OutputWriter, record: DatasetRecord, history: Sequence[DatasetChange]) -> None:
    from oncemore.governance.dataset_model import describe_dataset
    from oncemore.queries.times import format_time

    out.write_line(f"{record.dataset_id}: {record.state}", "bold")
    rows = [
        (name, ", ".join(value) if isinstance(value, list) else str(value))
        for name, value in describe_dataset(record).items()
        # A field that is not set says nothing; the flags are always shown.
        if name not in ("state", "dataset_id") and value not in ("", [])
    ]
    out.write_table(rows)
    out.write_line()
    changes = [
        (format_time(change.at), change.action, change.by, ", ".join(change.changes), change.reason)
        for change in history
    ]
    out.write_table([("at", "action", "by", "fields", "reason"), *changes])
