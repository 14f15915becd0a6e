"""Canonical JSON, digests and the one seeded draw.

Canonical JSON is RFC 8785: one value, one sequence of bytes, so that a digest means the value. It is
written here in one direct walk over plain values, so that the core needs no package and a proof costs
tens of microseconds (docs/adr/0002); the tests hold it against the reference package. A part that many
texts share can be written once and put in as a `Fragment`.

A draw is the only chance there is: `u` in [0, 1) from the seed and the number of the attempt, so
that every delay can be computed again by anybody who has the record.
"""

from __future__ import annotations

from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from hashlib import sha256

    Plain = None | bool | int | float | str | Sequence["Plain"] | Mapping[str, "Plain"]
else:  # pragma: no cover - which of the three it is depends on the Python
    try:  # Python's own SHA-256: a tenth of the import of `hashlib`, which loads OpenSSL
        from _sha2 import sha256
    except ImportError:
        try:
            from _sha256 import sha256  # Python 3.11
        except ImportError:  # another Python
            from hashlib import sha256

LARGEST_INTEGER = 2**53 - 1
DEEPEST = 100


class Fragment(str):
    """Canonical JSON that was written before; `canonical` puts it in as it stands."""

    __slots__ = ()


def fragment(value: Plain) -> Fragment:
    """Return the canonical text of a part that will stand in many texts."""
    return Fragment(canonical(value).decode())


def draw(seed: str, attempt: int) -> float:
    """Return the draw of one attempt: 0 <= u < 1, the same for the same seed and number."""
    digest = sha256(f"{seed}:{attempt}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def seed_of(run_id: str) -> str:
    """Return the jitter seed that belongs to a run: the SHA-256 of its id."""
    return sha256(run_id.encode()).hexdigest()


def fingerprint(data: bytes) -> bytes:
    """Return the SHA-256 of bytes."""
    return sha256(data).digest()


def digest(value: Plain) -> str:
    """Return the SHA-256 of the canonical JSON of a value, in hex."""
    return sha256(canonical(value)).hexdigest()


def exoarmur_key(
    operation: str,
    tenant_id: str | None = None,
    correlation_id: str | None = None,
    additional_params: Mapping[str, Plain] | None = None,
    legacy: bool = False,
) -> str:
    """Return the idempotency key of an operation: hex of the SHA-256 of its canonical JSON (IDEM-4).

    What is missing counts as empty. `legacy` gives the printed form of the source document, which sorts
    only the outermost level, for keys that were stored by it. Values that JSON cannot hold are refused
    with their path in both forms: their keys would differ from process to process.
    """
    if additional_params is not None and not hasattr(additional_params, "keys"):
        raise UsageError(f"additional_params is {additional_params!r}; it takes a mapping")
    parts: dict[str, Plain] = {
        "operation": _text("operation", operation),
        "tenant_id": _text("tenant_id", "" if tenant_id is None else tenant_id),
        "correlation_id": _text("correlation_id", "" if correlation_id is None else correlation_id),
        "additional_params": dict(additional_params or {}),
    }
    written = canonical(parts)
    return sha256(str(sorted(parts.items())).encode() if legacy else written).hexdigest()


def _text(field: str, value: object) -> str:
    """Return a text as a plain string: a member of a string enum is one too."""
    if not isinstance(value, str):
        raise UsageError(f"{field} is {value!r}; it takes a string")
    return str.__str__(value)


def normalize_name(name: str) -> str:
    """Return a name in Unicode NFC: two spellings of one name are one name.

    Names are normalised once, where they enter; after that they are compared as they are.
    """
    if name.isascii():
        return name
    from unicodedata import normalize

    return normalize("NFC", name)


def canonical(value: Plain) -> bytes:
    """Return the RFC 8785 bytes of a plain value, or say which part of it has none."""
    from json.encoder import encode_basestring  # here, because `json` is dear to import

    out: list[str] = []
    try:
        _write(value, out.append, encode_basestring, DEEPEST)
        return "".join(out).encode()
    except UnicodeEncodeError:
        raise UsageError("a string holds half a surrogate pair, which UTF-8 cannot hold") from None
    except _NoFormError as fault:
        raise UsageError("$" + "".join(reversed(fault.trail)) + ": " + fault.why) from None


class _NoFormError(Exception):
    """A part has no canonical form; the containers it is in add their step to its trail."""

    def __init__(self, why: str) -> None:
        self.why = why
        self.trail: list[str] = []


def _write(value: object, put: Callable[[str], None], quote: Callable[[str], str], room: int) -> None:
    kind = type(value)
    if kind is str:
        put(quote(value))  # type: ignore[arg-type]
    elif kind is float:
        put(number(value))  # type: ignore[arg-type]
    elif value is None:
        put("null")
    elif kind is bool:
        put("true" if value else "false")
    elif kind is int:
        if not -LARGEST_INTEGER <= value <= LARGEST_INTEGER:  # type: ignore[operator]
            raise _NoFormError("integers beyond 2**53 - 1 have no canonical JSON; use a string")
        put(str(value))
    elif kind is dict:
        _write_mapping(value, put, quote, room - 1)  # type: ignore[arg-type]
    elif kind is list or kind is tuple:
        _write_sequence(value, put, quote, room - 1)  # type: ignore[arg-type]
    elif kind is Fragment:
        put(value)  # type: ignore[arg-type]
    else:
        raise _NoFormError(f"{kind.__name__} has no JSON form; convert it first")


def _write_mapping(
    value: dict[str, object], put: Callable[[str], None], quote: Callable[[str], str], room: int
) -> None:
    if room < 0:
        raise _NoFormError(f"nested more than {DEEPEST} deep")
    names = tuple(value)
    name = ""
    try:
        for name, lead in _orders.get(names) or _order(names, quote):
            part = value[name]
            kind = type(part)
            put(lead)
            if part is None:  # the three usual kinds here, without another call
                put("null")
            elif kind is str:
                put(quote(part))  # type: ignore[arg-type]
            elif kind is float:
                put(number(part))  # type: ignore[arg-type]
            else:
                _write(part, put, quote, room)
    except _NoFormError as fault:
        fault.trail.append(f".{name}" if name else "")
        raise
    put("}" if value else "{}")


#: By the names of a mapping: each name with what is written before its value. Proofs share few shapes.
_orders: dict[tuple[str, ...], list[tuple[str, str]]] = {}
_MOST_ORDERS = 256
_LONGEST_ORDER = 64


def _order(names: tuple[str, ...], quote: Callable[[str], str]) -> list[tuple[str, str]]:
    """Return the names in their order with their leads, and remember them for small mappings."""
    found = [(name, ("," if at else "{") + quote(name) + ":") for at, name in enumerate(_ordered(names))]
    if len(names) <= _LONGEST_ORDER:
        if len(_orders) >= _MOST_ORDERS:
            _orders.clear()
        _orders[names] = found
    return found


def _write_sequence(
    value: Sequence[object], put: Callable[[str], None], quote: Callable[[str], str], room: int
) -> None:
    if room < 0:
        raise _NoFormError(f"nested more than {DEEPEST} deep")
    lead = "["
    for at, item in enumerate(value):
        put(lead)
        try:
            _write(item, put, quote, room)
        except _NoFormError as fault:
            fault.trail.append(f"[{at}]")
            raise
        lead = ","
    put("]" if value else "[]")


def _ordered(names: tuple[str, ...]) -> list[str]:
    """Return the keys in the order of their UTF-16 units, which differs only beyond the BMP."""
    try:
        if "".join(names).isascii():
            return sorted(names)
        return sorted(names, key=lambda name: name.encode("utf-16-be"))
    except TypeError:
        odd = next(name for name in names if type(name) is not str)
        raise _NoFormError(f"the key {odd!r} is not a string") from None


def number(value: float) -> str:
    """Return a float as ECMAScript prints it: the shortest digits, an exponent only where it does."""
    text = repr(value)
    if text[-2:] == ".0":
        return text[:-2] if value else "0"
    if "n" in text:
        raise _NoFormError(f"{text} has no JSON form")
    if "e" not in text:
        return text
    mantissa, _, exponent = text.partition("e")
    power = int(exponent)
    if -7 < power < 21:
        return _unfolded(mantissa, power)
    return f"{mantissa}e{power:+d}"


def _unfolded(mantissa: str, power: int) -> str:
    """Return digits and a power of ten without an exponent; only for what is far from one."""
    sign = "-" if mantissa.startswith("-") else ""
    digits = mantissa.removeprefix("-").replace(".", "")
    if power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{digits}"
    return f"{sign}{digits}{'0' * (power + 1 - len(digits))}"


# What a run leaves, by the run that left it.


def reference(entity: str, cfg_hash: str, name: str) -> str:
    """Return the entity of an artifact's reference: one for each step, key, configuration and name."""
    return "artifact/" + digest({"run": entity, "cfg": cfg_hash, "name": name})[:32]


def event_id_of(entity: str, life: int, ordinal: int) -> str:
    """Return the id of an event: by the run's entity, which of its runs it was, and its place in that."""
    return digest({"run": entity, "life": life, "ordinal": ordinal})[:32]
