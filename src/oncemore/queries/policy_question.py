"""Answer what a policy would do after one failed attempt, with the decision and its proof.

Times count from the failure: `now` is 0, so that the same question always has the same proof. Without an
error code the failure is one that the policy retries; with a code, the error classes of the policy decide.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import VIOLATIONS, UsageError
from oncemore.policy.canonical_json import run_seed
from oncemore.policy.decide import Situation, decide_retry
from oncemore.policy.model import Failure
from oncemore.policy.policy import check_seed
from oncemore.policy.verdict import decide_verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.policy.canonical_json import Plain
    from oncemore.policy.decide import Decision
    from oncemore.policy.model import Effect
    from oncemore.policy.policy import Policy
    from oncemore.policy.tuning import Signals

#: The run id of the examples in docs/requirements.md (BACKOFF-15).
EXAMPLE_RUN = "0193a000-0000-7000-8000-000000000001"


class PolicyQuestion(Value):
    """One failed attempt, and the circumstances at that time."""

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


class PolicyAnswer(Value):
    """A decision in words and numbers, and its canonical proof."""

    action: str
    reason: str
    delay_s: float
    sentence: str
    explanation: str
    proof: dict[str, Plain]
    canonical: bytes


def answer_question(policy: Policy, question: PolicyQuestion, *, quarantines: bool = False) -> PolicyAnswer:
    """Return the decision of a policy for a question.

    quarantines  whether the profile quarantines runs that are not retried
    """
    decision = decide_question(policy, question, quarantines=quarantines)
    proof = decision.proof()
    return PolicyAnswer(
        action=decision.action,
        reason=decision.reason,
        delay_s=decision.delay_s,
        sentence=str(proof["sentence"]),
        explanation=decision.explain(),
        proof=proof,
        canonical=decision.proof_bytes(),
    )


def decide_question(policy: Policy, question: PolicyQuestion, *, quarantines: bool = False) -> Decision:
    """Return the decision for a question, before it is put into words."""
    if question.attempt < 1:
        raise UsageError(f"attempt is {question.attempt}; attempts are counted from 1")
    failure = make_failure(question.code)._replace(retry_after=question.retry_after_s)
    verdict = decide_verdict(failure, policy, question.effect, quarantines=quarantines)
    return decide_retry(
        policy,
        Situation(
            attempt=question.attempt,
            failure=failure,
            verdict=verdict if question.code else "RETRYABLE",
            # A fixed time, so that the proof of a question is always the same.
            now=0.0,
            seed=choose_seed(policy, question.run_id, question.seed),
            started_at=-question.elapsed_s,
            deadline=question.deadline_in_s,
            expected_s=question.expected_s,
            budget_tokens=question.tokens,
            signals=question.signals,
        ),
    )


def choose_seed(policy: Policy, run_id: str, seed: str = "") -> str:
    """Return the seed of the jitter: the given one, the policy's literal, or the run's."""
    return seed or check_seed(policy.jitter_seed) or run_seed(run_id)


def make_failure(code: str) -> Failure:
    """Return the failure with an error code; an unknown code counts as transient."""
    if code in VIOLATIONS or code == "PermanentError":
        return Failure("permanent", "maybe", None, code, "example")
    prefix, _, number = code.partition("_")
    if prefix == "HTTP" and number.isdigit():
        # The classifier knows all status codes, so that this answer agrees with a real response.
        from oncemore.classifiers.http_status import classify_failed_status

        return classify_failed_status(int(number), None, 0.0)
    return Failure("transient", "maybe", None, code, "example" if code else "")
