"""Prints what a policy would do after a failed attempt."""

from __future__ import annotations

from oncemore.cli.ticks import shown
from oncemore.policy.tuning import Signals
from oncemore.queries.policy_question import EXAMPLE_RUN, Question, ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from oncemore.cli.output import Paper
    from oncemore.queries.policies import Found


def question(attempt: int, facts: Mapping[str, Any]) -> Question:
    """Make a question of what was given on the command line."""
    signals = Signals(
        facts["intensity"], facts["price"], facts["queue_depth"], facts["parallelism"], facts["error_budget"]
    )
    return Question(
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
        signals=None if signals == Signals() else signals,
    )


def print_answer(paper: Paper, found: Found, asked: Question, proof: bool) -> None:
    """Print the decision with its reasons, or its proof alone."""
    answer = ask(found.policy, asked, quarantines=found.quarantines)
    if proof:
        paper.raw(answer.canonical + b"\n")
    elif paper.in_json:
        paper.json(answer)
    else:
        wait = f" in {shown(answer.delay_s)} s" if answer.action == "retry" else f" ({answer.reason})"
        paper.line(f"{answer.action}{wait}", "green" if answer.action == "retry" else "yellow")
        paper.line()
        paper.say(answer.explanation)
        paper.line()
        paper.say("Times count from the failure. --proof prints everything this was computed from.", "dim")
