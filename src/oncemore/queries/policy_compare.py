"""Compare two policies by their fields, their schedules, and their decisions in the same situations.

Fields show the changes, schedules their cost, and decisions their effect: a changed error class shows in no
schedule, and a changed digest does not show which call will now be repeated.
"""

from __future__ import annotations

from itertools import zip_longest

from oncemore._values import Value
from oncemore.policy.tuning import Signals
from oncemore.queries.policy_question import PolicyQuestion, answer_question
from oncemore.queries.policy_schedule import DelayRange, WorstCase, compute_worst_case, list_delays
from oncemore.queries.policy_sheet import policy_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.policy.canonical_json import Plain
    from oncemore.policy.policy import Policy

#: The number of attempts that are simulated; later ones show nothing new.
MAX_ATTEMPTS = 12

_DIRTY_GRID: Final = Signals(grid_intensity=620.0, energy_price=0.31)

#: The situations in which the decisions of both policies are compared.
EXAMPLE_QUESTIONS: Final[dict[str, PolicyQuestion]] = {
    "a failure that is retried": PolicyQuestion(),
    "TransientError": PolicyQuestion(code="TransientError"),
    "HTTP 503": PolicyQuestion(code="HTTP_503"),
    "HTTP 503, asked to wait 7 s": PolicyQuestion(code="HTTP_503", retry_after_s=7.0),
    "HTTP 429, asked to wait 2 min": PolicyQuestion(code="HTTP_429", retry_after_s=120.0),
    "HTTP 501": PolicyQuestion(code="HTTP_501"),
    "HTTP 404": PolicyQuestion(code="HTTP_404"),
    "a read timeout": PolicyQuestion(code="TIMEOUT_READ"),
    "a busy database": PolicyQuestion(code="SQLITE_BUSY"),
    "a broken schema": PolicyQuestion(code="SCHEMA_INVALID"),
    "carbon 620 g/kWh, 0.31 USD/kWh": PolicyQuestion(signals=_DIRTY_GRID),
    "45 s before the deadline": PolicyQuestion(deadline_in_s=45.0),
}


class FieldChange(Value):
    """A field that differs; None if a policy does not have it."""

    field: str
    a: Plain
    b: Plain


class DelayPair(Value):
    """The delays after the same attempt; None if a policy has no attempt left."""

    after: int
    a: DelayRange | None
    b: DelayRange | None


class ComparedAttempt(Value):
    """The decision after one attempt."""

    attempt: int
    action: str
    reason: str
    delay_s: float
    proof: Plain


class ComparedRun(Value):
    """One situation, simulated to its end under both policies; `parts_at` is the first different attempt."""

    example: str
    a: tuple[ComparedAttempt, ...]
    b: tuple[ComparedAttempt, ...]
    parts_at: int | None


class PolicyDifference(Value):
    """All differences of two policies; `same` if only their names and versions differ."""

    a: str
    b: str
    digest_a: str
    digest_b: str
    fields: tuple[FieldChange, ...]
    same: bool
    schedule: tuple[DelayPair, ...]
    worst_a: WorstCase
    worst_b: WorstCase
    courses: tuple[ComparedRun, ...]


_IDENTITY_FIELDS: Final = ("name", "version")


def compare_policies(a: Policy, b: Policy, names: tuple[str, str] = ("a", "b")) -> PolicyDifference:
    """Return all differences of two policies, under the given names."""
    changes = list_changes(a, b)
    pairs = enumerate(zip_longest(list_delays(a), list_delays(b)), 1)
    return PolicyDifference(
        a=names[0],
        b=names[1],
        digest_a=a.digest,
        digest_b=b.digest,
        fields=tuple(changes),
        same=all(change.field in _IDENTITY_FIELDS for change in changes),
        schedule=tuple(DelayPair(n, delay_a, delay_b) for n, (delay_a, delay_b) in pairs),
        worst_a=compute_worst_case(a),
        worst_b=compute_worst_case(b),
        courses=tuple(_compare_example(name, a, b, question) for name, question in EXAMPLE_QUESTIONS.items()),
    )


def _compare_example(name: str, a: Policy, b: Policy, question: PolicyQuestion) -> ComparedRun:
    run_a, run_b = simulate_failures(a, question), simulate_failures(b, question)
    different = (
        n
        for n, (attempt_a, attempt_b) in enumerate(zip_longest(run_a, run_b), 1)
        if _comparable_decision(attempt_a) != _comparable_decision(attempt_b)
    )
    return ComparedRun(name, run_a, run_b, next(different, None))


def _comparable_decision(attempt: ComparedAttempt | None) -> tuple[str, str, float] | None:
    # The proofs hold the names and digests of the policies, so they always differ.
    return None if attempt is None else (attempt.action, attempt.reason, attempt.delay_s)


def simulate_failures(policy: Policy, question: PolicyQuestion) -> tuple[ComparedAttempt, ...]:
    """Return the decisions of a policy when every attempt fails in the same way.

    Delays bring the deadline nearer; attempts take no time.
    """
    attempts: list[ComparedAttempt] = []
    for attempt in range(1, MAX_ATTEMPTS + 1):
        answer = answer_question(policy, question._replace(attempt=attempt))
        attempts.append(ComparedAttempt(attempt, answer.action, answer.reason, answer.delay_s, answer.proof))
        # Any other decision ends the call.
        if answer.action != "retry":
            break
        question = _advance_time(question, answer.delay_s)
    return tuple(attempts)


def _advance_time(question: PolicyQuestion, seconds: float) -> PolicyQuestion:
    remaining = question.deadline_in_s
    return question._replace(
        elapsed_s=question.elapsed_s + seconds,
        deadline_in_s=None if remaining is None else remaining - seconds,
    )


def list_changes(a: Policy, b: Policy) -> list[FieldChange]:
    """Return the fields that differ, by their names in a policy file."""
    values_a, values_b = policy_values(a), policy_values(b)
    names = dict.fromkeys((*values_a, *values_b))
    return [
        FieldChange(name, values_a.get(name), values_b.get(name))
        for name in names
        if values_a.get(name) != values_b.get(name)
    ]
