"""The steps of the `nova-cat` workflows: how each is made, and the checks of what providers return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.limits.cooldown_rules import Cooldown
from oncemore.profiles.nova_cat import events, names
from oncemore.profiles.nova_cat.input import MAX_TEXT_LENGTH, InvalidInput, UnusableData, check_product
from oncemore.steps.decorator import Step, step
from oncemore.steps.options import StepOptions

if TYPE_CHECKING:
    from collections.abc import Callable

#: The arguments of the acquisition step, in order.
PRODUCT_FIELDS = (
    "data_product_id",
    "nova_id",
    "provider",
    "locator",
    "provenance",
    "sha256",
    "schema_version",
)


def make_step(effect: Any, name: str, policy: str, **more: Any) -> Any:
    """Return the decorator of a step with the profile's name and a policy."""
    return step(effect=effect, name=f"{names.PROFILE}.{name}", policy=policy, **more)


def make_acquisition_step(work: Callable[..., Any], policy: str) -> Step[..., Any]:
    """Return the step that acquires a product; its key is the product's id alone.

    A call with another locator is therefore the same work, not a conflict. The log still has all fields of
    each run, so that a worker can continue it.
    """
    options: dict[str, Any] = {
        "effect": "outbox", "name": f"{names.PROFILE}.{names.ACQUIRE_ARTIFACT}", "policy": policy,
        "key": lambda *fields: _product_id(fields) or {"malformed": list(fields)},
        "provider": lambda data_product_id, nova_id, provider, *rest: _provider_name(provider),
        "cooldown": Cooldown(lambda *fields: _product_id(fields)),
    }  # fmt: skip
    step_options = StepOptions(work, **options)
    # Arguments outside the key must not enter the input hash, or another locator would be a KeyConflict.
    step_options.keys.keys_all_arguments = True
    return Step(step_options)


def _product_id(fields: tuple[Any, ...]) -> str | None:
    """Return the id of the product to acquire; None for malformed input.

    So malformed input has a key of its own, and neither reads nor writes the record of a product.
    """
    try:
        check_product(dict(zip(PRODUCT_FIELDS, fields, strict=True)))
    except InvalidInput:
        return None
    return str(fields[0]).lower()


# Parameter names are a part of the keys of these two steps: renaming one would repeat finished work.
def build_validation_result(data_product_id: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a validation; a pure step, so equal bytes give an equal result."""
    return {"data_product_id": data_product_id, "validation_status": "VALID", **found}


def link_reference(nova_id: str, reference_id: str, found: dict[str, Any]) -> dict[str, Any]:
    """Link a reference to a nova and publish the event, once per key."""
    events.emit_event(
        events.LINKED,
        nova_id=nova_id,
        reference_id=reference_id,
        title=str(found.get("title", ""))[:MAX_TEXT_LENGTH],
    )
    return {"nova_id": nova_id, "reference_id": reference_id, **found}


def check_resolved(reference_id: str, resolved: Any) -> dict[str, Any]:
    """Return the record of a reference; refuse several candidates, and objects other than classical novae."""
    candidates = list(resolved) if isinstance(resolved, list | tuple) else [resolved]
    if len(candidates) != 1:
        raise UnusableData(
            names.AMBIGUOUS_NAME,
            f"{reference_id} resolves to {len(candidates)} objects; an operator has to choose one",
        )
    if not isinstance(candidates[0], dict):
        raise UnusableData(
            names.MALFORMED_PROVIDER_RECORD, f"{reference_id} is {candidates[0]!r:.60}, which is not a record"
        )
    kind = candidates[0].get("object_type", "classical nova")
    if kind != "classical nova":
        raise InvalidInput(names.NOT_A_CLASSICAL_NOVA, f"{reference_id} is about a {kind!s:.60}")
    return candidates[0]


def check_consistent(provider: str, records: list[dict[str, Any]]) -> None:
    """Refuse a list in which two records of one product differ."""
    record_by_id: dict[str, Any] = {}
    for record in records:
        if record_by_id.setdefault(record["native_id"], record) != record:
            raise UnusableData(
                names.MALFORMED_PROVIDER_RECORD,
                f"{provider} has two different records of {record['native_id']}",
            )


def _provider_name(provider: Any) -> str:
    return provider if isinstance(provider, str) and len(provider) <= 200 else ""
