"""What a step puts away: listed if and only if it commits, immutable from then on."""

from __future__ import annotations

import asyncio
import random
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
import trio

import oncemore
from oncemore import Artifact, LeaseLost, PermanentFailure, ResultUnavailable, RetriesExhausted, UsageError
from oncemore.artifacts.artifact import CURRENT_READER
from oncemore.artifacts.backends import FolderBackend
from oncemore.artifacts.store import ChildArtifactWriter, reference_entity
from oncemore.log.entry_codec import build_write
from oncemore.log.record import NOWHERE, ArtifactRecord, LoadedHead, RecordChange, RunRecord
from oncemore.log.store import Batch, HeadQuery
from oncemore.steps.attempt import MOST_ARTIFACTS, RunningAttempt
from oncemore.steps.history import KINDS, verify_chain
from oncemore.steps.isolation import ChildStorage
from oncemore.testing import FakeClock
from tests.artifacts import steps
from tests.artifacts.conftest import list_references, objects_of

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.steps.engine import Engine

CELL, OTHER_CELL = "8928308280fffff", "85283473fffffff"


def put(content: Any, **told: Any) -> Any:
    return oncemore.current().put(content, **told)


def step(work: Any, **told: Any) -> Any:
    return oncemore.step(**{"effect": "pure", "name": "step", **told})(work)


def test_a_step_gives_back_what_it_put_away(engine: Engine) -> None:
    first = step(lambda x: put(b"bytes of x", name="x.bin"))(1)
    second = step(lambda x: put(b"bytes of x", name="x.bin"))(1)
    assert type(first) is Artifact
    assert first == second
    assert first.read() == b"bytes of x"
    assert (first.name, first.size, first.media_type) == ("x.bin", 10, "application/octet-stream")


def test_artifacts_in_a_value_can_be_read_when_the_engine_is_closed(tmp_path: Path) -> None:
    with oncemore.open(tmp_path / "log.db"):
        value = step(lambda: {"files": [put(b"1", name="1"), put(b"2", name="2")]})()
    with oncemore.open("memory:"):
        assert [each.read() for each in value["files"]] == [b"1", b"2"]
    assert value["files"][0].path().read_bytes() == b"1"


def test_a_step_on_two_engines_reads_from_the_place_of_each(tmp_path: Path) -> None:
    content = iter([b"1", b"2"])
    work, made = step(lambda: put(next(content))), []
    for name in "ab":
        with oncemore.open(tmp_path / name / "log.db"):
            made.append(work())
    assert [each.read() for each in made] == [b"1", b"2"]
    assert [each.path().relative_to(tmp_path).parts[0] for each in made] == ["a", "b"]


@pytest.mark.req("ART-2")
def test_artifacts_are_listed_by_each_part_of_their_partition(engine: Engine) -> None:
    def window(day: date, site: str, cell: str) -> Any:
        return put(f"{day}{site}{cell}".encode(), name="window", date=day, site=site, h3=cell)

    one = step(window, name="one")(date(2026, 11, 15), "KS", CELL)
    two = step(window, name="two")(date(2026, 11, 16), "MO", OTHER_CELL)
    three = step(lambda: put(b"3", date="2026-10"), name="three")()
    found = engine.artifacts.list
    assert found() == [one, two, three]
    assert (
        found(date="2026-11-15")
        == found(date=date(2026, 11, 15))
        == found(site="KS")
        == found(h3=CELL)
        == [one]
    )
    assert found(h3=OTHER_CELL.upper()) == found(site="MO", date="2026-11") == found(step="two") == [two]
    assert found(date="2026-11") == found(name="window") == [one, two]
    assert found(date="2026-10") == [three]
    assert found(date="2026") == [one, two, three]
    assert found(date="2025") == found(site="KS", h3=OTHER_CELL) == found(step="four") == []
    assert found(site="KS")[0].read() == b"2026-11-15KS" + CELL.encode()
    with pytest.raises(UsageError):
        found(date="yesterday")


def test_an_ill_formed_partition_is_refused_before_anything_is_kept(engine: Engine) -> None:
    run = step(lambda: put(b"x", h3="8928308280ffffe")).run()
    assert (run.status, run.reason, run.error["type"]) == ("HARD_FAIL", "not_retryable", "UsageError")
    assert objects_of(engine) == {}


def test_what_an_attempt_put_away_is_listed_only_if_it_commits(engine: Engine) -> None:
    seen: list[int] = []

    def work() -> Any:
        made = put(b"attempt %d" % oncemore.current().number, name="x")
        seen.append(len(engine.artifacts.list()))
        if oncemore.current().number == 1:
            raise ConnectionError("not yet")
        return made

    with FakeClock():
        made = step(work)()
    assert seen == [0, 0], "nothing is listed before COMMIT"
    assert engine.artifacts.list() == [made]
    assert made.read() == b"attempt 2"
    assert sorted(objects_of(engine).values()) == [b"attempt 1", b"attempt 2"], "the first one is garbage"


def test_a_failed_step_leaves_nothing_that_is_listed(engine: Engine) -> None:
    def work() -> None:
        put(b"x")
        raise oncemore.PermanentError("no")

    run = step(work).run()
    assert run.status == "HARD_FAIL"
    assert run.artifacts == ()
    assert engine.artifacts.list() == []


def test_the_run_tells_its_artifacts_and_so_does_the_export(engine: Engine) -> None:
    run = step(lambda: [put(b"1", name="b"), put(b"2", name="a").digest][1]).run()
    assert [each.name for each in run.artifacts] == ["b", "a"]
    assert [each.read() for each in run.artifacts] == [b"1", b"2"]
    told = [(each["kind"], each["artifacts"]) for each in run.records() if "artifacts" in each]
    digests = [each.digest for each in run.artifacts]
    assert told == [("COMMIT", digests), ("TRANSITION", digests)]


def test_the_log_alone_gives_the_index_of_artifacts(local: Engine) -> None:
    step(lambda x: put(b"%d" % x, name="x", site="KS"))(1)
    step(lambda x: put(b"%d" % x, name="x", site="KS"))(2)
    rebuilt = {
        name: found[2]
        for name, found in verify_chain(local.store.read_entries()).items()
        if name.startswith("artifact/")
    }
    assert KINDS["artifact"] is ArtifactRecord
    assert rebuilt == {reference_entity(kept): kept for kept in list_references(local)}
    assert len(rebuilt) == 2
    heads = local.store.list_heads(HeadQuery("artifact"))
    assert {head.entity for head in heads} == set(rebuilt)


# Immutable ------------------------------------------------------------------------------------------


@pytest.mark.req("ART-3")
def test_other_content_under_a_finished_key_is_a_violation_after_one_attempt(engine: Engine) -> None:
    content = [b"first"]
    work = step(lambda: put(content[0], name="x"))
    first = work()
    content[0] = b"second"
    with pytest.raises(PermanentFailure, match="what is there stays"):
        work.rerun(reason="to see whether it gives the same")
    run = work.last_run()
    assert (run.status, run.error["code"], len(run.attempts)) == ("HARD_FAIL", "ARTIFACT_IMMUTABLE", 1)
    assert engine.artifacts.list() == [first]
    assert first.read() == b"first"
    content[0] = b"first"
    assert work.rerun(reason="as it was") == first
    assert engine.artifacts.list() == [first]


@pytest.mark.req("ART-3")
def test_other_content_under_a_name_of_the_same_attempt_is_a_violation(engine: Engine) -> None:
    work = step(lambda: [put(b"1", name="x"), put(b"2", name="x")], policy="kfm-loop")
    with FakeClock() as clock:
        run = work.run()
    assert (run.status, run.error["code"], len(run.attempts)) == ("HARD_FAIL", "ARTIFACT_IMMUTABLE", 1)
    assert clock.delays == []
    same = step(lambda: [put(b"1", name="x"), put(b"1", name="x")], name="same")()
    assert same[0] == same[1]
    assert len(engine.artifacts.list()) == 1


def test_a_new_version_may_leave_other_bytes_under_the_same_name(engine: Engine) -> None:
    one = step(lambda: put(b"1", name="x"), version="1")()
    two = step(lambda: put(b"2", name="x"), version="2")()
    assert (one.read(), two.read()) == (b"1", b"2")
    assert engine.artifacts.list() == [one, two]


def test_two_steps_and_two_keys_do_not_find_each_others_artifacts(engine: Engine) -> None:
    made = [
        step(lambda x: put(b"%d" % x, name="x"), name=name, artifact="x")(x)
        for name in ("a", "b")
        for x in (1, 2)
    ]
    assert [each.read() for each in made] == [b"1", b"2", b"1", b"2"]
    assert len(engine.artifacts.list()) == 4
    assert len(objects_of(engine)) == 2


def test_names_that_differ_in_case_only_are_refused(engine: Engine) -> None:
    run = step(lambda: [put(b"1", name="Report"), put(b"2", name="report")]).run()
    assert "differ in case only" in run.error["message"]


def test_the_number_of_artifacts_is_bounded(engine: Engine) -> None:
    def work() -> None:
        attempt = oncemore.current()
        attempt.artifacts = {str(at): None for at in range(MOST_ARTIFACTS)}  # type: ignore[misc]
        put(b"one too many")

    assert "stores more than 1000 artifacts" in step(work).run().error["message"]


# Whose attempt it is --------------------------------------------------------------------------------


def taken_over(engine: Engine) -> None:
    """Close the attempt around this line, as another worker would."""
    seen = oncemore.current().head
    after = seen.record._replace(state="SOFT_FAIL", reason="lease_expired", worker="")
    change = RecordChange(("SOFT_FAIL",), seen.record, after)
    engine.store.append(
        Batch((build_write(seen.entity, seen.version, seen.hash, change, engine.now()),))
    ).wait()


def test_an_attempt_that_was_taken_over_cannot_put_anything_away(engine: Engine) -> None:
    refused: list[LeaseLost] = []

    def work() -> str:
        if oncemore.current().number == 2:
            return "by the second"
        taken_over(engine)
        try:
            put(b"late")
        except LeaseLost as error:
            refused.append(error)
        return "by the first"

    assert step(work)() == "by the second"
    assert len(refused) == 1
    assert objects_of(engine) == {}


def test_an_attempt_that_is_over_cannot_put_anything_away(engine: Engine) -> None:
    attempts: list[Any] = []
    step(lambda: attempts.append(oncemore.current()))()
    with pytest.raises(LeaseLost, match="cannot store artifacts any more"):
        attempts[0].put(b"late")


def test_a_reconcile_function_puts_nothing_away(engine: Engine) -> None:
    errors: list[Exception] = []

    def look() -> Any:
        try:
            put(b"x")
        except UsageError as error:
            errors.append(error)
        return oncemore.not_applied()

    def work() -> None:
        raise OSError("broken")

    step(work, effect="once", reconcile=look, name="once", policy=oncemore.Policy(max_attempts=1)).run()
    assert "stores no artifacts" in str(errors[0])


def test_an_error_of_storage_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "artifacts").write_text("in the way")

    def work() -> Any:
        if oncemore.current().number == 2:
            (tmp_path / "artifacts").unlink()
        return put(b"x")

    with FakeClock(), oncemore.open(tmp_path / "log.db"):
        assert step(work)().read() == b"x"


def test_a_store_without_a_place_says_what_to_do(tmp_path: Path) -> None:
    from oncemore.log.memory import MemoryStore
    from oncemore.steps.engine import Engine

    store = MemoryStore()
    with Engine(lambda: store, "nowhere:"):
        run = step(lambda: put(b"x")).run()
        assert "configure one with" in run.error["message"]
        assert len(step(lambda: "x" * 300_000, name="large")()) == 300_000, "large results stay in the log"


# Colours, processes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("runs", [asyncio.run, trio.run], ids=["asyncio", "trio"])
def test_async_steps_await_what_they_put_away(engine: Engine, runs: Any) -> None:
    async def work(x: int) -> Artifact:
        assert oncemore.current().head
        return await put(b"x" * x, name="x", site="KS")  # type: ignore[no-any-return]

    async def main() -> Any:
        made = step(work, artifact="x")
        return [
            await made(3),
            await made(3),
            await step(large, name="large")(),
            await step(large, name="large")(),
        ]

    async def large() -> str:
        return "y" * 300_000

    async def start() -> Any:
        return await main()

    one, two, three, four = runs(start) if runs is trio.run else runs(start())
    assert one == two
    assert one.read() == b"xxx"
    assert three == four == "y" * 300_000


def test_work_in_a_process_of_its_own_puts_away_and_reads(local: Engine) -> None:
    given = step(lambda: put(b"input", name="in"), name="input")()
    made = steps.apart(given)
    assert made.read() == b"INPUT"
    assert local.artifacts.list(step=steps.apart.name) == [made]
    assert steps.apart(given) == made
    run = steps.apart.run(given)
    assert (run.status, run.artifacts) == ("COMPLETE", (made,))


def test_what_a_process_of_its_own_put_away_is_held_against_the_log(local: Engine, monkeypatch: Any) -> None:
    monkeypatch.setenv("STEPS_CONTENT", "one")
    first = steps.changing()
    monkeypatch.setenv("STEPS_CONTENT", "two")
    with pytest.raises(PermanentFailure, match="what is there stays"):
        steps.changing.rerun(reason="to see")
    assert steps.changing.last_run().error["code"] == "ARTIFACT_IMMUTABLE"
    assert local.artifacts.list() == [first]


def test_a_process_of_its_own_cannot_use_memory_of_this_one() -> None:
    with oncemore.open("memory:"):
        run = steps.changing.run()
    assert "configure one with" in run.error["message"]


# Chance ---------------------------------------------------------------------------------------------


def test_draws_that_reach_the_output_are_the_same_in_every_attempt_run_and_store(tmp_path: Path) -> None:
    drawn: dict[str, list[float]] = {}

    def work(window: str, store: str, fails: int) -> Any:
        me = oncemore.current()
        assert me.seeded is me.seeded
        numbers = [me.seeded.random() for _ in range(3)]
        drawn.setdefault(store, []).append(me.rng.random())
        if me.number <= fails:
            raise ConnectionError("halfway")
        return put(repr(numbers).encode(), name="sample")

    made = []
    with FakeClock():
        for store, fails in (("undisturbed", 0), ("disturbed", 2), ("rerun", 3)):
            with oncemore.open(tmp_path / store / "log.db"):
                sample = step(work, ignore=("store", "fails"))
                if fails == 3:
                    with pytest.raises(RetriesExhausted):
                        sample("2026-11", store, fails)
                    made.append(sample.rerun("2026-11", store, fails, reason="the window again"))
                else:
                    made.append(sample("2026-11", store, fails))
                other = sample("2026-12", "other", 0)
                assert other.digest != made[-1].digest
    assert len({each.digest for each in made}) == 1
    assert len(set(drawn["disturbed"])) == 3, "the other generator differs from attempt to attempt"


def test_the_seed_of_a_policy_takes_part_in_the_draws(engine: Engine) -> None:
    policy = oncemore.Policy("seeded", jitter_seed="42")
    work = step(lambda: [oncemore.current().seeded.random(), oncemore.current().key], policy=policy)
    value, key = work()
    assert value == random.Random(f"42:{key}").random()


# Declared -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [lambda: b"x", lambda: None, lambda: put(b"x", name="other")])
def test_a_step_that_is_declared_to_return_an_artifact_returns_that_one(engine: Engine, value: Any) -> None:
    run = step(value, artifact="x").run()
    assert (run.status, run.reason) == ("HARD_FAIL", "result_unavailable")
    assert "declared to return the artifact 'x'" in run.error["message"]
    with pytest.raises(ResultUnavailable):
        step(value, artifact="x", effect="idempotent", name="idempotent")()


@pytest.mark.parametrize("name", ["", "../x", 5])
def test_the_declared_name_is_checked_when_the_step_is_made(name: Any) -> None:
    with pytest.raises(UsageError, match="name is"):
        step(lambda: None, artifact=name)


def test_an_artifact_made_by_hand_can_be_read_inside_a_step(engine: Engine) -> None:
    known = step(lambda: put(b"here", name="x"), name="first")()
    work = step(lambda digest: Artifact(digest, 4).read(), name="second")
    assert CURRENT_READER.get() is None
    assert work(known.digest) == b"here"
    assert CURRENT_READER.get() is None


def test_what_a_process_of_its_own_has_puts_away_without_the_log(tmp_path: Path) -> None:
    files = ChildArtifactWriter(FolderBackend(tmp_path), "out")
    seen = LoadedHead("run/key", 1, NOWHERE, RunRecord("RUNNING", "step", cfg_hash="cfg"))
    attempt = RunningAttempt(seen, ChildStorage(files, None, None, {}))  # type: ignore[arg-type]
    made = attempt.put(b"x", site="KS")
    assert (made.name, made.site) == ("out", "KS")
    assert files.artifact_store.verify_object(made.digest, 1) == "valid"
    ((kept, payload),) = attempt.collect_outputs()
    assert (kept.run_entity, kept.step, kept.cfg_hash, payload) == ("run/key", "step", "cfg", None)
