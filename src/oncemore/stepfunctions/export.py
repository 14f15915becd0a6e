"""Translation of a policy into Amazon States Language: one retrier, or a loop with a Wait state.

Step Functions counts retries in whole seconds and computes the delay before retry k as
`min(IntervalSeconds * BackoffRate ** (k - 1), MaxDelaySeconds)`. The delays d1 … dn of a policy are one
retrier if all are whole and dk = min(d1 * B ** (k - 1), dn) for some B >= 1. If no such B exists, a loop
takes them from a list: Prepare -> Work -(RetryableError)-> AttemptsLeft -> NextDelay -> WaitForRetry -> Work.
A setting without an equivalent is refused, unless the caller accepts its loss; the definition then says so.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from oncemore._values import Value
from oncemore.errors import PolicyError
from oncemore.policy.backoff import planned_delay
from oncemore.policy.model import Failure
from oncemore.policy.verdict import decide_verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from oncemore.policy.policy import Policy

    Block = dict[str, Any]

# A task reports its failure by the name of its error; `stepfunctions.task` raises errors with these names.
# A retrier retries RetryableError, the time limit and Lambda's own transient errors; QuarantineError needs a
# person; TerminalError and every other error end the execution.
RETRYABLE_ERROR: Final = "RetryableError"
TERMINAL_ERROR: Final = "TerminalError"
QUARANTINE_ERROR: Final = "QuarantineError"

MAX_SECONDS: Final = 99_999_999
MAX_DELAY_S: Final = 31_622_400  # 366 days

#: Errors that Step Functions itself raises for a task, as failures that a policy can judge.
PLATFORM_FAILURES: Final = {
    "States.Timeout": Failure("transient", "maybe", None, "TIMEOUT_ATTEMPT_LIMIT", "asl:timeout"),
    "Lambda.TooManyRequestsException": Failure(
        "throttled", "no", None, "AWS_TooManyRequestsException", "asl:lambda"
    ),
    "Lambda.ServiceException": Failure("transient", "maybe", None, "HTTP_500", "asl:lambda"),
    "Lambda.AWSLambdaException": Failure("transient", "maybe", None, "HTTP_500", "asl:lambda"),
    "Lambda.SdkClientException": Failure("transient", "maybe", None, "CONNECTION_ERROR", "asl:lambda"),
}

#: Settings that the caller may accept to lose.
ACCEPTABLE_SETTINGS: Final = ("jitter", "tuning", "total_timeout_s")
#: A part of every definition with retries: a retrier cannot read the response of the provider.
RETRY_AFTER_NOTE: Final = "Retry-After is not used between retries"


class UnsupportedSetting(Value):
    """A setting of a policy that the language cannot express.

    replacement  the note in the definition if the caller accepts the loss
    """

    name: str
    reason: str
    replacement: str = ""


class PolicyNotExpressible(PolicyError):
    """The policy cannot be expressed in the language; `faults` has each setting and the reason."""

    def __init__(self, name: str, faults: Sequence[UnsupportedSetting]) -> None:
        reasons = "; ".join(f"{setting.name} ({setting.reason})" for setting in faults)
        acceptable = [setting.name for setting in faults if setting.name in ACCEPTABLE_SETTINGS]
        # Accepting some settings does not help if another one cannot be accepted.
        can_accept = len(acceptable) == len(faults)
        hint = f"; accept {' and '.join(acceptable)} to export without" if can_accept else ""
        super().__init__(f"{name} cannot be written in Amazon States Language: {reasons}{hint}")
        self.policy = name
        self.faults = tuple(faults)

    # The default would pass the message to __init__, which takes a name and faults.
    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.policy, self.faults)


class PolicyTranslation(Value):
    """A policy in Amazon States Language.

    form     "retrier", "loop", or "none" for a policy with one attempt
    delays   the seconds before each retry
    retrier  the block for a `Retry` field; empty unless the form is "retrier"
    errors   the names of the retried errors
    notes    the settings that were left out or replaced
    """

    form: str
    delays: tuple[int, ...]
    retrier: Block
    errors: tuple[str, ...]
    timeout_s: int | None
    notes: tuple[str, ...]


def translate_policy(policy: Policy, accept: Collection[str] = ()) -> PolicyTranslation:
    """Translate a policy; raise `PolicyNotExpressible` with every setting that has no equivalent."""
    faults = [setting for setting in _find_unsupported(policy) if setting.name not in accept]
    if faults:
        raise PolicyNotExpressible(policy.name, faults)
    notes = tuple(setting.replacement for setting in _find_unsupported(policy))
    delays = tuple(round(delay) for delay in _planned_delays(policy))
    errors = retried_errors(policy)
    jitter = "FULL" if policy.jitter.spread == "full" else "NONE"
    limit = None if policy.timeout_s is None else round(policy.timeout_s)
    if not delays:
        return PolicyTranslation("none", (), {}, errors, limit, notes)
    numbers = solve_retrier(delays)
    if numbers is None:
        # Only a retrier can spread its delays; a Wait state waits for exactly the given seconds.
        if jitter == "FULL":
            text = ", ".join(map(str, delays))
            reason = f"a loop has no jitter, and no single retrier has the delays {text}"
            raise PolicyNotExpressible(policy.name, [UnsupportedSetting("jitter", reason)])
        return PolicyTranslation("loop", delays, {}, errors, limit, notes)
    block = {"ErrorEquals": list(errors), **numbers, "JitterStrategy": jitter}
    return PolicyTranslation("retrier", delays, block, errors, limit, notes)


def solve_retrier(delays: Sequence[int]) -> Block | None:
    """Return the numbers of the retrier with exactly these delays, or None if no retrier has them."""
    first, last = delays[0], delays[-1]
    if first < 1 or max(delays) > MAX_DELAY_S:
        return None
    rate = Fraction(delays[1], first) if len(delays) > 1 else Fraction(1)
    # A rate that a float cannot hold would round the delays. The next whole number is equally good if the cap
    # limits all delays from the second on; the comparison below refuses it otherwise.
    if Fraction(float(rate)) != rate:
        rate = Fraction(ceil(rate))
    if rate < 1:
        return None
    # Fractions compare exactly; floats would accept delays that only look equal.
    uncapped = [first * rate**exponent for exponent in range(len(delays))]
    if [min(delay, Fraction(last)) for delay in uncapped] != [Fraction(delay) for delay in delays]:
        return None
    numbers: Block = {"IntervalSeconds": first, "BackoffRate": float(rate), "MaxAttempts": len(delays)}
    return {**numbers, "MaxDelaySeconds": last} if uncapped[-1] > last else numbers


def retrier_delays(retrier: Block) -> list[float]:
    """Return the delays of a retrier, by the formula of the language."""
    first, rate = retrier.get("IntervalSeconds", 1), retrier.get("BackoffRate", 2.0)
    cap = retrier.get("MaxDelaySeconds", MAX_DELAY_S)
    return [min(first * rate**exponent, cap) for exponent in range(retrier.get("MaxAttempts", 3))]


def retried_errors(policy: Policy) -> tuple[str, ...]:
    """Return the names of the errors that a policy retries: that of the task, and those of the platform."""
    platform = (
        name
        for name, failure in PLATFORM_FAILURES.items()
        if decide_verdict(failure, policy, "idempotent") == "RETRYABLE"
    )
    return (RETRYABLE_ERROR, *platform)


def _planned_delays(policy: Policy) -> list[float]:
    """Return the delays before jitter, limited by the cap."""
    return [min(policy.max_delay_s, planned_delay(policy.schedule, n)) for n in range(1, policy.max_attempts)]


def _find_unsupported(policy: Policy) -> list[UnsupportedSetting]:
    """Return the settings of a policy that the language cannot express."""
    unsupported = []
    # A policy with one attempt has no delays, so its jitter and tuning do not matter.
    if policy.tuning is not None and policy.max_attempts > 1:
        reason = "telemetry_tuning makes delays depend on carbon, price and deadline"
        unsupported.append(
            UnsupportedSetting("tuning", reason, "delays are not tuned by carbon, price and deadline")
        )
    spread = policy.jitter.spread
    if spread != "none" and policy.max_attempts > 1:
        reason = f"{spread} jitter from a seed; Step Functions has only full jitter, drawn at random"
        random = "delays have the random jitter of Step Functions instead of a seeded one"
        unsupported.append(
            UnsupportedSetting("jitter", reason, random if spread == "full" else "delays have no jitter")
        )
    if policy.total_timeout_s is not None:
        reason = "a time limit of the whole call that ends it before a delay beyond the limit"
        note = "the time limit of the whole call is left out"
        unsupported.append(UnsupportedSetting("total_timeout_s", reason, note))
    if policy.timeout_s is not None and not _is_whole_timeout(policy.timeout_s):
        unsupported.append(
            UnsupportedSetting(
                "timeout_s", f"{policy.timeout_s:g} s; a time limit must be at least 1, in whole seconds"
            )
        )
    fractional = [delay for delay in _planned_delays(policy) if delay != round(delay)]
    if fractional:
        name = "delays_s" if policy.schedule.shape == "fixed" else "base_delay_s"
        reason = f"a delay of {fractional[0]:g} s; delays must be whole seconds"
        unsupported.append(UnsupportedSetting(name, reason))
    if max(_planned_delays(policy), default=0) > MAX_DELAY_S:
        unsupported.append(UnsupportedSetting("max_delay_s", "delays of more than 366 days"))
    return unsupported


def _is_whole_timeout(seconds: float) -> bool:
    return seconds == round(seconds) and 1 <= seconds < MAX_SECONDS


# Definitions ----------------------------------------------------------------------------------------

PREPARE_STATE, WORK_STATE, ATTEMPTS_LEFT_STATE, NEXT_DELAY_STATE, WAIT_STATE = (
    "Prepare",
    "Work",
    "AttemptsLeft",
    "NextDelay",
    "WaitForRetry",
)
GAVE_UP_STATE, REVIEW_STATE, FAILED_STATE = "GaveUp", "ToReview", "Failed"
LAMBDA_INVOKE_ARN: Final = "arn:aws:states:::lambda:invoke"


def build_definition(policy: Policy, function: str = "${Work}", accept: Collection[str] = ()) -> Block:
    """Return a state machine that runs one task under a policy.

    function  the name or ARN of the Lambda function; `${Work}` is a placeholder for the deployment
    """
    translation = translate_policy(policy, accept)
    task = {
        **build_lambda_task(function),
        **timeout_field(translation),
        **retry_field(translation),
        "End": True,
    }
    origin = f"{policy.name} {policy.version}, written by oncemore; policy {policy.digest}"
    comment = "; ".join([origin, *translation.notes, *([RETRY_AFTER_NOTE] if translation.delays else [])])
    endings = {
        GAVE_UP_STATE: build_fail_state(RETRYABLE_ERROR, "all attempts have been used"),
        REVIEW_STATE: build_fail_state(QUARANTINE_ERROR, "the failure needs review by a person"),
        FAILED_STATE: build_fail_state(TERMINAL_ERROR, "the failure is permanent"),
    }
    if translation.form != "loop":
        states = {
            WORK_STATE: {
                **task,
                "Catch": build_catchers(translation.errors, GAVE_UP_STATE, REVIEW_STATE, FAILED_STATE),
            }
        }
        return {"Comment": comment, "StartAt": WORK_STATE, "States": {**states, **endings}}
    states = {**build_loop_states(translation, task), **endings}
    return {"Comment": comment, "StartAt": PREPARE_STATE, "States": states}


def build_loop_states(translation: PolicyTranslation, task: Block) -> Block:
    """Return the states of a loop over a list of delays.

    The counter is kept beside the input, and `InputPath` hides it from the task.
    """
    again = build_catchers(
        translation.errors, ATTEMPTS_LEFT_STATE, REVIEW_STATE, FAILED_STATE, path="$.retry.error"
    )
    step: Block = {
        "attempt.$": "States.MathAdd($.retry.attempt, 1)",
        "delays.$": "$.retry.delays",
        "wait.$": "States.ArrayGetItem($.retry.delays, $.retry.attempt)",
    }
    begin: Block = {"input.$": "$", "retry": {"attempt": 0, "delays": list(translation.delays)}}
    return {
        PREPARE_STATE: {"Type": "Pass", "Parameters": begin, "Next": WORK_STATE},
        WORK_STATE: {**task, "InputPath": "$.input", "ResultPath": "$", "Catch": again},
        ATTEMPTS_LEFT_STATE: {
            "Type": "Choice",
            "Choices": [
                {
                    "Variable": "$.retry.attempt",
                    "NumericLessThan": len(translation.delays),
                    "Next": NEXT_DELAY_STATE,
                },
            ],
            "Default": GAVE_UP_STATE,
        },
        NEXT_DELAY_STATE: {"Type": "Pass", "Parameters": step, "ResultPath": "$.retry", "Next": WAIT_STATE},
        WAIT_STATE: {"Type": "Wait", "SecondsPath": "$.retry.wait", "Next": WORK_STATE},
    }


def build_lambda_task(function: str, payload: str = "$") -> Block:
    """Return a task that calls a Lambda function; the function's return value is the result."""
    return {
        "Type": "Task",
        "Resource": LAMBDA_INVOKE_ARN,
        "Parameters": {"FunctionName": function, "Payload.$": payload},
        "OutputPath": "$.Payload",
    }


def timeout_field(translation: PolicyTranslation) -> Block:
    """Return the field for the time limit of one attempt; empty without a limit."""
    return {} if translation.timeout_s is None else {"TimeoutSeconds": translation.timeout_s}


def retry_field(translation: PolicyTranslation) -> Block:
    """Return the `Retry` field; empty without a retrier."""
    return {"Retry": [translation.retrier]} if translation.form == "retrier" else {}


def build_catchers(
    errors: Sequence[str], again: str, review: str, over: str, path: str = "$.error"
) -> list[Block]:
    """Return the catchers: the next state for each class of error."""
    # States.ALL comes last, as the language requires; it also gets the errors without one of our names.
    return [
        {"ErrorEquals": list(errors), "ResultPath": path, "Next": again},
        {"ErrorEquals": [QUARANTINE_ERROR], "ResultPath": path, "Next": review},
        {"ErrorEquals": ["States.ALL"], "ResultPath": path, "Next": over},
    ]


def build_fail_state(error: str, cause: str) -> Block:
    """Return a state that ends the execution as failed."""
    return {"Type": "Fail", "Error": error, "Cause": cause}
