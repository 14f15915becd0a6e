"""`oncemore key`: the idempotency key of given parameters, and what happened to the record of one."""

from __future__ import annotations

import click

from oncemore.cli.commands import Branch, json_option, leaf, store_option
from oncemore.cli.output import Paper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

    from oncemore.policy.canonical_json import Plain

EXAMPLES = """
oncemore key --operation kill_switch_update --tenant tenant-123 --param switch_name=all
oncemore key --operation kill_switch_update --params '{"limits": [1, 2]}' --legacy
echo '{"operation": "kill_switch_update", "tenant_id": "tenant-123"}' | oncemore key -
"""
SHOW = """
oncemore key show b4b6cd73
oncemore key show b4b6cd73 --audit audit.jsonl --json
"""
HEADS = ("when", "operation", "correlation id", "of", "where")


@click.group(
    "key",
    cls=Branch,
    homes={"compute": "key:compute", "show": "key:show"},
    examples=EXAMPLES.strip() + SHOW,
    usual="compute",
    takes_words=True,
)
def key() -> None:
    """Compute idempotency keys, and audit the record of one.

    Without a command it is `compute`, with all of its options.
    """


@leaf("show", SHOW)
@click.argument("name", metavar="KEY", help="The key, or its beginning.")
@click.option("--audit", "files", metavar="FILE", type=click.File(encoding="utf-8"), multiple=True,
              help="A file of audit events: hits are there, and not in the log.")  # fmt: skip
@store_option
@json_option
def show(name: str, files: tuple[TextIO, ...], store: str | None, in_json: bool) -> None:
    """List what happened to the record of a key.

    Hit, record, clear and expiry in the order of time, each with its correlation id. The log has all of them
    but hits.
    """
    from oncemore.queries.key_audit import list_key_operations
    from oncemore.queries.open_engine import looked_at
    from oncemore.queries.times import shown

    with looked_at(store) as opened:
        whole, found = list_key_operations(opened, name, files)
    paper = Paper(in_json=in_json)
    if in_json:
        paper.json({"key": whole, "operations": found})
    else:
        paper.line(whole, "bold")
        rows = [
            (shown(one.at), one.action, one.correlation_id, one.operation, one.entry or one.source)
            for one in found
        ]
        paper.table([HEADS, *rows])


@leaf("compute", EXAMPLES)
@click.argument(
    "source",
    metavar="[FILE]",
    type=click.File(encoding="utf-8"),
    required=False,
    help="JSON objects with operation, tenant_id, correlation_id, additional_params; - is standard input.",
)
@click.option("--operation", metavar="NAME", help="What is done.")
@click.option("--tenant", metavar="ID", help="For whom.")
@click.option("--correlation", metavar="ID", help="In which course of events.")
@click.option("--param", "pairs", metavar="NAME=TEXT", multiple=True, help="A further parameter, as text.")
@click.option("--params", metavar="JSON", help="Further parameters, as a JSON object.")
@click.option("--legacy", is_flag=True, help="The document's printed form, for keys that it has stored.")
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

    The same parameters always give the same key, in whatever order they come. Each
    object in FILE gives one key.
    """
    from oncemore.queries.keys import documents, key_of

    if source is None:
        asked = [_parts(operation, tenant, correlation, pairs, params)]
    elif operation or tenant or correlation or pairs or params:
        raise click.UsageError("Give either a FILE or the options, not both.", click.get_current_context())
    else:
        asked = list(documents(source.read()))
    paper = Paper(in_json=in_json)
    for found in [key_of(parts, "legacy" if legacy else "canonical") for parts in asked]:
        if in_json:
            paper.record(found)
        else:
            paper.line(found.key)


def _parts(
    operation: str | None,
    tenant: str | None,
    correlation: str | None,
    pairs: tuple[str, ...],
    params: str | None,
) -> Mapping[str, Plain]:
    if not operation:
        raise click.UsageError("Missing option '--operation'.", click.get_current_context())
    return {
        "operation": operation,
        "tenant_id": tenant,
        "correlation_id": correlation,
        "additional_params": {**_object(params), **dict(_pair(pair) for pair in pairs)},
    }


def _object(params: str | None) -> Mapping[str, Plain]:
    from oncemore.queries.keys import documents

    found = list(documents(params or ""))
    if len(found) > 1:
        raise click.BadParameter("it takes one JSON object.", param_hint="'--params'")
    return found[0] if found else {}


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text!r} is not of the form NAME=TEXT.", param_hint="'--param'")
    return name, value
