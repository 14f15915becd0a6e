"""What would a policy do? A question about one failed attempt, answered with the decision and its proof.

Times count from the moment of the failure: `now` is 0, so that the same question always has the same
proof. Without an error code the failure is one that the policy retries; with one, the policy's classes
say what it means.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.classifiers.verdict import verdict
from oncemore.errors import VIOLATIONS, UsageError
from oncemore.policy.canonical_json import seed_of
from oncemore.policy.decide import Situation, decide
from oncemore.policy.model import Failure
from oncemore.policy.policy import check_seed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.policy.canonical_json import Plain
    from oncemore.policy.decide import Decision
    from oncemore.policy.model import Effect
    from oncemore.policy.policy import Policy
    from oncemore.policy.tuning import Signals

#: The run of the examples in docs/requirements.md (BACKOFF-15).
EXAMPLE_RUN = "0193a000-0000-7000-8000-000000000001"


class Question(Value):
    """One failed attempt, and what is known about the world at that time."""

    attempt: int = 1
    code: str = ""
    seed: str = ""
    run_id: str = EXAMPLE_RUN
    effect: Effect = "idempotent"
    retry_after_s: float | None = None
    elapsed_s: float = 0.0
    deadline_in_s: float | None = None
    expected_s: float | None = None
    tokens: float | None = None
    signals: Signals | None = None


class Answer(Value):
    """What is decided, in words, in numbers, and as the canonical proof."""

    action: str
    reason: str
    delay_s: float
    sentence: str
    explanation: str
    proof: dict[str, Plain]
    canonical: bytes


def ask(policy: Policy, question: Question, *, quarantines: bool = False) -> Answer:
    """Return what a step under the policy does in this situation.

    quarantines  whether the policy's profile has what is not tried again wait for a person
    """
    decision = decided(policy, question, quarantines=quarantines)
    proof = decision.proof()
    return Answer(
        decision.action,
        decision.reason,
        decision.delay_s,
        str(proof["sentence"]),
        decision.explain(),
        proof,
        decision.proof_bytes(),
    )


def decided(policy: Policy, question: Question, *, quarantines: bool = False) -> Decision:
    """Return the decision itself."""
    if question.attempt < 1:
        raise UsageError(f"attempt is {question.attempt}; attempts are counted from 1")
    failure = failure_of(question.code)._replace(retry_after=question.retry_after_s)
    meant = verdict(failure, policy, question.effect, quarantines=quarantines)
    return decide(
        policy,
        Situation(
            attempt=question.attempt,
            failure=failure,
            verdict=meant if question.code else "RETRYABLE",
            now=0.0,
            seed=seed_for(policy, question.run_id, question.seed),
            started=-question.elapsed_s,
            deadline=question.deadline_in_s,
            expected_s=question.expected_s,
            tokens=question.tokens,
            signals=question.signals,
        ),
    )


def seed_for(policy: Policy, run_id: str, seed: str = "") -> str:
    """Return what draws are seeded with: the given seed, the policy's literal, or the run's."""
    return seed or check_seed(policy.jitter_seed) or seed_of(run_id)


def failure_of(code: str) -> Failure:
    """Return the fact that a code stands for; a code that says nothing by itself is taken as passing."""
    if code in VIOLATIONS or code == "PermanentError":
        return Failure("permanent", "maybe", None, code, "example")
    head, _, number = code.partition("_")
    if head == "HTTP" and number.isdigit():
        from oncemore.classifiers.http_status import failed_status

        return failed_status(int(number), None, 0.0)
    return Failure("transient", "maybe", None, code, "example" if code else "")
