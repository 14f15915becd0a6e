"""The options of a step, checked when the function is decorated.

A mistake shows at import; the message names the option and the values that it takes.
"""

from __future__ import annotations

import os
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from oncemore._platform import require_posix
from oncemore.artifacts.artifact import check_name
from oncemore.config import POLICY_REQUIRED
from oncemore.errors import UsageError
from oncemore.governance.dataset_model import check_masking
from oncemore.limits.cooldown_rules import Cooldown, resource_of, schedule_for
from oncemore.limits.cooldown_step import CooldownCall
from oncemore.limits.declarations import resolve_breaker, resolve_rate
from oncemore.limits.queue_rules import MAX_CONCURRENCY, StepQueue
from oncemore.limits.shared_breaker import breaker_entity
from oncemore.log.result_codec import ResultCodec
from oncemore.policy.canonical_json import normalize_name
from oncemore.policy.model import EFFECTS, Failure
from oncemore.policy.policy import Policy, StepSettings
from oncemore.retries.limit_options import policy_rate, resolve_budget
from oncemore.retries.options import CHANGED, check_hook, make_covers, resolve_policy
from oncemore.steps.arguments import RecordedArguments
from oncemore.steps.keys import KeyRule, cfg_hash, evaluate_option, parse_duration
from oncemore.steps.once_options import check_reconcile, make_not_applied
from oncemore.steps.plan import StepBreaker, StepBudget, StepRate
from oncemore.steps.signature import check_function, hints_of, module_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.limits.cooldown_rules import CooldownSchedule

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]

NO_EFFECT = "step() needs effect=: the effect of its function has no default; the choices are " + ", ".join(
    EFFECTS
)
PRIORITIES = ("P0", "P1", "P2")
#: The options of `step` that may be left out.
OPTION_DEFAULTS: dict[str, Any] = {
    "name": None, "aliases": (), "key": None, "ignore": (), "partition": None, "bucket": None, "tenant": None,
    "config": None, "version": "1", "on_version_change": None, "on": None, "until": None, "attempts": None,
    "wait": None, "timeout": None, "isolate": None, "total_timeout": None, "max_crashes": None,
    "if_running": "wait", "not_applied": (), "reconcile": None, "provider": None, "breaker": None,
    "rate": None, "budget": None, "dataset": None, "priority": None, "retain_for": None, "artifact": None,
    "cooldown": None, "requires_approval": False, "pipeline": None, "queue": None,
    "concurrency": None, "operation": None, "masking": None,
}  # fmt: skip


class StepOptions:
    """The options that the user wrote for a step, checked.

    keys       computes the keys of calls
    arguments  reads the arguments of recorded calls
    dataset, provider, masking   the option as given: a value, a function of the arguments, or None
    schedules  the schedules that `oncemore.schedule` has added
    """

    def __init__(self, function: Callable[..., Any], **arguments: Any) -> None:
        options = {**OPTION_DEFAULTS, **arguments}
        self.function = function
        self.schedules: tuple[Any, ...] = ()
        self.colour = check_function(function)
        self.name = _step_name(function, options["name"])
        self.aliases = _check_aliases(self.name, options["aliases"])
        self.keys = KeyRule(function, (*self.aliases, self.name), options)
        self.arguments = RecordedArguments(self.name, function, self.keys)
        self.effect = _check_effect(options["effect"])
        if options["policy"] == POLICY_REQUIRED:
            raise UsageError(
                f"step {self.name} does not name a policy, and the settings require one (policy = "
                f'"{POLICY_REQUIRED}"); give policy=…, with max_attempts: 1 for work that may not be retried'
            )
        self.policy, settings = _resolve_policy(options)
        self.policy_source = _policy_source(options, self.policy)
        self.covers = None if options["on"] is None else make_covers(options["on"], self.policy)
        self.until = _check_until(options["until"], self.effect, self.colour)
        self._take_settings(settings, options)
        self.pipeline = _pipeline_name(function, self.name, options["pipeline"])
        self.if_running = _check_choice("if_running", options["if_running"], ("wait", "raise"))
        self.requires_approval = _check_bool("requires_approval", options["requires_approval"])
        self.isolate = _check_isolate(options["isolate"], self.colour, self.effect)
        if self.isolate:
            require_posix("isolate='process'", "Without it, a time limit is kept by a helper thread")
            from oncemore.steps.isolation import address_of

            address_of(self.name, function)
        self.artifact = "" if options["artifact"] is None else check_name(options["artifact"])
        retain_for = options["retain_for"]
        self.retain_s = 0.0 if retain_for is None else parse_duration("retain_for", retain_for)
        self.not_applied = make_not_applied(options["not_applied"], self.effect)
        self.reconcile = check_reconcile(options["reconcile"], self.effect, self.colour)
        self._version, self._config = _check_text("version", options["version"]), options["config"]
        self.fixed_cfg_hash = "" if callable(self._config) else cfg_hash(self._version, self._config)
        self.dataset, self.provider = options["dataset"], options["provider"]
        self.operation = normalize_name(_check_text("operation", options["operation"] or self.name))
        self.masking = options["masking"]
        if self.masking is not None and not callable(self.masking):
            check_masking(self.masking)
        self._fixed_gate_terms: tuple[str, int] | None = None
        if not callable(self.dataset) and not callable(self.masking):
            # The same for every call; computed once, because every call asks for them.
            self._fixed_gate_terms = self.gate_terms_of((), {})
        #: Whether calls have a dataset or a masking level, which the gate compares.
        self.is_gated = self.dataset is not None or self.masking is not None
        self._resolve_limits(settings, options)
        self.uses_clock = self.keys.uses_clock or self.policy.total_timeout_s is not None

    def _take_settings(self, settings: StepSettings, options: Mapping[str, Any]) -> None:
        """Take the settings that a policy file has for steps; options of the step override some of them."""
        self.after_failure, self.quarantines = settings.after_failure, settings.quarantines
        self.halts, self.lease = settings.halts_pipeline, settings.lease
        self.governed_profile: Any = settings.governed_profile
        self.repeats_once, self.escalation = settings.repeats_once, settings.escalation
        change = options["on_version_change"]
        self.on_version_change = _check_version_change(
            settings.on_version_change if change is None else change, self.effect
        )
        self.priority = _check_choice("priority", options["priority"] or settings.priority, PRIORITIES)

    def _resolve_limits(self, settings: StepSettings, options: Mapping[str, Any]) -> None:
        breaker = resolve_breaker(options["breaker"], settings.breaker)
        #: The breaker of every call; None if there is none, or if it depends on the provider of the call.
        self.fixed_breaker = (
            None if breaker is None else StepBreaker(breaker_entity(breaker.name), breaker.rules)
        )
        rate = options["rate"]
        self._rate = policy_rate(options["policy"]) if rate is None else resolve_rate(rate)
        budget = resolve_budget(options["budget"], options["policy"])
        self.retry_budget = None if budget is None else StepBudget(budget.entity, budget)
        has_own = breaker is None and self.provider is not None
        self._provider_rules = settings.breaker if has_own else None
        #: Whether each provider has its own breaker (BREAK-1) or rate limit.
        self.limits_each_provider = self._provider_rules is not None or self._rate is not None
        self.queue = _resolve_queue(self.name, options["queue"], options["concurrency"])
        self.autonomy = settings.autonomy
        self.cooldown, self._schedules = _resolve_cooldown(self.name, options, self.effect)
        if self.cooldown is not None:
            # Only the end of the cooldown decides when failed work may run again.
            self.after_failure = "new_run"

    # Values of one call -----------------------------------------------------------------------------

    def config_hash(self) -> str:
        """Return the digest of version and config."""
        return self.fixed_cfg_hash or cfg_hash(self._version, self._config())

    def dataset_of(self, args: Args, kwargs: Kwargs) -> str:
        """Return the dataset of a call."""
        return _evaluate_name(self.dataset, args, kwargs)

    def gate_terms_of(self, args: Args, kwargs: Kwargs) -> tuple[str, int]:
        """Return the dataset of a call, and the level at which it masks the data."""
        if self._fixed_gate_terms is not None:
            return self._fixed_gate_terms
        level = 0 if self.masking is None else check_masking(evaluate_option(self.masking, args, kwargs))
        return self.dataset_of(args, kwargs), level

    def provider_of(self, args: Args, kwargs: Kwargs) -> str:
        """Return the provider of a call."""
        return _evaluate_name(self.provider, args, kwargs)

    def rate_of(self, provider: str) -> StepRate | None:
        """Return the rate limit of calls to a provider, or of the step if it names none."""
        rate = self._rate
        return None if rate is None else StepRate(rate.name or provider or self.name, rate.rate_limit)

    def breaker_of(self, provider: str) -> StepBreaker | None:
        """Return the breaker of calls to a provider."""
        if self.fixed_breaker is not None:
            return self.fixed_breaker
        rules = self._provider_rules
        return None if rules is None or not provider else StepBreaker(breaker_entity(provider), rules)

    def cooldown_of(self, args: Args, kwargs: Kwargs) -> CooldownCall | None:
        """Return the resource of a call with its cooldown; None if the call has none."""
        if self.cooldown is None:
            return None
        provider = self.provider_of(args, kwargs)
        try:
            resource = resource_of(self.cooldown, args, kwargs)
        except UsageError:
            raise
        except Exception as fault:
            text = f"{type(fault).__name__}: {fault}"
            raise UsageError(f"resource= of the cooldown of {self.name} failed: {text}") from fault
        if not resource:
            return None
        schedule = schedule_for(self.cooldown, provider, self._schedules)
        fingerprint = partial(_error_fingerprint, provider, self.name)
        return CooldownCall(resource, self.name, provider, schedule, fingerprint)

    def make_result_codec(self) -> ResultCodec:
        """Return the codec of the function's results, by its return annotation."""
        namespace = self.keys.codecs.local_types
        annotation = hints_of(self.function, namespace=namespace).get("return")
        return ResultCodec(None if annotation is type(None) else annotation, namespace)


def _evaluate_name(option: Any, args: Args, kwargs: Kwargs) -> str:
    return "" if option is None else normalize_name(str(evaluate_option(option, args, kwargs) or ""))


def _step_name(function: Any, name: str | None) -> str:
    """Return the name of a step; it does not depend on how its module is started."""
    if name is not None:
        return normalize_name(_check_text("name", name))
    qualname = getattr(function, "__qualname__", None)
    if qualname is None:
        raise UsageError(f"{function!r} has no name of its own; give name=")
    return f"{module_of(function)}.{qualname}"


def _check_aliases(name: str, aliases: Any) -> tuple[str, ...]:
    """Return the names that a step had before, the oldest first; the step's own and repeats are refused."""
    names = (aliases,) if isinstance(aliases, str) else aliases
    if not isinstance(names, tuple | list):
        raise UsageError(f"aliases of {name} is {aliases!r}; it takes the names that the step had before")
    names = [normalize_name(_check_text(f"an alias of {name}", alias)) for alias in names]
    if len({*names, name}) <= len(names):
        raise UsageError(f"aliases of {name} names one of its names twice, or the one it has now")
    return tuple(names)


def _check_effect(effect: Any) -> Any:
    if effect not in EFFECTS:
        raise UsageError(
            NO_EFFECT if effect is None else f"effect is {effect!r}; the choices are {', '.join(EFFECTS)}"
        )
    return effect


def _resolve_policy(options: Mapping[str, Any]) -> tuple[Policy, StepSettings]:
    """Return the policy, and the settings for steps in its file."""
    names = ("policy", "attempts", "wait", "timeout", "total_timeout")
    selected: Any = {name: options[name] for name in names}
    provider = options["provider"]
    # A file may have its own values for a provider; an address with "@" selects them itself.
    if isinstance(selected["policy"], str) and isinstance(provider, str) and "@" not in selected["policy"]:
        selected["policy"] = f"{selected['policy']}@{provider}"
    policy = resolve_policy(selected)
    if options["max_crashes"] not in (None, policy.max_crashes):
        name = policy.name if policy.name.endswith(CHANGED) else f"{policy.name}{CHANGED}"
        policy = policy.replace(max_crashes=options["max_crashes"], name=name)
    if isinstance(selected["policy"], str) or hasattr(selected["policy"], "__fspath__"):
        from oncemore.policy.files import loader

        return policy, loader.step_settings(selected["policy"])
    # As for a governed file, which keeps what its documents say.
    return policy, StepSettings(after_failure="raise") if policy.governed else StepSettings()


def _pipeline_name(function: Any, name: str, pipeline: Any) -> str:
    """Return the pipeline of a step: the one it names, or the module of its function.

    A step around a function of this package (a program, an endpoint) is a pipeline of its own.
    """
    if pipeline is not None:
        return normalize_name(_check_text("pipeline", pipeline))
    module = module_of(function)
    return name if module.split(".")[0] == "oncemore" else module


def _policy_source(options: Mapping[str, Any], policy: Policy) -> str:
    """Return the address of a policy that was given by name or path, if it is used as it is there."""
    option, provider = options["policy"], options["provider"]
    # A changed copy is not the policy at that address any more.
    if isinstance(option, Policy) or policy.name.endswith(CHANGED):
        return ""
    address = str(os.fspath(option))
    if isinstance(provider, str) and isinstance(option, str) and "@" not in option:
        address = f"{option}@{provider}"
    is_file = re.search(r"\.ya?ml($|[/@])", address)
    return os.path.abspath(address) if is_file else address  # noqa: PTH100 - an address, not a path


def _resolve_cooldown(
    name: str, options: Mapping[str, Any], effect: str
) -> tuple[Cooldown | None, Mapping[str, CooldownSchedule] | None]:
    """Return the cooldown of a step, and the schedules that its policy has for cooldowns."""
    cooldown = options["cooldown"]
    if cooldown is None:
        return None, None
    if not isinstance(cooldown, Cooldown):
        raise UsageError(f"cooldown of {name} is {cooldown!r:.80}; it takes oncemore.Cooldown(resource=…)")
    if effect == "once":
        raise UsageError(
            f"{name} is declared once, and a cooldown is for work that is tried again after it; declare it "
            "idempotent if it may be repeated"
        )
    policy = options["policy"]
    if isinstance(policy, str) or hasattr(policy, "__fspath__"):
        from oncemore.policy.files import loader

        return cooldown, loader.load_cooldowns(policy)
    return cooldown, None


def _resolve_queue(name: str, queue: Any, concurrency: Any) -> StepQueue | None:
    """Return the queue of a step; its name and its concurrency are given together."""
    if queue is None and concurrency is None:
        return None
    if queue is None or concurrency is None:
        raise UsageError(
            f"{name} has queue={queue!r} and concurrency={concurrency!r}; give both: the name of the queue, "
            "and how many of its attempts may run at once"
        )
    is_number = isinstance(concurrency, int) and not isinstance(concurrency, bool)
    if not is_number or not 1 <= concurrency <= MAX_CONCURRENCY:
        raise UsageError(f"concurrency of {name} is {concurrency!r}; it takes 1 to {MAX_CONCURRENCY}")
    return StepQueue(normalize_name(_check_text("queue", queue)), concurrency)


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


def _check_until(value: Any, effect: str, colour: str) -> Any:
    if value is not None and effect == "once":
        raise UsageError(
            "until= does not go with effect='once': a value that was returned means that the effect has "
            "happened, and it is not repeated; raise an error of not_applied= if it has not"
        )
    return check_hook("until", value, colour)


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


def _check_text(option: str, value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= 200:
        raise UsageError(f"{option} is {value!r}; it takes a text of 1 to 200 characters")
    return value
