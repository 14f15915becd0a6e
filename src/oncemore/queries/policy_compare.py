"""Two policies side by side: by field, by schedule, and by what they decide in the same situations.

Fields tell what was changed, schedules what it costs, decisions what it means: a changed class of
errors shows in no schedule, and a changed digest says nothing about which call will now be repeated.
"""

from __future__ import annotations

from itertools import zip_longest

from oncemore._values import Value
from oncemore.policy.tuning import Signals
from oncemore.queries.policy_fields import values
from oncemore.queries.policy_question import Question, ask
from oncemore.queries.policy_schedule import Delay, Worst, delays, worst

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.policy.canonical_json import Plain
    from oncemore.policy.policy import Policy

#: No more attempts than these are played; a schedule goes on as it has begun.
MOST_ATTEMPTS = 12

_DIRTY: Final = Signals(grid_intensity=620.0, energy_price=0.31)

#: The situations that both policies are asked about.
EXAMPLES: Final[dict[str, Question]] = {
    "a failure that is retried": Question(),
    "TransientError": Question(code="TransientError"),
    "HTTP 503": Question(code="HTTP_503"),
    "HTTP 503, asked to wait 7 s": Question(code="HTTP_503", retry_after_s=7.0),
    "HTTP 429, asked to wait 2 min": Question(code="HTTP_429", retry_after_s=120.0),
    "HTTP 501": Question(code="HTTP_501"),
    "HTTP 404": Question(code="HTTP_404"),
    "a read timeout": Question(code="TIMEOUT_READ"),
    "a busy database": Question(code="SQLITE_BUSY"),
    "a broken schema": Question(code="SCHEMA_INVALID"),
    "carbon 620 g/kWh, 0.31 USD/kWh": Question(signals=_DIRTY),
    "45 s before the deadline": Question(deadline_in_s=45.0),
}


class Change(Value):
    """A field that differs; None where it does not apply."""

    field: str
    a: Plain
    b: Plain


class Pair(Value):
    """The waits after the same attempt; None where one side has no attempt left."""

    after: int
    a: Delay | None
    b: Delay | None


class Step(Value):
    """What is decided after one attempt."""

    attempt: int
    action: str
    reason: str
    delay_s: float
    proof: Plain


class Course(Value):
    """One situation, played to its end under both; `parts_at` is the first attempt that differs, if any."""

    example: str
    a: tuple[Step, ...]
    b: tuple[Step, ...]
    parts_at: int | None


class Difference(Value):
    """All that tells two policies apart; `same` when that is their names and versions only."""

    a: str
    b: str
    digest_a: str
    digest_b: str
    fields: tuple[Change, ...]
    same: bool
    schedule: tuple[Pair, ...]
    worst_a: Worst
    worst_b: Worst
    courses: tuple[Course, ...]


_NAMES: Final = ("name", "version")


def compare(a: Policy, b: Policy, names: tuple[str, str] = ("a", "b")) -> Difference:
    """Return everything in which two policies differ; `names` are what to call them."""
    changed = changes(a, b)
    pairs = enumerate(zip_longest(delays(a), delays(b)), 1)
    return Difference(
        *names,
        a.digest,
        b.digest,
        tuple(changed),
        all(change.field in _NAMES for change in changed),
        tuple(Pair(n, one, other) for n, (one, other) in pairs),
        worst(a),
        worst(b),
        tuple(_played(name, a, b, asked) for name, asked in EXAMPLES.items()),
    )


def _played(name: str, a: Policy, b: Policy, asked: Question) -> Course:
    one, other = course(a, asked), course(b, asked)
    apart = [n for n, (x, y) in enumerate(zip_longest(one, other), 1) if _said(x) != _said(y)]
    return Course(name, one, other, apart[0] if apart else None)


def _said(step: Step | None) -> tuple[str, str, float] | None:
    return None if step is None else (step.action, step.reason, step.delay_s)


def course(policy: Policy, question: Question) -> tuple[Step, ...]:
    """Let the same failure happen again and again, and return what is decided until it ends.

    Waits take their time: the deadline comes nearer by every delay. Attempts take none.
    """
    steps: list[Step] = []
    for attempt in range(1, MOST_ATTEMPTS + 1):
        answer = ask(policy, question._replace(attempt=attempt))
        steps.append(Step(attempt, answer.action, answer.reason, answer.delay_s, answer.proof))
        if answer.action != "retry":
            break
        question = _later(question, answer.delay_s)
    return tuple(steps)


def _later(question: Question, seconds: float) -> Question:
    left = question.deadline_in_s
    return question._replace(
        elapsed_s=question.elapsed_s + seconds, deadline_in_s=None if left is None else left - seconds
    )


def changes(a: Policy, b: Policy) -> list[Change]:
    """Return the fields that differ, under the names of a policy file."""
    one, other = values(a), values(b)
    names = [*one, *(name for name in other if name not in one)]
    return [
        Change(name, one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)
    ]
