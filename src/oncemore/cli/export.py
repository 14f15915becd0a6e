"""`oncemore export`: the group of all exports, and `export asl` for AWS Step Functions."""

from __future__ import annotations

import click

from oncemore.cli.commands import LazyGroup, documented_command, json_option, value_option
from oncemore.cli.output import OutputWriter
from oncemore.cli.policy import provider_option
from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.stepfunctions.service import DefinitionCheck, ExportedDefinition

EXAMPLES = """
oncemore export asl nova-cat --out nova-cat.asl.json
oncemore export asl nova-cat/acquisition
oncemore export asl kfm-rules --accept jitter --function Work=poll-stac
oncemore export asl --check nova-cat.asl.json
"""


@click.group(
    "export",
    cls=LazyGroup,
    modules={
        "asl": "export:asl",
        "runs": "run_documents:export_runs",
        "prov": "lineage:prov",
        "openlineage": "lineage:openlineage",
        "stac": "lineage:stac",
        "dcat": "lineage:dcat",
        "cloudevents": "lineage:cloudevents",
        "telemetry": "lineage:telemetry",
    },
    examples=EXAMPLES
    + """oncemore export runs 0193a000 --states states.yaml --out run.jsonl
    oncemore export prov --since 7d --out lineage.ttl
    oncemore export openlineage --to http://localhost:5000/api/v1/lineage
    oncemore export telemetry --release v1.4.0
    """,
)
def export() -> None:
    """Export runs, lineage and policies to other systems."""


@documented_command("asl", EXAMPLES)
@click.argument("policy", metavar="[POLICY]", required=False)
@provider_option
@value_option("--out file", "FILE", "Write the definition to this file.")
@value_option(
    "--accept",
    "SETTING",
    "Export without this setting if needed: jitter, tuning, total_timeout_s.",
    multiple=True,
)
@value_option("--function functions", "NAME=ARN", "The Lambda function of a task.", multiple=True)
@value_option("--workflow", "NAME", "With nova-cat: only this workflow.")
@value_option("--check", "FILE", "Check an existing definition instead.")
@json_option
def asl(
    policy: str | None,
    provider: str | None,
    file: str | None,
    accept: tuple[str, ...],
    functions: tuple[str, ...],
    workflow: str | None,
    check: str | None,
    in_json: bool,
) -> int:
    """Export a policy, or nova-cat, to Step Functions.

    A policy becomes a state machine around one task, in Amazon States Language: with one retrier if a
    retrier can produce its delays, else with a loop over a list of delays. A policy with a setting that the
    language cannot express is refused, and the error names the setting.

    nova-cat is the whole workflow; nova-cat/default and nova-cat/acquisition are its policies. Functions are
    placeholders such as ${AcquireArtifact}, unless --function names them.
    """
    # Imported here, because the service loads the nova-cat profile.
    from oncemore.stepfunctions import service

    if (policy is None) == (check is None):
        raise click.UsageError("Give either a POLICY or --check FILE.", click.get_current_context())
    out = OutputWriter(in_json=in_json)
    if check is not None:
        return _print_check(out, service.check_file(check))
    is_workflow = policy == "nova-cat"
    if workflow is not None and not is_workflow:
        raise UsageError("--workflow is only for nova-cat")
    # A workflow has several policies, so an option for one policy would be ambiguous.
    if is_workflow and (accept or provider):
        raise UsageError("--accept and --provider are for a policy; nova-cat is a whole workflow")
    arns = _parse_functions(functions)
    exported = (
        service.export_workflow(workflow, arns)
        if is_workflow
        else service.export_policy(str(policy), provider, accept, arns)
    )
    _print_definition(out, exported, file)
    return 0


def _parse_functions(pairs: tuple[str, ...]) -> dict[str, str]:
    arns = {}
    for pair in pairs:
        # An ARN contains colons but no equals sign, so the first one ends the name.
        name, equals, arn = pair.partition("=")
        if not (name and equals and arn):
            raise UsageError(f"--function is {pair!r}; write NAME=ARN")
        arns[name] = arn
    return arns


def _print_definition(out: OutputWriter, exported: ExportedDefinition, file: str | None) -> None:
    """Print the definition, or write it to a file and print the path."""
    import json
    from pathlib import Path

    if file is not None:
        Path(file).write_text(json.dumps(exported.definition, indent=2) + "\n", encoding="utf-8")
    # With --json, the document also has the form, the delays and the notes beside the definition.
    if out.in_json:
        out.write_json(exported)
    elif file is None:
        out.write_json(exported.definition)
    else:
        out.write_paragraph(f"wrote {exported.source} to {file}: {_describe_form(exported)}.")


def _describe_form(exported: ExportedDefinition) -> str:
    delays = ", ".join(f"{delay} s" for delay in exported.delays)
    return {
        "workflow": f"{len(exported.definition['States'])} states",
        "none": "one attempt, no retrier",
        "retrier": f"one retrier with delays of {delays}",
        "loop": f"a loop with delays of {delays}",
    }[exported.form]


def _print_check(out: OutputWriter, check: DefinitionCheck) -> int:
    if out.in_json:
        out.write_json(check)
    elif check.good:
        out.write_line(f"{check.file}: valid")
    else:
        out.write_line(f"{check.file}:")
        for fault in check.faults:
            out.write_paragraph(f"{fault.pointer}: {fault.message} ({fault.rule})", "", "  ")
    return 0 if check.good else 1
