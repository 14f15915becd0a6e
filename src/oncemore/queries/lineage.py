"""The lineage of runs, as their entries tell it: arguments and artifacts in, result and artifacts out."""

from __future__ import annotations

from oncemore.maintenance.lineage import lineage
from oncemore.policy.canonical_json import fingerprint
from oncemore.queries.bodies import said

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from oncemore.log.record import Run
    from oncemore.log.store import Store
    from oncemore.maintenance.lineage import Lineage


def digests(body: dict[str, Any]) -> dict[str, str]:
    """Return the digests of what a COMMIT left: its result, and each artifact."""
    import json

    found = {}
    if "result" in body:
        text = json.dumps(body["result"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        found["result"] = fingerprint(text.encode()).hex()
    if "spilled" in body:
        found["result"] = body["spilled"]["digest"]
    for plain in body.get("artifacts", ()):
        found[f"artifact {plain['$artifact']['name']}"] = plain["$artifact"]["digest"]
    return found


def lineage_of(key: str, run: Run, arguments: Any, body: dict[str, Any]) -> Lineage:
    """Return the lineage of a run that left a COMMIT with this body."""
    used = {*_artifacts(arguments)}
    if run.input_hash:
        used.add(run.input_hash)
    return lineage(run.step, key, run.cfg_hash, used, digests(body).values())


def _artifacts(value: Any) -> Iterator[str]:
    """Find the digests of artifacts among arguments."""
    if isinstance(value, dict):
        if isinstance(told := value.get("$artifact"), dict):
            yield told["digest"]
        for each in value.values():
            yield from _artifacts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _artifacts(each)


def lineages(store: Store, entity: str) -> Iterator[tuple[Run, Lineage]]:
    """Return the lineage of every COMMIT of a key that can still be read, the first one first."""
    from oncemore.steps.run import told

    arguments: Any = None
    entries = list(store.entries(entity))
    bare = (entry._replace(body=None) for entry in entries)
    for entry, (header, run, _) in zip(entries, told(bare), strict=True):
        body = said(entry)
        arguments = body.get("arguments", arguments)
        if "COMMIT" in header.marks and body and "sealed" not in body:
            yield run, lineage_of(entity.removeprefix("run/"), run, arguments, body)
