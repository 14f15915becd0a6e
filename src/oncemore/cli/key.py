"""`oncemore runs key`: compute an idempotency key, and list the operations on the record of a key."""

from __future__ import annotations

import click

from oncemore.cli.commands import (
    CommandReport,
    LazyGroup,
    documented_command,
    flag_option,
    json_option,
    store_command,
    value_option,
)
from oncemore.cli.output import OutputWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TextIO

    from oncemore.log.store import Store
    from oncemore.policy.canonical_json import Plain
    from oncemore.queries.keys import KeyOperation

EXAMPLES = """
oncemore runs key --operation kill_switch_update --tenant t-1 --param switch_name=all
oncemore runs key --operation kill_switch_update --params '{"limits": [1, 2]}' --legacy
echo '{"operation": "kill_switch_update", "tenant_id": "t-1"}' | oncemore runs key -
"""
SHOW = """
oncemore runs key show b4b6cd73
oncemore runs key show b4b6cd73 --audit audit.jsonl --json
"""
COLUMN_HEADS = ("time", "action", "correlation id", "operation", "source")


@click.group(
    "key",
    cls=LazyGroup,
    modules={"compute": "key:compute", "show": "key:show"},
    examples=EXAMPLES.strip() + SHOW,
    default_command="compute",
    takes_words=True,
)
def key() -> None:
    """Compute idempotency keys, and audit the record of a key.

    The default command is `compute`.
    """


@store_command("show", SHOW, opener="open_read_only")
@click.argument("name", metavar="KEY", help="The key, or a unique prefix.")
@value_option(
    "--audit files",
    "FILE",
    "File of audit events; only these record hits.",
    type=click.File(encoding="utf-8"),
    multiple=True,
)
def show(store: Store, name: str, files: tuple[TextIO, ...]) -> CommandReport:
    """List the operations on the record of a key.

    Hit, record, clear and expiry in order of time, each with its correlation id. The log does not record
    hits: give the audit file with --audit.
    """
    from oncemore.queries.keys import list_key_operations

    full_key, operations = list_key_operations(store, name, files)
    value = {"key": full_key, "operations": operations}
    return CommandReport(value, lambda out: _print_operations(out, full_key, operations))


def _print_operations(out: OutputWriter, key: str, operations: Sequence[KeyOperation]) -> None:
    from oncemore.queries.times import format_time

    out.write_line(key, "bold")
    # An operation from an audit file has no entry in the log; its source is the file.
    rows = [
        (format_time(one.at), one.action, one.correlation_id, one.operation, one.entry or one.source)
        for one in operations
    ]
    out.write_table([COLUMN_HEADS, *rows])


@documented_command("compute", EXAMPLES)
@click.argument(
    "source",
    metavar="[FILE]",
    type=click.File(encoding="utf-8"),
    required=False,
    help="JSON objects with operation, tenant_id, correlation_id, additional_params; - is standard input.",
)
@value_option("--operation", "NAME", "Name of the operation.")
@value_option("--tenant", "ID", "Tenant of the operation.")
@value_option("--correlation", "ID", "Correlation id of the operation.")
@value_option("--param pairs", "NAME=TEXT", "Additional parameter, as text.", multiple=True)
@value_option("--params", "JSON", "Additional parameters, as a JSON object.")
@flag_option("--legacy", "Use the older key format, for keys that are stored in it.")
@json_option
def compute(
    source: TextIO | None,
    operation: str | None,
    tenant: str | None,
    correlation: str | None,
    pairs: tuple[str, ...],
    params: str | None,
    legacy: bool,
    in_json: bool,
) -> None:
    """Compute the idempotency key of an operation.

    The same parameters give the same key in every order. Each JSON object in FILE gives one key.
    """
    from oncemore.queries.keys import compute_key, parse_objects

    if source is None:
        parameters = [_collect_parts(operation, tenant, correlation, pairs, params)]
    elif operation or tenant or correlation or pairs or params:
        raise click.UsageError("Give either a FILE or the options, not both.", click.get_current_context())
    else:
        parameters = list(parse_objects(source.read()))
    out = OutputWriter(in_json=in_json)
    # All keys are computed before the first is printed: a fault in a later object prints no keys at all.
    for computed in [compute_key(parts, "legacy" if legacy else "canonical") for parts in parameters]:
        if in_json:
            out.write_json_line(computed)
        else:
            out.write_line(computed.key)


def _collect_parts(
    operation: str | None,
    tenant: str | None,
    correlation: str | None,
    pairs: tuple[str, ...],
    params: str | None,
) -> Mapping[str, Plain]:
    if not operation:
        raise click.UsageError("Missing option '--operation'.", click.get_current_context())
    # The names are those of the JSON objects in FILE; --param overrides a name in --params.
    return {
        "operation": operation,
        "tenant_id": tenant,
        "correlation_id": correlation,
        "additional_params": {**_parse_params(params), **dict(_parse_param(pair) for pair in pairs)},
    }


def _parse_params(params: str | None) -> Mapping[str, Plain]:
    from oncemore.queries.keys import parse_objects

    # The parser accepts several objects, as in FILE; an option has only one.
    objects = list(parse_objects(params or ""))
    if len(objects) > 1:
        raise click.BadParameter("give one JSON object.", param_hint="'--params'")
    return objects[0] if objects else {}


def _parse_param(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text!r} is not of the form NAME=TEXT.", param_hint="'--param'")
    return name, value
