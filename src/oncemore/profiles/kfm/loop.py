"""The loop of the KFM document: a node of a pipeline, tried until it is done or has failed for good.

    from oncemore.profiles.kfm.loop import retry_loop

    class Report:
        node_id = "monthly-report"

        def preflight_checkpoint(self, run, key):
            return run.resume({"done": 0})

        def compute(self, inputs, cfg, checkpoint): ...

    retry_loop(Report(), {"month": "2026-10"}, {"partition": "date=2026-10"})   # "OK" or "HARD_FAIL"

It is a front for the one mechanism: a durable step under the numbers of `kfm-loop.yaml`. Where the document
cannot work as printed it is corrected:

* every exception is classified, not only the two declared ones (X-5): none leaves a run in RUNNING
* attempts go on counting from the log, and their budget belongs to the run (X-7); work that failed for good
  runs again only by `rerun=`, with a reason
* a delay is kept in the log (X-8): whoever takes over after a crash waits for the rest of it
* the node is a part of the key, and a changed configuration is not silently answered from before (X-20)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

from oncemore import clock as clocks
from oncemore.errors import (
    Error,
    Failed,
    Parked,
    PermanentError,
    ResultUnavailable,
    TransientError,
    UsageError,
)
from oncemore.open_engine import chosen
from oncemore.policy import files
from oncemore.steps.nodes import PROFILE as PROFILE
from oncemore.steps.nodes import NodeStep, awaits, policy_of
from oncemore.steps.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from os import PathLike

    from oncemore.policy.policy import Policy
    from oncemore.steps.attempt import Attempt

    Status = Literal["OK", "HARD_FAIL"]
    Named = Policy | str | PathLike[str]

__all__ = ["Node", "PermanentError", "TransientError", "last_run", "retry_loop"]

#: What a configuration may not hold, because it would have no effect there: these are fields of a policy
#: file, where they are reviewed. Spellings that may be a node's own (`rate`, `interval`) are not among them.
POLICY_FIELDS = (
    "retry_policy", "telemetry_tuning", "max_attempts", "max_retries", "retry_attempts", "base_delay_s",
    "base_delay_sec", "max_delay_s", "max_delay_sec", "delays_s", "backoff_s", "base_backoff_s",
    "retry_backoff_seconds", "backoff_multiplier", "jitter", "jitter_seed", "jitter_span_s", "jitter_factor",
    "jitter_enabled", "timeout_s", "within_s", "retry_cost", "on_non_retryable", "halt_scope",
    "circuit_breaker", "retry_budget", "rate_limit", "lease", "escalation",
)  # fmt: skip


class Node(Protocol):
    """What a node provides, beside a `node_id` or a `name`; it may have an `effect` ("pure" unless it has
    one), a `policy` (`kfm-loop`) and a `pipeline` (the module of its class).
    """

    def preflight_checkpoint(self, run: Attempt, key: str) -> Any:
        """Return where `compute` shall begin; `run.resume()` is the last checkpoint, None means that one."""

    def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> Any:
        """Do the work and return its result as plain data; both may be async.

        `inputs` and `cfg` are read-only (ART-5): writing to them raises TypeError.
        """


def retry_loop(
    node: Node,
    inputs: Any,
    cfg: Mapping[str, Any] | None = None,
    *,
    policy: Named | None = None,
    rerun: str | None = None,
    on_config_change: str | None = None,
) -> Any:
    """Run a node to its end and return "OK" or "HARD_FAIL"; to be awaited if `compute` is async.

    cfg               what the result depends on besides its inputs; its `partition` is a part of the key
    policy            instead of the node's own `policy`, or else of `kfm-loop`
    rerun             why work that failed for good is run once more, with a new budget
    on_config_change  "new", "reuse" or "fail" when a finished run had another cfg; else the policy file's, or
                      that of `kfm-loop`

    Raises what is no end of the work: `Parked` when it is due later than the policy's longest delay,
    `ConfigChanged`, `OutcomeUnknown`, `Quarantined` when a person has to look first, `StoreError`.
    """
    made = _step(node, cfg, policy, on_config_change)
    again, noted = partial(made, inputs, cfg), partial(made.note_redelivery, inputs, cfg)
    first = again if rerun is None else partial(made.rerun, inputs, cfg, reason=rerun)
    longest_s = _policy(policy or policy_of(node)).max_delay_s
    script = _loop(noted, first, again, longest_s)
    return _awaiting(script) if awaits(node) else _blocking(script)


def last_run(node: Node, inputs: Any, cfg: Mapping[str, Any] | None = None) -> Run | None:
    """Return the last run of a node with these inputs: its state, attempts, proofs and log; or None."""
    return _step(node, cfg, None, None).last(inputs, cfg)


# The loop: one script, two drivers ------------------------------------------------------------------

if TYPE_CHECKING:
    Script = Generator[Callable[[], Any] | float, Error | None, Status]


def _loop(
    noted: Callable[[], Any], first: Callable[[], Any], again: Callable[[], Any], longest_s: float
) -> Script:
    """Yield what to call and how long to wait; be sent the error of a call, or None.

    A message that is delivered again is noted in the log first.
    """
    yield noted
    call = first
    while True:
        error = yield call
        if not isinstance(error, Parked):
            return _end(error)
        wait = error.until - chosen().now()
        if wait > longest_s:
            raise error
        yield max(0.0, wait)
        call = again


def _end(error: Error | None) -> Status:
    """Return how a run ended; an error that is no end of a run is raised."""
    if error is None:
        return "OK"
    run = error.run
    if not isinstance(run, Run) or run.status not in _ENDS:
        raise error
    return _ENDS[run.status]


_ENDS: dict[str, Status] = {"COMPLETE": "OK", "HARD_FAIL": "HARD_FAIL"}
#: Ways in which a call tells of its run; every other error says that there was none, or no end of it.
_TOLD = (Failed, Parked, ResultUnavailable)


def _blocking(script: Script) -> Status:
    op = next(script)
    try:
        while True:
            if callable(op):
                op = script.send(_called(op))
            else:
                clocks.current.sleep(op)
                op = next(script)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _called(call: Callable[[], Any]) -> Error | None:
    try:
        call()
    except _TOLD as error:
        return error
    return None


async def _awaiting(script: Script) -> Status:
    op = next(script)
    try:
        while True:
            if callable(op):
                op = script.send(await _called_awaited(op))
            else:
                await clocks.current.pause(op)
                op = next(script)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def _called_awaited(call: Callable[[], Any]) -> Error | None:
    try:
        await call()
    except _TOLD as error:
        return error
    return None


# The step that a node is ----------------------------------------------------------------------------


def _step(node: Node, cfg: Any, policy: Named | None, on_config_change: str | None) -> NodeStep:
    """Return the durable step that a node is, if the configuration holds nothing that has no effect."""
    _check_cfg(cfg)
    return NodeStep(node, policy=policy, on_config_change=on_config_change)


def _check_cfg(cfg: Any) -> None:
    """Refuse a configuration that holds something that has no effect there."""
    if cfg is None:
        return
    if not isinstance(cfg, Mapping):
        raise UsageError(f"cfg is {cfg!r:.80}; it takes a mapping")
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


def _policy(policy: Named) -> Policy:
    named: Any = policy
    return files.policy(named) if isinstance(named, str) or hasattr(named, "__fspath__") else named
