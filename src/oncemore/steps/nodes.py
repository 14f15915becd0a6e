"""A node of a pipeline as a durable step, and the nodes that a module defines.

A node has `preflight_checkpoint(run, key)` and `compute(inputs, cfg, checkpoint)` (`profiles.kfm.loop` runs
it). Its step takes `inputs` and `cfg`, and the log keeps both: a worker that knows the node goes on with a
run whose process died, and `replay --verify` computes it again. The key is made of node, inputs and
partition; `cfg` makes the `cfg_hash`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oncemore.errors import UsageError, warn_policy
from oncemore.policy import files
from oncemore.retries.options import function_colour
from oncemore.steps import operator_flow
from oncemore.steps.attempt import current
from oncemore.steps.decorator import Step
from oncemore.steps.keys import cfg_hash
from oncemore.steps.options import StepOptions
from oncemore.steps.read_only_values import make_read_only
from oncemore.steps.signature import module_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncemore.steps.call import PreparedCall
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import AttemptTerms

#: The policy of a node that names none.
PROFILE = "kfm-loop"
#: Names under which a configuration may say which partition a node writes; that is a part of the key.
PARTITION_NAMES = ("target_partition", "partition")
_PARTS = ("preflight_checkpoint", "compute")
_VERSION = "1"


class NodeStep(Step[..., Any]):
    """The step of a node: called with its inputs and its configuration."""

    def __init__(
        self,
        node: Any,
        *,
        policy: Any = None,
        on_config_change: str | None = None,
        engine: Engine | None = None,
    ) -> None:
        self._node, self._policy, self._on_change = node, policy, on_config_change
        work = _make_async_function(node) if is_async_node(node) else _make_function(node)
        options: dict[str, Any] = {
            "effect": getattr(node, "effect", "pure"), "name": node_id_of(node), "partition": _partition_of,
            "ignore": "cfg", "on_version_change": on_config_change, "policy": policy or policy_of(node),
            "pipeline": getattr(node, "pipeline", None) or module_of(node.compute),
        }  # fmt: skip
        checked = StepOptions(work, **options)
        if engine is None:  # the copy for another engine would warn a second time
            warn_policy(*checked.policy.warnings())
        if checked.on_version_change is None:  # neither the call nor the policy's own file says it
            checked.on_version_change = files.profile(PROFILE).sections["idempotency"]["on_config_change"]
        super().__init__(checked, engine)

    def bind(self, engine: Engine) -> NodeStep:
        """Return the same step on another engine."""
        return NodeStep(self._node, policy=self._policy, on_config_change=self._on_change, engine=engine)

    def note_redelivery(self, inputs: Any, cfg: Any) -> Any:
        """Write down that a call found the work done (`artifact_exists`), once per run; nothing is run.

        To be awaited if the node is async.
        """
        call = self._prepare_call((inputs, cfg), {})
        return self._run_script(call, operator_flow.note_redelivery(call))

    def _prepare_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, guess: bool = False
    ) -> PreparedCall:
        call = super()._prepare_call(args, kwargs, guess=guess)
        config = _without_partition(self._cfg_of(call))
        # The configuration is not a part of the key; a changed one begins a new run.
        call.cfg_hash, call.withheld = cfg_hash(_VERSION, config), ()
        return call

    def _make_terms(self, call: PreparedCall, worker: str, now: float) -> AttemptTerms:
        counted = {**call.counted, "cfg": self._cfg_of(call)}
        terms = super()._make_terms(call, worker, now)
        return terms._replace(arguments=self._options.keys.encode_arguments(counted))

    def _cfg_of(self, call: PreparedCall) -> Any:
        return self._options.keys.bind_arguments(call.args, call.kwargs)["cfg"]


def is_node(found: Any) -> bool:
    """Whether an object is a node: not a class, and with a node's two functions and its name."""
    named = isinstance(getattr(found, "node_id", None) or getattr(found, "name", None), str)
    return (
        named and not isinstance(found, type) and all(callable(getattr(found, part, None)) for part in _PARTS)
    )


def nodes_in(module: Any) -> Iterator[NodeStep]:
    """Return the steps of a module's nodes: of its objects, and of its own classes that take no arguments."""
    known: set[str] = set()
    for value in vars(module).values():
        node = value
        if isinstance(value, type) and value.__module__ == module.__name__ and _is_node_class(value):
            node = value()
        if is_node(node) and node_id_of(node) not in known:
            known.add(node_id_of(node))
            yield NodeStep(node)


def _is_node_class(found: type) -> bool:
    named = isinstance(vars(found).get("node_id", vars(found).get("name")), str)
    if not named or not all(callable(getattr(found, part, None)) for part in _PARTS):
        return False
    needed = [one for one in inspect.signature(found).parameters.values() if one.default is one.empty]
    return all(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in needed)


def policy_of(node: Any) -> Any:
    """Return the policy that a node names, or `kfm-loop`."""
    return getattr(node, "policy", None) or PROFILE


def node_id_of(node: Any) -> str:
    """Return what a node is called in the log."""
    found = getattr(node, "node_id", None) or getattr(node, "name", None)
    if not isinstance(found, str):
        raise UsageError(f"{node!r} has no node_id; it names the work in the log, and is a part of its key")
    return found


def is_async_node(node: Any) -> bool:
    """Whether a node's `compute` is async; what is not a node is refused."""
    for name in _PARTS:
        if not callable(getattr(node, name, None)):
            raise UsageError(
                f"{node!r} is no node: it has no {name}; a node has preflight_checkpoint(run, key) and "
                "compute(inputs, cfg, checkpoint)"
            )
    return function_colour(node.compute) == "coroutine"


def _partition_of(inputs: Any, cfg: Any) -> Any:
    return (
        next((cfg[name] for name in PARTITION_NAMES if name in cfg), None)
        if isinstance(cfg, Mapping)
        else None
    )


def _without_partition(cfg: Any) -> Any:
    """Return what of a configuration is hashed: all but the first name of a partition."""
    config = dict(cfg) if isinstance(cfg, Mapping) else {}
    for name in PARTITION_NAMES:
        if name in config:
            del config[name]
            break
    return config


def _make_function(node: Any) -> Callable[[Any, Any], Any]:
    def compute(inputs: Any, cfg: Any) -> Any:
        run = current()
        found, last = node.preflight_checkpoint(run, run.key), run.resume()
        if found is not None and found != last:
            run.checkpoint(found)
            last = found
        return node.compute(make_read_only(inputs), make_read_only(cfg), last)

    return compute


def _make_async_function(node: Any) -> Callable[[Any, Any], Any]:
    async def compute(inputs: Any, cfg: Any) -> Any:
        run = current()
        found, last = node.preflight_checkpoint(run, run.key), run.resume()
        if hasattr(type(found), "__await__"):
            found = await found
        if found is not None and found != last:
            await run.checkpoint(found)
            last = found
        return await node.compute(make_read_only(inputs), make_read_only(cfg), last)

    return compute
