"""Large results are kept beside the log, verified when they are read, and never in the way of a COMMIT."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import ResultUnavailable
from oncemore.artifacts.backends import MemoryBackend
from oncemore.log.entry_codec import LARGE_BYTES, decode_body
from oncemore.log.memory import MemoryStore
from oncemore.steps.engine import Engine
from tests.artifacts.conftest import alter, list_references, objects_of

if TYPE_CHECKING:
    from pathlib import Path

LARGE = "x" * LARGE_BYTES


@oncemore.step(effect="idempotent", name="large")
def large(size: int = LARGE_BYTES) -> dict[str, str]:
    return {"text": "x" * size}


def bodies(engine: Engine) -> int:
    return max(len(entry.body or b"") for entry in engine.store.read_entries())


def test_a_large_result_is_kept_beside_the_log_and_read_back(engine: Engine) -> None:
    assert large() == large() == large.last_run().value == {"text": LARGE}
    assert bodies(engine) < 2000
    (stored,) = objects_of(engine).values()
    assert stored == b'{"text":"' + LARGE.encode() + b'"}'
    assert engine.artifacts.list() == [], "it is no artifact of the step's own"
    (kept,) = list_references(engine)
    assert (kept.name, kept.media_type, kept.step) == ("$result", "application/json", "large")


def test_a_small_result_stays_in_the_log(engine: Engine) -> None:
    large(LARGE_BYTES - 11)
    assert objects_of(engine) == {}
    large(LARGE_BYTES - 10)
    assert len(objects_of(engine)) == 1


def test_a_rerun_may_return_another_large_result(engine: Engine) -> None:
    letters = iter("ab")
    work = oncemore.step(effect="pure", name="again")(lambda: next(letters) * LARGE_BYTES)
    assert work()[0] == "a"
    assert work.rerun(reason="chance")[0] == "b"
    assert work()[0] == "b"


def test_a_large_result_that_was_altered_or_removed_is_never_computed_again(engine: Engine) -> None:
    large()
    (digest,) = objects_of(engine)
    alter(engine.artifact_store.backend, digest)
    with pytest.raises(ResultUnavailable, match="was altered") as caught:
        large()
    assert caught.value.run.status == "COMPLETE"
    with pytest.raises(ResultUnavailable, match="was altered"):
        large.last_run().value  # noqa: B018 - reading it is the test
    (held,) = list_references(engine, "QUARANTINED")
    assert held.digest == digest
    engine.artifact_store.backend.remove_object(digest, float("inf"))
    with pytest.raises(ResultUnavailable, match="is not in"):
        large()
    assert large.last_run().state.run_number == 1


def test_a_result_that_cannot_be_kept_beside_the_log_stays_in_it(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "artifacts").write_text("in the way")
    with oncemore.open(tmp_path / "log.db") as engine:
        assert large() == large() == {"text": LARGE}
        assert bodies(engine) > LARGE_BYTES
    assert "a large result of large stays in the log" in caplog.text


def test_artifacts_inside_a_large_result_are_referred_to_and_can_be_read(engine: Engine) -> None:
    work = oncemore.step(effect="pure", name="both")(lambda: [oncemore.current().put(b"here"), LARGE])
    assert work()[0].read() == b"here"
    assert work()[0].read() == b"here"
    committed = [decode_body(entry.body or b"{}") for entry in engine.store.read_entries()]
    assert [body["artifacts"][0]["$artifact"]["name"] for body in committed if "spilled" in body] == [
        "artifact"
    ]


def test_who_is_cancelled_while_a_large_result_is_kept_has_it_in_the_log(tmp_path: Path) -> None:
    ran: list[int] = []

    @oncemore.step(effect="once", name="cancelled")
    async def work() -> str:
        ran.append(1)
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        return LARGE

    async def main() -> Any:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(work())
        return await work()

    with oncemore.open(tmp_path / "log.db"):
        assert asyncio.run(main()) == LARGE
    assert ran == [1]


class Cut(MemoryBackend):
    """A place where Ctrl-C strikes."""

    def start_upload(self) -> Any:
        raise KeyboardInterrupt


def test_who_is_cut_off_while_a_large_result_is_kept_has_it_in_the_log() -> None:
    store, ran = MemoryStore(), []

    @oncemore.step(effect="once", name="cut")
    def work() -> str:
        ran.append(1)
        return LARGE

    with Engine(lambda: store, "memory:", place=Cut):
        with pytest.raises(KeyboardInterrupt):
            work()
        assert work() == LARGE
    assert ran == [1]
