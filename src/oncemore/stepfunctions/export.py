"""A policy in Amazon States Language: one retrier, a loop with a wait, or the reason why neither.

Step Functions counts retries, knows whole seconds, and computes the delay before retry k as
`min(IntervalSeconds * BackoffRate ** (k - 1), MaxDelaySeconds)`. So a policy's delays d1 … dn are one retrier
exactly if all are whole and dk = min(d1 * B ** (k - 1), dn) for some B from 1 on. Where they are whole and no
such B exists, a loop takes them from a list:

    Prepare -> Work -(RetryableError)-> AttemptsLeft -> NextDelay -> WaitForRetry -> Work

Everything else is refused with the knob's name: the language has no seeded draws, no tuning, no fractions of
a second. Nothing is approximated unless the caller says so (`accept`), and then the definition says it too.

A task says what a failure is by the name of its error (`asl_task` gives errors these names):

    RetryableError   tried again, and the only one in a retrier beside the time limit and Lambda's own faults
    QuarantineError  a person has to look
    TerminalError    and every other: over
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from oncemore._values import Value
from oncemore.classifiers.verdict import verdict
from oncemore.errors import PolicyError
from oncemore.policy.backoff import planned
from oncemore.policy.model import Failure

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from oncemore.policy.policy import Policy

    Block = dict[str, Any]

RETRYABLE_ERROR: Final = "RetryableError"
TERMINAL_ERROR: Final = "TerminalError"
QUARANTINE_ERROR: Final = "QuarantineError"

MOST_SECONDS: Final = 99_999_999
LONGEST_DELAY: Final = 31_622_400  # 366 days

#: Errors that Step Functions itself gives a task, and what kind of failure each is.
OF_THE_PLATFORM: Final = {
    "States.Timeout": Failure("transient", "maybe", None, "TIMEOUT_ATTEMPT_LIMIT", "asl:timeout"),
    "Lambda.TooManyRequestsException": Failure(
        "throttled", "no", None, "AWS_TooManyRequestsException", "asl:lambda"
    ),
    "Lambda.ServiceException": Failure("transient", "maybe", None, "HTTP_500", "asl:lambda"),
    "Lambda.AWSLambdaException": Failure("transient", "maybe", None, "HTTP_500", "asl:lambda"),
    "Lambda.SdkClientException": Failure("transient", "maybe", None, "CONNECTION_ERROR", "asl:lambda"),
}

#: Knobs that may be left out or replaced when the caller says so.
ACCEPTABLE: Final = ("jitter", "tuning", "within_s")
#: What holds for every definition: no retrier can hear what the other side asks for.
DEAF: Final = "A Retry-After is not heard between retries"


class Knob(Value):
    """Something in a policy that the language cannot say: its name, and why.

    instead  what is done where the caller accepts that
    """

    name: str
    why: str
    instead: str = ""


class Inexpressible(PolicyError):
    """A policy cannot be written in the language; `faults` names each knob and the reason."""

    def __init__(self, name: str, faults: Sequence[Knob]) -> None:
        told = "; ".join(f"{knob.name} ({knob.why})" for knob in faults)
        ways = [knob.name for knob in faults if knob.name in ACCEPTABLE]
        hint = (
            f"; accept {' and '.join(ways)} to leave that out knowingly" if len(ways) == len(faults) else ""
        )
        super().__init__(f"{name} cannot be written in Amazon States Language: {told}{hint}")
        self.policy = name
        self.faults = tuple(faults)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.policy, self.faults)


class Translation(Value):
    """What a policy comes to.

    form     "retrier", "loop", or "none" where a policy makes one attempt only
    delays   the seconds before each retry
    retrier  the block for a `Retry` field; empty unless the form is "retrier"
    errors   what is tried again
    notes    what was left out or replaced, because the caller accepted it
    """

    form: str
    delays: tuple[int, ...]
    retrier: Block
    errors: tuple[str, ...]
    timeout_s: int | None
    notes: tuple[str, ...]


def translated(policy: Policy, accept: Collection[str] = ()) -> Translation:
    """Return what a policy is in the language, or raise `Inexpressible` with every knob that it is not."""
    faults = [knob for knob in _knobs(policy) if knob.name not in accept]
    if faults:
        raise Inexpressible(policy.name, faults)
    notes = tuple(knob.instead for knob in _knobs(policy))
    delays = tuple(round(delay) for delay in _delays(policy))
    errors = errors_of(policy)
    jitter = "FULL" if policy.jitter.spread == "full" else "NONE"
    limit = None if policy.timeout_s is None else round(policy.timeout_s)
    if not delays:
        return Translation("none", (), {}, errors, limit, notes)
    found = solved(delays)
    if found is None:
        if jitter == "FULL":
            why = f"a loop waits as long as it is told, and {_list(delays)} are no single retrier"
            raise Inexpressible(policy.name, [Knob("jitter", why)])
        return Translation("loop", delays, {}, errors, limit, notes)
    block = {"ErrorEquals": list(errors), **found, "JitterStrategy": jitter}
    return Translation("retrier", delays, block, errors, limit, notes)


def solved(delays: Sequence[int]) -> Block | None:
    """Return the numbers of the one retrier that waits exactly so; None if there is none."""
    first, last = delays[0], delays[-1]
    if first < 1 or max(delays) > LONGEST_DELAY:
        return None
    rate = Fraction(delays[1], first) if len(delays) > 1 else Fraction(1)
    if Fraction(float(rate)) != rate:  # a rate that rounds would round the delays too
        rate = Fraction(ceil(rate))  # which is as good where the cap holds from the second delay on
    if rate < 1:
        return None
    grown = [first * rate**at for at in range(len(delays))]
    if [min(plan, Fraction(last)) for plan in grown] != [Fraction(delay) for delay in delays]:
        return None
    numbers: Block = {"IntervalSeconds": first, "BackoffRate": float(rate), "MaxAttempts": len(delays)}
    return {**numbers, "MaxDelaySeconds": last} if grown[-1] > last else numbers


def waits(retrier: Block) -> list[float]:
    """Return the delays that a retrier makes, by the language's own formula."""
    first, rate = retrier.get("IntervalSeconds", 1), retrier.get("BackoffRate", 2.0)
    cap = retrier.get("MaxDelaySeconds", LONGEST_DELAY)
    return [min(first * rate**at, cap) for at in range(retrier.get("MaxAttempts", 3))]


def errors_of(policy: Policy) -> tuple[str, ...]:
    """Return the names of all errors that a policy tries again: the task's own word, and the platform's."""
    platform = (
        name for name, fact in OF_THE_PLATFORM.items() if verdict(fact, policy, "idempotent") == "RETRYABLE"
    )
    return (RETRYABLE_ERROR, *platform)


def _delays(policy: Policy) -> list[float]:
    """Return the delays before jitter, held at the cap."""
    return [min(policy.max_delay_s, planned(policy.schedule, n)) for n in range(1, policy.max_attempts)]


def _knobs(policy: Policy) -> list[Knob]:
    """Return what the language cannot say of a policy."""
    found = []
    if policy.tuning is not None and policy.max_attempts > 1:
        why = "telemetry_tuning makes delays depend on carbon, price and deadline"
        found.append(Knob("tuning", why, "delays are not tuned by carbon, price and deadline"))
    spread = policy.jitter.spread
    if spread != "none" and policy.max_attempts > 1:
        why = f"{spread} jitter from a seed; Step Functions knows full jitter only, and draws at random"
        random = "delays are spread at random by Step Functions, and not by seeded draws"
        found.append(Knob("jitter", why, random if spread == "full" else "delays are not spread"))
    if policy.within_s is not None:
        why = "a limit of the whole call that ends it before a wait that does not fit"
        found.append(Knob("within_s", why, "the limit of the whole call is left out"))
    if policy.timeout_s is not None and not _whole(policy.timeout_s):
        found.append(Knob("timeout_s", f"{policy.timeout_s:g} s; time limits are whole seconds from 1 on"))
    odd = [delay for delay in _delays(policy) if delay != round(delay)]
    if odd:
        name = "delays_s" if policy.schedule.shape == "fixed" else "base_delay_s"
        found.append(Knob(name, f"a wait of {odd[0]:g} s; waits are whole seconds"))
    if max(_delays(policy), default=0) > LONGEST_DELAY:
        found.append(Knob("max_delay_s", "waits of more than 366 days"))
    return found


def _whole(seconds: float) -> bool:
    return seconds == round(seconds) and 1 <= seconds < MOST_SECONDS


def _list(delays: Sequence[int]) -> str:
    return ", ".join(map(str, delays))


# Definitions ----------------------------------------------------------------------------------------

PREPARE, WORK, LEFT, NEXT, WAIT = "Prepare", "Work", "AttemptsLeft", "NextDelay", "WaitForRetry"
GAVE_UP, TO_REVIEW, FAILED = "GaveUp", "ToReview", "Failed"
INVOKE: Final = "arn:aws:states:::lambda:invoke"


def definition(policy: Policy, function: str = "${Work}", accept: Collection[str] = ()) -> Block:
    """Return a whole state machine around one task under a policy.

    function  the name or ARN of the Lambda function; `${Work}` is left for whoever deploys it
    """
    made = translated(policy, accept)
    task = {**invoke(function), **limit_of(made), **retry_of(made), "End": True}
    told = f"{policy.name} {policy.version}, written by oncemore; policy {policy.digest}"
    comment = "; ".join([told, *made.notes, *([DEAF] if made.delays else [])])
    endings = {
        GAVE_UP: fail(RETRYABLE_ERROR, "all attempts are used"),
        TO_REVIEW: fail(QUARANTINE_ERROR, "a person has to look at it first"),
        FAILED: fail(TERMINAL_ERROR, "it failed in a way that does not pass"),
    }
    if made.form != "loop":
        states = {WORK: {**task, "Catch": catches(made.errors, GAVE_UP, TO_REVIEW, FAILED)}}
        return {"Comment": comment, "StartAt": WORK, "States": {**states, **endings}}
    states = {**loop(made, task), **endings}
    return {"Comment": comment, "StartAt": PREPARE, "States": states}


def loop(made: Translation, task: Block) -> Block:
    """Return the states of the loop that waits by a list; the task sees its input as it was given."""
    again = catches(made.errors, LEFT, TO_REVIEW, FAILED, path="$.retry.error")
    step: Block = {
        "attempt.$": "States.MathAdd($.retry.attempt, 1)",
        "delays.$": "$.retry.delays",
        "wait.$": "States.ArrayGetItem($.retry.delays, $.retry.attempt)",
    }
    begin: Block = {"input.$": "$", "retry": {"attempt": 0, "delays": list(made.delays)}}
    return {
        PREPARE: {"Type": "Pass", "Parameters": begin, "Next": WORK},
        WORK: {**task, "InputPath": "$.input", "ResultPath": "$", "Catch": again},
        LEFT: {
            "Type": "Choice",
            "Choices": [
                {"Variable": "$.retry.attempt", "NumericLessThan": len(made.delays), "Next": NEXT},
            ],
            "Default": GAVE_UP,
        },
        NEXT: {"Type": "Pass", "Parameters": step, "ResultPath": "$.retry", "Next": WAIT},
        WAIT: {"Type": "Wait", "SecondsPath": "$.retry.wait", "Next": WORK},
    }


def invoke(function: str, payload: str = "$") -> Block:
    """Return a task that calls a Lambda function; what it returns is the result."""
    return {
        "Type": "Task",
        "Resource": INVOKE,
        "Parameters": {"FunctionName": function, "Payload.$": payload},
        "OutputPath": "$.Payload",
    }


def limit_of(made: Translation) -> Block:
    """Return the field for the limit of one attempt, where there is one."""
    return {} if made.timeout_s is None else {"TimeoutSeconds": made.timeout_s}


def retry_of(made: Translation) -> Block:
    """Return the field for the retrier, where there is one."""
    return {"Retry": [made.retrier]} if made.form == "retrier" else {}


def catches(errors: Sequence[str], again: str, review: str, over: str, path: str = "$.error") -> list[Block]:
    """Return where each class of error goes; one that has no name of ours is over."""
    return [
        {"ErrorEquals": list(errors), "ResultPath": path, "Next": again},
        {"ErrorEquals": [QUARANTINE_ERROR], "ResultPath": path, "Next": review},
        {"ErrorEquals": ["States.ALL"], "ResultPath": path, "Next": over},
    ]


def fail(error: str, cause: str) -> Block:
    """Return a state that ends an execution as failed."""
    return {"Type": "Fail", "Error": error, "Cause": cause}
