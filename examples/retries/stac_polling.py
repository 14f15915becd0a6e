"""STAC polling: a catalogue answers 503 twice, and the record of the operation says what happened.

A real HTTP server on this machine serves a small STAC API. It answers 503 `SlowDown`, then 503 with
`Retry-After: 2`, then the items. The step polls it under `kfm-rules`; the record is the one that the rules
ask for.
"""

from __future__ import annotations

import json
import logging
import tempfile
from pathlib import Path
from typing import Any

import oncemore
from oncemore.demo.kfm_rules.stac_pipeline import read_json
from oncemore.demo.kfm_rules.stac_server import COLLECTION, RETRY_AFTER, SLOW_DOWN, StacServer
from oncemore.lineage.telemetry_files import build_compliance_record
from oncemore.queries.run_histories import HistoryFilter, read_histories
from oncemore.testing import instant_waits

FIELDS = (
    *("pipeline_id", "stage", "attempts", "retry_policy", "errors", "final_status", "circuit_open"),
    *("energy_wh", "co2_g", "telemetry_ref"),
)


@oncemore.step(
    effect="idempotent",
    name="poll_stac_api",
    policy="kfm-rules",
    provider="stac.local",
    pipeline="etl_stac_ingest_v10.3.1",
)
def poll(url: str, day: str) -> int:
    """Return the number of items of a day."""
    return len(read_json(f"{url}/collections/{COLLECTION}/items?datetime={day}")["features"])


def play(folder: Path) -> dict[str, Any]:
    """Poll the server and return the record of the operation."""
    with (
        StacServer() as server,
        instant_waits(),
        oncemore.open(folder / "log.db", signals={"grid_intensity": 420}) as engine,
    ):
        server.queue_faults(SLOW_DOWN, RETRY_AFTER)
        run = poll.run(server.url, "2026-10-01")
        for proof in run.proofs:
            print(proof["sentence"])
        print(
            f"attempt {len(run.attempts)}: {run.value} items, {len(server.requests)} requests at the server"
        )
        (history,) = read_histories(engine.store, HistoryFilter(names=(run.key,)))
        record = build_compliance_record(history, "v10.3.1")
        return {name: record[name] for name in FIELDS}


def main() -> dict[str, Any]:
    """Poll once and print the record."""
    # The story below says what the log messages would.
    logging.getLogger("oncemore").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        record = play(Path(folder))
    print(json.dumps(record, indent=2))
    return record


if __name__ == "__main__":
    main()
