"""A simulated step with a cooldown: the crash simulation, and the record that is written with the run."""

from __future__ import annotations

from typing import Any

from oncemore.limits.cooldown_rules import CooldownSchedule, ResourceRecord
from oncemore.limits.cooldown_step import CooldownCall
from oncemore.log.entry_codec import load_head
from tests.crash.simulation import ENTITY, StepSimulation

COOLDOWN = CooldownCall("p", "step", "A", CooldownSchedule(), lambda error: error.get("type", ""))


class CooldownSimulation(StepSimulation):
    """A store, a run and its resource; every operation leaves run and resource consistent."""

    def __init__(
        self, outcomes: list[str], entity: str = ENTITY, beside: CooldownSimulation | None = None
    ) -> None:
        super().__init__(
            "idempotent", outcomes, after_failure="new_run", inline_wait_s=1000.0, cooldown=COOLDOWN
        )
        self.entity = entity
        if beside is not None:
            self.store = beside.store

    def perform(self, op: Any) -> Any:
        answer = super().perform(op)
        self.check_consistency()
        return answer

    def load_resource(self) -> Any:
        """Return the record of the resource, None before the first execution."""
        return load_head(self.store, COOLDOWN.entity, None, ResourceRecord).record

    def check_consistency(self) -> None:
        """Check that the resource counts an execution if and only if its run is over."""
        run, resource = self.load_run().record, self.load_resource()
        over = run is not None and run.attempt_count and (
            run.state in ("COMPLETE", "HARD_FAIL") or run.held_for or run.reason == "retry_after_beyond_cap"
        )  # fmt: skip
        counted = (
            resource is not None
            and run is not None
            and (resource.run_entity, resource.attempt) == (self.entity, run.attempt)
        )
        assert bool(over) == counted, (run, resource)
