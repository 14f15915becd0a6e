"""What a user told `step`, checked and made ready: which arguments count, what the key is made of.

Everything is checked when a function is decorated, so that a mistake shows at import; a message names the
argument and what it takes.
"""

from __future__ import annotations

import inspect
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from oncemore.codec.secret import Secret, texts_of
from oncemore.codec.step_key import argument_bytes, cfg_hash, key_of, scope_bytes
from oncemore.codec.tagged import Tagger
from oncemore.core.key import fingerprint
from oncemore.core.model import EFFECTS
from oncemore.errors import UsageError
from oncemore.options import as_seconds, colour_of, policy_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.core.policy import Policy

NO_EFFECT = (
    "step() needs effect=: what running it does to the world has no default; the choices are "
    + ", ".join(EFFECTS)
)
BUCKETS = {"minute": 60.0, "hour": 3600.0, "day": 86_400.0, "week": 604_800.0}
PRIORITIES = ("P0", "P1", "P2")
_PLAIN = Tagger()


class Recipe:
    """A step's options, made ready for calls."""

    def __init__(self, work: Callable[..., Any], told: Mapping[str, Any]) -> None:
        self.work = work
        self.colour = _colour(work)
        self.name = _name(work, told["name"])
        self.effect = _effect(told["effect"])
        self.policy, self.after_failure = _policy(told)
        self.if_running = _choice("if_running", told["if_running"], ("wait", "raise"))
        self.on_version_change = _version_change(told["on_version_change"], self.effect)
        self.priority = _choice("priority", told["priority"], PRIORITIES)
        self.isolate = _isolate(told["isolate"], self.colour)
        self.retain_s = 0.0 if told["retain_for"] is None else as_seconds("retain_for", told["retain_for"])
        self.not_applied = _not_applied(told["not_applied"], self.effect)
        self.reconcile = _reconcile(told["reconcile"], self.effect, self.colour)
        self._version, self._config = _text("version", told["version"]), told["config"]
        self._cfg = None if callable(self._config) else cfg_hash(self._version, self._config)
        self._partition, self._tenant, self._dataset = told["partition"], told["tenant"], told["dataset"]
        self._bucket = _bucket(told["bucket"])
        self._plain_scope = b""
        self.timed = self._bucket is not None or self.policy.within_s is not None
        self._bind = _binder(work)
        self._left_out, self._secret = _left_out(self.name, work, told["ignore"])
        self._key = _key(self.name, work, told["key"])

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, defaults included; a call that does not fit is refused."""
        return self._bind(args, kwargs)

    def counted(self, bound: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that make two calls differ."""
        out = self._left_out
        if not out and not any(type(value) is Secret for value in bound.values()):
            return bound
        return {name: value for name, value in bound.items() if name not in out and type(value) is not Secret}

    def key(
        self, counted: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any], tenant: str, now: float
    ) -> tuple[str, str]:
        """Return the key of a call, and the digest of its arguments where the key does not cover them all."""
        scope = self._scope(args, kwargs, tenant, now)
        if self._key is None:
            return key_of(argument_bytes(counted), scope), ""
        return key_of(argument_bytes(self._key(counted, args, kwargs)), scope), self.input_hash(counted)

    def input_hash(self, counted: dict[str, Any]) -> str:
        """Return the digest of all arguments that count."""
        return fingerprint(argument_bytes(counted)).hex()

    def _scope(self, args: tuple[Any, ...], kwargs: dict[str, Any], tenant: str, now: float) -> bytes:
        """Return what else the key is made of; where it is always the same, it is made once."""
        if self._partition is None and self._bucket is None and tenant == "":
            self._plain_scope = self._plain_scope or scope_bytes(self.name)
            return self._plain_scope
        bucket = "" if self._bucket is None else self._bucket(now, args, kwargs)
        return scope_bytes(self.name, _of(self._partition, args, kwargs), tenant, bucket)

    def tenant(self, around: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return whose work it is: the step's own word, or that of the context."""
        return around if self._tenant is None else str(_of(self._tenant, args, kwargs) or around)

    def dataset(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the dataset it belongs to."""
        return str(_of(self._dataset, args, kwargs) or "")

    def cfg(self) -> str:
        """Return the digest of what a result depends on besides its arguments."""
        return self._cfg or cfg_hash(self._version, self._config())

    def stored(self, counted: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments as the log keeps them: they read back equal."""
        return {name: _PLAIN.tag(value, f"argument {name!r}") for name, value in counted.items()}

    def secrets(self, bound: dict[str, Any]) -> tuple[str, ...]:
        """Return the texts that no message may hold."""
        return texts_of(
            value for name, value in bound.items() if name in self._secret or type(value) is Secret
        )

    def returns(self) -> Any:
        """Return the annotation of what the function returns, or None."""
        found = _hints(self.work).get("return")
        return None if found is type(None) else found


def _colour(work: Any) -> str:
    if isinstance(work, staticmethod | classmethod):
        raise UsageError(f"put @oncemore.step below @{type(work).__name__}, next to the function")
    if not callable(work) or isinstance(work, type):
        raise UsageError(f"{work!r} is no function; a step is made of a function")
    colour = colour_of(work)
    if colour in ("generator", "async-generator"):
        raise UsageError(
            f"{getattr(work, '__qualname__', work)} is a generator function: its values are handed out "
            "before it ends; return a list"
        )
    return colour


def _name(work: Any, name: str | None) -> str:
    """Return what a step is known by: a name that is the same however its module is started."""
    if name is not None:
        return _text("name", name)
    module, own = getattr(work, "__module__", None), getattr(work, "__qualname__", None)
    if own is None:
        raise UsageError(f"{work!r} has no name of its own; give name=")
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        module = spec.name if spec is not None else Path(getattr(main, "__file__", "main")).stem
    return f"{module}.{own}"


def _effect(effect: Any) -> Any:
    if effect not in EFFECTS:
        raise UsageError(
            NO_EFFECT if effect is None else f"effect is {effect!r}; the choices are {', '.join(EFFECTS)}"
        )
    if effect == "transactional":
        raise UsageError(
            "effect='transactional' is not there yet; take 'idempotent' with current().key in your own table"
        )
    return effect


def _policy(told: Mapping[str, Any]) -> tuple[Policy, str]:
    """Return the policy and what it makes of a new call after a failure."""
    named: Any = {name: told[name] for name in ("policy", "timeout", "within")}
    if isinstance(named["policy"], str) and told["provider"] is not None and "@" not in named["policy"]:
        named["policy"] = f"{named['policy']}@{told['provider']}"
    policy = policy_of(named)
    after = "raise"
    if isinstance(named["policy"], str) or hasattr(named["policy"], "__fspath__"):
        from oncemore.govern.loader import after_failure

        after = after_failure(named["policy"])
    return policy, after


def _choice(option: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise UsageError(f"{option} is {value!r}; the choices are {', '.join(choices)}")
    return str(value)


def _version_change(value: Any, effect: str) -> str | None:
    if value is None:
        return None
    if value == "new" and effect == "once":
        raise UsageError(
            "on_version_change='new' would repeat what may happen only once; take 'reuse' or 'fail'"
        )
    return _choice("on_version_change", value, ("new", "reuse", "fail"))


def _isolate(value: Any, colour: str) -> bool:
    if value is None:
        return False
    if value != "process":
        raise UsageError(f"isolate is {value!r}; it takes 'process'")
    if colour == "coroutine":
        raise UsageError(
            "isolate='process' is for plain functions; an async one is cancelled at its limit anyway"
        )
    return True


def _not_applied(declared: Any, effect: str) -> Callable[[Exception], bool]:
    """Return the question whether an error says that the effect did not happen."""
    if declared and effect != "once":
        raise UsageError(f"not_applied is for effect='once'; {effect} work may be repeated anyway")
    if declared == "not-sent":
        from oncemore.edges.classify import classify

        return lambda error: classify(error, 0.0).sent == "no"
    kinds = declared if isinstance(declared, tuple | list) else (declared,)
    if all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        types = tuple(kinds)
        return lambda error: isinstance(error, types)
    if callable(declared) and colour_of(declared) == "plain":
        return lambda error: bool(declared(error))
    raise UsageError(f"not_applied is {declared!r}; it takes exception types, a predicate or 'not-sent'")


def _reconcile(ask: Any, effect: str, colour: str) -> Any:
    if ask is None:
        return None
    if effect != "once":
        raise UsageError(f"reconcile is for effect='once'; {effect} work may be repeated anyway")
    if not callable(ask):
        raise UsageError(f"reconcile is {ask!r}; it takes a function")
    if colour_of(ask) == "coroutine" and colour != "coroutine":
        raise UsageError("reconcile is an async function, and the step is not")
    return ask


def _bucket(bucket: Any) -> Callable[[float, Any, Any], str] | None:
    """Return what names the stretch of time that a call falls into."""
    if bucket is None:
        return None
    if callable(bucket):
        return lambda now, args, kwargs: str(bucket(*args, **kwargs))
    if isinstance(bucket, str):
        _choice("bucket", bucket, tuple(BUCKETS))
        size = BUCKETS[bucket]
    else:
        size = as_seconds("bucket", bucket)
    if size <= 0:
        raise UsageError(f"bucket is {bucket!r}; it must be longer than nothing")
    name = str(timedelta(seconds=size))
    return lambda now, args, kwargs: f"{name} from {now // size * size:.0f}"


def _of(value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return an option's value: itself, or what it says of a call's arguments."""
    return value(*args, **kwargs) if callable(value) else value


def _binder(work: Any) -> Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]]:
    """Return what puts arguments to their names; plain signatures take a short way."""
    signature = inspect.signature(work)
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
        if len(args) > len(names) or not kwargs.keys() <= known or kwargs.keys() & given.keys():
            return whole(args, kwargs)  # says what is wrong
        given.update(kwargs)
        if len(given) == len(names):
            return given
        filled = {**defaults, **given}
        return filled if len(filled) == len(names) else whole(args, kwargs)

    return short if plain else whole


def _left_out(name: str, work: Any, ignore: Any) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of arguments that take no part in the key, and those of them that are secret."""
    ignored = frozenset([ignore] if isinstance(ignore, str) else ignore)
    _check_names(name, work, "ignore", ignored)
    hints = {**getattr(work, "__annotations__", {}), **_hints(work)}
    secret = frozenset(
        param
        for param, hint in hints.items()
        if hint is Secret or (isinstance(hint, str) and hint.rpartition(".")[2] == "Secret")
    )
    return ignored | secret, secret


def _hints(work: Any) -> dict[str, Any]:
    try:
        return get_type_hints(work)
    except Exception:  # noqa: BLE001 - annotations may name what only the type checker sees
        return {}


def _check_names(name: str, work: Any, option: str, names: frozenset[str]) -> None:
    unknown = names - set(inspect.signature(work).parameters)
    if unknown:
        raise UsageError(
            f"{option} of {name} names {', '.join(sorted(unknown))}, which is no parameter of it"
        )


def _key(name: str, work: Any, key: Any) -> Callable[..., dict[str, Any]] | None:
    """Return what chooses the part of the arguments that the key is made of."""
    if key is None:
        return None
    if callable(key):
        return lambda counted, args, kwargs: {"key": key(*args, **kwargs)}
    names = (key,) if isinstance(key, str) else tuple(key)
    _check_names(name, work, "key", frozenset(names))
    return lambda counted, args, kwargs: {part: counted[part] for part in names}


def _text(option: str, value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= 200:
        raise UsageError(f"{option} is {value!r}; it takes a text of 1 to 200 characters")
    return value
