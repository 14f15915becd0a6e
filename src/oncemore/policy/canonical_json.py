"""Canonical JSON (RFC 8785), digests, names and the seeded draw.

In canonical JSON each value has exactly one sequence of bytes, so a digest identifies the value. The
encoder is one direct walk over plain values: the core needs no package, and a proof costs tens of
microseconds (docs/adr/0002). The tests compare it with the reference package. A part that many texts
share can be encoded once as a `CanonicalFragment`.

`draw_uniform` is the only source of randomness: `u` in [0, 1) from the seed and the attempt number, so
every delay can be recomputed from the log.
"""

from __future__ import annotations

from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from hashlib import sha256

    Plain = None | bool | int | float | str | Sequence["Plain"] | Mapping[str, "Plain"]
else:  # pragma: no cover - the Python version decides which branch runs
    # Python's own SHA-256: its import costs a tenth of that of `hashlib`, which loads OpenSSL.
    try:
        from _sha2 import sha256
    except ImportError:
        try:
            from _sha256 import sha256  # Python 3.11
        except ImportError:  # not CPython
            from hashlib import sha256

LARGEST_INTEGER = 2**53 - 1
MAX_DEPTH = 100


class CanonicalFragment(str):
    """Canonical JSON that was encoded before; `encode_canonical` inserts it unchanged."""

    __slots__ = ()


def encode_fragment(value: Plain) -> CanonicalFragment:
    """Return the canonical JSON of a part that many texts contain."""
    return CanonicalFragment(encode_canonical(value).decode())


def draw_uniform(seed: str, attempt: int) -> float:
    """Return the draw of one attempt: 0 <= u < 1, equal for equal seed and number."""
    digest = sha256(f"{seed}:{attempt}".encode()).digest()
    # 53 bits are the precision of a float: each draw is exact, and u = 1 is impossible.
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def run_seed(run_id: str) -> str:
    """Return a run's jitter seed: the SHA-256 of its id."""
    return sha256(run_id.encode()).hexdigest()


def hash_bytes(data: bytes) -> bytes:
    """Return the SHA-256 of bytes."""
    return sha256(data).digest()


def canonical_digest(value: Plain) -> str:
    """Return the SHA-256 of the canonical JSON of a value, in hex."""
    return sha256(encode_canonical(value)).hexdigest()


def exoarmur_key(
    operation: str,
    tenant_id: str | None = None,
    correlation_id: str | None = None,
    additional_params: Mapping[str, Plain] | None = None,
    legacy: bool = False,
) -> str:
    """Return the idempotency key of an operation: hex of the SHA-256 of its canonical JSON (IDEM-4).

    Missing parts count as empty. `legacy` hashes the printed form of the source document, which sorts only
    the outermost level, for keys that were stored in that form. Values without a JSON form are refused
    with their path in both forms: their keys would differ from process to process.
    """
    if additional_params is not None and not hasattr(additional_params, "keys"):
        raise UsageError(f"additional_params is {additional_params!r}; it takes a mapping")
    parts: dict[str, Plain] = {
        "operation": _check_text("operation", operation),
        "tenant_id": _check_text("tenant_id", "" if tenant_id is None else tenant_id),
        "correlation_id": _check_text("correlation_id", "" if correlation_id is None else correlation_id),
        "additional_params": dict(additional_params or {}),
    }
    canonical = encode_canonical(parts)
    return sha256(str(sorted(parts.items())).encode() if legacy else canonical).hexdigest()


def _check_text(field: str, value: object) -> str:
    """Return a text as a plain string; a member of a string enum is converted."""
    if not isinstance(value, str):
        raise UsageError(f"{field} is {value!r}; it takes a string")
    return str.__str__(value)


def normalize_name(name: str) -> str:
    """Return a name in Unicode NFC, so that two spellings of one name are equal.

    Names are normalised once, when they enter the package; afterwards they are compared unchanged.
    """
    if name.isascii():
        return name
    from unicodedata import normalize

    return normalize("NFC", name)


def encode_canonical(value: Plain) -> bytes:
    """Return the RFC 8785 bytes of a plain value.

    Raises `UsageError` with the path of the part that has no canonical form.
    """
    # Imported here: `json` is expensive to import, and `import oncemore` does not need it.
    from json.encoder import encode_basestring

    out: list[str] = []
    try:
        _write_value(value, out.append, encode_basestring, MAX_DEPTH)
        return "".join(out).encode()
    except UnicodeEncodeError:
        raise UsageError("a string holds half a surrogate pair, which UTF-8 cannot encode") from None
    except _NoFormError as error:
        raise UsageError("$" + "".join(reversed(error.trail)) + ": " + error.reason) from None


class _NoFormError(Exception):
    """A part has no canonical form; each container around it adds its step to `trail`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.trail: list[str] = []


def _write_value(value: object, put: Callable[[str], None], quote: Callable[[str], str], room: int) -> None:
    kind = type(value)
    if kind is str:
        put(quote(value))  # type: ignore[arg-type]
    elif kind is float:
        put(format_number(value))  # type: ignore[arg-type]
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
    elif kind is CanonicalFragment:
        put(value)  # type: ignore[arg-type]
    else:
        raise _NoFormError(f"{kind.__name__} has no JSON form; convert it first")


def _write_mapping(
    value: dict[str, object], put: Callable[[str], None], quote: Callable[[str], str], room: int
) -> None:
    if room < 0:
        raise _NoFormError(f"nested more than {MAX_DEPTH} deep")
    names = tuple(value)
    name = ""
    try:
        for name, lead in _order_cache.get(names) or _make_order(names, quote):
            part = value[name]
            kind = type(part)
            put(lead)
            # The three most frequent types are written here, which saves a call for each.
            if part is None:
                put("null")
            elif kind is str:
                put(quote(part))  # type: ignore[arg-type]
            elif kind is float:
                put(format_number(part))  # type: ignore[arg-type]
            else:
                _write_value(part, put, quote, room)
    except _NoFormError as error:
        error.trail.append(f".{name}" if name else "")
        raise
    put("}" if value else "{}")


#: For the names of a mapping: each name with the text written before its value. Proofs have few shapes.
_order_cache: dict[tuple[str, ...], list[tuple[str, str]]] = {}
_MAX_ORDERS = 256
_MAX_ORDER_KEYS = 64


def _make_order(names: tuple[str, ...], quote: Callable[[str], str]) -> list[tuple[str, str]]:
    """Return the names in canonical order with the text before each value; cached for small mappings."""
    order = [
        (name, ("," if position else "{") + quote(name) + ":")
        for position, name in enumerate(_sort_keys(names))
    ]
    if len(names) <= _MAX_ORDER_KEYS:
        if len(_order_cache) >= _MAX_ORDERS:
            _order_cache.clear()
        _order_cache[names] = order
    return order


def _write_sequence(
    value: Sequence[object], put: Callable[[str], None], quote: Callable[[str], str], room: int
) -> None:
    if room < 0:
        raise _NoFormError(f"nested more than {MAX_DEPTH} deep")
    lead = "["
    for index, item in enumerate(value):
        put(lead)
        try:
            _write_value(item, put, quote, room)
        except _NoFormError as error:
            error.trail.append(f"[{index}]")
            raise
        lead = ","
    put("]" if value else "[]")


def _sort_keys(names: tuple[str, ...]) -> list[str]:
    """Return the keys in the order of their UTF-16 units, as RFC 8785 requires."""
    try:
        # Python sorts by code point; the order differs from UTF-16 only beyond the BMP.
        if "".join(names).isascii():
            return sorted(names)
        return sorted(names, key=lambda name: name.encode("utf-16-be"))
    except TypeError:
        wrong = next(name for name in names if type(name) is not str)
        raise _NoFormError(f"the key {wrong!r} is not a string") from None


def format_number(value: float) -> str:
    """Return a float as ECMAScript prints it: shortest digits, exponent only for extreme values."""
    text = repr(value)
    if text[-2:] == ".0":
        return text[:-2] if value else "0"
    # "nan" and "inf" are the only texts with an "n".
    if "n" in text:
        raise _NoFormError(f"{text} has no JSON form")
    if "e" not in text:
        return text
    mantissa, _, exponent = text.partition("e")
    power = int(exponent)
    if -7 < power < 21:
        return _expand_exponent(mantissa, power)
    return f"{mantissa}e{power:+d}"


def _expand_exponent(mantissa: str, power: int) -> str:
    """Return digits and a power of ten written out without an exponent."""
    sign = "-" if mantissa.startswith("-") else ""
    digits = mantissa.removeprefix("-").replace(".", "")
    if power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{digits}"
    return f"{sign}{digits}{'0' * (power + 1 - len(digits))}"


# Identifiers of a run's artifacts and events.


def artifact_entity(entity: str, cfg_hash: str, name: str) -> str:
    """Return the entity of an artifact's reference: one per step, key, configuration and name."""
    return "artifact/" + canonical_digest({"run": entity, "cfg": cfg_hash, "name": name})[:32]


def make_event_id(entity: str, life: int, ordinal: int) -> str:
    """Return an event's id, from the run's entity, the number of the run and the event's position."""
    return canonical_digest({"run": entity, "life": life, "ordinal": ordinal})[:32]
