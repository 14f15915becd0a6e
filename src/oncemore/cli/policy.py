"""`oncemore policy`: list, show, check, compare and plot policies."""

from __future__ import annotations

import sys

import click

from oncemore.cli import params
from oncemore.cli.commands import (
    CommandReport,
    FiniteNumber,
    LazyGroup,
    WholeNumber,
    choice_option,
    documented_command,
    flag_option,
    json_option,
    report_command,
    store_option,
    value_option,
)
from oncemore.cli.output import OutputWriter
from oncemore.policy.model import EFFECTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    from oncemore.queries.policies import FoundPolicy
    from oncemore.queries.policy_question import PolicyQuestion

    F = TypeVar("F", bound=Callable[..., Any])

EXAMPLES = """
oncemore policy list
oncemore policy show kfm-loop
oncemore policy show exoarmur/NATS_CONNECT --attempt 2
oncemore policy check policies/*.yaml
oncemore policy sign policies/mine.yaml --key keys/steward
oncemore policy diff kfm-loop p2-batch-reporting
oncemore policy plot kfm-rules --svg kfm-rules.svg
oncemore policy propose kfm-loop --out policies/kfm-loop-next.yaml
"""

COMMANDS = {
    "list": "policy:list_", "show": "policy:show", "check": "policy:check",
    "diff": "policy:diff", "plot": "policy:plot", "schema": "policy:schema",
    "keygen": "policy_signing:keygen", "sign": "policy_signing:sign", "verify": "policy_signing:verify",
    "accepted": "policy_signing:accepted", "propose": "policy_proposals:propose",
}  # fmt: skip


@click.group("policy", cls=LazyGroup, modules=COMMANDS, examples=EXAMPLES)
def policy() -> None:
    """Inspect policies before they are used.

    The address of a policy is profile[/policy][@provider]; the profile may be a path to a .yaml file.
    Profiles are the packaged ones and the files in the folder ONCEMORE_POLICY_ROOT.
    """


def _policy_argument(name: str, text: str) -> Callable[[F], F]:
    return click.argument(name, metavar=name.upper(), shell_complete=params.complete_policies, help=text)


provider_option = value_option("--provider", "NAME", "Use the values of this provider.")


@report_command("list", "oncemore policy list\nONCEMORE_POLICY_ROOT=policies oncemore policy list --json")
def list_() -> CommandReport:
    """List the available policies.

    Attempts and time limits are shown as the range over all policies of a profile. A packaged file is
    trusted by the digest of its release.
    """
    from oncemore.cli.policy_tables import print_profiles
    from oncemore.queries.policy_catalogue import list_profiles

    profiles = list_profiles()
    return CommandReport(profiles, lambda out: print_profiles(out, profiles))


#: A proof is JSON, which has no infinity and no NaN.
FINITE = FiniteNumber()
SECONDS = FiniteNumber(0.0)

QUESTION_OPTIONS = (
    "attempt error run_id seed effect retry_after elapsed deadline_in expected tokens intensity price "
    "queue_depth parallelism error_budget proof"
)
SHOW_EXAMPLES = """
oncemore policy show kfm-loop
oncemore policy show policies/mine.yaml --provider eso
oncemore policy show kfm-loop --attempt 3 --intensity 620 --price 0.31
oncemore policy show kfm-rules --attempt 1 --error HTTP_429 --proof
oncemore policy show mine@7:0c5b2a91d3e4 --store runs.db
"""


@documented_command("show", SHOW_EXAMPLES, {"Ask for a decision": QUESTION_OPTIONS})
@_policy_argument("policy", "Address or file of a policy, or name@version:digest.")
@provider_option
@store_option
@value_option("--attempt", "N", "Decide after this failed attempt.", type=WholeNumber(1))
@value_option("--error", "CODE", "Its error, such as HTTP_503; default: a retried one.", default="")
@value_option("--run-id", "ID", "Draw the jitter from the seed of this run.", default="")
@value_option("--seed", "TEXT", "Draw the jitter from this seed.", default="")
@choice_option("--effect", EFFECTS, f"Effect of the step: {', '.join(EFFECTS)}.", default="idempotent")
@value_option("--retry-after", "S", "Retry-After of the provider.", type=SECONDS)
@value_option("--elapsed", "S", "Time since the start of the call.", type=SECONDS, default=0.0)
@value_option("--deadline-in", "S", "Time to the deadline.", type=FINITE)
@value_option("--expected", "S", "Expected duration of an attempt.", type=SECONDS)
@value_option("--tokens", "N", "Tokens in the retry budget.", type=FINITE)
@value_option("--intensity", "G", "Grid intensity in g CO2 per kWh.", type=FINITE)
@value_option("--price", "USD", "Energy price per kWh.", type=FINITE)
@value_option("--queue-depth", "N", "Number of waiting runs.", type=SECONDS)
@value_option("--parallelism", "N", "Number of runs at the same time.", type=SECONDS)
@value_option("--error-budget", "N", "Remaining error budget; 0 forbids stretching.", type=FINITE)
@flag_option("--proof", "Print only the proof, as canonical JSON.")
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

    Each value is shown with its meaning, and with the spelling and the comment in its file. With --attempt
    or --error, the decision after that failed attempt (default: the first) is shown instead, with its reason.

    Runs, proofs and audit events refer to a policy as name@version:digest. Such a name is looked up in all
    policy files and in the log; with --store, only in that log.
    """
    from oncemore.queries.policies import FoundInLog, find_policy, find_recorded

    # A name with version and digest may exist only in a log; an address always means a file.
    found = find_recorded(policy, store) or find_policy(policy, provider)
    out = OutputWriter(in_json=in_json)
    if isinstance(found, FoundInLog):
        if attempt is not None or facts["error"] or proof:
            raise click.UsageError(
                "A policy from a log makes no decisions; `oncemore explain RUN` shows those it has made.",
                click.get_current_context(),
            )
        from oncemore.cli.policy_sheet import print_recorded

        print_recorded(out, found)
        return
    # --error alone asks about the first attempt.
    if attempt is None and facts["error"]:
        attempt = 1
    if attempt is None:
        if proof:
            raise click.UsageError(
                "--proof needs --attempt: a proof belongs to a decision.", click.get_current_context()
            )
        _show_sheet(out, found)
    else:
        _print_answer(out, found, _make_question(attempt, facts), proof)


def _show_sheet(out: OutputWriter, found: FoundPolicy) -> None:
    from oncemore.cli.policy_sheet import print_sheet
    from oncemore.queries.policy_sheet import build_sheet

    sheet = build_sheet(found)
    if out.in_json:
        out.write_json(sheet)
    else:
        print_sheet(out, sheet)


def _make_question(attempt: int, facts: Mapping[str, Any]) -> PolicyQuestion:
    from oncemore.policy.tuning import Signals
    from oncemore.queries.policy_question import EXAMPLE_RUN, PolicyQuestion

    # An option that is not given is None, which a policy treats as an unknown signal.
    signals = Signals(
        facts["intensity"], facts["price"], facts["queue_depth"], facts["parallelism"], facts["error_budget"]
    )
    return PolicyQuestion(
        attempt=attempt,
        code=facts["error"],
        seed=facts["seed"],
        run_id=facts["run_id"] or EXAMPLE_RUN,
        effect=facts["effect"],
        retry_after_s=facts["retry_after"],
        elapsed_s=facts["elapsed"],
        deadline_in_s=facts["deadline_in"],
        expected_s=facts["expected"],
        tokens=facts["tokens"],
        # Without any of the options the policy is not tuned, as in a process that has no signals.
        signals=None if signals == Signals() else signals,
    )


def _print_answer(out: OutputWriter, found: FoundPolicy, question: PolicyQuestion, proof: bool) -> None:
    """Print the decision with its explanation, or only its proof."""
    from oncemore.queries.charts import format_number
    from oncemore.queries.policy_question import answer_question

    answer = answer_question(found.policy, question, quarantines=found.quarantines)
    # The proof is written as bytes: a replay compares exactly these.
    if proof:
        out.write_bytes(answer.canonical + b"\n")
    elif out.in_json:
        out.write_json(answer)
    else:
        wait = f" in {format_number(answer.delay_s)} s" if answer.action == "retry" else f" ({answer.reason})"
        out.write_line(f"{answer.action}{wait}", "green" if answer.action == "retry" else "yellow")
        out.write_line()
        out.write_paragraph(answer.explanation)
        out.write_line()
        out.write_paragraph(
            "Times are relative to the failure. --proof prints all inputs of the decision.", "dim"
        )


@report_command(
    "check",
    "oncemore policy check policies/*.yaml\noncemore policy check - < policies/mine.yaml\n"
    "oncemore policy check policies/mine.yaml --against main",
)
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", help="Policy files; - is standard input."
)
@value_option("--against", "REV", "Compare with a commit of git, a profile or a file.")
def check(files: tuple[str, ...], against: str | None) -> CommandReport:
    """Find all errors in policy files.

    Each error is printed with file, line, column, field and the allowed values. Exit code 1 if a file is not
    valid. Warnings do not change the exit code.

    With --against, a changed number, formula or class without a higher version is an error too: it is named
    with its old and new value. A governed file also needs the evidence that `oncemore simulate --evidence`
    writes.
    """
    from oncemore.cli.policy_tables import print_checks
    from oncemore.queries import policies

    if against is not None and "-" in files:
        raise click.UsageError(
            "--against needs a file, and - is standard input.", click.get_current_context()
        )
    if against is not None:
        from oncemore.queries.policy_changes import check_against

        changes = [check_against(file, against) for file in files]
        code = 0 if all(result.good for result in changes) else 1
        return CommandReport(changes, lambda out: print_checks(out, changes), code)
    # Standard input is read only up to the size limit of a policy file.
    checks = [
        policies.check_text(sys.stdin.buffer.read(policies.MAX_BYTES))
        if file == "-"
        else policies.check_file(file)
        for file in files
    ]
    is_valid = all(result.good for result in checks)
    return CommandReport(checks, lambda out: print_checks(out, checks), 0 if is_valid else 1)


@report_command(
    "diff",
    "oncemore policy diff kfm-loop p2-batch-reporting\noncemore policy diff kfm-rules mine.yaml --exit-code",
)
@_policy_argument("a", "Address or file of a policy.")
@_policy_argument("b", "Address or file of another policy.")
@provider_option
@flag_option("--exit-code", "Exit with 1 if the policies decide differently.")
def diff(a: str, b: str, provider: str | None, exit_code: bool) -> CommandReport:
    """Compare two policies by field, delay and decision.

    Both decide about the same example situations; the differences are printed.
    """
    from oncemore.cli.policy_tables import print_difference
    from oncemore.queries.policies import find_policy
    from oncemore.queries.policy_compare import compare_policies

    first, second = find_policy(a, provider), find_policy(b, provider)
    difference = compare_policies(first.policy, second.policy, (first.address, second.address))
    # As in `git diff`, a difference is not a failure unless the caller asks for it.
    code = 1 if exit_code and not difference.same else 0
    return CommandReport(difference, lambda out: print_difference(out, difference), code)


@documented_command("plot", "oncemore policy plot kfm-loop\noncemore policy plot kfm-rules --runs 3\n"
      "oncemore policy plot kfm-rules --svg kfm-rules.svg --seed release-7 --runs 20")  # fmt: skip
@_policy_argument("policy", "Address or file of a policy.")
@provider_option
@value_option("--svg", "FILE", "Write an SVG file instead; - is standard output.")
@value_option("--seed", "TEXT", "Seed of the sample runs.", default="")
@click.option("--runs", type=WholeNumber(0, 200), help="Number of sample runs; default: 5 in SVG, else 0.")
@json_option
def plot(
    policy: str, provider: str | None, svg: str | None, seed: str, runs: int | None, in_json: bool
) -> None:
    """Plot the delays of a policy with the range of their jitter."""
    from oncemore.cli.charts import draw_schedule
    from oncemore.queries.policies import find_policy
    from oncemore.queries.policy_schedule import build_graph

    if svg == "-" and in_json:
        raise click.UsageError("--svg - and --json both use standard output.", click.get_current_context())
    # In a terminal, the dots of sample runs hide parts of the bars.
    count = runs if runs is not None else 5 if svg else 0
    draw_schedule(OutputWriter(in_json=in_json), build_graph(find_policy(policy, provider), seed, count), svg)


@documented_command("schema", "oncemore policy schema > policy.schema.json")
@json_option
def schema(in_json: bool) -> None:
    """Print the JSON Schema of policy files."""
    from oncemore.policy.files import schema as build_schema

    # The schema is JSON in any case; --json is accepted as for every other command.
    OutputWriter(in_json=True).write_json(build_schema())
