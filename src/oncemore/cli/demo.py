"""`oncemore demo`: see it work."""

from __future__ import annotations

import sys

import click

from oncemore.cli import completion
from oncemore.cli.commands import leaf
from oncemore.cli.output import hush
from oncemore.errors import UsageError

EXAMPLES = """
oncemore demo
oncemore demo --careless
oncemore demo --keep --seed 7
oncemore demo kfm-loop
oncemore demo kfm-loop --list
oncemore demo kfm-loop --scenario deadline-catchup
oncemore demo nova-cat
oncemore demo retry --fast
oncemore demo lit
oncemore demo exoarmur
oncemore demo exoarmur --keep --seed 7
"""

#: Which options a story takes.
TAKES = {
    "pipeline": {"fast", "seed", "keep", "plain", "careless"},
    "retry": {"fast"},
    "kfm-loop": {"plain", "scenario", "list"},
    "lit": {"plain"},
    "nova-cat": {"plain"},
    "exoarmur": {"seed", "keep", "plain", "careless"},
}


@leaf("demo", EXAMPLES)
@click.argument("story", type=click.Choice(list(TAKES)), default="pipeline")
@click.option("--fast", is_flag=True, help="Shorter waits, for the impatient and for tests.")
@click.option("--seed", metavar="TEXT", help="Tell the same story again: which order meets which fault.")
@click.option("--keep", is_flag=True, help="Leave the folder there: the program, its log, the table.")
@click.option("--plain", is_flag=True, help="Plain lines, as a file gets them.")
@click.option(
    "--scenario", metavar="NAME", shell_complete=completion.scenarios, help="Only this scenario of the story."
)
@click.option("--list", is_flag=True, help="Say which scenarios the story has, and play none.")
@click.option("--careless", is_flag=True, help="Without keys and transactions: see what then happens.")
def demo(story: str, **told: str | bool | None) -> int:
    """See it work, with real parts on this machine.

    pipeline (unless you say otherwise): orders are charged, booked, filed and told; the program is
    killed three times and finishes, and others count what happened. Exit code 1 if anything was
    duplicated or lost.

    kfm-loop: the reference scenarios of the KFM loop, each replayed from its log; or one of them.

    nova-cat: spectra from an archive that throttles and sends broken files, left alone and released.

    retry: seven calls to a flaky server, the waits and the reasons.

    lit: a review platform whose Core fails and whose database is locked.

    exoarmur: an agent on a bus of three servers, one of which is killed; others count what it did.
    Exit code 1 if anything was duplicated or lost.
    """
    for name, value in told.items():
        if value and name not in TAKES[story]:
            raise UsageError(f"--{name} is not for the story {story}; it takes {_options(story)}")
    try:
        return _STORIES[story](told)
    except BrokenPipeError:  # whoever read this has seen enough
        hush(sys.stdout)
        return 0


def _options(story: str) -> str:
    return " and ".join(f"--{name}" for name in sorted(TAKES[story]))


def _pipeline(told: dict[str, str | bool | None]) -> int:
    from oncemore.demo.pipeline.story import main

    seed = told["seed"]
    return main(
        sys.stdout, seed=None if seed is None else str(seed), fast=bool(told["fast"]),
        keep=bool(told["keep"]), plain=bool(told["plain"]), careless=bool(told["careless"]),
    )  # fmt: skip


def _retry(told: dict[str, str | bool | None]) -> int:
    from oncemore.demo.retry.story import main

    return main(["--fast"] if told["fast"] else [])


def _kfm_loop(told: dict[str, str | bool | None]) -> int:
    from oncemore.demo.kfm_loop import listed, main

    if told["list"]:
        return listed(sys.stdout)
    scenario = told["scenario"]
    return main(sys.stdout, plain=bool(told["plain"]), scenario=None if scenario is None else str(scenario))


def _lit(told: dict[str, str | bool | None]) -> int:
    from oncemore.demo.lit.story import main

    return main(sys.stdout, plain=bool(told["plain"]))


def _nova_cat(told: dict[str, str | bool | None]) -> int:
    from oncemore.demo.nova_cat.story import main

    return main(sys.stdout, plain=bool(told["plain"]))


def _exoarmur(told: dict[str, str | bool | None]) -> int:
    from oncemore.demo.exoarmur.story import main

    seed = told["seed"]
    return main(
        sys.stdout, seed=None if seed is None else str(seed), keep=bool(told["keep"]),
        plain=bool(told["plain"]), careless=bool(told["careless"]),
    )  # fmt: skip


_STORIES = {
    "pipeline": _pipeline, "retry": _retry, "kfm-loop": _kfm_loop, "lit": _lit, "nova-cat": _nova_cat,
    "exoarmur": _exoarmur,
}  # fmt: skip
