"""Energy, carbon and cost of attempts by key and time, beside the decisions of the autonomy matrix.

Every figure comes from the entry that ended the attempt, and every decision from the record of the matrix, so
that an anomaly can be followed to both (CLI-3, CLI-4).
"""

from __future__ import annotations

from bisect import bisect_right

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.queries.entries import find_seq
from oncemore.queries.runs import find_run
from oncemore.telemetry.energy import RunEnergy, energy_of_run
from oncemore.telemetry.records import is_attempt_end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from oncemore.steps.engine import Engine
    from oncemore.telemetry.autonomy_rules import AutonomyRecord

PAGE_SIZE = 1000
MAX_LIMIT = 100_000


class CarbonRow(Value):
    """The snapshot of one attempt, and the decision of the matrix that was in force when it ended.

    decision  the id of the decision; empty if the policy had no matrix at that time
    action    its level: run, slow, pause or escalate
    """

    at: float
    run_id: str
    key: str
    step: str
    attempt: int
    state: str
    snapshot: dict[str, Any]
    decision: str = ""
    action: str = ""
    reason: str = ""


class CarbonReport(Value):
    """The attempts of a key or of all keys in a time window, oldest first, and their totals."""

    rows: tuple[CarbonRow, ...]
    energy: RunEnergy
    is_cut_off: bool = False


class MatrixDecision(Value):
    """One stored decision of a matrix, with its proof."""

    at: float
    name: str
    id: str
    action: str
    until: float
    sentence: str
    proof: dict[str, Any]


def report_carbon(
    engine: Engine,
    key: str | None = None,
    since: float | None = None,
    until: float | None = None,
    limit: int = 1000,
) -> CarbonReport:
    """Return the snapshots of attempts that ended in a window.

    key  a run id or a key, or the beginning of one; None for all keys
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise UsageError(f"limit is {limit}; it takes 1 to {MAX_LIMIT}.")
    decisions = group_decisions(list_decisions(engine))
    selected: list[tuple[dict[str, Any], str]] = []
    for entity in _find_entities(engine, key, since):
        # The start of an attempt counts at any time: it tells whether the attempt was the first of its run.
        selected += [
            (record, policy)
            for record, policy in _read_records(engine, entity)
            if record["kind"] == "INTENT" or _is_within(record["at"], since, until)
        ]
    rows = [_make_row(record, policy, decisions) for record, policy in selected if is_attempt_end(record)]
    # Each entity is in order; together they are not.
    rows.sort(key=lambda row: row.at)
    energy = energy_of_run(record for record, _ in selected)
    return CarbonReport(tuple(rows[-limit:]), energy, len(rows) > limit)


def _is_within(at: float, since: float | None, until: float | None) -> bool:
    return (since is None or at >= since) and (until is None or at <= until)


def _find_entities(engine: Engine, key: str | None, since: float | None) -> Iterator[str]:
    """Yield the entities of runs that can have an attempt in the window."""
    from oncemore.log.store import HeadQuery

    store = engine.store
    # One key needs no listing, however large the log is.
    if key is not None:
        yield find_run(store, key).entity
        return
    query = HeadQuery("run", after_seq=0 if since is None else find_seq(store, since), limit=PAGE_SIZE)
    while True:
        page = list(store.list_heads(query))
        yield from (head.entity for head in page)
        if len(page) < PAGE_SIZE:
            return
        query = query._replace(after_seq=page[-1].seq)


def _read_records(engine: Engine, entity: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the records of a key, each with the policy of its run."""
    from oncemore.steps.history import export_records, fold_entries

    entries = list(engine.store.read_entries(entity))
    # A key can have runs under several policies, and each has its own matrix.
    policies = {state.run_id: state.policy for _, state, _ in fold_entries(entries, engine.cipher)}
    for record in export_records(entries, engine.cipher):
        yield record, policies[record["run_id"]]


def _make_row(record: dict[str, Any], policy: str, decisions: dict[str, list[MatrixDecision]]) -> CarbonRow:
    names = ("at", "run_id", "attempt", "state")
    fields = {name: record[name] for name in names}
    in_force = find_in_force(decisions.get(name_matrix(policy), []), record["at"])
    row = CarbonRow(
        **fields,
        key=record["idempotency_key"],
        step=record["node_id"],
        snapshot=record["telemetry_snapshot"],
    )
    if in_force is None:
        return row
    return row._replace(decision=in_force.id, action=in_force.action, reason=in_force.sentence)


def name_matrix(policy: str) -> str:
    """Return the name of a policy's matrix: that of its profile, without policy, provider and version."""
    return policy.split("/", 1)[0].split("@", 1)[0]


def find_in_force(decisions: list[MatrixDecision], at: float) -> MatrixDecision | None:
    """Return the decision that was in force at a time; None before the first one."""
    position = bisect_right(decisions, at, key=lambda decision: decision.at)
    return decisions[position - 1] if position else None


def group_decisions(decisions: list[MatrixDecision]) -> dict[str, list[MatrixDecision]]:
    """Return decisions by the name of their matrix."""
    groups: dict[str, list[MatrixDecision]] = {}
    for decision in decisions:
        groups.setdefault(decision.name, []).append(decision)
    return groups


# The matrix -----------------------------------------------------------------------------------------


def list_matrices(engine: Engine) -> list[AutonomyRecord]:
    """Return the matrices of a store, by name."""
    from oncemore.log.entry_codec import decode_head
    from oncemore.log.store import HeadQuery
    from oncemore.telemetry.autonomy_rules import AutonomyRecord

    heads = engine.store.list_heads(HeadQuery("autonomy", limit=PAGE_SIZE))
    return sorted((decode_head(head.head, AutonomyRecord) for head in heads), key=lambda record: record.name)


def list_decisions(engine: Engine, name: str | None = None) -> list[MatrixDecision]:
    """Return the stored decisions of all matrices, or of one, in the order of time."""
    from oncemore.steps.history import fold_entries
    from oncemore.telemetry.autonomy_rules import autonomy_entity

    known = [record.name for record in list_matrices(engine)]
    if name is not None and name not in known:
        listed = f"there are {', '.join(known)}" if known else "there is none"
        raise UsageError(f"there is no matrix {name!r} in this store; {listed}.")
    decisions = []
    for each in known if name is None else [name]:
        entries = engine.store.read_entries(autonomy_entity(each))
        for header, record, body in fold_entries(entries, engine.cipher):
            # Reservations and new periods are entries too, and no decisions.
            if "proof" in body:
                proof = body["proof"]
                fields = (header.at, each, proof["id"], proof["action"], record.until, proof["sentence"])
                decisions.append(MatrixDecision(*fields, proof))
    return sorted(decisions, key=lambda decision: decision.at)
