"""A dataset blocked, and a process crashed, at every operation of a call: no attempt begins after it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from oncemore.errors import OutcomeUnknown, Quarantined
from oncemore.governance.checkpoints import LedgerSigner, make_checkpoint
from oncemore.governance.dataset_model import BLOCKED, OPEN, DatasetRecord, dataset_entity
from oncemore.governance.keys import generate_key
from oncemore.governance.ledger_verify import verify_ledger
from oncemore.log.entry_codec import build_write, decode_header, load_head
from oncemore.log.record import NOWHERE, RecordChange
from oncemore.log.store import Batch, Stored
from oncemore.queries.ledger_reports import RETRIES, build_reports
from tests.crash.harness import BEFORE_EACH, crash_everywhere, open_engine_on
from tests.crash.simulation import JudgedSimulation

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from oncemore.steps import ops
    from oncemore.steps.call import PreparedCall
    from tests.crash.harness import CrashPoint

DATASET = dataset_entity("survey")


class GatedSimulation(JudgedSimulation):
    """A simulation whose step works on a dataset."""

    def make_call(self) -> PreparedCall:
        call = super().make_call()
        call.dataset = "survey"
        return call

    def _reserve_worker(self, op: ops.ReserveWorker) -> ops.AttemptTerms:
        return super()._reserve_worker(op)._replace(dataset="survey")

    def _prepare_submission(self, op: ops.PrepareSubmission) -> ops.AttemptTerms:
        return super()._prepare_submission(op)._replace(dataset="survey")

    def block_dataset(self) -> None:
        """Block the dataset as another process would."""
        self.judge.people = True
        head = load_head(self.store, DATASET, None, DatasetRecord)
        change = RecordChange(("DATASET",), head.record, DatasetRecord(BLOCKED, "survey", "Public"))
        write = build_write(DATASET, head.version, head.hash, change, self.now)
        assert isinstance(self.store.append(Batch((write,))).wait(), Stored)

    def count_intents(self, *, blocked: bool = False) -> int:
        """Return the number of INTENTs in the log; with `blocked`, of those after the dataset was blocked."""
        is_blocked, count = False, 0
        for entry in self.store.read_entries():
            is_blocked = is_blocked or entry.entity == DATASET
            if "INTENT" in decode_header(entry.header).marks and (is_blocked or not blocked):
                count += 1
        return count


class BlockScenario:
    """A call during which the dataset is blocked, before the operation of a number."""

    def __init__(self, effect: str, block_at: int, *, checks_guards_late: bool) -> None:
        self.effect, self.block_at, self.checks_guards_late = effect, block_at, checks_guards_late

    def start(self) -> GatedSimulation:
        """Return the state that the process finds."""
        outcomes = {"once": ["refused", "effect ok"]}.get(self.effect, ["transient", "event effect ok"])
        return GatedSimulation(self.effect, outcomes, checks_guards_late=self.checks_guards_late)

    def run(self, simulation: GatedSimulation, crash: CrashPoint | None = None) -> None:
        """Call, and block the dataset in between."""

        def call_while_blocking() -> Generator[Any, Any, Any]:
            script = simulation.call_step()
            for number in itertools.count(1):
                try:
                    op = next(script)
                except StopIteration as end:
                    return end.value
                if number == self.block_at:
                    simulation.block_dataset()
                yield op

        simulation.run_process(call_while_blocking, crash=crash)

    def check_end(self, simulation: GatedSimulation) -> None:
        """Check that no attempt has begun and none begins while the dataset is blocked."""
        executed = simulation.executions
        assert executed <= simulation.count_intents() - simulation.void_claims, "none runs by a void claim"
        if simulation.store.load_head(DATASET) is None:
            simulation.block_dataset()  # the process crashed before that
        for _ in range(2):
            end = simulation.run_process(simulation.call_step)
            assert end in ("value 1", "value 2") or isinstance(end, Quarantined | OutcomeUnknown), end
        assert simulation.executions == executed, "no attempt runs while the dataset is blocked"
        assert simulation.count_intents(blocked=True) == simulation.void_claims, "only void claims"
        run = simulation.load_run().record
        assert run.state == "COMPLETE" or run.held_for, "it is done, or a person decides"


@pytest.mark.unmeasured
@pytest.mark.parametrize("checks_guards_late", [False, True], ids=["guarded", "checked late"])
@pytest.mark.parametrize("effect", ["idempotent", "once", "outbox"])
def test_a_block_and_a_crash_at_every_operation(
    effect: str, checks_guards_late: bool, record_property: Callable[[str, object], None]
) -> None:
    ways = void_claims = 0
    for block_at in itertools.count(1):
        scenario = BlockScenario(effect, block_at, checks_guards_late=checks_guards_late)
        whole = scenario.start()
        scenario.run(whole)
        if block_at > whole.length:
            break
        ways, void_claims = ways + 1, void_claims + whole.void_claims
        scenario.check_end(whole)
        for simulation in crash_everywhere(scenario.start, scenario.run, [BEFORE_EACH]):
            ways, void_claims = ways + 1, void_claims + simulation.void_claims
            scenario.check_end(simulation)
    record_property("gate crashes", ways)
    assert ways > 50
    assert bool(void_claims) == checks_guards_late


class SensitiveSimulation(GatedSimulation):
    """A simulation whose step works on a registered dataset with a sensitive label."""

    def register_dataset(self) -> SensitiveSimulation:
        """Register the dataset, and return the simulation."""
        record = DatasetRecord(OPEN, "survey", "Sensitive · Council only")
        write = build_write(DATASET, 0, NOWHERE, RecordChange(("DATASET",), None, record), self.now)
        assert isinstance(self.store.append(Batch((write,))).wait(), Stored)
        return self


@pytest.mark.unmeasured
@pytest.mark.req("GOV-15")
@pytest.mark.parametrize("effect", ["idempotent", "outbox"])
def test_a_crash_of_work_on_sensitive_data_is_recovered_and_every_attempt_is_in_the_ledger(
    effect: str,
) -> None:
    def start() -> SensitiveSimulation:
        return SensitiveSimulation(effect, ["transient", "event effect ok"]).register_dataset()

    def run(simulation: SensitiveSimulation, crash: CrashPoint | None) -> None:
        simulation.run_process(simulation.call_step, crash=crash)

    crashes, signer = 0, LedgerSigner(generate_key())
    for simulation in crash_everywhere(start, run):
        crashes += 1
        for _ in range(3):
            simulation.run_process(simulation.call_step)
        run_record = simulation.load_run().record
        assert run_record.state == "COMPLETE", "it goes on without a hand edit"
        # The attempts of the log, of the ledger and of the simulated process are the same.
        with open_engine_on(simulation.store) as engine:
            (entry,) = build_reports(engine)[RETRIES]
            assert entry["attempts"] == run_record.attempt == simulation.count_intents()
            assert entry["care_labels"] == ["Sensitive · Council only"]
            report = make_checkpoint(engine, signer)
            verified = verify_ledger(engine, [signer.key.public])
        # Every entry is under the signed checkpoint, but for that of the checkpoint itself.
        assert (verified.covered, verified.uncovered) == (report.checkpoint.size, 1)
    assert crashes > 20
