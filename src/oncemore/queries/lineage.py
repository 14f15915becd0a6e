"""Read the lineage of runs from their entries: arguments and artifacts in, result and artifacts out."""

from __future__ import annotations

from oncemore.maintenance.lineage import derive_lineage
from oncemore.policy.canonical_json import hash_bytes
from oncemore.queries.entries import fold_runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from oncemore.log.record import RunRecord
    from oncemore.log.store import Store
    from oncemore.maintenance.lineage import RunLineage


def collect_digests(body: dict[str, Any]) -> dict[str, str]:
    """Return the digests of the result and of each artifact in the body of a COMMIT."""
    import json

    digests = {}
    if "result" in body:
        text = json.dumps(body["result"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        digests["result"] = hash_bytes(text.encode()).hex()
    # A large result is stored as an artifact, and the body holds its digest instead of the value.
    if "spilled" in body:
        digests["result"] = body["spilled"]["digest"]
    for plain in body.get("artifacts", ()):
        digests[f"artifact {plain['$artifact']['name']}"] = plain["$artifact"]["digest"]
    return digests


def build_lineage(key: str, run: RunRecord, arguments: Any, body: dict[str, Any]) -> RunLineage:
    """Return the lineage of a run, given its arguments and the body of its COMMIT."""
    used = {*_find_artifact_digests(arguments)}
    if run.input_hash:
        used.add(run.input_hash)
    return derive_lineage(run.step, key, run.cfg_hash, used, collect_digests(body).values())


def _find_artifact_digests(value: Any) -> Iterator[str]:
    """Yield the digests of all artifacts inside recorded arguments."""
    if isinstance(value, dict):
        if isinstance(artifact := value.get("$artifact"), dict):
            yield artifact["digest"]
        for part in value.values():
            yield from _find_artifact_digests(part)
    elif isinstance(value, list):
        for part in value:
            yield from _find_artifact_digests(part)


def list_lineages(store: Store, entity: str) -> Iterator[tuple[RunRecord, RunLineage]]:
    """Yield the run and the lineage of every COMMIT of a key that is still readable, oldest first."""
    arguments: Any = None
    for _, header, run, body in fold_runs(store, entity):
        # Arguments are recorded once, with the run's first entry.
        arguments = body.get("arguments", arguments)
        if "COMMIT" in header.marks and body and "sealed" not in body:
            yield run, build_lineage(entity.removeprefix("run/"), run, arguments, body)
