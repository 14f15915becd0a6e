"""Compute the key of a call: two calls with the same key are the same work.

    key        = SHA-256(canonical JSON of {step, args, partition, tenant, bucket})
    input_hash = the same over all arguments, also those that `key=` leaves out
    cfg_hash   = the same over version and config

The version is not part of the key: a version bump must not repeat a payment.
"""

from __future__ import annotations

import inspect
from contextvars import ContextVar
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from oncemore.errors import UsageError
from oncemore.log.typed_values import TypedEncoder
from oncemore.policy.canonical_json import LARGEST_INTEGER, canonical_digest, encode_canonical, normalize_name
from oncemore.retries.options import as_seconds, function_colour
from oncemore.steps.argument_codecs import ARGUMENT_ADVICE, ArgumentCodecs
from oncemore.steps.secret import Secret
from oncemore.steps.signature import check_parameter_names, find_ignored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from oncemore.policy.canonical_json import Plain

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]

#: The name of the tick that a call is made for; empty outside of schedules.
TICK: ContextVar[str] = ContextVar("oncemore.tick", default="")
_KEYED = TypedEncoder(keyed=True, advice=ARGUMENT_ADVICE)
_sorted = msgspec.json.Encoder(order="sorted").encode
BUCKETS = {"minute": 60.0, "hour": 3600.0, "day": 86_400.0, "week": 604_800.0}
SHORTEST_BUCKET_S, LONGEST_S = 0.001, 86_400.0 * 366 * 100


def step_key(
    step: str,
    arguments: Mapping[str, object],
    *,
    partition: object = None,
    tenant: str = "",
    bucket: str = "",
) -> str:
    """Return the key of a call: 64 hex digits that two calls share if they are the same work."""
    return hash_key(argument_bytes(arguments), scope_bytes(step, partition, tenant, bucket))


def argument_bytes(arguments: Mapping[str, object]) -> bytes:
    """Return arguments as canonical JSON; refuse an argument without such a form, by its name."""
    if are_plain_json(arguments):
        return _sorted(arguments)
    return encode_canonical(tagged_arguments(arguments)[0])


def are_plain_json(arguments: Mapping[str, object]) -> bool:
    """Return whether all arguments are their own tagged form, and sorted JSON is their canonical form.

    The fast path of most calls; a test compares both paths.
    """
    for name, value in arguments.items():
        kind = type(value)
        if kind is str:
            plain = value.isascii()  # type: ignore[attr-defined]
        elif kind is int:
            plain = -LARGEST_INTEGER <= value <= LARGEST_INTEGER  # type: ignore[operator]
        else:
            plain = value is None or kind is bool
        if not plain or not name.isascii():
            return False
    return True


def scope_bytes(step: str, partition: object = None, tenant: str = "", bucket: str = "") -> bytes:
    """Return the parts of a key besides the arguments, as canonical JSON."""
    return encode_canonical(
        {
            "step": _KEYED.tag_value(step, "the step's name"),
            "partition": _KEYED.tag_value(partition, "partition"),
            "tenant": _KEYED.tag_value(tenant, "tenant"),
            "bucket": _KEYED.tag_value(bucket, "bucket"),
        }
    )


def hash_key(arguments: bytes, scope: bytes) -> str:
    """Return the key; `args` comes first in canonical order, so that the two parts can be joined."""
    return sha256(b'{"args":' + arguments + b"," + scope[1:]).hexdigest()


def input_hash(inputs: bytes) -> str:
    """Return the digest of all counted arguments, from their canonical JSON."""
    return sha256(inputs).hexdigest()


def cfg_hash(version: str, config: object) -> str:
    """Return the digest of version and config: a result depends on them besides its arguments."""
    return canonical_digest(
        {"version": _KEYED.tag_value(version, "version"), "config": _KEYED.tag_value(config, "config")}
    )


def tagged_arguments(arguments: Mapping[str, object], *, keyed: bool = True) -> tuple[dict[str, Plain], bool]:
    """Return arguments in their keyed or stored form, and whether one of them is read by its annotation.

    Refuse an argument without such a form, by its name.
    """
    # A new one for each call: it remembers whether it has met a value with a class.
    encoder = TypedEncoder(keyed=keyed, advice=ARGUMENT_ADVICE)
    tagged = {name: encoder.tag_value(value, f"argument {name!r}") for name, value in arguments.items()}
    return tagged, encoder.has_typed


class KeyRule:
    """Computes the keys of a step's calls from their arguments.

    bind_arguments      returns the arguments of a call by name, with defaults; refuses a call that does not
                        fit
    ignored             names of parameters that the key and the log leave out
    secret              those of them that are typed `Secret`
    keys_all_arguments  whether the key covers all counted arguments: equal keys are then equal arguments
    key_names           the parameters that `key=` names; None if it names none
    uses_clock          whether the key has a time bucket
    other_names         further names of the step, by which older runs may have been stored
    codecs              the codecs of its arguments, by the annotations of the function
    """

    def __init__(
        self, function: Callable[..., Any], names: tuple[str, ...], options: Mapping[str, Any]
    ) -> None:
        name = names[-1]
        # The oldest name makes the key, so that work done under it is not repeated.
        self.keyed_as, *self.other_names = names
        self._function, self.codecs = function, ArgumentCodecs(function)
        self._partition, self.tenant, self._bucket = options["partition"], options["tenant"], None
        self._bucket = _make_bucket(options["bucket"])
        self._plain_scope = b""
        self.uses_clock = self._bucket is not None
        self.bind_arguments = _make_binder(name, function)
        self.ignored, self.secret = find_ignored(name, function, options["ignore"])
        self._select = _make_selector(name, function, options["key"], self.ignored)
        _check_key_rule(name, function, options, self.ignored)
        self.keys_all_arguments = self._select is None
        self.key_names: tuple[str, ...] | None = None
        if options["key"] is not None and not callable(options["key"]):
            self.key_names = check_parameter_names(name, function, "key", options["key"])

    def select_arguments(self, bound: Kwargs) -> Kwargs:
        """Return the arguments that count: all but ignored and secret ones."""
        ignored = self.ignored
        # The same object if nothing is left out: callers compare identity to see that.
        if not ignored and Secret not in map(type, bound.values()):
            return bound
        return {
            name: value for name, value in bound.items() if name not in ignored and type(value) is not Secret
        }

    def tenant_of(self, context_tenant: str, args: Args, kwargs: Kwargs) -> str:
        """Return the tenant of a call of a step with `tenant=`; the context's if that gives none."""
        return normalize_name(str(evaluate_option(self.tenant, args, kwargs) or context_tenant))

    def compute_key(
        self, counted: Kwargs, args: Args, kwargs: Kwargs, tenant: str, now: float
    ) -> tuple[str, bytes, bool]:
        """Return the key of a call, its counted arguments as canonical JSON, and whether they are plain.

        The log stores plain arguments as they are.
        """
        is_plain = are_plain_json(counted)
        inputs = _sorted(counted) if is_plain else self._input_bytes(counted)
        scope = self._plain_scope if tenant == "" else b""
        scope = scope or self._scope_bytes(args, kwargs, tenant, now)
        if self._select is None:
            return hash_key(inputs, scope), inputs, is_plain
        return hash_key(argument_bytes(self._select(counted, args, kwargs)), scope), inputs, is_plain

    def _input_bytes(self, counted: Kwargs) -> bytes:
        """Return counted arguments as canonical JSON; refuse those that the log could not store."""
        tagged, has_typed = tagged_arguments(counted)
        if has_typed:
            # Here, before anything is written: a key can be made of more values than can be read again.
            self.check_arguments(counted)
        return encode_canonical(tagged)

    def compute_alias_keys(
        self, counted: Kwargs, args: Args, kwargs: Kwargs, tenant: str, now: float
    ) -> Iterator[str]:
        """Yield the keys of a call under the step's other names, in their order."""
        part = argument_bytes(counted if self._select is None else self._select(counted, args, kwargs))
        partition, bucket = (
            evaluate_option(self._partition, args, kwargs),
            self.bucket_name(args, kwargs, now),
        )
        for name in self.other_names:
            yield hash_key(part, scope_bytes(name, partition, tenant, bucket))

    def _scope_bytes(self, args: Args, kwargs: Kwargs, tenant: str, now: float) -> bytes:
        """Return the part of the key besides the arguments; a constant part is computed once."""
        if self._partition is None and self._bucket is None and tenant == "":
            self._plain_scope = scope_bytes(self.keyed_as)
            return self._plain_scope
        bucket = self.bucket_name(args, kwargs, now)
        return scope_bytes(self.keyed_as, evaluate_option(self._partition, args, kwargs), tenant, bucket)

    def bucket_name(self, args: Args, kwargs: Kwargs, now: float) -> str:
        """Return the name of the time bucket of a call; empty without buckets."""
        return "" if self._bucket is None else self._bucket(now, args, kwargs)

    def use_ticks(self) -> None:
        """Make the tick of a schedule a part of the key, for a function that does not take the tick."""
        # Outside of a tick the name is empty, and the key is that of a step without buckets.
        self._bucket = lambda now, args, kwargs: TICK.get()

    def encode_arguments(self, counted: Kwargs) -> Kwargs:
        """Return arguments in the form that the log stores: decoding gives equal values."""
        return counted if are_plain_json(counted) else tagged_arguments(counted, keyed=False)[0]

    def check_arguments(self, counted: Kwargs) -> None:
        """Refuse arguments that could not be read again from the form that the log stores."""
        for name, plain in self.encode_arguments(counted).items():
            self.codecs.check(name, plain)

    def depends_on_arguments(self) -> Iterator[str]:
        """Yield the options of the key that are functions of all arguments."""
        for option, value in (("partition", self._partition), ("tenant", self.tenant)):
            if callable(value):
                yield option


def _make_binder(name: str, function: Any) -> Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]]:
    """Return the function that binds arguments to names; plain signatures have a fast one."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        raise UsageError(
            f"{name}: {function!r} does not declare its arguments; wrap it in a function"
        ) from None
    params = list(signature.parameters.values())
    # Without *args, **kwargs, positional-only and keyword-only parameters.
    plain = all(param.kind is param.POSITIONAL_OR_KEYWORD for param in params)
    names = tuple(signature.parameters)
    known = frozenset(names)
    defaults = {param.name: param.default for param in params if param.default is not param.empty}

    def bind_any(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    # `Signature.bind` is slow, and most calls do not need it.
    def bind_plain(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        bound = dict(zip(names, args))  # noqa: B905 - a keyword would double its cost
        if not kwargs and len(args) == len(names):
            return bound
        # A call that does not fit: `Signature.bind` raises with Python's own message.
        if len(args) > len(names) or not kwargs.keys() <= known or kwargs.keys() & bound.keys():
            return bind_any(args, kwargs)
        bound.update(kwargs)
        if len(bound) == len(names):
            return bound
        # In another order than the parameters; the canonical JSON of a key sorts them.
        filled = {**defaults, **bound}
        return filled if len(filled) == len(names) else bind_any(args, kwargs)

    return bind_plain if plain else bind_any


def evaluate_option(value: Any, args: Args, kwargs: Kwargs) -> Any:
    """Return the value of an option; a function is called with the arguments of the call."""
    return value(*args, **kwargs) if callable(value) else value


def _make_bucket(bucket: Any) -> Callable[[float, Any, Any], str] | None:
    """Return the function that names the time bucket of a call."""
    if bucket is None:
        return None
    if callable(bucket):
        return lambda now, args, kwargs: str(bucket(*args, **kwargs))
    if isinstance(bucket, str):
        if bucket not in BUCKETS:
            raise UsageError(f"bucket is {bucket!r}; the choices are {', '.join(BUCKETS)}")
        size = BUCKETS[bucket]
    else:
        size = parse_duration("bucket", bucket)
    if size < SHORTEST_BUCKET_S:
        raise UsageError(f"bucket is {bucket!r}; it takes {SHORTEST_BUCKET_S:g} s or more")
    name = str(timedelta(seconds=size))
    return lambda now, args, kwargs: f"{name} from {_format_seconds(now // size * size)}"


def _format_seconds(seconds: float) -> str:
    """Return seconds without trailing zeros, and with milliseconds: every bucket must have its own name."""
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


def parse_duration(option: str, value: Any) -> float:
    """Return a duration in seconds; refuse a negative or infinite one."""
    seconds = as_seconds(option, value)
    if not 0 <= seconds <= LONGEST_S:
        raise UsageError(f"{option} is {value!r}; it takes 0 to {LONGEST_S:g} seconds")
    return seconds


def _make_selector(
    name: str, function: Any, key: Any, ignored: frozenset[str]
) -> Callable[..., Kwargs] | None:
    """Return the function that selects the arguments of the key; None if all count."""
    if key is None:
        return None
    if callable(key):
        # The key is needed before anything may be awaited.
        if function_colour(key) != "plain":
            raise UsageError(f"key of {name} is an async function; a key is made at once")
        return lambda counted, args, kwargs: {"key": key(*args, **kwargs)}
    names = check_parameter_names(name, function, "key", key)
    if ignored.intersection(names):
        raise UsageError(
            f"key of {name} names {', '.join(sorted(ignored.intersection(names)))}, which ignore= or Secret "
            "leaves out"
        )

    def select(counted: Kwargs, args: Any, kwargs: Any) -> Kwargs:
        try:
            return {part: counted[part] for part in names}
        except KeyError as missing:
            raise UsageError(f"key of {name} names {missing}, and a Secret takes no part in keys") from None

    return select


def _check_key_rule(name: str, function: Any, options: Mapping[str, Any], ignored: frozenset[str]) -> None:
    """Refuse a key that does not depend on the input: all calls would be the same work (IDEM-12)."""
    inputs = [param for param in inspect.signature(function).parameters if param not in ("self", "cls")]
    has_rule = any(options[option] is not None for option in ("key", "partition", "bucket", "tenant"))
    if inputs and not has_rule and ignored.issuperset(inputs):
        raise UsageError(
            f"{name} has no rule for its key: ignore= or Secret leaves out all its arguments "
            f"({', '.join(inputs)}), and all calls would be the same work; give key=, partition= or bucket="
        )
