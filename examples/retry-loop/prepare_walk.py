"""Make a store with work of both KFM documents, for the walk in docs/reference/kfm.md.

It is written to `.oncemore/log.db` of this folder: a catalogue that was polled through two 503 answers, a
report that failed twice before it was done, a report that failed permanently, and a nowcast.
"""

from __future__ import annotations

import logging
from typing import Any

import oncemore
from oncemore.demo.kfm_rules.stac_pipeline import read_json
from oncemore.demo.kfm_rules.stac_server import COLLECTION, RETRY_AFTER, SLOW_DOWN, StacServer
from oncemore.profiles.kfm.loop import PermanentError, TransientError, retry_loop
from oncemore.testing import instant_waits

SIGNALS = {"grid_intensity": 620, "energy_price": 0.31, "compute_unit_cost": 0.5}


class Report:
    """A node that fails twice, and permanently for a month without rows."""

    node_id = "monthly-report"
    policy = "p2-batch-reporting"

    def preflight_checkpoint(self, run: Any, key: str) -> Any:
        """Return the last checkpoint."""
        return run.resume({"done": 0})

    def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> Any:
        """Return the sum of the month."""
        if not inputs["rows"]:
            raise PermanentError("the month has no rows")
        if oncemore.current().number < 3:
            raise TransientError("the warehouse is busy")
        return {"total": sum(inputs["rows"]), "unit": cfg["unit"]}


@oncemore.step(
    effect="idempotent",
    name="poll_stac_api",
    policy="kfm-rules",
    provider="stac.local",
    pipeline="etl_stac_ingest",
    dataset="landcover",
)
def poll(url: str, day: str) -> int:
    """Return the number of items of a day."""
    return len(read_json(f"{url}/collections/{COLLECTION}/items?datetime={day}")["features"])


@oncemore.step(effect="pure", name="storm.nowcast", policy="p0-storm-nowcast", artifact="nowcast.txt")
def nowcast(tile: int) -> Any:
    """Write the nowcast of a tile to a file."""
    return oncemore.current().put(f"rain over tile {tile}\n".encode(), date="2026-11-03")


def main() -> None:
    """Do the work."""
    logging.getLogger("oncemore").setLevel(logging.ERROR)
    with oncemore.open(".oncemore/log.db", signals=SIGNALS) as engine, instant_waits():
        engine.datasets.register(
            "landcover", care_label="Public · Low-Risk", reason="open data", by="steward"
        )
        with StacServer() as server:
            server.queue_faults(SLOW_DOWN, RETRY_AFTER)
            poll(server.url, "2026-10-01")
        cfg = {"partition": "date=2026-10", "unit": "kg"}
        print("report of October:", retry_loop(Report(), {"rows": [1, 2, 3]}, cfg))
        print("report of an empty month:", retry_loop(Report(), {"rows": []}, cfg))
        print(nowcast(7).name, "written")


if __name__ == "__main__":
    main()
