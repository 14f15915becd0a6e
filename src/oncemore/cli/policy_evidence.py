"""`oncemore simulate --evidence`: write the evidence of a changed policy file."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from oncemore.cli.document_output import print_blocks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from oncemore.cli.output import OutputWriter
    from oncemore.policy.policy import Policy
    from oncemore.simulate.assumed import AssumedConditions
    from oncemore.simulate.recorded_runs import RecordedRun, SimulatedWorld
    from oncemore.simulate.what_if import Outcomes

#: Options that are repeated in the record, so that a reviewer can make the same evidence.
REPEATED = (
    *("since", "until", "step", "recorded_policy", "priority", "tenant", "intensity", "price"),
    *("attempt_energy", "unit_cost", "probability", "samples", "seed", "attempt_duration", "deadline"),
)
#: The only option whose name on the command line is not that of its value.
_NAMES = {"probability": "failure-probability"}


def make_evidence(
    out: OutputWriter,
    options: dict[str, Any],
    world: SimulatedWorld,
    conditions: AssumedConditions | None,
    load_runs: Callable[[], Sequence[RecordedRun]],
) -> int:
    """Compare both versions of a policy file on the runs, write the evidence and print it.

    conditions  those of assumed runs; None takes the runs that `load_runs` reads from the log
    """
    from oncemore.policy.files import inspect_file
    from oncemore.queries import policy_evidence as evidence
    from oncemore.queries.policies import check_file_exists
    from oncemore.queries.policy_changes import load_earlier_profile

    path, revision = options["policies"][0], options["evidence"]
    # The address of a packaged profile would give no place for the evidence.
    if not path.endswith((".yaml", ".yml")):
        raise click.UsageError("--evidence needs the path of a .yaml file.", click.get_current_context())
    check_file_exists(path)
    old, new = load_earlier_profile(path, revision), inspect_file(path)
    if old is None:
        raise click.UsageError(
            f"{path} is not in {revision}: a new file has nothing before it.", click.get_current_context()
        )
    pairs = evidence.list_policy_pairs(old, new)
    if not pairs:
        raise click.UsageError(f"{revision} has none of the policies of {path}.", click.get_current_context())
    runs = (
        evidence.select_runs(pairs, load_runs())
        if conditions is None
        else _assume_runs(pairs, conditions, options)
    )
    # Assumed attempts fail by their number; recorded ones as long as their cause lasted.
    outcomes: Outcomes = "order" if conditions is not None else options["outcomes"]
    report = evidence.compare_versions(pairs, runs, world, outcomes)
    record = evidence.build_evidence(
        (old, new),
        pairs,
        runs,
        report,
        command=_format_command(path, options),
        basis=evidence.RECORDED if conditions is None else evidence.ASSUMED,
    )
    # Nothing is written that the check would refuse.
    missing = evidence.find_missing_figures(record.figures)
    if missing:
        raise click.UsageError(
            f"These runs have no value for {', '.join(missing)}; give the option.",
            click.get_current_context(),
        )
    places = evidence.write_evidence(record, report, Path(path))
    if out.in_json:
        out.write_json({"files": [str(place) for place in places], "figures": report.figures})
        return 0
    print_blocks(out, evidence.build_evidence_blocks(record, report))
    out.write_line()
    for place in places:
        out.write_line(f"wrote {place}")
    return 0


def _assume_runs(
    pairs: Sequence[tuple[Policy, Policy]], conditions: AssumedConditions, options: dict[str, Any]
) -> list[RecordedRun]:
    from oncemore.queries.policy_question import choose_seed
    from oncemore.simulate.assumed import make_assumed_run

    runs = []
    for old, new in pairs:
        # As many attempts as the more patient version makes, so that neither has to guess an outcome.
        most = max(old.max_attempts, new.max_attempts)
        for n in range(options["samples"]):
            run_id = f"{old.name}-{options['seed']}-{n}"
            runs.append(make_assumed_run(old, conditions, run_id, choose_seed(old, run_id), most))
    return runs


def _format_command(path: str, options: dict[str, Any]) -> str:
    """Return the command line without the store, whose place is of no interest to a reviewer."""
    context = click.get_current_context()
    parts = ["oncemore", "simulate", "--policy", path, "--evidence", options["evidence"]]
    for name in REPEATED:
        source = context.get_parameter_source(name)
        # Values that were not given are defaults, and repeat themselves.
        if options[name] is not None and source is click.core.ParameterSource.COMMANDLINE:
            parts += [f"--{_NAMES.get(name, name).replace('_', '-')}", str(options[name])]
    return shlex.join(parts)
