"""The loop of the KFM document: runs a node of a pipeline until it is done or has failed for good.

    from oncemore.profiles.kfm.loop import retry_loop

    class Report:
        node_id = "monthly-report"

        def preflight_checkpoint(self, run, key):
            return run.resume({"done": 0})

        def compute(self, inputs, cfg, checkpoint): ...

    retry_loop(Report(), {"month": "2026-10"}, {"partition": "date=2026-10"})   # "OK" or "HARD_FAIL"

A node is a durable step under the numbers of `kfm-loop.yaml`. Where the document cannot work as printed, it
is corrected:

* every exception is classified, not only the two declared ones (X-5), so that none leaves a run in RUNNING
* the log counts attempts, and their budget belongs to the run (X-7); work that failed for good runs again
  only with `rerun=` and a reason
* a delay is kept in the log (X-8): the worker that takes over after a crash waits for the rest of it
* the node is a part of the key, and a finished run with another configuration is not returned silently (X-20)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

from oncemore import clock as clocks
from oncemore._driver import OperationTable, run_script, run_script_async
from oncemore._values import Value
from oncemore.errors import (
    Deferred,
    Error,
    PermanentError,
    ResultUnavailable,
    StepFailed,
    TransientError,
    UsageError,
)
from oncemore.open_engine import find_engine
from oncemore.policy import files
from oncemore.steps.nodes import PROFILE as PROFILE
from oncemore.steps.nodes import NodeStep, is_async_node, policy_of
from oncemore.steps.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from oncemore._driver import Script
    from oncemore.policy.policy import Policy
    from oncemore.steps.attempt import Attempt

    Status = Literal["OK", "HARD_FAIL"]
    Named = Policy | str | PathLike[str]

__all__ = ["LoopNode", "PermanentError", "TransientError", "last_run", "retry_loop"]

#: Names that `cfg` may not hold, because they would have no effect there: they are fields of a policy file,
#: which is reviewed. Names that a node may use itself (`rate`, `interval`) are allowed.
POLICY_FIELDS = (
    "retry_policy", "telemetry_tuning", "max_attempts", "max_crashes", "max_retries", "retry_attempts",
    "base_delay_s", "base_delay_sec", "max_delay_s", "max_delay_sec", "delays_s", "backoff_s",
    "base_backoff_s", "retry_backoff_seconds", "backoff_multiplier", "jitter", "jitter_seed", "jitter_span_s",
    "jitter_factor", "jitter_enabled", "timeout_s", "total_timeout_s", "retry_cost", "on_non_retryable",
    "halt_scope", "circuit_breaker", "retry_budget", "rate_limit", "lease", "escalation",
)  # fmt: skip


class LoopNode(Protocol):
    """A node of a pipeline; beside these methods it has a `node_id` or a `name`.

    It may have an `effect` ("pure" by default), a `policy` (`kfm-loop`) and a `pipeline` (its module).
    """

    def preflight_checkpoint(self, run: Attempt, key: str) -> Any:
        """Return the checkpoint for `compute`; None means the last one, which `run.resume()` returns."""

    def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> Any:
        """Do the work and return its result as plain data; both methods may be async.

        `inputs` and `cfg` are read-only (ART-5): writing to them raises TypeError.
        """


def retry_loop(
    node: LoopNode,
    inputs: Any,
    cfg: Mapping[str, Any] | None = None,
    *,
    policy: Named | None = None,
    rerun: str | None = None,
    on_config_change: str | None = None,
) -> Any:
    """Run a node to its end and return "OK" or "HARD_FAIL"; returns a coroutine if `compute` is async.

    cfg               the configuration of the result; its `partition` is a part of the key
    policy            replaces the node's own `policy`, or `kfm-loop`
    rerun             the reason to run failed work once more, with a new budget
    on_config_change  "new", "reuse" or "fail" if a finished run had another cfg; by default as in the
                      policy file

    Raises errors that are not an end of the work: `Deferred` if it is due later than the policy's longest
    delay, `ConfigChanged`, `OutcomeUnknown`, `Quarantined` if an operator has to decide first, `StoreError`.
    """
    step = _make_step(node, cfg, policy, on_config_change)
    repeat_call, note_redelivery = partial(step, inputs, cfg), partial(step.note_redelivery, inputs, cfg)
    first_call = repeat_call if rerun is None else partial(step.rerun, inputs, cfg, reason=rerun)
    max_wait_s = _resolve_policy(policy or policy_of(node)).max_delay_s
    script = _loop_script(note_redelivery, first_call, repeat_call, max_wait_s)
    if is_async_node(node):
        return run_script_async(script, _LOOP_OPERATIONS)
    return run_script(script, _LOOP_OPERATIONS)


def last_run(node: LoopNode, inputs: Any, cfg: Mapping[str, Any] | None = None) -> Run[Any] | None:
    """Return the last run of a node with these inputs: its state, attempts, proofs and log; or None."""
    return _make_step(node, cfg, None, None).last_run(inputs, cfg)


class CallNode(Value):
    """Call the step of a node; the result is its error, if that carries a run, or None."""

    call: Callable[[], Any]


class WaitForRetry(Value):
    """Wait for the next attempt of a node."""

    seconds: float


def _loop_script(
    note_redelivery: Callable[[], Any],
    first_call: Callable[[], Any],
    next_call: Callable[[], Any],
    max_wait_s: float,
) -> Script[Status]:
    """Call the step of a node until its run has ended; a redelivered message is noted in the log first."""
    yield CallNode(note_redelivery)
    call = first_call
    while True:
        try:
            yield CallNode(call)
        except _RUN_ERRORS as error:
            if not isinstance(error, Deferred):
                return _end_status(error)
            # A wait longer than the policy's own delays is not part of the loop: the caller gets the error.
            wait = error.until - find_engine().now()
            if wait > max_wait_s:
                raise
        else:
            return _end_status(None)
        yield WaitForRetry(max(0.0, wait))
        call = next_call


def _end_status(error: Error | None) -> Status:
    """Return the end of a run; raise an error that is not an end."""
    if error is None:
        return "OK"
    run = error.run
    # A stored failure and a lost result both carry the run that says how the work ended.
    if not isinstance(run, Run) or run.status not in _STATUS_BY_STATE:
        raise error
    return _STATUS_BY_STATE[run.status]


_STATUS_BY_STATE: dict[str, Status] = {"COMPLETE": "OK", "HARD_FAIL": "HARD_FAIL"}
#: Errors that carry a run; every other error means that there was no run, or that it has not ended.
_RUN_ERRORS = (StepFailed, Deferred, ResultUnavailable)


_LOOP_OPERATIONS = OperationTable(
    {CallNode: lambda _, op: op.call(), WaitForRetry: lambda _, op: clocks.current.sleep(op.seconds)},
    {CallNode: lambda _, op: op.call(), WaitForRetry: lambda _, op: clocks.current.pause(op.seconds)},
)


def _make_step(node: LoopNode, cfg: Any, policy: Named | None, on_config_change: str | None) -> NodeStep:
    """Return the durable step of a node; refuse a configuration with fields that have no effect."""
    _check_cfg(cfg)
    return NodeStep(node, policy=policy, on_config_change=on_config_change)


def _check_cfg(cfg: Any) -> None:
    """Refuse a configuration that is not a mapping or holds fields without effect."""
    if cfg is None:
        return
    if not isinstance(cfg, Mapping):
        raise UsageError(f"cfg is {cfg!r:.80}; it takes a mapping")
    # Silently ignored limits would look as if they were obeyed.
    for name in POLICY_FIELDS:
        if name in cfg:
            raise UsageError(
                f"cfg holds {name}, which has no effect there: it is a field of a policy file; give policy=, "
                "the name of a policy or the path of its file"
            )
    for name in ("on_config_change", "on_version_change"):
        if name in cfg:
            raise UsageError(
                f"cfg holds {name}, which has no effect there; give retry_loop on_config_change="
            )


def _resolve_policy(policy: Named) -> Policy:
    source: Any = policy
    return files.policy(source) if isinstance(source, str) or hasattr(source, "__fspath__") else source
