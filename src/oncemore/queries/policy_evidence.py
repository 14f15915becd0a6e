"""Evidence of a changed policy: the same runs under both versions, before and after.

A governed file whose formulas, thresholds or states change needs a version that names its pattern
(`retry-loop-vX.Y`), a higher one than before, and this evidence, which is committed beside the file:

NAME.evidence.json   which versions were compared on which runs; energy, carbon and duplicate work of both
NAME.evidence.html   the same as a page with a chart; the record has its digest

The record is bound to both versions by the digests of their contents: a later change of the file voids the
evidence. It holds neither the time of day nor the path of a store, so that the same log gives the same bytes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from oncemore.errors import UsageError
from oncemore.governance.policy_content import find_content_changes, list_content
from oncemore.lineage.document_file import open_document
from oncemore.policy.canonical_json import canonical_digest
from oncemore.queries.documents import HeadingBlock, TableBlock, TextBlock, render_html
from oncemore.queries.policies import PolicyFault
from oncemore.queries.recorded_runs import policy_base
from oncemore.queries.simulation_documents import build_comparison_blocks, format_minute
from oncemore.queries.what_if import FIGURES, SimulationOptions, compare_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncemore.governance.policy_content import ContentChange
    from oncemore.policy.files import Profile
    from oncemore.policy.policy import Policy
    from oncemore.queries.documents import Block
    from oncemore.queries.what_if import SimulationReport
    from oncemore.simulate.recorded_runs import RecordedRun, SimulatedWorld
    from oncemore.simulate.what_if import Outcomes

    #: A policy before and after.
    PolicyVersions = tuple[Policy, Policy]

EVIDENCE_FORMAT: Final = "oncemore.policy-evidence/1"
RECORDED, ASSUMED = "recorded runs", "assumed failures"
#: The figures that evidence must have, and the option that gives one that the log lacks.
REQUIRED_FIGURES: Final = {
    "energy_kwh": "--attempt-energy KWH",
    "carbon_kg": "--intensity G",
    "repeated_attempts": "",
    "repeated_kwh": "--attempt-energy KWH",
    "computed_again": "",
}
#: Content that no delay, threshold or state depends on: it needs a new version, and no evidence.
_WITHOUT_EVIDENCE: Final = ("bounds", "escalation", "governed", "idempotency", "lease", "ledgers", "name")
#: Content that the simulation of runs does not decide again.
_NOT_SIMULATED: Final = ("sections", "cooldowns")


class PolicyVersion(Struct, frozen=True):
    """One version of a profile; `digest` covers everything in it that decides."""

    name: str
    version: str
    digest: str


class EvidenceChange(Struct, frozen=True):
    """A changed field; null where a version does not have it."""

    field: str
    old: Any
    new: Any


class EvidenceFigure(Struct, frozen=True):
    """One figure of the same runs under both versions; null if no attempt has a value."""

    field: str
    name: str
    unit: str
    before: float | None
    after: float | None
    difference: float | None


class ComparedPolicy(Struct, frozen=True):
    """A policy by its digests before and after; `view` is the page of the dashboard that compares both."""

    name: str
    old_digest: str
    new_digest: str
    view: str


class ChangeEvidence(Struct, frozen=True, kw_only=True):
    """The record of a change.

    basis          "recorded runs", or "assumed failures" where there is no history
    since, until   the first and the last moment of the runs; assumed ones begin at 0
    runs_digest    the digest of the sorted ids of the runs
    not_simulated  the changed fields that the figures cannot show
    page           the name of the page; `page_digest` is its SHA-256
    """

    format: str
    old: PolicyVersion
    new: PolicyVersion
    basis: str
    since: float
    until: float
    runs: int
    runs_digest: str
    changes: tuple[EvidenceChange, ...]
    not_simulated: tuple[str, ...]
    policies: tuple[ComparedPolicy, ...]
    figures: tuple[EvidenceFigure, ...]
    newly_missed: tuple[str, ...]
    notes: tuple[str, ...]
    command: str
    page: str = ""
    page_digest: str = ""


def name_evidence_files(path: Path) -> tuple[Path, Path]:
    """Return the paths of the record and of the page that belong to a policy file."""
    return path.with_suffix(".evidence.json"), path.with_suffix(".evidence.html")


def name_view(old_digest: str, new_digest: str) -> str:
    """Return the page of the dashboard that compares two recorded policies."""
    return f"/policies?a=policy/{old_digest[:12]}&b=policy/{new_digest[:12]}"


# Making ---------------------------------------------------------------------------------------------


def list_policy_pairs(old: Profile, new: Profile) -> list[PolicyVersions]:
    """Return the policies that both versions of a profile have, those of its providers included."""
    return [
        (old.policy(name, provider), new.policy(name, provider))
        for provider in dict.fromkeys((None, *old.providers, *new.providers))
        for name in new.policies
        if name in old.policies
    ]


def select_runs(pairs: Sequence[PolicyVersions], runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """Return the runs that were recorded under one of the policies; raise `UsageError` if there are none."""
    # Runs under still earlier versions count as well: the history is longer than one version.
    names = {policy.name for pair in pairs for policy in pair}
    own = [run for run in runs if policy_base(run.policy) in names]
    if not own:
        raise UsageError(
            f"no run in this period was recorded under {', '.join(sorted(names))}; give a longer period or "
            "another store, or assume failures: --failure-probability 0.3 --attempt-energy 0.001 "
            "--intensity 300"
        )
    return own


def compare_versions(
    pairs: Sequence[PolicyVersions], runs: Sequence[RecordedRun], world: SimulatedWorld, outcomes: Outcomes
) -> SimulationReport:
    """Return the comparison of the same runs under both versions; the signals hold for both."""
    # A proposed file has a name of its own, so that a run may carry either name.
    earlier = {policy.name: pair[0] for pair in pairs for policy in pair}
    later = {policy.name: pair[1] for pair in pairs for policy in pair}
    options = SimulationOptions(policies=later, earlier=earlier, world=world, both=True, outcomes=outcomes)
    return compare_runs(runs, options)


def build_evidence(
    versions: tuple[Profile, Profile],
    pairs: Sequence[PolicyVersions],
    runs: Sequence[RecordedRun],
    report: SimulationReport,
    *,
    command: str,
    basis: str = RECORDED,
    notes: tuple[str, ...] = (),
) -> ChangeEvidence:
    """Return the record of a change, from the comparison of both versions on the runs."""
    old, new = versions
    changes = find_content_changes(list_content(old), list_content(new))
    ids = sorted(run.run_id for run in runs)
    return ChangeEvidence(
        format=EVIDENCE_FORMAT,
        old=describe_version(old),
        new=describe_version(new),
        basis=basis,
        since=min(run.created_at for run in runs),
        until=max(run.ended_at for run in runs),
        runs=len(ids),
        runs_digest=canonical_digest(list(ids)),
        changes=tuple(EvidenceChange(*change) for change in changes),
        not_simulated=tuple(
            change.field for change in changes if change.field.partition(".")[0] in _NOT_SIMULATED
        ),
        policies=tuple(
            ComparedPolicy(a.name, a.digest, b.digest, name_view(a.digest, b.digest))
            for a, b in pairs
            if a.digest != b.digest
        ),
        figures=tuple(EvidenceFigure(*figure) for figure in report.figures),
        newly_missed=report.newly_missed,
        notes=(*report.notes, *notes),
        command=command,
    )


def describe_version(profile: Profile) -> PolicyVersion:
    """Return name and version of a profile, and the digest of its content."""
    return PolicyVersion(profile.name, profile.version, canonical_digest(list_content(profile)))


def write_evidence(evidence: ChangeEvidence, report: SimulationReport, path: Path) -> tuple[Path, Path]:
    """Write the record and the page beside a policy file; return their paths.

    The page is written first: a crash in between leaves the old record, whose digest does not fit the new
    page, and `find_evidence_faults` says so.
    """
    record, page = name_evidence_files(path)
    title = f"{evidence.old.name} {evidence.old.version} and {evidence.new.version}"
    text = render_html(title, build_evidence_blocks(evidence, report))
    digest = hashlib.sha256(text.encode()).hexdigest()
    complete = msgspec.structs.replace(evidence, page=page.name, page_digest=digest)
    data = msgspec.json.format(msgspec.json.encode(complete), indent=2).decode() + "\n"
    for place, content in ((page, text), (record, data)):
        with open_document(place) as file:
            file.write(content)
    return record, page


def build_evidence_blocks(evidence: ChangeEvidence, report: SimulationReport) -> list[Block]:
    """Return the page: what changed, then the comparison of both versions."""
    old, new = evidence.old, evidence.new
    window = (
        f"{format_minute(evidence.since)} to {format_minute(evidence.until)} UTC"
        if evidence.basis == RECORDED
        else "sample runs without history"
    )
    blocks: list[Block] = [
        HeadingBlock(f"{new.name}: {old.version} before, {new.version} after", 1),
        TextBlock(f"{evidence.runs:,} runs, {window}. Digest of their ids: {evidence.runs_digest[:12]}."),
        TableBlock(
            ("field", "before", "after"),
            tuple((one.field, _show_value(one.old), _show_value(one.new)) for one in evidence.changes),
        ),
    ]
    if evidence.not_simulated:
        fields = ", ".join(evidence.not_simulated)
        blocks.append(TextBlock(f"The figures do not show the effect of: {fields}."))
    # The comparison brings a heading of its own, which is a section here.
    first, *rest = build_comparison_blocks(report)
    assert isinstance(first, HeadingBlock)
    return [*blocks, HeadingBlock("Before and after"), *rest]


def _show_value(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def find_missing_figures(figures: Sequence[EvidenceFigure]) -> list[str]:
    """Return the figures without a value that evidence must have, each with the option that gives it."""
    known = {figure.field for figure in figures if None not in (figure.before, figure.after)}
    names = {field: name for field, name, _ in FIGURES}
    return [
        names[field] + (f" ({option})" if option else "")
        for field, option in REQUIRED_FIGURES.items()
        if field not in known
    ]


# Checking -------------------------------------------------------------------------------------------


def needs_evidence(change: ContentChange) -> bool:
    """Return whether a changed field belongs to the formulas, the thresholds or the states."""
    return not set(change.field.split(".")) & set(_WITHOUT_EVIDENCE)


def find_evidence_faults(earlier: Profile, present: Profile, shown: str, against: str) -> list[PolicyFault]:
    """Return what the evidence of a changed governed file lacks; empty if it needs none."""
    changes = [
        change
        for change in find_content_changes(list_content(earlier), list_content(present))
        if needs_evidence(change)
    ]
    # A file that left its governed parent is compared as one: leaving needs evidence too.
    if not changes or not (earlier.governed or present.governed):
        return []
    record, _ = name_evidence_files(Path(shown))
    command = f"oncemore simulate --policy {shown} --evidence {against}"
    fields = ", ".join(change.field for change in changes[:3]) + (" and more" if len(changes) > 3 else "")
    return [
        PolicyFault(str(record), 0, 0, "", f"{fault}. {fields} changed: make the evidence with `{command}`")
        for fault in _read_faults(record, describe_version(earlier), describe_version(present))
    ]


def _read_faults(record: Path, old: PolicyVersion, new: PolicyVersion) -> Iterator[str]:
    """Yield what is wrong with the files of evidence for a change."""
    if not record.exists():
        yield "the evidence before and after is missing"
        return
    try:
        evidence = load_evidence(record)
    except UsageError as error:
        yield str(error)
        return
    for side, stated, actual in (("before", evidence.old, old), ("after", evidence.new, new)):
        if stated.version != actual.version:
            yield f"it is about version {stated.version} {side}, and the file has {actual.version}"
        elif stated.digest != actual.digest:
            yield f"the policy {side} is not the one that was compared, its content differs"
    missing = find_missing_figures(evidence.figures)
    if missing:
        yield f"it has no value for {', '.join(missing)}"
    # The name in the record is for readers; only the page beside it counts.
    page = record.with_suffix(".html")
    if not page.is_file() or hashlib.sha256(page.read_bytes()).hexdigest() != evidence.page_digest:
        yield f"its page {page.name} is missing or was changed"


def load_evidence(record: Path) -> ChangeEvidence:
    """Return the record of a change; raise `UsageError` if the file is not one."""
    try:
        evidence = msgspec.json.decode(record.read_bytes(), type=ChangeEvidence)
    except OSError as error:
        raise UsageError(f"it cannot be read ({error.strerror})") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"it is not the evidence of a change ({error})") from None
    if evidence.format != EVIDENCE_FORMAT:
        raise UsageError(f"its format is {evidence.format!r:.60}; this version reads {EVIDENCE_FORMAT}")
    return evidence
