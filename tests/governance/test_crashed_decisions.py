"""A process that dies between the writes of roles, tokens, keys, signed decisions, and of held events."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import StaleDecision
from oncemore.governance import identity as identities
from oncemore.governance.identity import decide_as, identify_token, load_roles
from oncemore.governance.keys import generate_key
from oncemore.governance.role_model import ProcessUser
from oncemore.governance.signed_decisions import (
    NAMESPACE,
    KeySigner,
    PresentedSignature,
    StatementPrepared,
    StatementWriter,
    find_decision_faults,
)
from oncemore.governance.ssh_signatures import sign_file_bytes
from oncemore.outbox import OutboxRelay
from oncemore.steps.history import verify_chain
from tests.crash.harness import (
    BEFORE_EACH,
    CrashingStore,
    ProcessCrash,
    crash_at_every_write,
    crash_everywhere,
    open_engine_on,
)
from tests.messaging.outbox.simulation import OutboxSimulation, events, states

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from oncemore.governance.keys import SigningKey
    from oncemore.log.memory import MemoryStore
    from oncemore.steps.engine import Engine
    from tests.crash.harness import CrashPoint, ScriptRun

DATASET = "survey"


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SigningKey:
    """The key of the archivist; the process runs as the first reviewer."""
    monkeypatch.setattr(identities, "read_process_user", lambda: ProcessUser("lead", 2000))
    made = generate_key()
    made.save_files(tmp_path / "archivist")
    return made


def read_table(store: MemoryStore) -> Any:
    """Return the roles of a store without random values: members, key names, and the names of tokens."""
    with open_engine_on(store) as engine:
        table = load_roles(engine)
    if table is None:
        return None
    members = {role: tuple(names) for role, names in table.members.items() if names}
    return (
        members,
        sorted(each["name"] for each in table.keys.values()),
        sorted(each["name"] for each in table.tokens.values()),
    )


# Roles ------------------------------------------------------------------------------------------------


def test_a_crash_between_the_writes_of_roles_leaves_whole_changes(key: SigningKey, tmp_path: Path) -> None:
    changes: list[Callable[[Engine], object]] = [
        lambda engine: engine.roles.assign("lead", "reviewer", reason="head"),
        lambda engine: engine.roles.assign("duty", "operator", reason="on call"),
        lambda engine: engine.roles.add_key("archivist", tmp_path / "archivist.pub", "reviewer", reason="k"),
        lambda engine: engine.roles.create_token("duty", "operator", expires=60, reason="dashboard"),
        lambda engine: engine.roles.remove("duty", reason="left"),
        lambda engine: engine.roles.revoke_token(engine.roles.list_tokens()[0].token_id, reason="left"),
        lambda engine: engine.roles.remove_key(key.public.key_id, reason="stolen"),
    ]

    def make_changes(store: CrashingStore, first: int = 0) -> list[Any]:
        tables = []
        with open_engine_on(store) as engine:
            for change in changes[first:]:
                change(engine)
                tables.append(read_table(store))
        return tables

    tables = [None, *make_changes(CrashingStore())]
    seen = Counter[int]()
    for store in crash_at_every_write(CrashingStore, make_changes):
        verify_chain(store.read_entries())
        # One entry per change: the table is that of some number of whole changes, and the rest follows.
        done = sum(entry.entity == "roles/table" for entry in store.read_entries())
        assert read_table(store) == tables[done]
        seen[done] += 1
        assert make_changes(store, done) == tables[done + 1 :]
    assert set(seen) == set(range(len(tables)))


def test_a_crash_during_the_creation_of_a_token_stores_it_whole_or_not_at_all(key: SigningKey) -> None:
    made: list[str] = []

    def create(store: CrashingStore) -> None:
        with open_engine_on(store) as engine, pytest.MonkeyPatch.context() as patch:
            make_token = identities.make_token
            patch.setattr(
                "oncemore.governance.roles.make_token", lambda: (made.append((t := make_token())[0]), t)[1]
            )
            engine.roles.create_token("duty", "operator", expires=60, reason="dashboard")

    def start() -> CrashingStore:
        store = CrashingStore()
        with open_engine_on(store) as engine:
            engine.roles.assign("lead", "reviewer", reason="head")
        return store

    outcomes = set()
    for store in crash_at_every_write(start, create):
        with open_engine_on(store) as engine:
            listed = {token.token_id for token in engine.roles.list_tokens()}
            is_stored = made[-1].split("_")[1] in listed
            outcomes.add(is_stored)
            if is_stored:
                assert identify_token(engine, made[-1]).name == "duty"
                # The person never saw it; a reviewer finds it in the list and revokes it.
                engine.roles.revoke_token(made[-1].split("_")[1], reason="never shown")
            with pytest.raises(oncemore.NotPermitted):
                identify_token(engine, made[-1])
    assert outcomes == {True, False}


def test_a_signature_is_used_once_also_over_a_crash(key: SigningKey, tmp_path: Path) -> None:
    """Before the write it can be presented again, after the write it has no effect; also that of a task."""

    def keep(item: int) -> int:
        return item

    step = oncemore.step(effect="idempotent", name="keep")(keep)

    def start() -> CrashingStore:
        store = CrashingStore()
        with open_engine_on(store) as engine:
            engine.roles.assign("lead", "reviewer", reason="head")
            engine.roles.add_key("archivist", tmp_path / "archivist.pub", "reviewer", reason="k")
            engine.datasets.register(DATASET, care_label="Public", reason="first")
            step.bind(engine)(1)
        return store

    decisions: list[tuple[str, Callable[[Engine], object]]] = [
        ("dataset/survey", lambda engine: engine.datasets.block(DATASET, reason="letter 17")),
        ("maintenance/", lambda engine: engine.erase(step.key(1), reason="letter 17")),
    ]
    for entity, decide in decisions:
        presented: list[PresentedSignature] = []

        def present(store: CrashingStore, decide: Any = decide, presented: Any = presented) -> None:
            with open_engine_on(store) as engine:
                with decide_as(StatementWriter(key.public)), pytest.raises(StatementPrepared) as prepared:
                    decide(engine)
                statement = prepared.value.statement
                signature = sign_file_bytes(statement, NAMESPACE, key).encode()
                presented.append(PresentedSignature(statement, signature))
                with decide_as(presented[-1]):
                    decide(engine)

        again = Counter[int]()
        for store in crash_at_every_write(start, present):
            with open_engine_on(store) as engine:
                was_stored = count_signed(store, entity)
                with decide_as(presented[-1]), suppress(*((StaleDecision,) if was_stored else ())):
                    decide(engine)
                assert count_signed(store, entity) == 1, "made once, before the crash or after it"
                again[was_stored] += 1
                assert find_decision_faults(engine.store) == []
                # What the crash left half done is finished by a new decision.
                if entity == "maintenance/":
                    with decide_as(KeySigner(key)):
                        decide(engine)
                assert find_decision_faults(engine.store) == []
            verify_chain(store.read_entries())
        assert set(again) == {0, 1}, entity


def count_signed(store: MemoryStore, entity: str) -> int:
    """Return the number of entries of an entity that have a signature."""
    made = [entry for entry in store.read_entries() if entry.entity.startswith(entity)]
    return sum(b"ssh_signature" in (entry.body or b"") for entry in made)


# Held events ------------------------------------------------------------------------------------------


class HeldSimulation(OutboxSimulation):
    """A lane of two events whose dataset is blocked while a relay sends them."""

    def __init__(self) -> None:
        super().__init__()
        home = self.engine()
        home.datasets.register(DATASET, care_label="Public", reason="first", by="x")
        oncemore.step(effect="outbox", name="announce", dataset=DATASET)(announce).bind(home)(1)
        self.claimed_before: set[str] = set()
        self.sent_before = 0

    def block(self) -> None:
        """Block the dataset as another process would, and note what a relay has claimed before."""
        engine = self.engine()
        engine.datasets.block(DATASET, reason="objection", by="x")
        self.claimed_before = {each.event_id for each in events(engine).values() if each.state == "SENDING"}
        self.sent_before = len(self.consumer.got)

    def run_blocked(self, block_at: int, crash: CrashPoint | None) -> ScriptRun:
        """Run one pass of a relay, with the block before the operation of a number."""
        script = self.start_pass()
        script.run(crash, block_at)
        if script.op is not None:
            self.block()
            script.run(crash)
        return script

    def check_end(self) -> None:
        """Check that nothing was sent during the block but what was claimed before, and all of it after."""
        if not self.claimed_before and not self.sent_before:
            engine = self.engine()
            if engine.datasets.get(DATASET).state == "OPEN":  # type: ignore[union-attr]
                self.block()  # the process crashed before that
        during = self.consumer.got[self.sent_before :]
        assert {message.id for message in during} <= self.claimed_before
        assert len(during) <= 1, "one claim, one send"
        sent = len(self.consumer.got)
        for _ in range(3):
            self.relay().run_once()
            self.now += 100.0
        assert len(self.consumer.got) == sent, "nothing is sent while the dataset is blocked"
        self.engine().datasets.release(DATASET, reason="settled", by="x")
        self.finish()
        self.check()
        assert states(self.engine()) == {"DELIVERED": 2}
        assert self.consumer.payloads == [1, 2]


def announce(item: int) -> int:
    oncemore.current().emit("news", 1)
    oncemore.current().emit("news", 2)
    return item


@pytest.mark.unmeasured
def test_a_block_and_a_crash_at_every_operation_of_a_delivery() -> None:
    ways = repeated = in_flight = 0
    for block_at in itertools.count():
        whole = HeldSimulation()
        script = whole.run_blocked(block_at, None)
        if script.count < block_at:
            break
        in_flight += bool(whole.claimed_before)
        whole.check_end()
        assert set(whole.consumer.sends().values()) == {1}, "without a crash nothing is sent twice"

        def run(simulation: HeldSimulation, crash: CrashPoint | None, block_at: int = block_at) -> None:
            simulation.run_blocked(block_at, crash)

        for simulation in crash_everywhere(HeldSimulation, run, [BEFORE_EACH]):
            ways += 1
            simulation.check_end()
            repeated += max(simulation.consumer.sends().values()) - 1
            simulation.close()
        whole.close()
    assert ways > 50
    assert in_flight, "no block fell between a claim and its outcome"
    # A crash between a send and its outcome: the event is sent again under its id, after the release.
    assert repeated


def test_a_block_during_a_send_lets_it_end_and_holds_the_next(tmp_path: Path) -> None:
    """Real threads and a real store: the sink has the event in its hands when the block arrives."""
    entered, may_end, sent = threading.Event(), threading.Event(), list[int]()

    def receive(message: Any) -> None:
        sent.append(message.payload)
        entered.set()
        assert may_end.wait(60)

    with oncemore.open(tmp_path / "log.db") as engine, oncemore.open(tmp_path / "log.db") as council:
        engine.datasets.register(DATASET, care_label="Public", reason="first", by="x")
        oncemore.step(effect="outbox", name="announce", dataset=DATASET)(announce).bind(engine)(1)
        relay = OutboxRelay(engine, {"news": receive})
        sender = threading.Thread(target=relay.run_once)
        sender.start()
        try:
            assert entered.wait(60)
            council.datasets.block(DATASET, reason="objection", by="x")
        finally:
            may_end.set()
            sender.join(60)
        assert sent == [1]
        assert states(council) == {"DELIVERED": 1, "PENDING": 1}
        assert relay.run_once().held == 1
        assert sent == [1]
        council.datasets.release(DATASET, reason="settled", by="x")
        relay.run_once()
        assert sent == [1, 2]
        assert states(council) == {"DELIVERED": 2}
        assert engine.verify().entries


def test_a_process_that_refused_a_decision_notices_the_release_by_another(tmp_path: Path) -> None:
    """A refusal writes nothing, so that no guard tells the process of a dashboard that its cache is old."""

    def ask(item: int) -> int:
        raise oncemore.NeedsReview("ODD", "look")

    with oncemore.open(tmp_path / "log.db") as engine, oncemore.open(tmp_path / "log.db") as council:
        engine.datasets.register(DATASET, care_label="Public", reason="first", by="x")
        step = oncemore.step(effect="idempotent", name="ask", dataset=DATASET)(ask).bind(engine)
        with pytest.raises(oncemore.Quarantined):
            step(1)
        (item,) = engine.quarantine
        council.datasets.block(DATASET, reason="objection", by="x")
        for _ in range(2):
            with pytest.raises(oncemore.NotPermitted, match="is blocked"):
                engine.quarantine.rerun(item.id, by="x", reason="one more")
        council.datasets.release(DATASET, reason="settled", by="x")
        engine.quarantine.rerun(item.id, by="x", reason="one more")


def test_the_harness_crashes_between_the_writes() -> None:
    store = CrashingStore()
    with pytest.raises(ProcessCrash):
        store.run(lambda each: open_engine_on(each).roles.assign("a", "reviewer", reason="x"), (1, "before"))  # type: ignore[arg-type]
    assert read_table(store) is None
