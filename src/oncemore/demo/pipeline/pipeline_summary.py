"""The end of the pipeline demo: the verdict, one explained decision, and commands to try next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.demo.pipeline.status_table import LEGEND
from oncemore.demo.summary_lines import command_lines, command_names
from oncemore.demo.terminal import cut_line, wrap_text
from oncemore.maintenance.replay import recompute_decision
from oncemore.policy.canonical_json import encode_canonical
from oncemore.policy.explain import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from oncemore.demo.effect_counts import EffectTotals
    from oncemore.demo.pipeline.demo_facts import ProvedDecision
    from oncemore.demo.pipeline.order_plan import PipelinePlan
    from oncemore.demo.pipeline.status_table import StatusTable
    from oncemore.demo.terminal import Line
    from oncemore.policy.policy import Policy


def verdict_lines(totals: EffectTotals, plan: PipelinePlan, table: StatusTable, width: int) -> list[Line]:
    """Return the verdict on the counts, in words."""
    verdict = (
        "Every effect that was asked for is there, once."
        if totals.is_exact
        else "Effects were duplicated or lost: see the table."
    )
    refused = " ".join(
        f"The provider refused {order} permanently (402), so that no effects of it were asked for."
        for order in plan.refused_orders
    )
    early = f"Requests earlier than the provider had asked for: {totals.early}."
    careless = " This pipeline is careless on purpose: charge claims to be idempotent and does not send " \
        "its key, and book commits by itself." if plan.careless else ""  # fmt: skip
    text = f"{verdict} The process was killed {table.kills} times. {refused} {early}{careless}"
    return wrap_text(text, width, "green" if totals.is_exact else "red")


def legend_lines(width: int) -> list[Line]:
    """Return the meaning of the words in the cells."""
    return wrap_text(LEGEND, width, "dim")


def choose_decision(proofs: Sequence[ProvedDecision]) -> ProvedDecision | None:
    """Return the retry with most to explain: one with a Retry-After, of a late attempt, with a long wait."""
    retries = [each for each in proofs if each[3]["action"] == "retry"]
    return max(
        retries,
        key=lambda each: ("retry_after" in each[3]["clamps"], each[3]["attempt"], each[3]["delay_s"]),
        default=None,
    )


def explain_decision(proved: ProvedDecision, policy: Policy, width: int) -> tuple[list[Line], bool]:
    """Return the explanation of a wait, and whether computing it again gives the same bytes."""
    order, step, _, proof = proved
    again = recompute_decision(proof, policy)
    is_same = again.proof_bytes() == encode_canonical(proof)
    question = (
        f"Why did {order} wait {format_seconds(proof['delay_s'])} after attempt {proof['attempt']} of {step}?"
    )
    result = "the same, to the byte" if is_same else "NOT the same"
    checked = f"Computed again just now, from the log and the policy file: {result}."
    lines: list[Line] = [cut_line([(question, "bold")], width)]
    lines += wrap_text(f"{again.explain()} {checked}", width, "" if is_same else "red")
    return lines, is_same


def next_steps(
    plan: PipelinePlan, folder: Path | None, proved: ProvedDecision | None, width: int
) -> list[Line]:
    """Return commands to try next; `folder` is None if it is about to be deleted."""
    oncemore, python = command_names()
    if folder is None:
        steps = [
            (f"{oncemore} demo --keep --seed {plan.seed}", "the same again; keeps program, log and table"),
            (f"{oncemore} demo --careless", "without keys and transactions: duplicates"),
            (f"{oncemore} demo kfm-loop", "scenarios, each replayed from its log"),
            (f"{oncemore} demo retry", "retries without a log"),
            (f"{oncemore} demo lit", "a failing HTTP service and a locked database"),
        ]
    else:
        store = f"--store {folder}/log.db"
        steps = [
            (f"{oncemore} runs {store}", "every run, and how it ended"),
            (f"{oncemore} replay --all {store}", "every decision computed again"),
            (f"cd {folder} && {python} pipeline.py", "all is done: nothing is done again"),
        ]
        if proved is not None:
            _, _, key, proof = proved
            command = f"{oncemore} explain {key[:12]} --attempt {proof['attempt'] + 1} {store}"
            steps.insert(1, (command, "the wait above, from the log"))
    return command_lines(steps, width)
