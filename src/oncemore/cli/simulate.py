"""`oncemore simulate` and `oncemore simulate storm`: what would have happened, and what could happen."""

from __future__ import annotations

import click

from oncemore.cli import params
from oncemore.cli.commands import (
    FiniteNumber,
    WholeNumber,
    choice_option,
    documented_command,
    flag_option,
    json_option,
    store_option,
    value_option,
)
from oncemore.cli.document_output import file_options, write_document
from oncemore.cli.output import OutputWriter, ProgressLine
from oncemore.cli.params import DURATION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.policy.policy import Policy
    from oncemore.queries.what_if import SimulationOptions
    from oncemore.simulate.assumed import AssumedConditions
    from oncemore.simulate.recorded_runs import RecordedRun, SimulatedWorld
    from oncemore.simulate.storm import StormStrategy

SIMULATE_EXAMPLES = """
oncemore simulate --policy policies/quicker.yaml
oncemore simulate --since 2026-11-16T14:00 --tuning compare --html incident.html
oncemore simulate --policy kfm-loop=policies/p2.yaml --intensity grid.csv --svg carbon.svg
oncemore simulate --policy kfm-loop --failure-probability 0.3 --attempt-duration 1m
oncemore simulate --policy policies/mine.yaml --evidence main --since 30d
"""
STORM_EXAMPLES = """
oncemore simulate storm
oncemore simulate storm --clients 200 --server capacity --capacity 20
oncemore simulate storm --policy policies/mine.yaml --svg storm.svg
"""
SELECTION = "since until step recorded_policy priority tenant"
SIGNALS = "intensity price attempt_energy unit_cost both"
ASSUMPTION = "probability samples seed attempt_duration deadline"
PROBABILITY = click.FloatRange(0.0, 1.0)
POSITIVE = FiniteNumber(0.0)


@documented_command(
    "what-if", SIMULATE_EXAMPLES,
    {"Recorded runs": SELECTION, "Signals": SIGNALS, "Without history": ASSUMPTION,
     "Files": "html markdown svg evidence"},
)  # fmt: skip
@value_option("--policy policies", "[NAME=]POLICY", "Decide by this policy; NAME: only runs of that policy.",
              multiple=True, shell_complete=params.complete_policies)  # fmt: skip
@choice_option("--tuning", ("on", "off", "compare"), "Tuning of delays by signals: on, off, or compare both.")
@choice_option("--outcomes", ("time", "order"), "How attempts end: as recorded at that time, or in order.",
               default="time")  # fmt: skip
@choice_option("--chart curve", ("attempts", "energy", "carbon", "cost"), "The figure of the chart.")
@value_option("--since", "TIME", "Only runs with entries since this time.")
@value_option("--until", "TIME", "Only runs with entries until this time.")
@value_option("--step", "NAME", "Only runs of this step.", default="", shell_complete=params.complete_steps)
@value_option("--recorded-policy", "NAME", "Only runs that were recorded under this policy.", default="")
@choice_option("--priority", ("P0", "P1", "P2"), "Only runs of this priority.")
@value_option("--tenant", "NAME", "Only runs of this tenant.", default="")
@value_option("--intensity", "G|FILE", "Grid intensity in g CO2 per kWh, or a file of times and values.")
@value_option("--price", "USD|FILE", "Energy price per kWh, or a file of times and values.")
@value_option("--attempt-energy", "KWH", "Energy of attempts without a measured value.", type=POSITIVE)
@value_option("--unit-cost", "USD", "Cost of the machine per hour, where it is not recorded.", type=POSITIVE)
@flag_option("--both", "Use these signals for the recorded side too.")
@value_option("--failure-probability probability", "P", "Sample runs whose attempts fail so often.",
              type=PROBABILITY)  # fmt: skip
@value_option("--samples", "N", "Number of sample runs (1000).", type=WholeNumber(1, 1_000_000), default=1000)
@value_option("--seed", "TEXT", "Seed of the sample runs.", default="1")
@value_option("--attempt-duration", "TIME", "Duration of an attempt.", type=DURATION, default=0.0)
@value_option("--deadline", "TIME", "Time to the deadline.", type=DURATION)
@value_option("--evidence", "REV", "Write the evidence of a changed file since a commit, profile or file.")
@file_options
@store_option
@json_option
def simulate(store: str | None, in_json: bool, html: str | None, markdown: str | None, svg: str | None,
             **options: Any) -> int:  # fmt: skip
    """Decide recorded runs again under other rules.

    Under another policy, or with other signals.

    Nothing runs and nothing is written to the log. Attempts, delays, energy, carbon, cost, missed deadlines
    and duplicate work are compared with the record. The same log and options give the same bytes.

    With --failure-probability no history is needed: sample runs of one policy show the typical case and the
    worst case.

    With --evidence, the runs are decided by the file of --policy as it was before and as it is now.
    FILE.evidence.json and FILE.evidence.html are written beside it. `oncemore policy check --against` asks
    for them if the file is governed.
    """
    out, files = OutputWriter(in_json=in_json), {"html": html, "markdown": markdown, "svg": svg}
    if options["evidence"] is not None:
        return _make_evidence(out, store, options, files)
    # Sample runs need no store, and none is looked for.
    if options["probability"] is not None:
        return _simulate_assumed(out, options, files)
    from oncemore.queries.simulation_documents import build_comparison_blocks
    from oncemore.queries.what_if import compare_runs

    # The options are read first: a wrong file name should not cost the time of reading the log.
    settings = _read_options(options)
    report = compare_runs(_load_runs(store, options, quiet=in_json), settings)
    write_document(out, report, build_comparison_blocks(report), files)
    return 0


def _make_evidence(
    out: OutputWriter, store: str | None, options: dict[str, Any], files: dict[str, str | None]
) -> int:
    """Write the evidence of a changed policy file, from recorded runs or from assumed failures."""
    from oncemore.cli.policy_evidence import make_evidence

    # Either the versions differ or the tuning: two changes could not be told apart.
    if len(options["policies"]) != 1 or options["tuning"] or any(files.values()):
        raise click.UsageError(
            "--evidence takes one --policy FILE, and neither --tuning nor another file.",
            click.get_current_context(),
        )
    world, is_assumed = _read_world(options), options["probability"] is not None
    conditions = _read_conditions(options, world) if is_assumed else None
    return make_evidence(
        out, options, world, conditions, lambda: _load_runs(store, options, quiet=out.in_json)
    )


def _load_runs(store: str | None, options: dict[str, Any], *, quiet: bool) -> list[RecordedRun]:
    from oncemore.queries.recorded_runs import RecordedRunFilter, load_recorded_runs
    from oncemore.queries.stores import open_read_only
    from oncemore.queries.times import parse_instant

    with open_read_only(store) as opened, ProgressLine("reading runs", quiet=quiet) as progress:
        now = opened.now()
        wanted = RecordedRunFilter(
            # The whole log by default: a period that ends now would give other bytes tomorrow.
            since=0.0 if options["since"] is None else parse_instant(options["since"], now),
            until=float("inf") if options["until"] is None else parse_instant(options["until"], now),
            step=options["step"],
            policy=options["recorded_policy"],
            priority=options["priority"] or "",
            tenant=options["tenant"],
        )
        return load_recorded_runs(opened, wanted, progress)


def _read_options(options: dict[str, Any]) -> SimulationOptions:
    from oncemore.queries.what_if import SimulationOptions

    tuning, policies = options["tuning"] or "", _find_policies(options["policies"])
    world = _read_world(options)
    # Two changes at once could not be told apart in the difference.
    if tuning == "compare" and policies:
        raise click.UsageError(
            "--tuning compare keeps the recorded policies; leave out --policy.", click.get_current_context()
        )
    return SimulationOptions(
        policies=policies,
        tuning=tuning,
        world=world,
        both=options["both"],
        outcomes=options["outcomes"],
        curve=options["curve"] or "",
    )


def _find_policies(pairs: tuple[str, ...]) -> dict[str, Policy]:
    from oncemore.queries.policies import find_policy

    # Under the empty name: the policy for all runs that are not named.
    policies: dict[str, Policy] = {}
    for pair in pairs:
        name, equals, address = pair.rpartition("=")
        if name in policies:
            for_name = f"for {name} " if equals else ""
            raise click.UsageError(f"--policy {for_name}is given twice.", click.get_current_context())
        policies[name] = find_policy(address).policy
    return policies


def _read_world(options: dict[str, Any]) -> SimulatedWorld:
    from oncemore.queries.what_if import read_timeline
    from oncemore.simulate.recorded_runs import SimulatedWorld

    intensity, price = options["intensity"], options["price"]
    # A signal that is not given stays as it was recorded.
    return SimulatedWorld(
        intensity=None if intensity is None else read_timeline(intensity, "intensity"),
        price=None if price is None else read_timeline(price, "price"),
        energy_kwh=options["attempt_energy"],
        unit_cost_usd_per_h=options["unit_cost"],
    )


def _read_conditions(options: dict[str, Any], world: SimulatedWorld) -> AssumedConditions:
    from oncemore.policy.tuning import Signals
    from oncemore.simulate.assumed import AssumedConditions

    intensity, price = (None if one is None else one.value_at(0.0) for one in (world.intensity, world.price))
    return AssumedConditions(
        probability=options["probability"],
        attempt_s=options["attempt_duration"],
        energy_kwh=options["attempt_energy"],
        deadline_s=options["deadline"],
        signals=None if intensity is None and price is None else Signals(intensity, price),
    )


def _simulate_assumed(out: OutputWriter, options: dict[str, Any], files: dict[str, str | None]) -> int:
    """Simulate sample runs of one policy without history."""
    from oncemore.queries.policies import find_policy
    from oncemore.queries.policy_question import choose_seed
    from oncemore.queries.simulation_documents import build_assumed_blocks
    from oncemore.simulate.assumed import simulate_assumed

    if len(options["policies"]) != 1 or files["svg"]:
        problem = "--svg draws recorded runs" if files["svg"] else "--failure-probability needs one --policy"
        raise click.UsageError(f"{problem}.", click.get_current_context())
    policy = find_policy(options["policies"][0]).policy
    conditions = _read_conditions(options, _read_world(options))
    # Numbered from one text, so that more samples contain the fewer ones.
    seeds = [choose_seed(policy, f"{options['seed']}-{n}") for n in range(options["samples"])]
    report = simulate_assumed(policy, conditions, seeds)
    write_document(out, report, build_assumed_blocks(report), files)
    return 0


@documented_command("storm", STORM_EXAMPLES, {"Server": "server capacity service network"})
@value_option("--clients", "N", "Number of clients (100).", type=WholeNumber(1, 10_000), default=100)
@value_option(
    "--sizes", "N", "Number of sizes up to it, for the charts (10).", type=WholeNumber(1, 50), default=10
)
@value_option("--rounds", "N", "Storms per strategy and size (5).", type=WholeNumber(1, 1000), default=5)
@value_option("--seed", "TEXT", "Seed of the storms.", default="1")
@value_option("--policy policies", "POLICY", "Also the delays of this policy.", multiple=True,
              shell_complete=params.complete_policies)  # fmt: skip
@value_option("--base", "TIME", "First delay of the strategies (5ms).", type=DURATION, default=0.005)
@value_option("--cap", "TIME", "Longest delay of the strategies (2s).", type=DURATION, default=2.0)
@choice_option("--server", ("contention", "capacity"),
               "All update one row, or the server takes N requests at once.",
               default="contention")  # fmt: skip
@value_option("--capacity", "N", "Requests at once (10).", type=WholeNumber(1), default=10)
@value_option("--service", "TIME", "Time of a request in the server (20ms).", type=DURATION, default=0.02)
@value_option("--network", "TIME", "Mean time of a message (10ms); its deviation is a fifth.", type=DURATION,
              default=0.01)  # fmt: skip
@file_options
@json_option
def storm(in_json: bool, html: str | None, markdown: str | None, svg: str | None, **options: Any) -> int:
    """Simulate many clients that retry against one server.

    Compares no backoff, exponential backoff without jitter, and full, equal and decorrelated jitter, as the
    AWS Architecture Blog published it. Time is virtual; the same seed gives the same bytes.
    """
    from oncemore.queries.simulation_documents import build_storm_blocks, simulate_storms
    from oncemore.simulate.storm import StormOptions, list_strategies

    # The defaults are those of the published comparison.
    settings = StormOptions(
        model=options["server"],
        network_s=options["network"],
        deviation_s=options["network"] / 5.0,
        base_s=options["base"],
        cap_s=options["cap"],
        capacity=options["capacity"],
        service_s=options["service"],
    )
    strategies = [*list_strategies(settings), *map(_read_strategy, options["policies"])]
    if len(strategies) > 6:
        raise click.UsageError(
            "Give at most one --policy: a chart shows six lines.", click.get_current_context()
        )
    # A set, because few clients in many sizes would repeat a size.
    most = options["clients"]
    sizes = sorted({max(1, most * n // options["sizes"]) for n in range(1, options["sizes"] + 1)})
    report = simulate_storms(strategies, sizes, settings, options["seed"], options["rounds"])
    # The arrivals of every call would make the JSON of a large storm unreadable.
    value = {**report._asdict(), "largest": [result._replace(arrivals=()) for result in report.largest]}
    write_document(OutputWriter(in_json=in_json), value, build_storm_blocks(report),
                   {"html": html, "markdown": markdown, "svg": svg})  # fmt: skip
    return 0


def _read_strategy(address: str) -> StormStrategy:
    from oncemore.queries.policies import find_policy
    from oncemore.simulate.storm import StormStrategy

    # Only its delays: attempts are not limited in a storm, because every client has to come to an end.
    policy = find_policy(address).policy
    return StormStrategy(policy.name, policy.schedule, policy.jitter, policy.max_delay_s)
