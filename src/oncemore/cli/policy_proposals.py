"""`oncemore policy propose`: write a new version of a policy with its evidence."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from oncemore.cli import params
from oncemore.cli.commands import (
    CommandReport,
    FiniteNumber,
    WholeNumber,
    documented_command,
    json_option,
    store_option,
    value_option,
    write_report,
)
from oncemore.cli.output import ProgressLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.cli.output import OutputWriter
    from oncemore.queries.policy_proposals import ProposedChange

EXAMPLES = """
oncemore policy propose kfm-loop --since 30d --out policies/kfm-loop-next.yaml
oncemore policy propose policies/mine.yaml --out policies/mine-2.yaml --json
"""


@documented_command("propose", EXAMPLES)
@click.argument("policy", metavar="POLICY", shell_complete=params.complete_policies,
                help="Address or file of the policy that is in use.")  # fmt: skip
@value_option("--out", "FILE", "The new policy file; it must not exist.", required=True)
@value_option("--since", "TIME", "Only runs with entries since this time (30d).", default="30d")
@value_option("--until", "TIME", "Only runs with entries until this time; default: now.")
@value_option("--intensity", "G|FILE", "Grid intensity in g CO2 per kWh, or a file of times and values.")
@value_option("--attempt-energy", "KWH", "Energy of attempts without a measured value.",
              type=FiniteNumber(0.0))  # fmt: skip
@value_option("--min-runs", "N", "Fewest runs that a proposal needs (30).", type=WholeNumber(3), default=30)
@store_option
@json_option
def propose(
    policy: str,
    out: str,
    since: str,
    until: str | None,
    intensity: str | None,
    attempt_energy: float | None,
    min_runs: int,
    store: str | None,
    in_json: bool,
) -> int:
    """Write a better version of a policy, from recorded runs.

    Other numbers of attempts and other delays are simulated on the recorded runs. A proposal saves attempts
    or time, and lets no run fail or miss its deadline that did not before. It is a file to review and sign;
    nothing that runs is changed. --intensity and --attempt-energy give the figures of its evidence that the
    runs lack. Exit code 1 if no better numbers were found.
    """
    from oncemore.queries.policies import find_policy
    from oncemore.queries.policy_proposals import find_proposal, write_proposal
    from oncemore.queries.recorded_runs import RecordedRunFilter, load_recorded_runs
    from oncemore.queries.stores import open_read_only
    from oncemore.queries.times import parse_instant
    from oncemore.queries.what_if import read_timeline
    from oncemore.simulate.recorded_runs import SimulatedWorld

    world = SimulatedWorld(
        intensity=None if intensity is None else read_timeline(intensity, "intensity"),
        energy_kwh=attempt_energy,
    )
    found, path = find_policy(policy), Path(out)
    # Other suffixes are not found as policies later.
    if path.suffix not in (".yaml", ".yml"):
        raise click.UsageError("--out takes the name of a .yaml file.", click.get_current_context())
    with open_read_only(store) as opened, ProgressLine("reading runs", quiet=in_json) as progress:
        now = opened.now()
        end = now if until is None else parse_instant(until, now)
        runs = load_recorded_runs(opened, RecordedRunFilter(parse_instant(since, now), end), progress)
    # The store is closed before the simulation, which can take a while.
    change = find_proposal(found, runs, least_runs=min_runs, world=world)
    if change is None:
        text = f"No better numbers for {found.policy.name} in {len(runs):,} runs; nothing was written."
        return write_report(CommandReport({"proposed": False}, lambda out: out.write_line(text), 1), in_json)
    # In the file, so that a reviewer can repeat it.
    options = {"since": since, "until": until, "intensity": intensity, "attempt-energy": attempt_energy}
    given = [
        part for name, value in options.items() if value is not None for part in (f"--{name}", str(value))
    ]
    command = shlex.join(["oncemore", "policy", "propose", policy, *given, "--out", out])
    paths = write_proposal(change, found, path, command)
    value = {"proposed": True, "files": [str(place) for place in paths], "changes": change.changes,
             "old": change.old, "new": change.new, "figures": change.comparison.figures}  # fmt: skip
    return write_report(CommandReport(value, lambda out: _print_proposal(out, change, paths)), in_json)


def _print_proposal(out: OutputWriter, change: ProposedChange, paths: tuple[Path, ...]) -> None:
    from oncemore.queries.simulation_documents import format_value

    out.write_line(f"{change.old} → {change.new}", "bold")
    for field in change.changes:
        out.write_line(f"  {field.field}: {field.a} → {field.b}")
    out.write_line(f"simulated on {len(change.runs):,} recorded runs:")
    for figure in change.comparison.figures:
        # Figures that do not change would only hide those that do.
        if figure.difference:
            assert figure.before is not None
            assert figure.after is not None
            before, after = format_value(figure.before), format_value(figure.after)
            out.write_line(f"  {figure.name}: {before} → {after} {figure.unit}")
    # The paths last, where a person looks first.
    for path in paths:
        out.write_line(f"wrote {path}")
    out.write_paragraph("It is not in force. Compare it with `oncemore policy diff`, sign it with "
                        "`oncemore policy sign`, and name it where the old one is named.", "dim")  # fmt: skip
