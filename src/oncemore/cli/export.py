"""`oncemore export asl`: policies and workflows for Step Functions."""

from __future__ import annotations

import click

from oncemore.cli.commands import Branch, json_option, leaf
from oncemore.cli.output import Paper
from oncemore.cli.policy import provider_option
from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.stepfunctions.service import Checked, Exported

EXAMPLES = """
oncemore export asl nova-cat --out nova-cat.asl.json
oncemore export asl nova-cat/acquisition
oncemore export asl kfm-rules --accept jitter --function Work=poll-stac
oncemore export asl --check nova-cat.asl.json
"""


@click.group(
    "export",
    cls=Branch,
    homes={"asl": "export:asl", "runs": "run_documents:export_runs"},
    examples=EXAMPLES + "oncemore export runs 0193a000 --states states.yaml --out run.jsonl\n",
)
def export() -> None:
    """Write policies, workflows and runs in the words of others."""


@click.group(
    "asl", cls=Branch, homes={"export": "export:export_asl"}, examples="oncemore asl export nova-cat"
)
def asl_branch() -> None:
    """Export to Step Functions: `asl export` is `export asl`."""


@leaf("asl", EXAMPLES)
@click.argument("policy", metavar="[POLICY]", required=False)
@provider_option
@click.option("--out", metavar="FILE", help="Write the definition into this file.")
@click.option(
    "--accept", metavar="KNOB", multiple=True,
    help="Leave this out where the language cannot say it: jitter, tuning, within_s.",
)  # fmt: skip
@click.option(
    "--function", "functions", metavar="NAME=ARN", multiple=True, help="Which Lambda function a task calls."
)
@click.option("--workflow", metavar="NAME", help="Of nova-cat: this workflow alone.")
@click.option("--check", metavar="FILE", help="Say what is wrong with a definition, instead.")
@json_option
def asl(
    policy: str | None,
    provider: str | None,
    out: str | None,
    accept: tuple[str, ...],
    functions: tuple[str, ...],
    workflow: str | None,
    check: str | None,
    in_json: bool,
) -> int:
    """Write a policy, or nova-cat, for Step Functions.

    A policy becomes a state machine around one task, in Amazon States Language: one retrier if its delays
    are those of one, else a loop that waits by a list. What the language cannot say is refused with the
    knob's name.

    nova-cat is the whole workflow; nova-cat/default and nova-cat/acquisition are its policies. Functions
    are placeholders, ${AcquireArtifact}, unless --function names them.
    """
    from oncemore.stepfunctions import service

    if (policy is None) == (check is None):
        raise click.UsageError("Give a POLICY, or --check FILE.", click.get_current_context())
    paper = Paper(in_json=in_json)
    if check is not None:
        return _print_check(paper, service.check(check))
    whole = policy == "nova-cat"
    if workflow is not None and not whole:
        raise UsageError("--workflow is for nova-cat")
    if whole and (accept or provider):
        raise UsageError("--accept and --provider are for a policy; nova-cat is the whole workflow")
    named = _functions(functions)
    made = (
        service.workflow(workflow, named)
        if whole
        else service.policy(str(policy), provider, accept, named)
    )  # fmt: skip
    _print(paper, made, out)
    return 0


export_asl = leaf("export", EXAMPLES.replace("export asl", "asl export"))(asl.callback)
export_asl.params = asl.params


def _functions(told: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for one in told:
        name, is_, arn = one.partition("=")
        if not (name and is_ and arn):
            raise UsageError(f"--function is {one!r}; write NAME=ARN")
        found[name] = arn
    return found


def _print(paper: Paper, made: Exported, out: str | None) -> None:
    """Print the definition, or write it and say so."""
    import json
    from pathlib import Path

    if out is not None:
        Path(out).write_text(json.dumps(made.definition, indent=2) + "\n", encoding="utf-8")
    if paper.in_json:
        paper.json(made)
    elif out is None:
        paper.json(made.definition)
    else:
        paper.say(f"{made.source} is in {out}: {_told(made)}.")


def _told(made: Exported) -> str:
    waits = ", ".join(f"{delay} s" for delay in made.delays)
    return {
        "workflow": f"{len(made.definition['States'])} states",
        "none": "one attempt, and no retrier",
        "retrier": f"one retrier, which waits {waits}",
        "loop": f"a loop, which waits {waits}",
    }[made.form]


def _print_check(paper: Paper, found: Checked) -> int:
    if paper.in_json:
        paper.json(found)
    elif found.good:
        paper.line(f"{found.file}: good")
    else:
        paper.line(f"{found.file}:")
        for fault in found.faults:
            paper.say(f"{fault.where}: {fault.what} ({fault.rule})", "", "  ")
    return 0 if found.good else 1
