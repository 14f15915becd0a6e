"""Export of policies and workflows to Step Functions, and checks of definition files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.profiles.nova_cat import names
from oncemore.profiles.nova_cat import state_machine as nova_cat_workflow
from oncemore.queries.policies import find_policy
from oncemore.stepfunctions import check as asl_check
from oncemore.stepfunctions import export

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from oncemore.queries.policies import FoundPolicy

# A character takes at most four bytes in UTF-8; a longer file cannot be within the limit.
MAX_BYTES: Final = 4 * asl_check.MAX_CHARACTERS


class ExportedDefinition(Value):
    """A policy or workflow in Amazon States Language.

    form        "retrier", "loop", "none" (one attempt), or "workflow"
    delays      the seconds before each retry, for a policy
    retrier     the block for a `Retry` field, if there is one
    notes       the settings that were left out or replaced
    definition  the whole state machine
    """

    source: str
    form: str
    delays: tuple[int, ...]
    retrier: dict[str, Any] | None
    notes: tuple[str, ...]
    definition: dict[str, Any]


class DefinitionCheck(Value):
    """The result of checking a definition; it is good if there are no faults."""

    file: str
    good: bool
    faults: tuple[asl_check.DefinitionFault, ...]


def export_policy(
    address: str, provider: str | None, accept: Collection[str], functions: Mapping[str, str]
) -> ExportedDefinition:
    """Return a policy as a state machine around one task; refuse a policy that cannot be expressed."""
    for setting in accept:
        if setting not in export.ACCEPTABLE_SETTINGS:
            raise UsageError(
                f"{setting!r} cannot be accepted; these can: {', '.join(export.ACCEPTABLE_SETTINGS)}"
            )
    for name in functions:
        if name != export.WORK_STATE:
            raise UsageError(f"{name!r} is not a function of a policy, which has only {export.WORK_STATE}")
    found = find_policy(address, provider)
    try:
        translation = export.translate_policy(found.policy, accept)
    except export.PolicyNotExpressible as error:
        raise export.PolicyNotExpressible(
            found.address, [_use_file_spelling(found, setting) for setting in error.faults]
        ) from None
    definition = export.build_definition(found.policy, functions.get(export.WORK_STATE, "${Work}"), accept)
    return ExportedDefinition(
        source=address,
        form=translation.form,
        delays=translation.delays,
        retrier=translation.retrier or None,
        notes=translation.notes,
        definition=definition,
    )


def _use_file_spelling(found: FoundPolicy, setting: export.UnsupportedSetting) -> export.UnsupportedSetting:
    """Return a setting under its name in the policy file, where the reader of the error will look for it."""
    # The values of a policy override those that all policies of the file share.
    paths = (f"policies.{found.policy_name}.{setting.name}", f"retry_policy.{setting.name}")
    spellings = found.profile.spellings
    spelling = next((spellings[path] for path in paths if path in spellings), setting.name)
    return setting._replace(name=spelling.rpartition(".")[2])


def export_workflow(only: str | None, functions: Mapping[str, str]) -> ExportedDefinition:
    """Return the workflows of nova-cat as a state machine."""
    definition = nova_cat_workflow.build_workflow(only=only, functions=functions)
    return ExportedDefinition(names.PROFILE, "workflow", (), None, (), definition)


def check_file(path: str) -> DefinitionCheck:
    """Return the faults of the definition in a file."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; give the path of a definition") from None
    return _check_bytes(path, data)


def _check_bytes(path: str, data: bytes) -> DefinitionCheck:
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path} has {len(data)} bytes; a definition has at most {MAX_BYTES}")
    try:
        faults = asl_check.find_faults(json.loads(data))
    except (ValueError, RecursionError) as error:
        # Deeply nested JSON exhausts the stack of the parser, which is a fault of the file.
        faults = [asl_check.DefinitionFault("/", "json", f"the file is not valid JSON: {error}")]
    if len(data) > asl_check.MAX_CHARACTERS:
        message = f"the definition has more than {asl_check.MAX_CHARACTERS} characters"
        faults.append(asl_check.DefinitionFault("/", "size", message))
    return DefinitionCheck(path, not faults, tuple(faults))
