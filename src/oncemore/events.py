"""The typed events that `oncemore.on_event` calls a function with: frozen values.

An event is published after the write that it describes is stored, never before. A process that dies between
the two publishes nothing: events show what happens here and now, the log of the store is the record.

The events of a run begin with the same fields:

    step, key, run_id   the work: the step's name, its whole key, and the id of the run
    attempt             the number of the attempt within the run; 0 before the first
    max_attempts        the largest number of attempts that the run may have
    tenant, correlation_id, provider, policy   as in the log; empty if they are not set
    at                  the store's time, in POSIX seconds

Texts of errors are redacted as in the log.
"""

from __future__ import annotations

from oncemore._values import Value

# Runs -----------------------------------------------------------------------------------------------


class RunSubmitted(Value):
    """A run is stored, and a worker will make it; `due_at` is the earliest time of its first attempt."""

    step: str
    key: str
    run_id: str
    attempt: int
    max_attempts: int
    tenant: str
    correlation_id: str
    provider: str
    policy: str
    at: float
    due_at: float


class RunStarted(Value):
    """The first attempt of a run is about to begin."""

    step: str
    key: str
    run_id: str
    attempt: int
    max_attempts: int
    tenant: str
    correlation_id: str
    provider: str
    policy: str
    at: float


class RunDeferred(Value):
    """A run waits until a time without having made an attempt: an open breaker, a rate limit, a cooldown."""

    step: str
    key: str
    run_id: str
    attempt: int
    max_attempts: int
    tenant: str
    correlation_id: str
    provider: str
    policy: str
    at: float
    reason: str
    delay_s: float


class RunParked(Value):
    """A workflow waits for a time, a signal or an inner run; the attempt that got there does not count."""

    step: str
    key: str
    run_id: str
    attempt: int
    max_attempts: int
    tenant: str
    correlation_id: str
    provider: str
    policy: str
    at: float
    reason: str
    delay_s: float


class RunTakenOver(Value):
    """An attempt was lost with its process, and this process has closed it.

    worker       the worker that is gone
    crash_count  attempts of the run that were lost so far, of at most `max_crashes`; both are 0 under a
                 policy that counts lost attempts as attempts
    """

    step: str
    key: str
    run_id: str
    attempt: int
    max_attempts: int
    tenant: str
    correlation_id: str
    provider: str
    policy: str
    at: float
    worker: str
    crash_count: int
    max_crashes: int


class RunHeld(Value):
    """A run waits for an operator; `held_for` is the reason."""

    step: str
    key: str
    run_id: str
    attempt: int
    max_attempts: int
    tenant: str
    correlation_id: str
    provider: str
    policy: str
    at: float
    held_for: str
    error_type: str
    error_code: str
    error_message: str


class RunReleased(Value):
    """An operator has released a held run: it continues."""

    step: str
    key: str
    run_id: str
    attempt: int
    max_attempts: int
    tenant: str
    correlation_id: str
    provider: str
    policy: str
    at: float
    held_for: str


class RunCompleted(Value):
    """A run is COMPLETE, and its result is stored.

    reason              empty; `reconciled` or `artifact_exists` if no attempt of this process did the work
    attempt_duration_s  how long the attempt took, its part of the store included; 0 without an attempt
    run_duration_s      time since the run was opened, all attempts and waits included
    """

    step: str
    key: str
    run_id: str
    attempt: int
    max_attempts: int
    tenant: str
    correlation_id: str
    provider: str
    policy: str
    at: float
    reason: str
    attempt_duration_s: float
    run_duration_s: float


class RunFailed(Value):
    """A run has ended without success; `reason` says why no further attempt follows."""

    step: str
    key: str
    run_id: str
    attempt: int
    max_attempts: int
    tenant: str
    correlation_id: str
    provider: str
    policy: str
    at: float
    reason: str
    error_type: str
    error_code: str
    error_message: str
    run_duration_s: float


# Attempts -------------------------------------------------------------------------------------------


class AttemptStarted(Value):
    """An attempt is claimed: the function is called next."""

    step: str
    key: str
    run_id: str
    attempt: int
    max_attempts: int
    tenant: str
    correlation_id: str
    provider: str
    policy: str
    at: float


class AttemptFailed(Value):
    """An attempt has raised an error, and the decision about it is taken.

    action      `retry` or `defer`: another attempt follows after `delay_s`; `stop`: the run has failed;
                `quarantine`: it is held for an operator
    reason      the reason of the decision
    error_code  the code of the classified failure, for example HTTP_503; error_kind is its kind
    duration_s  how long the attempt took; 0 if it was not measured

    A call of `oncemore.retry` has no key: `key`, `run_id` and the other fields of the log are empty.
    """

    step: str
    key: str
    run_id: str
    attempt: int
    max_attempts: int
    tenant: str
    correlation_id: str
    provider: str
    policy: str
    at: float
    action: str
    reason: str
    delay_s: float
    error_type: str
    error_code: str
    error_kind: str
    error_message: str
    duration_s: float


class AttemptInterrupted(Value):
    """An attempt was ended from outside: Ctrl-C, a cancellation, a worker that stops.

    reason  `interrupted`, or `released` if the function had not been called
    """

    step: str
    key: str
    run_id: str
    attempt: int
    max_attempts: int
    tenant: str
    correlation_id: str
    provider: str
    policy: str
    at: float
    reason: str


# Other facts ----------------------------------------------------------------------------------------


class BreakerChanged(Value):
    """A circuit breaker has another state: CLOSED, OPEN or HALF_OPEN.

    change      circuit_opened, circuit_half_open, circuit_probe_failed, circuit_probe_released or
                circuit_closed
    until       the end of the cooldown or of the probe's lease; 0 while it is CLOSED
    error_code  the code of the last failure that counted
    """

    provider: str
    change: str
    before: str
    state: str
    failures: int
    open_count: int
    error_code: str
    until: float


class ConfigDrifted(Value):
    """A call got a stored result that another version or config of its step has computed."""

    step: str
    key: str
    run_id: str
    tenant: str
    correlation_id: str
    policy: str
    stored_cfg_hash: str


class StoreSizeExceeded(Value):
    """The store is larger, or the free disk space smaller, than its limit; in bytes, with advice."""

    what: str
    size_bytes: int
    limit_bytes: int
    advice: str


class DeliveryFailed(Value):
    """An event of the outbox was given up; it stays in the store as a dead letter."""

    topic: str
    event_id: str
    attempts: int
    reason: str


class DeliveryHeld(Value):
    """An event of the outbox is not sent, because its dataset does not permit it any more.

    It is sent when the dataset permits it again; `text` says what the dataset objects to.
    """

    topic: str
    event_id: str
    dataset: str
    text: str


class ExecutionRefused(Value):
    """Work is not executed, because something that permits it cannot be verified or read.

    reason   `policy_unverifiable` or `control_state_unknown`
    subject  the policy file, or the step
    text     what is wrong

    The third doubt, an error that no rule of a governed policy knows, ends or holds the run: `AttemptFailed`
    with the action `stop` or `quarantine`.
    """

    reason: str
    subject: str
    text: str


#: The events of a run, and all events.
RunEvent = (
    RunSubmitted
    | RunStarted
    | RunDeferred
    | RunParked
    | RunTakenOver
    | RunHeld
    | RunReleased
    | RunCompleted
    | RunFailed
    | AttemptStarted
    | AttemptFailed
    | AttemptInterrupted
)
ProcessEvent = (
    RunEvent
    | BreakerChanged
    | ConfigDrifted
    | StoreSizeExceeded
    | DeliveryFailed
    | DeliveryHeld
    | ExecutionRefused
)
