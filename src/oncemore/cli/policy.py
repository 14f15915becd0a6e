"""`oncemore policy`: look at policies before they run."""

from __future__ import annotations

import sys

import click

from oncemore.cli import completion
from oncemore.cli.commands import Branch, Finite, Whole, json_option, leaf, store_option
from oncemore.cli.output import Paper
from oncemore.policy.model import EFFECTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

EXAMPLES = """
oncemore policy list
oncemore policy show kfm-loop
oncemore policy show exoarmur/NATS_CONNECT --attempt 2
oncemore policy check policies/*.yaml
oncemore policy diff kfm-loop p2-batch-reporting
oncemore policy plot kfm-rules --svg kfm-rules.svg
"""

HOMES = {
    "list": "policy:list_", "show": "policy:show", "check": "policy:check",
    "diff": "policy:diff", "plot": "policy:plot", "schema": "policy:schema",
}  # fmt: skip


@click.group("policy", cls=Branch, homes=HOMES, examples=EXAMPLES)
def policy() -> None:
    """Look at policies before they run.

    A policy is named by its address, profile[/policy][@provider]; a path to a .yaml file may stand for
    the profile. Profiles are those that ship with the package, and the files below ONCEMORE_POLICY_ROOT.
    """


def _address(name: str, text: str) -> Callable[[F], F]:
    return click.argument(name, metavar=name.upper(), shell_complete=completion.policies, help=text)


provider_option = click.option(
    "--provider", metavar="NAME", help="The numbers as they are for this provider."
)


@leaf("list", "oncemore policy list\nONCEMORE_POLICY_ROOT=policies oncemore policy list --json")
@json_option
def list_(in_json: bool) -> None:
    """List the policies there are.

    Attempts and time limits are the least and the most among the policies of a profile. A packaged file
    is trusted by the digest it was released with.
    """
    from oncemore.cli.policy_list import print_rows
    from oncemore.queries.policy_catalogue import rows

    paper = Paper(in_json=in_json)
    found = rows()
    if in_json:
        paper.json(found)
    else:
        print_rows(paper, found)


#: Numbers that can stand in a proof: finite, and seconds not below 0.
FINITE = Finite()
SECONDS = Finite(0.0)

ASKED = (
    "attempt error run_id seed effect retry_after elapsed deadline_in expected tokens intensity price "
    "queue_depth parallelism error_budget proof"
)
SHOW = """
oncemore policy show kfm-loop
oncemore policy show policies/mine.yaml --provider eso
oncemore policy show kfm-loop --attempt 3 --intensity 620 --price 0.31
oncemore policy show kfm-rules --attempt 1 --error HTTP_429 --proof
oncemore policy show mine@7:0c5b2a91d3e4 --store runs.db
"""


@leaf("show", SHOW, {"What would it do": ASKED})
@_address("policy", "A policy by its address or file, or as runs and audit events name it.")
@provider_option
@store_option
@click.option("--attempt", metavar="N", type=Whole(1), help="Decide after this failed attempt.")
@click.option("--error", metavar="CODE", default="", help="Its error, as HTTP_503; else one that is retried.")
@click.option("--run-id", metavar="ID", default="", help="The run whose seed the draws come from.")
@click.option("--seed", metavar="TEXT", default="", help="The seed itself.")
@click.option(
    "--effect",
    type=click.Choice(EFFECTS),
    metavar="WORD",
    default="idempotent",
    help=f"What the work does: {', '.join(EFFECTS)}.",
)
@click.option("--retry-after", metavar="S", type=SECONDS, help="What the other side asked for.")
@click.option("--elapsed", metavar="S", type=SECONDS, default=0.0, help="Time since the call began.")
@click.option("--deadline-in", metavar="S", type=FINITE, help="Time to the deadline.")
@click.option("--expected", metavar="S", type=SECONDS, help="What an attempt is expected to take.")
@click.option("--tokens", metavar="N", type=FINITE, help="What the retry budget holds.")
@click.option("--intensity", metavar="G", type=FINITE, help="Grid intensity in g CO2 per kWh.")
@click.option("--price", metavar="USD", type=FINITE, help="Energy price per kWh.")
@click.option("--queue-depth", metavar="N", type=SECONDS, help="Work that waits.")
@click.option("--parallelism", metavar="N", type=SECONDS, help="How much of it runs at once.")
@click.option("--error-budget", metavar="N", type=FINITE, help="What is left of it; 0 forbids stretching.")
@click.option("--proof", is_flag=True, help="Print the proof as canonical JSON, and nothing else.")
@json_option
def show(
    policy: str,
    provider: str | None,
    store: str | None,
    attempt: int | None,
    proof: bool,
    in_json: bool,
    **facts: Any,
) -> None:
    """Show a policy: its worst case, delays, values and origin.

    Every value stands with its meaning, and with the spelling and the remark of its file. With --attempt
    or --error it is said instead what a step would do after that attempt (the first), and why.

    A run, a proof and an audit event name their policy name@version:digest. Such a name is looked for in all
    policy files and in the log; with --store in that log only.
    """
    from oncemore.queries.policies import FoundInLog, find, find_recorded

    found = find_recorded(policy, store) or find(policy, provider)
    paper = Paper(in_json=in_json)
    if isinstance(found, FoundInLog):
        if attempt is not None or facts["error"] or proof:
            raise click.UsageError(
                "A policy in a log answers no questions; `oncemore explain RUN` shows what it decided.",
                click.get_current_context(),
            )
        from oncemore.cli.policy_sheet import print_recorded

        print_recorded(paper, found)
        return
    if attempt is None and facts["error"]:
        attempt = 1
    if attempt is None:
        if proof:
            raise click.UsageError(
                "--proof needs --attempt: a proof is about a decision.", click.get_current_context()
            )
        _show_sheet(paper, found)
    else:
        from oncemore.cli.policy_answer import print_answer, question

        print_answer(paper, found, question(attempt, facts), proof)


def _show_sheet(paper: Paper, found: Any) -> None:
    from oncemore.cli.policy_sheet import print_sheet
    from oncemore.queries.policy_sheet import sheet

    laid_out = sheet(found)
    if paper.in_json:
        paper.json(laid_out)
    else:
        print_sheet(paper, laid_out)


@leaf("check", "oncemore policy check policies/*.yaml\noncemore policy check - < policies/mine.yaml")
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", help="Policy files; - is standard input."
)
@json_option
def check(files: tuple[str, ...], in_json: bool) -> int:
    """Find every fault of policy files.

    Each is told with file, line, column, field and what is allowed. Exit code 1 means that a file cannot
    be used. Warnings do not change it.
    """
    from oncemore.cli.policy_list import print_checks
    from oncemore.queries import policies

    found = [
        policies.check_text(sys.stdin.buffer.read(policies.MOST_BYTES))
        if file == "-"
        else policies.check(file)
        for file in files
    ]
    paper = Paper(in_json=in_json)
    if in_json:
        paper.json(found)
    else:
        print_checks(paper, found)
    return 0 if all(one.good for one in found) else 1


@leaf(
    "diff",
    "oncemore policy diff kfm-loop p2-batch-reporting\noncemore policy diff kfm-rules mine.yaml --exit-code",
)
@_address("a", "A policy by its address or file.")
@_address("b", "Another one.")
@provider_option
@click.option("--exit-code", is_flag=True, help="End with 1 when the two decide differently.")
@json_option
def diff(a: str, b: str, provider: str | None, exit_code: bool, in_json: bool) -> int:
    """Compare two policies by field, delay and decision.

    Both are asked about the same example situations; shown is where they part.
    """
    from oncemore.cli.policy_diff import print_difference
    from oncemore.queries.policies import find
    from oncemore.queries.policy_compare import compare

    one, other = find(a, provider), find(b, provider)
    found = compare(one.policy, other.policy, (one.address, other.address))
    paper = Paper(in_json=in_json)
    if in_json:
        paper.json(found)
    else:
        print_difference(paper, found)
    return 1 if exit_code and not found.same else 0


@leaf("plot", "oncemore policy plot kfm-loop\noncemore policy plot kfm-rules --runs 3\n"
      "oncemore policy plot kfm-rules --svg kfm-rules.svg --seed release-7 --runs 20")  # fmt: skip
@_address("policy", "A policy by its address or file.")
@provider_option
@click.option("--svg", metavar="FILE", help="Draw into this file instead; - is standard output.")
@click.option("--seed", metavar="TEXT", default="", help="What sample runs are drawn from.")
@click.option("--runs", type=Whole(0, 200), help="How many sample runs to draw; 5 in SVG, else none.")
@json_option
def plot(
    policy: str, provider: str | None, svg: str | None, seed: str, runs: int | None, in_json: bool
) -> None:
    """Draw a policy's delays with the band of their jitter."""
    from oncemore.cli.chart_drawing import draw
    from oncemore.queries.policies import find
    from oncemore.queries.policy_graph import graph

    if svg == "-" and in_json:
        raise click.UsageError("--svg - and --json both want standard output.", click.get_current_context())
    count = runs if runs is not None else 5 if svg else 0
    draw(Paper(in_json=in_json), graph(find(policy, provider), seed, count), svg)


@leaf("schema", "oncemore policy schema > policy.schema.json")
@json_option
def schema(in_json: bool) -> None:
    """Print the JSON Schema of policy files."""
    from oncemore.policy.files import schema as of_files

    Paper(in_json=True).json(of_files())
