"""The options of a step, checked when the function is decorated.

A mistake shows at import; the message names the option and the values that it takes.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections import OrderedDict
from datetime import timedelta
from functools import partial
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from oncemore.artifacts.artifact import check_name
from oncemore.errors import UsageError
from oncemore.limits.cooldown_rules import Cooldown
from oncemore.limits.cooldown_step import CooldownCall
from oncemore.limits.declarations import resolve_breaker, resolve_rate
from oncemore.limits.shared_breaker import breaker_entity
from oncemore.log.tagged_json import TaggedEncoder, untag_value
from oncemore.policy.canonical_json import normalize_name
from oncemore.policy.model import EFFECTS, Failure
from oncemore.policy.policy import Policy, StepSettings
from oncemore.retries.options import (
    CHANGED,
    as_seconds,
    function_colour,
    policy_rate,
    resolve_budget,
    resolve_policy,
)
from oncemore.settings import POLICY_REQUIRED
from oncemore.steps.engine import log
from oncemore.steps.keys import are_plain_json, argument_bytes, cfg_hash, hash_key, scope_bytes
from oncemore.steps.ops import StepBreaker, StepBudget, StepRate
from oncemore.steps.secret import Secret, secret_texts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from oncemore.limits.cooldown_rules import CooldownSchedule

NO_EFFECT = (
    "step() needs effect=: what running it does to the world has no default; the choices are "
    + ", ".join(EFFECTS)
)
_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
BUCKETS = {"minute": 60.0, "hour": 3600.0, "day": 86_400.0, "week": 604_800.0}
SHORTEST_BUCKET_S, LONGEST_S = 0.001, 86_400.0 * 366 * 100
PRIORITIES = ("P0", "P1", "P2")
_PLAIN = TaggedEncoder()


class StepOptions:
    """A step's options, made ready for calls."""

    def __init__(self, work: Callable[..., Any], told: Mapping[str, Any]) -> None:
        self.function = work
        self.colour = _function_colour(work)
        self.name = _step_name(work, told["name"])
        self.aliases = _check_aliases(self.name, told["aliases"])
        self._keyed_as, *self.other_names = (*self.aliases, self.name)
        self.effect = _check_effect(told["effect"])
        if told["policy"] == POLICY_REQUIRED:
            raise UsageError(
                f"step {self.name} does not name a policy, and the settings require one (policy = "
                f'"{POLICY_REQUIRED}"); give policy=…, with max_attempts: 1 for work that may not be retried'
            )
        self.policy, settings = _resolve_policy(told)
        self.policy_source = _source(told, self.policy)
        self.after_failure, self.quarantines = settings.after_failure, settings.quarantines
        self.pipeline, self.halts = _pipeline(work, self.name, told["pipeline"]), settings.halts_pipeline
        rules = settings.breaker
        self.if_running = _check_choice("if_running", told["if_running"], ("wait", "raise"))
        change = told["on_version_change"]
        self.on_version_change = _check_version_change(
            settings.on_version_change if change is None else change, self.effect
        )
        self.requires_approval = _check_bool("requires_approval", told["requires_approval"])
        self.priority = _check_choice("priority", told["priority"] or settings.priority, PRIORITIES)
        self.lease, self.repeats_once = settings.lease, settings.repeats_once
        self.escalation = settings.escalation
        self.isolate = _check_isolate(told["isolate"], self.colour, self.effect)
        if self.isolate:
            from oncemore.steps.isolation import address_of

            address_of(self.name, work)
        self.artifact = "" if told["artifact"] is None else check_name(told["artifact"])
        self.retain_s = (
            0.0 if told["retain_for"] is None else parse_duration("retain_for", told["retain_for"])
        )
        self.not_applied = _make_not_applied(told["not_applied"], self.effect)
        self.reconcile = _check_reconcile(told["reconcile"], self.effect, self.colour)
        self._version, self._config = _check_text("version", told["version"]), told["config"]
        self._cfg = None if callable(self._config) else cfg_hash(self._version, self._config)
        self._partition, self._tenant, self._dataset = told["partition"], told["tenant"], told["dataset"]
        self._provider = told["provider"]
        self._breaker = resolve_breaker(told["breaker"], rules)
        self._rate = policy_rate(told["policy"]) if told["rate"] is None else resolve_rate(told["rate"])
        self._budget = resolve_budget(told["budget"], told["policy"])
        self._guards = rules if self._breaker is None and self._provider is not None else None
        self.cooldown, self._rests = _resolve_cooldown(self.name, told, self.effect)
        if self.cooldown is not None:
            self.after_failure = "new_run"  # the end of the cooldown is what allows it
        self._bucket = _make_bucket(told["bucket"])
        self._plain_scope = b""
        self.needs_clock = self._bucket is not None or self.policy.total_timeout_s is not None
        #: Gives the arguments of a call by name, defaults included; a call that does not fit is refused.
        self.bind_arguments = _make_binder(self.name, work)
        #: Whether providers have breakers (BREAK-1) or rates of their own: calls differ by whom they ask.
        self.limits_each_provider = self._guards is not None or self._rate is not None
        self._left_out, self._secret = _find_ignored(self.name, work, told["ignore"])
        self._key = _make_key_selector(self.name, work, told["key"], self._left_out)
        _check_key_rule(self.name, work, told, self._left_out)
        #: Whether the key is made of all arguments that count: equal keys are then equal arguments.
        self.keys_all_arguments = self._key is None
        self.key_names = None
        if told["key"] is not None and not callable(told["key"]):
            self.key_names = _check_parameter_names(self.name, work, "key", told["key"])

    def select_key_arguments(self, bound: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that make two calls differ."""
        out = self._left_out
        if not out and Secret not in map(type, bound.values()):
            return bound
        return {name: value for name, value in bound.items() if name not in out and type(value) is not Secret}

    def compute_key(
        self, counted: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any], tenant: str, now: float
    ) -> tuple[str, bytes]:
        """Return the key of a call, and all that counts of its arguments as canonical JSON."""
        inputs = argument_bytes(counted)
        scope = self._plain_scope if tenant == "" else b""
        scope = scope or self._scope_bytes(args, kwargs, tenant, now)
        if self._key is None:
            return hash_key(inputs, scope), inputs
        return hash_key(argument_bytes(self._key(counted, args, kwargs)), scope), inputs

    def compute_alias_keys(
        self, counted: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any], tenant: str, now: float
    ) -> Iterator[str]:
        """Return the keys that a call has had under the step's other names, in their order."""
        part = argument_bytes(counted if self._key is None else self._key(counted, args, kwargs))
        partition, bucket = (
            _evaluate_option(self._partition, args, kwargs),
            self._bucket_name(args, kwargs, now),
        )
        for name in self.other_names:
            yield hash_key(part, scope_bytes(name, partition, tenant, bucket))

    def _scope_bytes(self, args: tuple[Any, ...], kwargs: dict[str, Any], tenant: str, now: float) -> bytes:
        """Return the part of the key besides the arguments; a constant part is computed once."""
        if self._partition is None and self._bucket is None and tenant == "":
            self._plain_scope = scope_bytes(self._keyed_as)
            return self._plain_scope
        bucket = self._bucket_name(args, kwargs, now)
        return scope_bytes(self._keyed_as, _evaluate_option(self._partition, args, kwargs), tenant, bucket)

    def _bucket_name(self, args: tuple[Any, ...], kwargs: dict[str, Any], now: float) -> str:
        return "" if self._bucket is None else self._bucket(now, args, kwargs)

    def tenant_of(self, around: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the tenant: the step's own, or the one of the context."""
        if self._tenant is None:
            return around
        return normalize_name(str(_evaluate_option(self._tenant, args, kwargs) or around))

    def dataset_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the dataset it belongs to."""
        return (
            ""
            if self._dataset is None
            else normalize_name(str(_evaluate_option(self._dataset, args, kwargs) or ""))
        )

    @property
    def has_provider(self) -> bool:
        """Whether the step names a provider."""
        return self._provider is not None

    def provider_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the provider of a call."""
        if self._provider is None:
            return ""
        return normalize_name(str(_evaluate_option(self._provider, args, kwargs) or ""))

    @property
    def fixed_breaker(self) -> StepBreaker | None:
        """The breaker of every call; None if there is none, or if it depends on the call."""
        gate = self._breaker
        return None if gate is None else StepBreaker(breaker_entity(gate.name), gate.rules)

    def rate_of(self, provider: str) -> StepRate | None:
        """Return the rate of calls to a provider, or of the step where it names none."""
        rate = self._rate
        return None if rate is None else StepRate(rate.name or provider or self.name, rate.rate_limit)

    @property
    def retry_budget(self) -> StepBudget | None:
        """The budget that its retries are paid from."""
        return None if self._budget is None else StepBudget(self._budget.entity, self._budget)

    def breaker_of(self, provider: str) -> StepBreaker | None:
        """Return the breaker that the policy has for a provider."""
        return (
            StepBreaker(breaker_entity(provider), self._guards)
            if provider and self._guards is not None
            else None
        )

    def cooldown_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CooldownCall | None:
        """Return the resource of a call with its cooldown; None if it has none."""
        assert self.cooldown is not None
        provider = self.provider_of(args, kwargs)
        try:
            resource = self.cooldown.resource_of(args, kwargs)
        except UsageError:
            raise
        except Exception as fault:
            told = f"{type(fault).__name__}: {fault}"
            raise UsageError(f"resource= of the cooldown of {self.name} failed: {told}") from fault
        if not resource:
            return None
        rest = self.cooldown.schedule_for(provider, self._rests)
        return CooldownCall(
            resource, self.name, provider, rest, partial(_error_fingerprint, provider, self.name)
        )

    def config_hash(self) -> str:
        """Return the digest of version and config."""
        return self._cfg or cfg_hash(self._version, self._config())

    def encode_arguments(self, counted: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments as the log keeps them: they read back equal."""
        if are_plain_json(counted):
            return counted
        return {name: _PLAIN.tag_value(value, f"argument {name!r}") for name, value in counted.items()}

    def fill_missing_arguments(self, named: dict[str, Any], bound: int = 0) -> dict[str, Any]:
        """Return named arguments of a key that was done elsewhere, with nothing for those that do not matter.

        What the key is not made of need not be known; what it is made of must be.
        """
        found = dict(named)
        for name in list(inspect.signature(self.function).parameters.values())[bound:]:
            if name.name in found or name.default is not name.empty or name.kind in _MANY:
                continue
            if name.name not in self._left_out and (self.key_names is None or name.name in self.key_names):
                raise UsageError(f"{name.name} is missing: the key of {self.name} is made of it")
            options = (("partition", self._partition), ("tenant", self._tenant), ("dataset", self._dataset))
            for option, value in options:
                if callable(value):
                    raise UsageError(f"{name.name} is missing: {option} of {self.name} may be made of it")
            found[name.name] = None
        return found

    def list_withheld(self, bound: dict[str, Any]) -> tuple[str, ...]:
        """Return the names of arguments that the log does not keep, and that are not their defaults.

        Without them nobody else can make the same call.
        """
        params = inspect.signature(self.function).parameters
        out = bound.keys() - self.select_key_arguments(bound).keys()
        return tuple(sorted(name for name in out if bound[name] is not params[name].default))

    def recall_arguments(
        self, stored: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a call's arguments as the log has them; those that it does not keep are the caller's."""
        bound = self.bind_arguments(args, kwargs)
        return self.decode_arguments(
            stored, {name: value for name, value in bound.items() if name not in stored}
        )

    def decode_arguments(
        self, stored: dict[str, Any], withheld: Mapping[str, Any] = {}
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a call's arguments as the log has them; refuse those that the function does not take.

        withheld  arguments that the log does not keep
        """
        signature = inspect.signature(self.function)
        needed = {
            name
            for name, param in signature.parameters.items()
            if param.default is param.empty and param.kind not in (param.VAR_POSITIONAL, param.VAR_KEYWORD)
        }
        found = stored.keys() | withheld.keys()
        wrong = sorted((found - signature.parameters.keys()) | (needed - found))
        if wrong:
            raise UsageError(
                f"{self.name} was called with other arguments than it takes here ({', '.join(wrong)}); is "
                "this another version of it?"
            )
        values = {
            name: untag_value(stored[name]) if name in stored else withheld[name]
            for name in signature.parameters
            if name in found
        }
        bound = inspect.BoundArguments(signature, OrderedDict(values))
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def secret_texts(self, bound: dict[str, Any]) -> tuple[str, ...]:
        """Return the texts that no message may hold."""
        held = (value for name, value in bound.items() if name in self._secret or type(value) is Secret)
        return secret_texts_of(text for value in held for text in _secret_leaves(value))

    def return_annotation(self) -> Any:
        """Return the annotation of what the function returns, or None."""
        found = _type_hints(self.function).get("return")
        return None if found is type(None) or isinstance(found, str) else found


def _function_colour(work: Any) -> str:
    if isinstance(work, staticmethod | classmethod):
        raise UsageError(f"put @oncemore.step below @{type(work).__name__}, next to the function")
    if not callable(work) or isinstance(work, type):
        raise UsageError(f"{work!r} is no function; a step is made of a function")
    colour = function_colour(work)
    if colour in ("generator", "async-generator"):
        raise UsageError(
            f"{getattr(work, '__qualname__', work)} is a generator function: its values are handed out "
            "before it ends; return a list"
        )
    return colour


def _step_name(work: Any, name: str | None) -> str:
    """Return the name of a step; it does not depend on how its module is started."""
    if name is not None:
        return normalize_name(_check_text("name", name))
    own = getattr(work, "__qualname__", None)
    if own is None:
        raise UsageError(f"{work!r} has no name of its own; give name=")
    return f"{module_of(work)}.{own}"


def module_of(work: Any) -> str:
    """Return the module of a function, by the name that is the same however its module is started."""
    module = getattr(work, "__module__", None)
    if module in ("__main__", "__mp_main__"):
        module = _import_name(getattr(_unwrap_function(work), "__globals__", vars(sys.modules["__main__"])))
    return str(module)


def _check_aliases(name: str, told: Any) -> tuple[str, ...]:
    """Return the names that a step had before, the oldest first; the step's own and repeats are refused."""
    names = (told,) if isinstance(told, str) else told
    if not isinstance(names, tuple | list):
        raise UsageError(f"aliases of {name} is {told!r}; it takes the names that the step had before")
    names = [normalize_name(_check_text(f"an alias of {name}", alias)) for alias in names]
    if len({*names, name}) <= len(names):
        raise UsageError(f"aliases of {name} names one of its names twice, or the one it has now")
    return tuple(names)


def _import_name(main: Mapping[str, Any]) -> str:
    """Return what a program's own module is called when others import it.

    A program may be started as a file or with -m, and its children know its module as `__mp_main__`.
    """
    spec = main.get("__spec__")
    if spec is not None and spec.name != "__main__":
        return str(spec.name)
    file = Path(main.get("__file__") or "main").absolute()
    packages = takewhile(lambda folder: (folder / "__init__.py").exists(), file.parents)
    return ".".join([*reversed([folder.name for folder in packages]), file.stem])


def _check_effect(effect: Any) -> Any:
    if effect not in EFFECTS:
        raise UsageError(
            NO_EFFECT if effect is None else f"effect is {effect!r}; the choices are {', '.join(EFFECTS)}"
        )
    return effect


def _resolve_policy(told: Mapping[str, Any]) -> tuple[Policy, StepSettings]:
    """Return the policy, and the settings for steps in its file."""
    named: Any = {name: told[name] for name in ("policy", "timeout", "total_timeout")}
    provider = told["provider"]
    if isinstance(named["policy"], str) and isinstance(provider, str) and "@" not in named["policy"]:
        named["policy"] = f"{named['policy']}@{provider}"
    policy = resolve_policy(named)
    if isinstance(named["policy"], str) or hasattr(named["policy"], "__fspath__"):
        from oncemore.policy.files import loader

        return policy, loader.step_settings(named["policy"])
    return policy, StepSettings()


def _pipeline(work: Any, name: str, told: Any) -> str:
    """Return the pipeline that a step belongs to: the one it names, or the module of its function.

    A function of this package stands for a user's work and is in no module of his: its step stands alone.
    """
    if told is not None:
        return normalize_name(_check_text("pipeline", told))
    module = module_of(work)
    return name if module.split(".")[0] == "oncemore" else module


def _source(told: Mapping[str, Any], policy: Policy) -> str:
    """Return the address of a policy that was given by name or path, if it is used as it is there."""
    given = told["policy"]
    if isinstance(given, Policy) or policy.name.endswith(CHANGED):
        return ""
    address, provider = str(os.fspath(given)), told["provider"]
    if isinstance(provider, str) and isinstance(given, str) and "@" not in given:
        address = f"{given}@{provider}"
    is_file = re.search(r"\.ya?ml($|[/@])", address)
    return os.path.abspath(address) if is_file else address  # noqa: PTH100 - an address, not a path


def _resolve_cooldown(
    name: str, told: Mapping[str, Any], effect: str
) -> tuple[Cooldown | None, Mapping[str, CooldownSchedule] | None]:
    """Return when what a step asks for is left alone, and the numbers that its policy has for that."""
    found = told["cooldown"]
    if found is None:
        return None, None
    if not isinstance(found, Cooldown):
        raise UsageError(f"cooldown of {name} is {found!r:.80}; it takes oncemore.Cooldown(resource=…)")
    if effect == "once":
        raise UsageError(
            f"{name} is declared once, and a cooldown is for work that is tried again after it; declare it "
            "idempotent if it may be"
        )
    policy = told["policy"]
    if isinstance(policy, str) or hasattr(policy, "__fspath__"):
        from oncemore.policy.files import loader

        return found, loader.load_cooldowns(policy)
    return found, None


def _error_fingerprint(provider: str, step: str, error: dict[str, Any]) -> str:
    """Return the fingerprint of an error record."""
    from oncemore.audit.fingerprint import compute_fingerprint

    failure = Failure(error.get("kind", "permanent"), code=error.get("code", ""))
    return compute_fingerprint(failure, error.get("message", ""), provider, step)


def _check_bool(option: str, value: Any) -> bool:
    """Refuse anything but True and False: a text such as "no" would count as true."""
    if type(value) is not bool:
        raise UsageError(f"{option} is {value!r:.80}; it takes True or False")
    return value


def _check_choice(option: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise UsageError(f"{option} is {value!r}; the choices are {', '.join(choices)}")
    return str(value)


def _check_version_change(value: Any, effect: str) -> str | None:
    if value is None:
        return None
    if value == "new" and effect == "once":
        raise UsageError(
            "on_version_change='new' would repeat what may happen only once; take 'reuse' or 'fail'"
        )
    return _check_choice("on_version_change", value, ("new", "reuse", "fail"))


def _check_isolate(value: Any, colour: str, effect: str) -> bool:
    if value is None:
        return False
    if value != "process":
        raise UsageError(f"isolate is {value!r}; it takes 'process'")
    if colour == "coroutine":
        raise UsageError(
            "isolate='process' is for plain functions; an async one is cancelled at its limit anyway"
        )
    if effect == "transactional":
        raise UsageError(
            "isolate='process' does not go with effect='transactional': the transaction would be the child's"
        )
    return True


def _make_not_applied(declared: Any, effect: str) -> Callable[[Exception], bool]:
    """Return the question whether an error says that the effect did not happen."""
    if declared and effect != "once":
        raise UsageError(f"not_applied is for effect='once'; {effect} work may be repeated anyway")
    if declared == "not-sent":
        from oncemore.classifiers.classify import classify

        return lambda error: classify(error, 0.0).sent == "no"
    kinds = declared if isinstance(declared, tuple | list) else (declared,)
    if all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        types = tuple(kinds)
        return lambda error: isinstance(error, types)
    # A class is callable too: taken for a predicate, KeyboardInterrupt would say yes to everything.
    if callable(declared) and not isinstance(declared, type) and function_colour(declared) == "plain":
        return lambda error: _call_predicate(declared, error)
    raise UsageError(f"not_applied is {declared!r}; it takes exception types, a predicate or 'not-sent'")


def _call_predicate(predicate: Callable[[Exception], object], error: Exception) -> bool:
    """Return the answer of a predicate; a predicate that raises counts as "may have happened"."""
    try:
        return bool(predicate(error))
    except Exception as fault:  # noqa: BLE001 - a user's mistake must not look like the work's outcome
        log.warning("oncemore: the not_applied function failed: %s", type(fault).__name__)
        return False


def _check_reconcile(ask: Any, effect: str, colour: str) -> Any:
    if ask is None:
        return None
    if effect != "once":
        raise UsageError(f"reconcile is for effect='once'; {effect} work may be repeated anyway")
    if not callable(ask):
        raise UsageError(f"reconcile is {ask!r}; it takes a function")
    if function_colour(ask) == "coroutine" and colour != "coroutine":
        raise UsageError("reconcile is an async function, and the step is not")
    return ask


def _make_bucket(bucket: Any) -> Callable[[float, Any, Any], str] | None:
    """Return the function that names the time bucket of a call."""
    if bucket is None:
        return None
    if callable(bucket):
        return lambda now, args, kwargs: str(bucket(*args, **kwargs))
    size = BUCKETS[_check_choice("bucket", bucket, tuple(BUCKETS))] if isinstance(bucket, str) else None
    size = parse_duration("bucket", bucket) if size is None else size
    if size < SHORTEST_BUCKET_S:
        raise UsageError(f"bucket is {bucket!r}; it takes {SHORTEST_BUCKET_S:g} s or more")
    name = str(timedelta(seconds=size))
    return lambda now, args, kwargs: f"{name} from {_format_seconds(now // size * size)}"


def _format_seconds(seconds: float) -> str:
    """Return seconds without trailing zeros: two buckets of one second must not have one name."""
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


def parse_duration(option: str, value: Any) -> float:
    """Return a stretch of time in seconds: finite, and not less than nothing."""
    seconds = as_seconds(option, value)
    if not 0 <= seconds <= LONGEST_S:
        raise UsageError(f"{option} is {value!r}; it takes 0 to {LONGEST_S:g} seconds")
    return seconds


def _evaluate_option(value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the value of an option; a callable is called with the arguments of the call."""
    return value(*args, **kwargs) if callable(value) else value


def _make_binder(name: str, work: Any) -> Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]]:
    """Return the function that binds arguments to names; plain signatures have a fast one."""
    try:
        signature = inspect.signature(work)
    except ValueError:
        raise UsageError(
            f"{name}: {work!r} does not say what arguments it takes; wrap it in a function"
        ) from None
    params = list(signature.parameters.values())
    plain = all(param.kind is param.POSITIONAL_OR_KEYWORD for param in params)
    names = tuple(signature.parameters)
    known = frozenset(names)
    defaults = {param.name: param.default for param in params if param.default is not param.empty}

    def whole(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    def short(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        given = dict(zip(names, args, strict=False))
        if not kwargs and len(args) == len(names):
            return given
        if len(args) > len(names) or not kwargs.keys() <= known or kwargs.keys() & given.keys():
            return whole(args, kwargs)  # says what is wrong
        given.update(kwargs)
        if len(given) == len(names):
            return given
        filled = {**defaults, **given}
        return filled if len(filled) == len(names) else whole(args, kwargs)

    return short if plain else whole


def _find_ignored(name: str, work: Any, ignore: Any) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of arguments that take no part in the key, and those of them that are secret."""
    ignored = frozenset(_check_parameter_names(name, work, "ignore", ignore))
    hints = _type_hints(work, extras=True)
    secret = frozenset(param for param, hint in hints.items() if _is_secret(hint))
    return ignored | secret, secret


def _is_secret(hint: Any) -> bool:
    """Whether an annotation is or holds `Secret`; one that cannot be resolved is judged by its text."""
    text = getattr(hint, "__forward_arg__", hint)
    if isinstance(text, str):
        return re.search(r"\bSecret\b", text) is not None
    return hint is Secret or any(_is_secret(part) for part in get_args(hint) if part is not hint)


def _type_hints(work: Any, *, extras: bool = False) -> dict[str, Any]:
    """Return the annotations of a function; what exists only for the type checker stays as it is written."""
    function = _unwrap_function(work)
    try:
        return get_type_hints(function, include_extras=extras)
    except Exception:  # noqa: BLE001 - one name that is not there must not hide all others
        around = getattr(function, "__globals__", {})
        return {name: _resolve_hint(hint, around) for name, hint in annotations_of(function).items()}


def hints_of(work: Any) -> dict[str, Any]:
    """Return the annotations of a function, as far as they can be resolved."""
    return _type_hints(work)


def _resolve_hint(hint: Any, around: dict[str, Any]) -> Any:
    alone = SimpleNamespace(__annotations__={"it": hint})
    try:
        return get_type_hints(alone, around, include_extras=True)["it"]
    except Exception:  # noqa: BLE001 - the type checker alone knows it
        return hint


def annotations_of(function: Any) -> dict[str, Any]:
    """Return annotations as they are; where Python evaluates them late and cannot, as they are written."""
    try:
        return dict(getattr(function, "__annotations__", {}))
    except NameError:  # pragma: no cover - from Python 3.14 on
        as_written: Any = {"format": 4}
        return dict(inspect.get_annotations(function, **as_written))


def _unwrap_function(work: Any) -> Any:
    """Return the function behind a partial, a bound method or an object that can be called."""
    while not hasattr(work, "__code__"):
        inner = getattr(work, "func", None) or getattr(work, "__func__", None)
        if inner is None:
            return getattr(type(work), "__call__", work)  # noqa: B004 - what is called is the class's
        work = inner
    return work


def _check_parameter_names(name: str, work: Any, option: str, told: Any) -> tuple[str, ...]:
    """Return names of parameters, given as one or several; what is none is refused."""
    names = (told,) if isinstance(told, str) else told
    if not isinstance(names, tuple | list | set | frozenset) or not all(isinstance(n, str) for n in names):
        raise UsageError(f"{option} of {name} is {told!r}; it takes names of parameters")
    unknown = set(names) - set(inspect.signature(work).parameters)
    if unknown:
        raise UsageError(
            f"{option} of {name} names {', '.join(sorted(unknown))}, which is no parameter of it"
        )
    return tuple(names)


def _make_key_selector(
    name: str, work: Any, key: Any, left_out: frozenset[str]
) -> Callable[..., dict[str, Any]] | None:
    """Return the function that selects the arguments of the key."""
    if key is None:
        return None
    if callable(key):
        if function_colour(key) != "plain":
            raise UsageError(f"key of {name} is an async function; a key is made at once")
        return lambda counted, args, kwargs: {"key": key(*args, **kwargs)}
    names = _check_parameter_names(name, work, "key", key)
    if left_out.intersection(names):
        raise UsageError(
            f"key of {name} names {', '.join(sorted(left_out.intersection(names)))}, which ignore= or Secret "
            "leaves out"
        )

    def chosen(counted: dict[str, Any], args: Any, kwargs: Any) -> dict[str, Any]:
        try:
            return {part: counted[part] for part in names}
        except KeyError as missing:
            raise UsageError(f"key of {name} names {missing}, and a Secret takes no part in keys") from None

    return chosen


def _check_key_rule(name: str, work: Any, told: Mapping[str, Any], left_out: frozenset[str]) -> None:
    """Refuse a step whose key does not depend on its input: all calls would be the same work (IDEM-12)."""
    inputs = [param for param in inspect.signature(work).parameters if param not in ("self", "cls")]
    ruled = any(told[option] is not None for option in ("key", "partition", "bucket", "tenant"))
    if inputs and not ruled and left_out.issuperset(inputs):
        raise UsageError(
            f"{name} has no rule for its key: ignore= or Secret leaves out all its arguments "
            f"({', '.join(inputs)}), and all calls would be the same work; give key=, partition= or bucket="
        )


def _secret_leaves(value: Any, room: int = 4) -> Iterator[Any]:
    """Return the texts that a secret is made of, so that each can be looked for."""
    value = value.reveal() if isinstance(value, Secret) else value
    if isinstance(value, bytes):
        yield value.decode(errors="replace")
    elif room and isinstance(value, dict):
        for inner in value.values():
            yield from _secret_leaves(inner, room - 1)
    elif room and isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            yield from _secret_leaves(inner, room - 1)
    else:
        yield value


def _check_text(option: str, value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= 200:
        raise UsageError(f"{option} is {value!r}; it takes a text of 1 to 200 characters")
    return value
