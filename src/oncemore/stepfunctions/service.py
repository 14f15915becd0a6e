"""Policies and workflows in the languages of others, and what is wrong with a definition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.profiles.nova_cat import names
from oncemore.profiles.nova_cat import workflow as nova_cat_workflow
from oncemore.queries.policies import find
from oncemore.stepfunctions import check as asl_check
from oncemore.stepfunctions import export

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from oncemore.queries.policies import Found

MOST_BYTES: Final = 4 * asl_check.MOST_CHARACTERS


class Exported(Value):
    """What something comes to in Amazon States Language.

    form        "retrier", "loop", "none" (one attempt only), or "workflow"
    delays      the seconds before each retry, for a policy
    retrier     the block for a `Retry` field, where there is one
    notes       what was left out or replaced, because it was accepted
    definition  the whole state machine
    """

    source: str
    form: str
    delays: tuple[int, ...]
    retrier: dict[str, Any] | None
    notes: tuple[str, ...]
    definition: dict[str, Any]


class Checked(Value):
    """What a check of a definition found; it is good when there are no faults."""

    file: str
    good: bool
    faults: tuple[asl_check.Fault, ...]


def policy(
    address: str, provider: str | None, accept: Collection[str], functions: Mapping[str, str]
) -> Exported:
    """Return a policy as a state machine around one task; refuse one that cannot be said."""
    for knob in accept:
        if knob not in export.ACCEPTABLE:
            raise UsageError(
                f"{knob!r} cannot be accepted; those that can are {', '.join(export.ACCEPTABLE)}"
            )
    for name in functions:
        if name != export.WORK:
            raise UsageError(f"{name!r} is no function here; a policy has one, {export.WORK}")
    at = find(address, provider)
    try:
        made = export.translated(at.policy, accept)
    except export.Inexpressible as error:
        raise export.Inexpressible(at.address, [_spelt(at, knob) for knob in error.faults]) from None
    whole = export.definition(at.policy, functions.get(export.WORK, "${Work}"), accept)
    return Exported(address, made.form, made.delays, made.retrier or None, made.notes, whole)


def _spelt(at: Found, knob: export.Knob) -> export.Knob:
    """Return a knob under the name that the policy's file has for it."""
    homes = (f"policies.{at.policy_name}.{knob.name}", f"retry_policy.{knob.name}")
    spelt = next((at.profile.spellings[home] for home in homes if home in at.profile.spellings), knob.name)
    return knob._replace(name=spelt.rpartition(".")[2])


def workflow(only: str | None, functions: Mapping[str, str]) -> Exported:
    """Return the workflows of nova-cat as a state machine."""
    made = nova_cat_workflow.workflow(only=only, functions=functions)
    return Exported(names.PROFILE, "workflow", (), None, (), made)


def check(path: str) -> Checked:
    """Return everything that is wrong with a definition in a file."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; give the path of a definition") from None
    return _checked(path, data)


def _checked(path: str, data: bytes) -> Checked:
    if len(data) > MOST_BYTES:
        raise UsageError(f"{path} has {len(data)} bytes, which is more than a definition can have")
    try:
        found = asl_check.faults(json.loads(data))
    except (ValueError, RecursionError) as error:
        found = [asl_check.Fault("/", "json", f"it is no JSON: {error}")]
    if len(data) > asl_check.MOST_CHARACTERS:
        found.append(asl_check.Fault("/", "size", f"it has more than {asl_check.MOST_CHARACTERS} characters"))
    return Checked(path, not found, tuple(found))
