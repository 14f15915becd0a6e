"""Write a proposed policy as a file with its evidence; nothing that runs is changed.

NAME.yaml has the new version, with the evidence in short as comments; the two files of the evidence beside it
are those of `queries.policy_evidence`.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.queries.policies import DEFAULT_POLICY, ignore_warnings
from oncemore.queries.policy_compare import list_changes
from oncemore.queries.policy_evidence import (
    build_evidence,
    compare_versions,
    name_evidence_files,
    write_evidence,
)
from oncemore.queries.recorded_runs import build_recorded_world, policy_base
from oncemore.queries.simulation_documents import format_minute, format_value
from oncemore.simulate.proposals import LEAST_FAILURES, LEAST_RUNS, count_failed_runs, propose_policy
from oncemore.simulate.recorded_runs import SimulatedWorld

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.policy.policy import Policy
    from oncemore.queries.policies import FoundPolicy
    from oncemore.queries.policy_compare import FieldChange
    from oncemore.queries.what_if import SimulationReport
    from oncemore.simulate.proposals import PolicyProposal
    from oncemore.simulate.recorded_runs import RecordedRun


class ProposedChange(Value):
    """A proposed version of a policy; `runs` are those that it was simulated on."""

    old: str
    new: str
    runs: tuple[RecordedRun, ...]
    changes: tuple[FieldChange, ...]
    proposal: PolicyProposal
    comparison: SimulationReport


def find_proposal(
    found: FoundPolicy,
    runs: Sequence[RecordedRun],
    *,
    least_runs: int = LEAST_RUNS,
    world: SimulatedWorld = SimulatedWorld(),  # noqa: B008 - a frozen value
) -> ProposedChange | None:
    """Return the proposal for a policy from the runs that were recorded under its name; None without one.

    Raises `UsageError` if there are too few runs, or too few that failed once.

    world  signals for the figures of both versions, where the runs have none
    """
    policy = found.policy
    # Also runs under earlier versions of the policy: they are the longer history.
    own = [run for run in runs if policy_base(run.policy) == policy.name]
    failed = count_failed_runs(own)
    if len(own) < least_runs or failed < min(LEAST_FAILURES, least_runs):
        raise UsageError(
            f"there are {len(own):,} runs under {policy.name} in this period, {failed:,} of them with a "
            f"failed attempt; a proposal needs {least_runs:,} and {min(LEAST_FAILURES, least_runs):,}. Give "
            "a longer period, or another store"
        )
    proposal = propose_policy(policy, own, build_recorded_world(own))
    if proposal is None:
        return None
    # The candidates keep the version, so that their digests differ only where they decide differently.
    new = proposal.policy.copy_with(version=bump_version(policy.version))
    return ProposedChange(
        old=f"{policy.name}@{policy.version}",
        new=f"{new.name}@{new.version}",
        runs=tuple(own),
        changes=tuple(list_changes(policy, new)),
        proposal=proposal._replace(policy=new),
        comparison=compare_versions([(policy, new)], own, world, "time"),
    )


def bump_version(version: str) -> str:
    """Return the next version: the last number in the text plus one."""
    match = re.search(r"(\d+)(?!.*\d)", version)
    if match is None:
        return f"{version}-2" if version else "2"
    return f"{version[: match.start()]}{int(match[1]) + 1}{version[match.end() :]}"


def write_proposal(change: ProposedChange, found: FoundPolicy, path: Path, command: str) -> tuple[Path, ...]:
    """Write the policy file and its evidence, none of which may exist; return the paths.

    The policy file gets its name last: a crash before leaves evidence without a policy, which changes
    nothing.
    """
    from oncemore.policy.files import inspect_file

    evidence, page = name_evidence_files(path)
    for place in (path, evidence, page):
        if place.exists():
            raise UsageError(f"{place} exists; a proposal replaces nothing. Give another name to --out")
    # In the same folder, because the file may extend another one by its relative path.
    draft = path.with_name(f".{path.stem}.proposed{path.suffix}")
    try:
        draft.write_text(render_policy_file(change, found, path, command), encoding="utf-8")
        with ignore_warnings():
            new = inspect_file(draft)
        pairs = [(found.policy, new.policy())]
        record = build_evidence(
            (found.profile, new),
            pairs,
            change.runs,
            change.comparison,
            command=command,
            notes=(_describe_choice(change.proposal),),
        )
        write_evidence(record, change.comparison, path)
        # A link fails if another process has created the file meanwhile; a rename would replace it.
        path.hardlink_to(draft)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            draft.unlink()
    return path, evidence, page


def _describe_choice(proposal: PolicyProposal) -> str:
    return (
        f"{proposal.rejected + 1:,} candidates simulated; chosen on {proposal.chosen_before.runs:,} runs, "
        f"confirmed on the newest {proposal.confirmed_before.runs:,}"
    )


def render_policy_file(change: ProposedChange, found: FoundPolicy, path: Path, command: str) -> str:
    """Return the text of the proposed policy file: comments with the evidence, and the changed fields."""
    comparison, proposal = change.comparison, change.proposal
    since, until = min(run.created_at for run in change.runs), max(run.ended_at for run in change.runs)
    differences = [
        _show_difference(figure.name, figure.before, figure.after, figure.unit)
        for figure in comparison.figures
        if figure.before is not None and figure.after is not None and figure.before != figure.after
    ]
    lines = [
        f"# Proposed successor of {change.old}. Not in force: review it, sign it, and use it by its path.",
        "# Evidence: {}; before and after: {}".format(*(place.name for place in name_evidence_files(path))),
        f"# {len(change.runs):,} recorded runs, {format_minute(since)} to {format_minute(until)} UTC",
        f"# {_describe_choice(proposal)}",
        "# Simulated on these runs:",
        *differences,
        f"# Made by: {command}",
    ]
    return "\n".join([*lines, *_render_fields(proposal.policy, change, found, path)]) + "\n"


def _show_difference(name: str, before: float, after: float, unit: str) -> str:
    return f"#   {name}: {format_value(before)} -> {format_value(after)} {unit}".rstrip()


def _render_fields(policy: Policy, change: ProposedChange, found: FoundPolicy, path: Path) -> list[str]:
    """Return the fields of the new file: a file that extends the old one, or the whole policy."""
    from oncemore.policy.files.writer import as_file

    if found.policy_name != DEFAULT_POLICY:
        # One of several policies of a profile: only a file of its own can change it alone.
        return [f"profile: {_file_name(path)}", as_file(policy).rstrip()]
    schedule = policy.schedule
    numbers = (
        f"delays_s: [{', '.join(f'{delay:g}' for delay in schedule.delays)}]"
        if schedule.shape == "fixed"
        else f"base_delay_s: {schedule.base:g}"
    )
    parent = _name_parent(found, path)
    return [
        f"profile: {_file_name(path)}",
        f"version: {json.dumps(policy.version)}",
        f"extends: {json.dumps(parent)}",
        "retry_policy:",
        f"  max_attempts: {policy.max_attempts}",
        f"  {numbers}",
    ]


def _name_parent(found: FoundPolicy, path: Path) -> str:
    """Return how the new file names the old one: a packaged profile by name, a file by its relative path."""
    import oncemore.profiles

    source = Path(found.profile.source).resolve()
    if Path(oncemore.profiles.__file__).resolve().parent in source.parents:
        return found.profile.name
    parent = os.path.relpath(source, path.resolve().parent)
    # A path without a folder would be read as the name of a profile.
    return parent if parent.startswith(".") else f"./{parent}"


def _file_name(path: Path) -> str:
    name = re.sub(r"[^a-z0-9-]+", "-", path.stem.lower()).strip("-")
    return name or "proposed"
