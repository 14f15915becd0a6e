"""The loop of the KFM document: a node of a pipeline, tried until it is done or has failed for good.

    from oncemore.profiles.kfm_loop import retry_loop

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

from oncemore import govern
from oncemore.engine import clock as clocks
from oncemore.engine.attempt import current
from oncemore.engine.history import Run
from oncemore.errors import (
    Error,
    Failed,
    Parked,
    PermanentError,
    ResultUnavailable,
    TransientError,
    UsageError,
)
from oncemore.govern import loader
from oncemore.opening import chosen
from oncemore.options import colour_of
from oncemore.steps import Step, step

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from os import PathLike

    from oncemore.core.policy import Policy
    from oncemore.engine.attempt import Attempt

    Status = Literal["OK", "HARD_FAIL"]
    Named = Policy | str | PathLike[str]

__all__ = ["Node", "PermanentError", "TransientError", "last_run", "retry_loop"]

PROFILE = "kfm-loop"
#: Names under which a configuration may say which partition a node writes; that is a part of the key.
PARTITION = ("target_partition", "partition")
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
    """What a node provides, beside a `node_id` or a `name`; `effect` is "pure" unless it has one."""

    def preflight_checkpoint(self, run: Attempt, key: str) -> Any:
        """Return where `compute` shall begin; `run.resume()` is the last checkpoint, None means that one."""

    def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> Any:
        """Do the work and return its result as plain data; both may be async."""


def retry_loop(
    node: Node,
    inputs: Any,
    cfg: Mapping[str, Any] | None = None,
    *,
    policy: Named = PROFILE,
    rerun: str | None = None,
    on_config_change: str | None = None,
) -> Any:
    """Run a node to its end and return "OK" or "HARD_FAIL"; to be awaited if `compute` is async.

    cfg               what the result depends on besides its inputs; its `partition` is a part of the key
    policy            instead of `kfm-loop`
    rerun             why work that failed for good is run once more, with a new budget
    on_config_change  "new", "reuse" or "fail" when a finished run had another cfg; else the policy file's, or
                      that of `kfm-loop`

    Raises what is no end of the work: `Parked` when it is due later than the policy's longest delay,
    `ConfigChanged`, `OutcomeUnknown`, `Quarantined` when a person has to look first, `StoreError`.
    """
    made = _step(node, cfg, policy, on_config_change)
    again = partial(made, inputs)
    first = again if rerun is None else partial(made.rerun, inputs, reason=rerun)
    script = _loop(first, again, _policy(policy).max_delay_s)
    return _awaiting(script) if _awaits(node) else _blocking(script)


def last_run(node: Node, inputs: Any, cfg: Mapping[str, Any] | None = None) -> Run | None:
    """Return the last run of a node with these inputs: its state, attempts, proofs and log; or None."""
    return _step(node, cfg, PROFILE, None).last(inputs)


# The loop: one script, two drivers ------------------------------------------------------------------

if TYPE_CHECKING:
    Script = Generator[Callable[[], Any] | float, Error | None, Status]


def _loop(first: Callable[[], Any], again: Callable[[], Any], longest_s: float) -> Script:
    """Yield what to call and how long to wait; be sent the error of a call, or None."""
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


def _step(node: Node, cfg: Any, policy: Named, on_config_change: str | None) -> Step[[Any], Any]:
    """Return the durable step that a node with a configuration is."""
    config = _checked(cfg)
    partition = next((config.pop(name) for name in PARTITION if name in config), None)
    work = _work_awaited(node, cfg) if _awaits(node) else _work(node, cfg)
    return step(
        effect=getattr(node, "effect", "pure"),
        name=_node_id(node),
        partition=partition,
        config=config,
        on_version_change=on_config_change or _on_config_change(policy),
        policy=policy,
    )(work)


def _work(node: Node, cfg: Any) -> Callable[[Any], Any]:
    def compute(inputs: Any) -> Any:
        run = current()
        found, last = node.preflight_checkpoint(run, run.key), run.resume()
        if found is None or found == last:
            return node.compute(inputs, cfg, last)
        run.checkpoint(found)
        return node.compute(inputs, cfg, found)

    return compute


def _work_awaited(node: Node, cfg: Any) -> Callable[[Any], Any]:
    async def compute(inputs: Any) -> Any:
        run = current()
        found, last = node.preflight_checkpoint(run, run.key), run.resume()
        if hasattr(type(found), "__await__"):
            found = await found
        if found is None or found == last:
            return await node.compute(inputs, cfg, last)
        await run.checkpoint(found)
        return await node.compute(inputs, cfg, found)

    return compute


def _awaits(node: Node) -> bool:
    for name in ("preflight_checkpoint", "compute"):
        if not callable(getattr(node, name, None)):
            raise UsageError(
                f"{node!r} is no node: it has no {name}; a node has preflight_checkpoint(run, key) and "
                "compute(inputs, cfg, checkpoint)"
            )
    return colour_of(node.compute) == "coroutine"


def _node_id(node: Node) -> str:
    found = getattr(node, "node_id", None) or getattr(node, "name", None)
    if not isinstance(found, str):
        raise UsageError(f"{node!r} has no node_id; it names the work in the log, and is a part of its key")
    return found


def _checked(cfg: Any) -> dict[str, Any]:
    """Return a copy of a configuration that holds nothing that would be overlooked."""
    if cfg is None:
        return {}
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
    return dict(cfg)


def _policy(policy: Named) -> Policy:
    named: Any = policy
    return govern.policy(named) if isinstance(named, str) or hasattr(named, "__fspath__") else named


def _on_config_change(policy: Named) -> str | None:
    """Return what a changed configuration means: None where the policy's own file says it."""
    if isinstance(policy, str) or hasattr(policy, "__fspath__"):
        said = (loader.section_of(policy, "idempotency") or {}).get("on_config_change")
        if said is not None:
            return None
    return str(govern.profile(PROFILE).sections["idempotency"]["on_config_change"])
