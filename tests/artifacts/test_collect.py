"""Garbage goes, and nothing else: not what is young, open, mentioned or referred to."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import UsageError
from oncemore.artifacts.backends import FolderBackend
from oncemore.log.entry_codec import build_write, load_head
from oncemore.log.record import ArtifactRecord, RecordChange
from oncemore.log.store import Batch
from oncemore.testing import FakeClock
from tests.artifacts.conftest import LONG_AGO, age, objects_of

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.steps.engine import Engine


def put(content: bytes, **told: Any) -> Any:
    return oncemore.current().put(content, **told)


def step(work: Any, **told: Any) -> Any:
    return oncemore.step(**{"effect": "pure", "name": "step", **told})(work)


def age_all(engine: Engine) -> None:
    for digest in objects_of(engine):
        age(engine.artifact_store.backend, digest)


def kept(engine: Engine) -> list[bytes]:
    return sorted(objects_of(engine).values())


def leave_garbage(content: bytes = b"garbage") -> None:
    def work() -> None:
        put(content)
        raise oncemore.PermanentError("no")

    step(work, name=f"fails-{content!r}").run()


def test_what_no_run_committed_goes_and_everything_else_stays(local: Engine) -> None:
    made = step(lambda: put(b"committed"))()
    large = step(lambda: "x" * 300_000, name="large")()
    leave_garbage()
    age_all(local)
    (found,) = local.artifacts.find_garbage()
    assert found.size == 7
    assert len(kept(local)) == 3, "looking removes nothing"
    assert local.artifacts.collect_garbage() == (1, 7, 0)
    assert local.artifacts.collect_garbage() == (0, 0, 0)
    assert made.read() == b"committed"
    assert step(lambda: None, name="large")() == large


def test_what_is_young_stays(engine: Engine) -> None:
    leave_garbage()
    assert engine.artifacts.collect_garbage() == (0, 0, 0)
    assert engine.artifacts.collect_garbage(older_than=60) == (0, 0, 0)
    assert kept(engine) == [b"garbage"]


def test_garbage_in_a_bucket_goes_when_time_has_passed(engine: Engine) -> None:
    leave_garbage()
    with FakeClock() as clock:
        clock.sleep(200_000)
        clock_wall = clock.wall()
        assert clock_wall > time.time() + 86_400
        assert engine.artifacts.collect_garbage() == (1, 7, 0)
    assert kept(engine) == []


def test_what_an_open_attempt_has_put_away_stays_however_old_it_looks(local: Engine) -> None:
    def work() -> Any:
        made = put(b"under way")
        leave_garbage()
        os.utime(made.path(), (time.time() - 120, time.time() - 120))
        assert local.artifacts.collect_garbage(older_than=60).objects == 0
        return made

    assert step(work)().read() == b"under way"
    age_all(local)
    assert local.artifacts.collect_garbage().objects == 1


def test_what_a_checkpoint_an_argument_or_an_event_mentions_stays(local: Engine) -> None:
    def keeps() -> None:
        oncemore.current().checkpoint({"so far": put(b"in a checkpoint")})
        raise oncemore.PermanentError("no")

    def emits() -> None:
        oncemore.current().emit(
            "made", [put(b"in an event").digest, {"$artifact": "a text that speaks of one"}]
        )

    step(keeps, name="keeps").run()
    step(emits, name="emits", effect="outbox")()
    leave_garbage()
    age_all(local)
    assert local.artifacts.collect_garbage().objects == 1
    assert kept(local) == [b"in a checkpoint", b"in an event"]


def test_what_a_pruned_run_referred_to_goes(engine: Engine) -> None:
    step(lambda x: put(b"%d" % x), name="kept")(1)
    pruned = step(lambda x: put(b"%d" % x), name="pruned")
    pruned(2)
    entity = "run/" + pruned.key(2)
    seen = load_head(engine.store, entity)
    change = RecordChange(("PRUNE",), seen.record, seen.record._replace(pruned_at=engine.now()))
    engine.store.append(Batch((build_write(entity, seen.version, seen.hash, change, engine.now()),))).wait()
    engine.store.open_maintenance().prune_bodies({entity: seen.version + 1})
    with FakeClock() as clock:
        clock.sleep(200_000)
        assert engine.artifacts.collect_garbage().objects == 1
    assert kept(engine) == [b"1"]


def test_a_reference_without_a_run_still_counts(engine: Engine) -> None:
    digest, size = engine.artifacts.write_content(b"referred to")
    change = RecordChange(
        ("ARTIFACT",),
        None,
        ArtifactRecord("STORED", "step", "run/unknown", "x", digest, size, created_at=engine.now()),
    )
    engine.store.append(Batch((build_write("artifact/x", 0, bytes(32), change, engine.now()),))).wait()
    with FakeClock() as clock:
        clock.sleep(200_000)
        assert engine.artifacts.collect_garbage().objects == 0
    assert kept(engine) == [b"referred to"]


def test_what_was_put_again_meanwhile_stays(local: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_garbage()
    age_all(local)
    place: Any = local.artifact_store.backend
    listed = list(place.list_objects())

    class Slow(FolderBackend):
        def list_objects(self) -> Any:
            yield from listed
            local.artifacts.write_content(
                b"garbage"
            )  # somebody puts the same content again, after it was looked at

    local.artifact_store._backend = (os.getpid(), Slow(place.root))
    assert local.artifacts.collect_garbage() == (0, 0, 0)
    assert kept(local) == [b"garbage"]


def test_a_place_of_two_logs_is_collected_for_both_or_not_at_all(tmp_path: Path) -> None:
    with oncemore.open(tmp_path / "a.db") as one:
        made = step(lambda: put(b"of one"))()
    with oncemore.open(tmp_path / "b.db") as two:
        leave_garbage()
        age_all(two)
        with pytest.raises(UsageError, match=r"also stores artifacts of sqlite:///.*a\.db"):
            two.artifacts.collect_garbage()
        assert two.artifacts.collect_garbage(also=(one,)).objects == 1
    assert made.read() == b"of one"
    one.close()


@pytest.mark.parametrize("older_than", [0, 59, -1, float("inf"), float("nan"), True, "1 day"])
def test_the_age_is_at_least_a_minute(engine: Engine, older_than: Any) -> None:
    with pytest.raises(UsageError, match="older_than is"):
        engine.artifacts.collect_garbage(older_than=older_than)


def test_the_rests_of_dead_writers_go_with_it(local: Engine) -> None:
    leave_garbage()
    rest = local.artifact_store.backend.root / "writing" / "1-dead"  # type: ignore[attr-defined]
    rest.write_bytes(b"half")
    assert local.artifacts.collect_garbage().leftovers == 0
    os.utime(rest, (LONG_AGO, LONG_AGO))
    assert local.artifacts.collect_garbage().leftovers == 1
