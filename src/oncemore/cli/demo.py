"""`oncemore demo`: run a demonstration on this machine."""

from __future__ import annotations

import sys

import click

from oncemore._platform import require_posix
from oncemore.cli import params
from oncemore.cli.commands import documented_command, flag_option, value_option
from oncemore.cli.output import discard_output
from oncemore.errors import UsageError

EXAMPLES = """
oncemore demo
oncemore demo --careless
oncemore demo --keep --seed 7
oncemore demo kfm-loop
oncemore demo kfm-loop --list
oncemore demo kfm-loop --scenario deadline-catchup
oncemore demo kfm-loop --scenario monthly-carbon-cap
oncemore demo kfm-rules
oncemore demo kfm-rules --real-time
oncemore demo nova-cat
oncemore demo retry --fast
oncemore demo lit
oncemore demo exoarmur
oncemore demo exoarmur --keep --seed 7
"""

#: The options that each demo takes.
DEMO_OPTIONS = {
    "pipeline": {"fast", "seed", "keep", "plain", "careless"},
    "retry": {"fast"},
    "kfm-loop": {"plain", "scenario", "list"},
    "kfm-rules": {"keep", "plain", "real_time"},
    "lit": {"plain"},
    "nova-cat": {"plain"},
    "exoarmur": {"seed", "keep", "plain", "careless"},
}


@documented_command("demo", EXAMPLES)
@click.argument("story", metavar="[DEMO]", type=click.Choice(list(DEMO_OPTIONS)), default="pipeline")
@flag_option("--fast", "Use shorter delays.")
@value_option("--seed", "TEXT", "Repeat a demo: the same orders get the same faults.")
@flag_option("--keep", "Keep the folder with the program, its log and its table.")
@flag_option("--plain", "Print plain lines, as into a file.")
@value_option(
    "--scenario", "NAME", "Run this reference scenario, or all.", shell_complete=params.complete_scenarios
)
@flag_option("--list", "List the scenarios and run none.")
@flag_option("--real-time real_time", "Wait for real: ten minutes instead of seconds.")
@flag_option("--careless", "Run without keys and transactions, to compare.")
def demo(story: str, **options: str | bool | None) -> int:
    """Run a demonstration with real servers on this machine.

    pipeline (the default): orders are charged, booked, filed and sent to a webhook. The program is killed
    three times and still finishes; independent counters check the result. Exit code 1 if an effect was
    duplicated or lost.

    kfm-loop: a day of urgent and of patient work on a grid, with carbon signals off and on. --scenario runs
    a reference scenario of the KFM loop, or all: short ones are replayed from their logs, longer ones are
    programs on a test clock. --list names them.

    kfm-rules: a STAC catalogue that throttles, fails and delivers bad data, under the KFM retry rules, and
    the ledgers of it. The server's own log checks the result. Exit code 1 if a scene did not hold.

    nova-cat: downloads from an archive that throttles and sends broken files, with cooldowns and a release.

    retry: seven calls to an unreliable server, with each delay and its reason.

    lit: a review platform with a failing Core and a locked database.

    exoarmur: an agent on a message bus of three servers, one of them killed. Independent counters check the
    result. Exit code 1 if an effect was duplicated or lost.
    """
    for name, value in options.items():
        # An option that a demo ignores would promise an effect that does not come.
        if value and name not in DEMO_OPTIONS[story]:
            raise UsageError(
                f"--{name} is not an option of the demo {story}; it takes {_format_options(story)}"
            )
    require_posix("oncemore demo", "The tutorial shows retry, which works here")
    try:
        return _DEMO_RUNNERS[story](options)
    except BrokenPipeError:
        # `oncemore demo | head`: the reader has closed the pipe, which is not an error.
        discard_output(sys.stdout)
        return 0


# Each runner imports its demo when it runs: a demo loads servers and the whole engine.


def _format_options(story: str) -> str:
    return " and ".join(f"--{name}" for name in sorted(DEMO_OPTIONS[story]))


def _run_pipeline(options: dict[str, str | bool | None]) -> int:
    from oncemore.demo.pipeline.pipeline_demo import main

    seed = options["seed"]
    return main(
        sys.stdout, seed=None if seed is None else str(seed), fast=bool(options["fast"]),
        keep=bool(options["keep"]), plain=bool(options["plain"]), careless=bool(options["careless"]),
    )  # fmt: skip


def _run_retry(options: dict[str, str | bool | None]) -> int:
    from oncemore.demo.retry_demo import main

    return main(["--fast"] if options["fast"] else [])


def _run_kfm_loop(options: dict[str, str | bool | None]) -> int:
    from oncemore.demo.kfm_loop_demo import main, print_scenarios

    if options["list"]:
        return print_scenarios(sys.stdout)
    scenario = options["scenario"]
    return main(
        sys.stdout, plain=bool(options["plain"]), scenario=None if scenario is None else str(scenario)
    )


def _run_kfm_rules(options: dict[str, str | bool | None]) -> int:
    from oncemore.demo.kfm_rules.kfm_rules_demo import main

    return main(
        sys.stdout, plain=bool(options["plain"]), keep=bool(options["keep"]),
        real_time=bool(options["real_time"]),
    )  # fmt: skip


def _run_lit(options: dict[str, str | bool | None]) -> int:
    from oncemore.demo.lit_demo import main

    return main(sys.stdout, plain=bool(options["plain"]))


def _run_nova_cat(options: dict[str, str | bool | None]) -> int:
    from oncemore.demo.nova_cat_demo import main

    return main(sys.stdout, plain=bool(options["plain"]))


def _run_exoarmur(options: dict[str, str | bool | None]) -> int:
    from oncemore.demo.exoarmur.exoarmur_demo import main

    seed = options["seed"]
    return main(
        sys.stdout, seed=None if seed is None else str(seed), keep=bool(options["keep"]),
        plain=bool(options["plain"]), careless=bool(options["careless"]),
    )  # fmt: skip


_DEMO_RUNNERS = {
    "pipeline": _run_pipeline,
    "retry": _run_retry,
    "kfm-loop": _run_kfm_loop,
    "kfm-rules": _run_kfm_rules,
    "lit": _run_lit,
    "nova-cat": _run_nova_cat,
    "exoarmur": _run_exoarmur,
}
