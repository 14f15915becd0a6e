"""KEY: what makes two calls the same work.

    key        = SHA-256(canonical JSON of {step, args, partition, tenant, bucket})
    input_hash = the same over all arguments, also those that `key=` leaves out
    cfg_hash   = the same over version and config

The version is not part of the key: a version bump must not repeat a payment.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from oncemore.log.tagged_json import PLAIN_VALUES, TaggedEncoder
from oncemore.policy.canonical_json import LARGEST_INTEGER, canonical_digest, encode_canonical

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncemore.policy.canonical_json import Plain

_KEYED = TaggedEncoder(keyed=True, advice=f"pass {PLAIN_VALUES}, or leave it out of the key")
_sorted = msgspec.json.Encoder(order="sorted").encode


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
    """Return arguments as canonical JSON; one that has no form is refused by its name."""
    if are_plain_json(arguments):
        return _sorted(arguments)
    return encode_canonical(tagged_arguments(arguments))


def are_plain_json(arguments: Mapping[str, object]) -> bool:
    """Whether all arguments are their own tagged form, and any sorted JSON of them the canonical one.

    A short way for what most arguments are; a test holds both ways to the same bytes.
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
    """Return what else a key is made of as canonical JSON."""
    return encode_canonical(
        {
            "step": _KEYED.tag_value(step, "the step's name"),
            "partition": _KEYED.tag_value(partition, "partition"),
            "tenant": _KEYED.tag_value(tenant, "tenant"),
            "bucket": _KEYED.tag_value(bucket, "bucket"),
        }
    )


def hash_key(arguments: bytes, scope: bytes) -> str:
    """Return the key; `args` comes first in canonical order, so that both parts can be put together."""
    return sha256(b'{"args":' + arguments + b"," + scope[1:]).hexdigest()


def input_hash(inputs: bytes) -> str:
    """Return the digest of all arguments that count, from their bytes."""
    return sha256(inputs).hexdigest()


def cfg_hash(version: str, config: object) -> str:
    """Return the digest of what a result depends on besides its arguments."""
    return canonical_digest(
        {"version": _KEYED.tag_value(version, "version"), "config": _KEYED.tag_value(config, "config")}
    )


def tagged_arguments(arguments: Mapping[str, object]) -> dict[str, Plain]:
    """Return arguments in their keyed form; one that has none is refused by its name."""
    return {name: _KEYED.tag_value(value, f"argument {name!r}") for name, value in arguments.items()}
