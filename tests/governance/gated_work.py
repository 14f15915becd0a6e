"""Steps on a dataset, the paths that lead to their attempts, and the ways in which the gate closes.

A path is a generator. It prepares the work while the gate is open, yields once, and after that asks for an
attempt in its own way. The test closes the gate at the yield and counts the attempts that begin after it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import oncemore
from oncemore.errors import Error, NeedsReview, StoreError
from oncemore.log.entry_codec import build_write, load_head
from oncemore.log.record import RecordChange
from oncemore.log.store import Batch, Stored
from oncemore.steps.lease import WorkerIdentity
from oncemore.steps.transitions import begin_attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from oncemore.steps.engine import Engine
    from oncemore.testing import FakeClock

DATASET = "survey-2026"
POLICY = "version: '1'\nextends: standard\nafter_failure: new_run\n"
LABELS: dict[str, Any] = {"care_label": "Public · Low-Risk", "operations": ["publish"]}


class GatedWork:
    """The steps of one test: `outcomes` are the errors of their attempts in order; later attempts succeed."""

    def __init__(self, engine: Engine, *, needs_approval: bool = False) -> None:
        self.engine, self.calls, self.outcomes = engine, 0, list[Any]()
        self.needs_approval, self.config = needs_approval, {"format": 1}
        Path("gated.yaml").write_text(POLICY, encoding="utf-8")
        #: Closes the gate during an attempt, for the path of a retry.
        self.during: Callable[[], object] = lambda: None
        options: dict[str, Any] = {
            "effect": "idempotent", "dataset": DATASET, "operation": "publish", "masking": 1,
            "requires_approval": needs_approval, "config": lambda: self.config, "on_version_change": "reuse",
            "policy": "gated.yaml",
        }  # fmt: skip
        self.step: Any = oncemore.step(name="gated.publish", **options)(self.publish)
        self.task: Any = oncemore.step(name="gated.task", **options)(self.publish_async)

    def publish(self, item: int) -> str:
        """Publish an item."""
        self.calls += 1
        if self.outcomes:
            outcome = self.outcomes.pop(0)
            self.during()
            raise outcome
        return f"published {item}"

    async def publish_async(self, item: int) -> str:
        """Publish an item; like `publish`."""
        return self.publish(item)

    def open_gate(self) -> None:
        """Register the dataset, and approve the calls of item 1 if they need that."""
        self.engine.datasets.register(DATASET, reason="first delivery", by="steward", **LABELS)
        self.approve()

    def approve(self) -> None:
        """Approve the calls of item 1, if they need it."""
        if self.needs_approval:
            for step in (self.step, self.task):
                step.approve(1, reason="seen", by="reviewer", expires=3600)


# Paths ----------------------------------------------------------------------------------------------


def first_call(work: GatedWork) -> Generator[None, None, None]:
    yield
    work.step(1)


def first_async_call(work: GatedWork) -> Generator[None, None, None]:
    yield
    asyncio.run(work.task(1))


def retry(work: GatedWork) -> Generator[None, None, None]:
    work.outcomes = [oncemore.TransientError("try again")]
    yield
    # The gate closes while the first attempt runs; the test does not count that one.
    work.step(1)


def submitted_run(work: GatedWork) -> Generator[None, None, None]:
    work.step.submit(1)
    yield
    work.step(1)


def worker(work: GatedWork) -> Generator[None, None, None]:
    work.step.submit(1)
    yield
    oncemore.Worker(work.engine, [work.step]).run_until_idle()


def recovery(work: GatedWork) -> Generator[None, None, None]:
    lose_attempt(work)
    yield
    work.step(1)


def recovery_by_worker(work: GatedWork) -> Generator[None, None, None]:
    lose_attempt(work)
    yield
    oncemore.Worker(work.engine, [work.step]).run_until_idle()


def release(work: GatedWork) -> Generator[None, None, None]:
    work.outcomes = [NeedsReview("ODD", "look at it")]
    with suppress(Error):
        work.step(1)
    yield
    with suppress(Error):
        work.engine.quarantine.release(work.step.last_run(1).run_id, by="operator", reason="looks good")
    work.step(1)


def requeue(work: GatedWork) -> Generator[None, None, None]:
    work.outcomes = [NeedsReview("ODD", "look at it")]
    with suppress(Error):
        work.step(1)
    yield
    with suppress(Error):
        work.engine.quarantine.rerun(work.step.last_run(1).run_id, by="operator", reason="once more")
    oncemore.Worker(work.engine, [work.step]).run_until_idle()


def rerun(work: GatedWork) -> Generator[None, None, None]:
    work.outcomes = [oncemore.PermanentError("broken")]
    with suppress(Error):
        work.step(1)
    work.approve()
    yield
    work.step.rerun(1, reason="repaired")


def new_run(work: GatedWork) -> Generator[None, None, None]:
    work.outcomes = [oncemore.PermanentError("broken")]
    with suppress(Error):
        work.step(1)
    work.approve()
    yield
    work.step(1)


def map_items(work: GatedWork) -> Generator[None, None, None]:
    yield
    work.step.map([1])


def workflow_step(work: GatedWork) -> Generator[None, None, None]:
    @oncemore.workflow(name="gated.workflow")
    def flow() -> Any:
        return work.step(1)

    yield
    flow()


def lose_attempt(work: GatedWork) -> None:
    """Leave a run whose attempt was claimed by a process that is gone."""
    run, engine = work.step.submit(1), work.engine
    # Its lease has ended long ago.
    lost = WorkerIdentity(engine.store, "lost-worker", 1.0, lambda: engine.now() - 1000.0)
    lost.add_attempt((f"run/{run.key}", 1))
    lost.renew_lease()
    head = load_head(work.engine.store, f"run/{run.key}")
    after = begin_attempt(head.record, "idempotent", "lost-worker", work.engine.now())
    change = RecordChange(("RUNNING", "INTENT"), head.record, after)
    write = build_write(head.entity, head.version, head.hash, change, work.engine.now())
    assert isinstance(work.engine.store.append(Batch((write,))).wait(), Stored)


PATHS = [
    first_call, first_async_call, retry, submitted_run, worker, recovery, recovery_by_worker, release,
    requeue, rerun, new_run, map_items, workflow_step,
]  # fmt: skip


# Ways to close the gate -----------------------------------------------------------------------------


def block(work: GatedWork, clock: FakeClock) -> None:
    work.engine.datasets.block(DATASET, reason="the community has objected", by="steward")


def withdraw(work: GatedWork, clock: FakeClock) -> None:
    work.engine.datasets.withdraw(DATASET, reason="letter of the council", by="steward")


def relabel(work: GatedWork, clock: FakeClock) -> None:
    work.engine.datasets.label(
        DATASET, care_label="Restricted · Council only", operations=[], reason="review", by="steward"
    )


def deny_rights(work: GatedWork, clock: FakeClock) -> None:
    work.engine.datasets.label(DATASET, rights="denied", reason="the licence has ended", by="steward")


def doubt_rights(work: GatedWork, clock: FakeClock) -> None:
    work.engine.datasets.label(DATASET, rights="unclear", reason="the licence is in question", by="steward")


def forbid_operation(work: GatedWork, clock: FakeClock) -> None:
    work.engine.datasets.restrict(DATASET, operations=["count"], reason="only counts", by="steward")


def raise_masking(work: GatedWork, clock: FakeClock) -> None:
    work.engine.datasets.label(DATASET, masking_level=2, reason="villages can be recognised", by="steward")


def make_unreachable(work: GatedWork, clock: FakeClock) -> None:
    store = work.engine.store
    original = store.load_head

    def load_head_of_others(entity: str) -> Any:
        if entity.startswith(("dataset/", "approval/")):
            raise StoreError("the registry cannot be read")
        return original(entity)

    # An engine that has read the dataset before may remember it: this is a process that starts now.
    work.engine.permissions.drop_cached()
    store.load_head = load_head_of_others  # type: ignore[method-assign]


def revoke_approval(work: GatedWork, clock: FakeClock) -> None:
    for approval in work.engine.approvals.list():
        work.engine.approvals.revoke(approval.key, reason="seen by mistake", by="reviewer")


def expire_approval(work: GatedWork, clock: FakeClock) -> None:
    clock.advance(3601)


def change_config(work: GatedWork, clock: FakeClock) -> None:
    work.config = {"format": 2}


DATASET_DENIALS = [
    block, withdraw, relabel, deny_rights, doubt_rights, forbid_operation, raise_masking, make_unreachable,
]  # fmt: skip
APPROVAL_DENIALS = [revoke_approval, expire_approval, change_config, make_unreachable]
