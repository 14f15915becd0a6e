"""Make a durable step of a pipeline node, and find the nodes of a module.

A node has `preflight_checkpoint(run, key)` and `compute(inputs, cfg, checkpoint)` (`profiles.kfm.loop` runs
it). Its step takes `inputs` and `cfg`, and the log stores both: a worker that has the node continues a run
after its process died, and `replay --verify` computes it again. The key covers node, inputs and partition;
the `cfg_hash` covers `cfg`.
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

#: The default policy of a node.
PROFILE = "kfm-loop"
#: The fields of a configuration that may name the partition; the partition is a part of the key.
PARTITION_NAMES = ("target_partition", "partition")
_PARTS = ("preflight_checkpoint", "compute")
# Nodes have no version option: their configuration alone makes the `cfg_hash` of a run.
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
        # The copy for another engine (`bind`) would warn a second time.
        if engine is None:
            warn_policy(*checked.policy.warnings())
        # Neither the call nor the file of the policy sets it: the profile of nodes does.
        if checked.on_version_change is None:
            checked.on_version_change = files.profile(PROFILE).sections["idempotency"]["on_config_change"]
        super().__init__(checked, engine)

    def bind(self, engine: Engine) -> NodeStep:
        """Return the same step on another engine."""
        return NodeStep(self._node, policy=self._policy, on_config_change=self._on_change, engine=engine)

    def note_redelivery(self, inputs: Any, cfg: Any) -> Any:
        """Record that a call found the work done (`artifact_exists`), once per run; nothing is run.

        Await the result if the node is async.
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
        # Ignored by the key, but stored: a worker and `replay` need the configuration to compute again.
        counted = {**call.counted, "cfg": self._cfg_of(call)}
        terms = super()._make_terms(call, worker, now)
        self._options.keys.check_arguments(counted)
        return terms._replace(arguments=self._options.keys.encode_arguments(counted))

    def _cfg_of(self, call: PreparedCall) -> Any:
        return self._options.keys.bind_arguments(call.args, call.kwargs)["cfg"]


def is_node(candidate: Any) -> bool:
    """Return whether an object is a node: not a class, with a name and the two functions of a node."""
    has_name = isinstance(getattr(candidate, "node_id", None) or getattr(candidate, "name", None), str)
    if not has_name or isinstance(candidate, type):
        return False
    return all(callable(getattr(candidate, part, None)) for part in _PARTS)


def nodes_in(module: Any) -> Iterator[NodeStep]:
    """Yield the steps of a module's nodes: of its objects, and of its own classes that take no arguments."""
    # A class and an object of it may both be in the module: one step per node_id.
    known: set[str] = set()
    for value in vars(module).values():
        node = value
        if isinstance(value, type) and value.__module__ == module.__name__ and _is_node_class(value):
            node = value()
        if is_node(node) and node_id_of(node) not in known:
            known.add(node_id_of(node))
            yield NodeStep(node)


def _is_node_class(candidate: type) -> bool:
    """Return whether a class makes nodes without arguments."""
    # Only an attribute of the class itself counts: an inherited name is that of the base class's node.
    has_name = isinstance(vars(candidate).get("node_id", vars(candidate).get("name")), str)
    if not has_name or not all(callable(getattr(candidate, part, None)) for part in _PARTS):
        return False
    params = inspect.signature(candidate).parameters.values()
    required = [param for param in params if param.default is param.empty]
    return all(param.kind in (param.VAR_POSITIONAL, param.VAR_KEYWORD) for param in required)


def policy_of(node: Any) -> Any:
    """Return the policy of a node; `kfm-loop` by default."""
    return getattr(node, "policy", None) or PROFILE


def node_id_of(node: Any) -> str:
    """Return the name of a node in the log."""
    node_id = getattr(node, "node_id", None) or getattr(node, "name", None)
    if not isinstance(node_id, str):
        raise UsageError(f"{node!r} has no node_id; it names the work in the log, and is a part of its key")
    return node_id


def is_async_node(node: Any) -> bool:
    """Return whether a node's `compute` is async; raise `UsageError` for an object that is not a node."""
    for name in _PARTS:
        if not callable(getattr(node, name, None)):
            raise UsageError(
                f"{node!r} is not a node: it has no {name}; a node has preflight_checkpoint(run, key) and "
                "compute(inputs, cfg, checkpoint)"
            )
    return function_colour(node.compute) == "coroutine"


def _partition_of(inputs: Any, cfg: Any) -> Any:
    """Return the partition in a configuration, by the first of its names; None if there is none."""
    if not isinstance(cfg, Mapping):
        return None
    return next((cfg[name] for name in PARTITION_NAMES if name in cfg), None)


def _without_partition(cfg: Any) -> Any:
    """Return the hashed part of a configuration: all but the field that names the partition."""
    # The partition is a part of the key: another one is other work, and not a changed configuration.
    config = dict(cfg) if isinstance(cfg, Mapping) else {}
    for name in PARTITION_NAMES:
        if name in config:
            del config[name]
            break
    return config


def _make_function(node: Any) -> Callable[[Any, Any], Any]:
    def compute(inputs: Any, cfg: Any) -> Any:
        run = current()
        checkpoint, last = node.preflight_checkpoint(run, run.key), run.resume()
        # Stored only if it is new: a retry without progress must not make the log grow.
        if checkpoint is not None and checkpoint != last:
            run.checkpoint(checkpoint)
            last = checkpoint
        return node.compute(make_read_only(inputs), make_read_only(cfg), last)

    return compute


def _make_async_function(node: Any) -> Callable[[Any, Any], Any]:
    async def compute(inputs: Any, cfg: Any) -> Any:
        run = current()
        checkpoint, last = node.preflight_checkpoint(run, run.key), run.resume()
        # The preflight of an async node may be a plain function.
        if hasattr(type(checkpoint), "__await__"):
            checkpoint = await checkpoint
        if checkpoint is not None and checkpoint != last:
            await run.checkpoint(checkpoint)
            last = checkpoint
        return await node.compute(make_read_only(inputs), make_read_only(cfg), last)

    return compute
