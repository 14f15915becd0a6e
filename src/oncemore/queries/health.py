"""Judge a store by the four criteria of a trustworthy pipeline (TEST-6).

    1  work that is run again leaves the same artifacts and results, under the same lineage ids
    2  states follow from the log alone, without manual edits
    3  no complete work is computed a second time
    4  every decision can be explained from its proof

One pass over the log answers all four. The first criterion can also be judged between two stores: whether a
window that failed and was run again in another store left the same results as an undisturbed one.

Active switches are reported too, but are not a criterion: a store that an operator has stopped is healthy.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import StoreError
from oncemore.queries.entries import list_lineages, load_cipher
from oncemore.queries.explain import END_REASONS
from oncemore.queries.runs import load_switches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from oncemore.artifacts.store import ArtifactStore
    from oncemore.control.switches import ActiveSwitch
    from oncemore.lineage.ids import RunLineage
    from oncemore.log.record import RunRecord
    from oncemore.log.store import Entry, Store
    from oncemore.maintenance.replay import ReplayedEntry

    Progress = Callable[[int, int], object]

MAX_EXAMPLES = 5
CRITERIA_NAMES = (
    "the same artifacts and lineage when run again",
    "replay without edits",
    "no double spikes",
    "decisions explained by their proofs",
)
#: Reasons of ends that need no proof: an event, a person or a reconcile function has decided, not a policy.
SETTLED_REASONS = {*END_REASONS, "outcome_unknown", "reconciled", "decided", "artifact_exists"}


class HealthCriterion(Value):
    """One criterion: whether it holds, the amount of data behind it, and examples against it."""

    number: int
    name: str
    holds: bool
    observation: str
    examples: tuple[str, ...] = ()


class HealthReport(Value):
    """The criteria of a store.

    healthy   whether all criteria hold
    switches  the active switches, oldest first
    moved_to  the new location of a log that was moved; else empty
    """

    url: str
    healthy: bool
    criteria: tuple[HealthCriterion, ...]
    switches: tuple[ActiveSwitch, ...] = ()
    moved_to: str = ""


class _HealthFindings:
    """The findings of one pass over the log."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.commits = self.rerun_commits = self.lineage_ids = 0
        self.decisions = self.failed_ends = self.encrypted_ends = 0
        self.differing_runs: list[str] = []
        self.recomputed_runs: list[str] = []
        self.unexplained_ends: list[str] = []

    def add_entry(self, entry: ReplayedEntry, before: Any) -> None:
        """Add a replayed entry, given the state before it."""
        from oncemore.log.record import RunRecord

        run = entry.state
        # Events, workers and switches are not work; only runs are judged.
        if type(run) is not RunRecord:
            return
        # A changed configuration is new work; computing it again after COMPLETE is right.
        was_complete = (
            type(before) is RunRecord and before.state == "COMPLETE" and before.cfg_hash == run.cfg_hash
        )
        if "INTENT" in entry.marks and was_complete:
            self.recomputed_runs.append(f"{run.step} {run.run_id}")
        if "COMMIT" in entry.marks:
            self.commits += 1
            # Only pure steps promise the same result for the same key and configuration.
            if run.effect == "pure" and run.run_number > 1:
                self._compare_results(entry)
        if entry.marks[0] in ("SOFT_FAIL", "HARD_FAIL"):
            self.failed_ends += 1
            self.decisions += entry.decision is not None
            self.encrypted_ends += entry.sealed
            if entry.differences or not (entry.decision or entry.sealed or run.reason in SETTLED_REASONS):
                self.unexplained_ends.append(f"{run.step} {run.run_id}, entry {entry.seq} ({run.reason})")

    def _compare_results(self, entry: ReplayedEntry) -> None:
        """Compare the lineage of a pure run with those of the earlier runs of its key."""
        lineages = {
            lineage
            for run, lineage in list_lineages(self.store, entry.entity)
            if run.cfg_hash == entry.state.cfg_hash
        }
        self.rerun_commits += 1
        self.lineage_ids += len({name for lineage in lineages for name in lineage.all_ids})
        if len(lineages) > 1:
            self.differing_runs.append(f"{entry.state.step} {entry.state.run_id}")


def judge_store(
    store: Store,
    artifacts: ArtifactStore | None = None,
    progress: Progress = lambda done, whole: None,
    other_store: Store | None = None,
) -> HealthReport:
    """Judge a store by the four criteria.

    artifacts    the artifact store, if it is known: every artifact is read and verified
    other_store  another store: pure work that is complete in both must have left the same results
    """
    from oncemore.control.switches import list_active_switches
    from oncemore.maintenance.rebuild import rebuild_heads
    from oncemore.maintenance.replay import LogReplay

    replay, findings = LogReplay(cipher=load_cipher()), _HealthFindings(store)

    def fold_page(page: Iterable[Entry], known: Any) -> None:
        # One entry at a time: the replay overwrites the state before the entry, which is needed here.
        for entry in page:
            before = known[entry.entity][2] if entry.entity in known else None
            for replayed in replay.replay_entries((entry,)):
                findings.add_entry(replayed, before)

    fault, entries = "", 0
    wrong_heads: tuple[str, ...] = ()
    try:
        report = rebuild_heads(store, progress, fold_page, replay.heads)
        entries = report.entries
        wrong_heads = tuple(f"{mismatch.entity} is {mismatch.what}" for mismatch in report.wrong)
    except StoreError as error:
        # An altered log proves nothing: all four criteria fail with this message.
        fault = str(error)
    bad, checked = _verify_artifacts(store, artifacts)
    if other_store is not None:
        differing, compared = _compare_stores(store, other_store)
        bad, checked = [*differing, *bad], "; ".join(filter(None, (compared, checked)))
    criteria = (
        _judge_same_results(findings, bad, checked, fault),
        _judge_replay(entries, wrong_heads, fault),
        _judge_no_recompute(findings, fault),
        _judge_explained(findings, fault),
    )
    board = load_switches(store)
    return HealthReport(
        url=store.open_maintenance().describe_store().url,
        healthy=all(criterion.holds for criterion in criteria),
        criteria=criteria,
        switches=list_active_switches(board),
        moved_to=board.moved_to,
    )


def _compare_stores(store: Store, other_store: Store) -> tuple[list[str], str]:
    """Compare the pure runs that are complete in two stores under the same configuration."""
    from oncemore.log.store import HeadQuery

    differing, compared, ids = [], 0, 0
    for head in list(store.list_heads(HeadQuery("run", state="COMPLETE", limit=1_000_000))):
        result, other = _load_last_result(store, head.entity), _load_last_result(other_store, head.entity)
        # Runs of one store only, or under another configuration, cannot be compared.
        if result is None or other is None or result[0].cfg_hash != other[0].cfg_hash:
            continue
        compared, ids = compared + 1, ids + len(result[1].all_ids)
        if result[1] != other[1]:
            differing.append(f"{result[0].step} {result[0].run_id} and {other[0].run_id}")
    url = other_store.open_maintenance().describe_store().url
    return differing, f"{compared:,} results compared with {url}, {ids:,} lineage ids"


def _load_last_result(store: Store, entity: str) -> tuple[RunRecord, RunLineage] | None:
    """Return the run and lineage of a key's last COMMIT; None if there is none or the step is not pure."""
    last = None
    for last in list_lineages(store, entity):  # noqa: B007 - only the last one is wanted
        pass
    return last if last and last[0].effect == "pure" else None


def _verify_artifacts(store: Store, artifact_store: ArtifactStore | None) -> tuple[list[str], str]:
    """Verify the bytes of all artifacts; return the faults, and a summary."""
    from oncemore.log.entry_codec import decode_head
    from oncemore.log.record import ArtifactRecord
    from oncemore.log.store import HeadQuery

    artifacts = [
        decode_head(head.head, ArtifactRecord)
        for head in store.list_heads(HeadQuery("artifact", state="STORED", limit=1_000_000))
    ]
    # Without the artifact store this is not a fault: the log may be judged on another machine.
    if artifact_store is None or not artifact_store.is_configured:
        summary = f"{len(artifacts):,} artifacts not read: the artifact store is not known here"
        return [], summary if artifacts else ""
    bad = []
    for artifact in artifacts:
        status = artifact_store.verify_object(artifact.digest, artifact.size)
        if status != "valid":
            fault = status if isinstance(status, str) else "altered"
            bad.append(f"{artifact.name} of {artifact.step}: {fault}")
    return bad, f"{len(artifacts):,} artifacts read and verified" if artifacts else ""


def _judge_same_results(
    findings: _HealthFindings, bad: list[str], checked: str, fault: str
) -> HealthCriterion:
    observation = f"{findings.commits:,} results, {findings.rerun_commits:,} of them of work run again"
    observation += f" with {findings.lineage_ids:,} lineage ids" if findings.rerun_commits else ""
    observation += f"; {checked}" if checked else ""
    examples = [*findings.differing_runs, *bad]
    return _make_criterion(1, fault or observation, examples, fault)


def _judge_replay(entries: int, wrong_heads: tuple[str, ...], fault: str) -> HealthCriterion:
    heads = f"{len(wrong_heads):,} heads differ" if wrong_heads else "every head is equal"
    return _make_criterion(2, fault or f"{entries:,} entries replayed, {heads}", wrong_heads, fault)


def _judge_no_recompute(findings: _HealthFindings, fault: str) -> HealthCriterion:
    observation = f"{len(findings.recomputed_runs):,} keys computed again after COMPLETE"
    return _make_criterion(3, fault or observation, findings.recomputed_runs, fault)


def _judge_explained(findings: _HealthFindings, fault: str) -> HealthCriterion:
    # Lost leases, interruptions and decisions of persons end an attempt without a policy.
    undecided = findings.failed_ends - findings.decisions - findings.encrypted_ends
    observation = f"{findings.decisions:,} decisions computed again from their proofs"
    if findings.encrypted_ends:
        observation += f", {findings.encrypted_ends:,} encrypted with a key that is not available"
    observation += f", {undecided:,} ends that needed no decision" if undecided else ""
    return _make_criterion(4, fault or observation, findings.unexplained_ends, fault)


def _make_criterion(number: int, observation: str, examples: Sequence[str], fault: str) -> HealthCriterion:
    """Return a criterion, which holds if there are neither examples against it nor a fault of the log."""
    return HealthCriterion(
        number=number,
        name=CRITERIA_NAMES[number - 1],
        holds=not examples and not fault,
        observation=observation,
        examples=tuple(examples[:MAX_EXAMPLES]),
    )
