"""A pipeline of five steps: artifacts, declared content, a result as an argument, retries and a failure."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import oncemore

DAYS = ("2026-10-01", "2026-10-02")
ROADS = b"roads of the county"
#: The number of failures before the step `publish` succeeds, by day.
FAILURES = {"2026-10-01": 2, "2026-10-02": 0}


@oncemore.step(effect="pure", name="sample", artifact="sample.csv", pipeline="survey")
def sample(day: str) -> oncemore.Artifact:
    content = f"day,value\n{day},7\n".encode()
    return oncemore.current().put(content, date=day, media_type="text/csv", site="north")  # type: ignore[no-any-return]


@oncemore.step(effect="pure", name="summarise", pipeline="survey")
def summarise(table: oncemore.Artifact) -> dict[str, Any]:
    oncemore.current().use(ROADS, name="roads.gpkg")
    return {"bytes": len(table.read()), "columns": ["day", "value"], "rows": 1}


class Publisher:
    """Fails as often as it is told."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    def make_step(self) -> Any:
        @oncemore.step(effect="idempotent", name="publish", pipeline="survey")
        def publish(day: str, summary: dict[str, Any]) -> str:
            self.calls[day] = self.calls.get(day, 0) + 1
            if self.calls[day] <= FAILURES[day]:
                raise ConnectionResetError(f"token=sk-secret-1234567890 {day}")
            return f"published {summary['rows']} rows of {day}"

        return publish


@oncemore.step(effect="pure", name="reject", pipeline="survey")
def reject(day: str) -> None:
    raise ValueError(f"no such day: {day}")


def run_pipeline(engine: oncemore.Engine) -> None:
    """Run the pipeline for two days, and a step that fails for good."""
    publish = Publisher().make_step()
    with engine:
        for day in DAYS:
            publish(day, summarise(sample(day)))
        with suppress(oncemore.PermanentFailure):
            reject("2026-10-32")
