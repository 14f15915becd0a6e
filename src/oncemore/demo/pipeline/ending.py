"""What is said at the end: the count, one decision, and where to go from here."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from oncemore._time_spans import format_seconds
from oncemore.demo.pipeline.board import LEGEND, cut_line
from oncemore.demo.pipeline.live import wrap_text
from oncemore.maintenance.replay import recompute_decision
from oncemore.policy.canonical_json import encode_canonical

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Protocol

    from oncemore.demo.pipeline.board import Line, OrderBoard
    from oncemore.demo.pipeline.plan import PipelinePlan
    from oncemore.demo.pipeline.tally import EffectCount, EffectTotals
    from oncemore.policy.policy import Policy

    class EffectCounts(Protocol):
        """What has counts of effects."""

        @property
        def counts(self) -> tuple[EffectCount, ...]:
            """The counts."""

    Proved = tuple[str, str, str, dict[str, Any]]

FIELDS = ("asked", "tried", "applied", "duplicated", "lost")


def count_lines(tally: EffectCounts, width: int) -> list[Line]:
    """Return the table of effects."""
    row = "{:<18}{:>7}{:>7}{:>9}{:>12}{:>6}".format
    lines: list[Line] = [[(row("effect", *FIELDS), "bold")]]
    for count in tally.counts:
        wrong = count.duplicated or count.lost
        lines.append([(row(*count), "red" if wrong else "green")])
    return [cut_line(line, width) for line in lines]


def summary_lines(tally: EffectTotals, plan: PipelinePlan, board: OrderBoard, width: int) -> list[Line]:
    """Return what the table means."""
    verdict = (
        "Every effect that was asked for is there, once."
        if tally.is_exact
        else "Effects were duplicated or lost: see the table."
    )
    refused = " ".join(
        f"{order} was refused by the provider for good (402), so nothing of it was asked for."
        for order in plan.refused_orders
    )
    careless = " This pipeline is careless on purpose: charge says that it is idempotent and keeps its key " \
        "to itself, and book commits by itself." if plan.careless else ""  # fmt: skip
    manners = f"Came back although asked to wait: {tally.early} times."
    text = f"{verdict} The process was killed {board.kills} times. {refused} {manners}{careless}"
    return wrap_text(text, width, "green" if tally.is_exact else "red")


def legend_lines(width: int) -> list[Line]:
    """Return what the words in the cells mean."""
    return wrap_text(LEGEND, width, "dim")


def choose_decision(proofs: Sequence[Proved]) -> Proved | None:
    """Return the wait that there is most to say about: one that somebody asked for, the longest."""
    waits = [each for each in proofs if each[3]["action"] == "retry"]
    return max(
        waits, key=lambda each: ("retry_after" in each[3]["clamps"], each[3]["attempt"], each[3]["delay_s"]),
        default=None,
    )  # fmt: skip


def explain_decision(proved: Proved, policy: Policy, width: int) -> tuple[list[Line], bool]:
    """Return why there was a wait, and whether it comes out the same when it is computed again."""
    order, step, _, proof = proved
    again = recompute_decision(proof, policy)
    same = again.proof_bytes() == encode_canonical(proof)
    question = (
        f"Why did {order} wait {format_seconds(proof['delay_s'])} after attempt {proof['attempt']} of {step}?"
    )
    checked = (
        "Computed again just now, from the log and the policy file: the same, to the byte."
        if same
        else "Computed again just now, from the log and the policy file: NOT the same."
    )
    lines: list[Line] = [cut_line([(question, "bold")], width)]
    lines += wrap_text(f"{again.explain()} {checked}", width, "" if same else "red")
    return lines, same


def next_steps(plan: PipelinePlan, folder: Path | None, proved: Proved | None, width: int) -> list[Line]:
    """Return what to try next: commands that work where they are read."""
    us, python = command_names()
    if folder is None:
        steps = [
            (f"{us} demo --keep --seed {plan.seed}", "the same again; program, log and table stay"),
            (f"{us} demo --careless", "without keys and transactions: duplicates"),
            (f"{us} demo kfm-loop", "scenarios, each replayed from its log"),
            (f"{us} demo retry", "the light door: retry without a log"),
            (f"{us} demo lit", "an HTTP client and a database under trouble"),
        ]
    else:
        store = f"--store {folder}/log.db"
        steps = [
            (f"{us} runs {store}", "every run, and how it ended"),
            (f"{us} replay --all {store}", "every decision computed again"),
            (f"cd {folder} && {python} pipeline.py", "all is done: nothing is done again"),
        ]
        if proved is not None:
            _, _, key, proof = proved
            why = f"{us} explain {key[:12]} --attempt {proof['attempt'] + 1} {store}"
            steps.insert(1, (why, "the wait above, from the log"))
    room = max(len(command) for command, _ in steps)
    lines: list[Line] = [[("What to try next", "bold")]]
    for command, what in steps:
        if room + len(what) + 6 <= width:
            lines.append([(f"  {command.ljust(room)}  ", ""), (what, "dim")])
        else:
            lines += [[(f"  {command}", "")], *wrap_text(what, width, "dim", "      ")]
    return lines


def command_names() -> tuple[str, str]:
    """Return how `oncemore` and its Python are called from here."""
    python = sys.executable
    beside = Path(python).with_name("oncemore")
    found = shutil.which("oncemore")
    if found is not None and Path(found) == beside:
        return "oncemore", python
    if beside.exists():
        near = beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside
        return str(near), python
    return f"{python} -m oncemore", python
