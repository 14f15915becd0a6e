"""COMMIT stores the inputs of a run, and an input that differs from a recorded one stops the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.lineage.ids import derive_lineage, entity_id
from oncemore.steps import inputs
from oncemore.testing import instant_waits
from oncemore.workers.worker import Worker
from tests.lineage import isolated

if TYPE_CHECKING:
    from pathlib import Path

CONFIG: dict[str, Any] = {"content": b"", "fail": 0, "artifact": None}


def stored_edges(engine: oncemore.Engine, run: oncemore.Run[Any]) -> list[list[Any]]:
    """Return the input edges that each entry of a run has stored."""
    from oncemore.steps.history import fold_entries

    entries = engine.store.read_entries(f"run/{run.key}")
    return [body["used"] for *_, body in fold_entries(entries) if "used" in body]


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    with oncemore.open(tmp_path / "log.db") as opened, instant_waits():
        yield opened


@pytest.fixture
def read(engine: oncemore.Engine) -> Any:
    CONFIG.update(content=b"one", fail=0)

    @oncemore.step(effect="idempotent", name="read")
    def read(day: str) -> str:
        digest = oncemore.current().use(CONFIG["content"], name="grid.csv", media_type="text/csv")
        if CONFIG["fail"]:
            CONFIG["fail"] -= 1
            CONFIG["content"] = CONFIG.get("next", CONFIG["content"])
            raise ConnectionResetError
        return digest

    return read


@pytest.mark.req("LIN-5")
def test_the_exported_lineage_equals_the_edges_that_commit_has_stored(log: Path) -> None:
    from oncemore.queries.run_histories import HistoryFilter, read_histories
    from oncemore.queries.stores import open_read_only
    from oncemore.steps.history import fold_entries

    compared = 0
    with open_read_only(str(log)) as store:
        for history in read_histories(store, HistoryFilter()):
            commits = [
                body
                for header, _, body in fold_entries(store.read_entries(f"run/{history.key}"))
                if "COMMIT" in header.marks
            ]
            if not commits:
                assert history.lineage is None
                continue
            (commit,) = commits
            assert history.lineage is not None
            stored = {entity_id(edge["digest"]) for edge in commit.get("used", ())}
            assert set(history.lineage.used) == stored | {entity_id(history.run.input_hash)}
            artifacts = {entity_id(plain["$artifact"]["digest"]) for plain in commit.get("artifacts", ())}
            result = entity_id(inputs.digest_value(commit["result"]))
            assert set(history.lineage.generated) == artifacts | {result}
            assert history.lineage == derive_lineage(
                history.run.step,
                history.key,
                history.run.cfg_hash,
                [each.rpartition(":")[2] for each in history.lineage.used],
                [each.rpartition(":")[2] for each in history.lineage.generated],
            )
            kinds = {edge["kind"] for edge in commit.get("used", ())}
            assert (
                kinds
                == {"sample": set(), "summarise": {"artifact", "content"}, "publish": {"argument"}}[
                    history.run.step
                ]
            )
            compared += 1
    assert compared == 6


def test_the_result_of_a_run_is_the_input_of_the_run_that_gets_it(histories: list[Any]) -> None:
    results = {history.result for history in histories if history.run.step == "summarise"}
    used = {edge["digest"] for history in histories if history.run.step == "publish" for edge in history.used}
    assert used == results
    assert len(results) == 1, "both days have equal tables"


@pytest.mark.req("LIN-7")
@pytest.mark.parametrize("policy", ["standard", "kfm-rules", "kfm-loop"])
def test_an_input_that_differs_from_the_recorded_edge_stops_the_run(
    engine: oncemore.Engine, policy: str
) -> None:
    content = [b"one"]

    @oncemore.step(effect="pure", name=f"read {policy}", policy=policy, provider="archive")
    def read(day: str) -> str:
        return oncemore.current().use(content[0], name="grid.csv")

    assert read("monday") == read.run("monday").value
    content[0] = b"two"
    with pytest.raises(oncemore.Error, match=r"its input .grid\.csv. is 3fc4ccfe7458… now"):
        read.rerun("monday", reason="again")
    run = read.last_run("monday")
    assert run.status in ("HARD_FAIL", "SOFT_FAIL"), "failed, or quarantined by a governed policy"
    assert [attempt.number for attempt in run.attempts][-1] == 2, "one attempt, and no retry"
    assert run.attempts[-1].error["code"] == "LINEAGE_MISMATCH"
    assert run.proofs[-1]["verdict"] != "RETRYABLE"


def test_a_retry_that_meets_another_input_stops_the_run(engine: oncemore.Engine, read: Any) -> None:
    CONFIG.update(fail=1, next=b"two")
    with pytest.raises(oncemore.PermanentFailure, match="an earlier attempt of this key has used"):
        read("monday")
    run = read.last_run("monday")
    assert len(list(run.attempts)) == 2, "the mismatch is not tried again"
    (edges,) = stored_edges(engine, run)
    assert [edge["name"] for edge in edges] == ["grid.csv"]
    CONFIG.pop("next")


def test_the_same_input_passes_every_attempt(engine: oncemore.Engine, read: Any) -> None:
    CONFIG.update(fail=2)
    assert read("monday") == read.last_run("monday").value
    assert len(stored_edges(engine, read.last_run("monday"))) == 3


def test_another_version_of_the_step_may_use_another_input(engine: oncemore.Engine) -> None:
    def make(version: str, content: bytes) -> Any:
        @oncemore.step(effect="pure", name="read", version=version)
        def read(day: str) -> str:
            return oncemore.current().use(content, name="grid.csv")

        return read

    first = make("1", b"one")("monday")
    assert make("2", b"two")("monday") != first


def test_an_artifact_of_another_digest_under_the_same_name_is_a_mismatch(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="pure", name="make", artifact="a.csv")
    def make(content: bytes) -> Any:
        return oncemore.current().put(content, date="2026-10-01")

    chosen = [make(b"one")]

    @oncemore.step(effect="pure", name="read")
    def read(day: str) -> int:
        return len(chosen[0].read())

    assert read("monday") == 3
    chosen[0] = make(b"other")
    with pytest.raises(oncemore.PermanentFailure, match=r"'a\.csv' \(date=2026-10-01\) is"):
        read.rerun("monday", reason="again")


def test_what_the_attempt_itself_has_stored_is_not_an_input(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="pure", name="make", artifact="a.csv")
    def make(day: str) -> Any:
        artifact = oncemore.current().put(b"content")
        assert artifact.read() == b"content"
        return artifact

    make("monday")
    assert stored_edges(engine, make.last_run("monday")) == []


def test_use_takes_paths_and_files_and_refuses_bad_names(engine: oncemore.Engine, tmp_path: Path) -> None:
    (tmp_path / "grid.csv").write_bytes(b"one")

    @oncemore.step(effect="pure", name="read")
    def read(day: str) -> list[str]:
        attempt = oncemore.current()
        with (tmp_path / "grid.csv").open("rb") as file:
            digests = [attempt.use(tmp_path / "grid.csv", name="a"), attempt.use(file, name="b")]
        with pytest.raises(oncemore.UsageError, match="name is"):
            attempt.use(b"", name="../grid.csv")
        return [*digests, attempt.use(b"one", name="a")]

    assert len(set(read("monday"))) == 1
    (edges,) = stored_edges(engine, read.last_run("monday"))
    assert [edge["name"] for edge in edges] == ["a", "b"], "an input that is used twice has one edge"


def test_the_number_of_inputs_has_a_limit(engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MAX_INPUTS", 2)

    @oncemore.step(effect="pure", name="read")
    def read(day: str) -> None:
        for number in range(3):
            oncemore.current().use(b"one", name=str(number))

    with pytest.raises(oncemore.PermanentFailure, match="uses more than 2 inputs"):
        read("monday")


def test_the_inputs_of_a_worker_and_after_a_change_of_the_arguments(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="pure", name="sum")
    def summed(rows: list[str], n: int = 0) -> int:
        rows.clear()
        return n

    rows = ["a row of more than some bytes", "another row"]
    summed(list(rows))
    summed.submit(list(rows), 1)
    summed.submit([], 2)
    Worker(engine, [summed]).run_until_idle()
    for arguments in ((rows,), (rows, 1)):
        (edges,) = stored_edges(engine, summed.last_run(*arguments))
        assert [edge["digest"] for edge in edges] == [inputs.digest_value(rows)]
    assert summed.last_run([], 2).status == "COMPLETE"
    assert stored_edges(engine, summed.last_run([], 2)) == []


def test_a_worker_that_continues_a_run_with_small_arguments_reads_nothing_more(
    engine: oncemore.Engine,
) -> None:
    @oncemore.step(effect="pure", name="double")
    def double(n: int) -> int:
        return 2 * n

    double.submit(4)
    Worker(engine, [double]).run_until_idle()
    assert double.last_run(4).value == 8
    assert stored_edges(engine, double.last_run(4)) == []


def test_small_arguments_have_no_edges() -> None:
    small = {"n": 1, "f": 2.5, "ok": True, "none": None, "day": "2026-10-01", "list": [1, 2]}
    assert list(inputs.argument_edges(small)) == []
    (edge,) = inputs.argument_edges({"text": "x" * 40})
    assert (edge["kind"], edge["size"]) == ("argument", 42)


def test_isolated_attempts_record_and_compare_inputs(engine: oncemore.Engine, tmp_path: Path) -> None:
    file = tmp_path / "grid.csv"
    file.write_bytes(b"one")
    assert isolated.read_file(str(file)) == 3
    (edges,) = stored_edges(engine, isolated.read_file.last_run(str(file)))
    assert "grid.csv" in [edge["name"] for edge in edges]
    file.write_bytes(b"other")
    with pytest.raises(oncemore.PermanentFailure, match=r"its input .grid\.csv. is"):
        isolated.read_file.rerun(str(file), reason="again")
