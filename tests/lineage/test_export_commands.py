"""The commands of `oncemore export` for lineage: every store, every selection, whole files or none."""

from __future__ import annotations

import json
import subprocess
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import rdflib

import oncemore
from oncemore._replace_file import read_default_mode
from oncemore.lineage.document_file import RecordSpool, open_document
from oncemore.lineage.exports import ExportOptions, write_prov
from oncemore.queries import run_histories
from oncemore.queries.run_histories import HistoryFilter, read_histories
from oncemore.testing import instant_waits
from tests.lineage.in_process import report_of, run_here
from tests.lineage.pipeline import run_pipeline
from tests.shell import PROGRAM, environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.lineage.history import RunHistory

#: The commands, with the unit of their reports and the number that the pipeline has.
COMMANDS = {
    "prov": ("runs", 7),
    "openlineage": ("events", 16),
    "stac": ("items", 2),
    "dcat": ("datasets", 2),
    "cloudevents": ("events", 44),
}


@pytest.mark.req("LIN-10")
@pytest.mark.parametrize("store_url", ["sqlite", "postgres", "nats"], indirect=True)
def test_every_export_works_on_every_store_and_names_its_profile(store_url: str, tmp_path: Path) -> None:
    with oncemore.open(store_url, artifacts=str(tmp_path / "artifacts")) as engine, instant_waits():
        run_pipeline(engine)
    for name, (unit, count) in COMMANDS.items():
        file = tmp_path / f"{name}.out"
        words = ("export", name, "--store", store_url, "--out", str(file), "--conforms-to", "KFM v11")
        assert report_of(*words) == {"file": str(file), unit: count}
        text = file.read_text(encoding="utf-8")
        assert "KFM v11" in text or "KFM%20v11" in text
    report = report_of(
        "export", "telemetry", "--release", "v1", "--store", store_url, "--conforms-to", "KFM v11"
    )
    assert report["totals"]["focus-telemetry.json"]["attempts"] == 9
    for path in report["paths"].values():
        assert "KFM v11" in Path(path).read_text(encoding="utf-8")


def list_steps(graph_text: str) -> list[str]:
    graph = rdflib.Graph().parse(data=graph_text, format="turtle")
    query = "select ?t where { ?a a prov:Activity ; <urn:oncemore:terms:runId> ?r ; dct:title ?t }"
    names = {"prov": rdflib.PROV, "dct": rdflib.DCTERMS}
    return sorted(str(row[0]) for row in graph.query(query, initNs=names))


def test_one_run_a_step_and_a_period(log: Path) -> None:
    store = ("--store", str(log))
    rows = report_of("runs", *store)
    row = next(each for each in rows if each["step"] == "summarise")
    for name in (row["run_id"], row["key"][:12]):
        assert list_steps(run_here("export", "prov", name, *store).stdout) == ["summarise"]
    both = run_here("export", "prov", row["run_id"], row["key"], *store)
    assert both.stdout == run_here("export", "prov", row["key"], *store).stdout, "one run with two names"
    assert list_steps(run_here("export", "prov", "--step", "sample", *store).stdout) == ["sample", "sample"]
    assert len(list_steps(run_here("export", "prov", "--since", "1h", *store).stdout)) == 7
    assert list_steps(run_here("export", "prov", "--until", "1h", *store).stdout) == []
    assert list_steps(run_here("export", "prov", "--since", "2099-01-01", *store).stdout) == []


def test_wrong_words_are_refused_with_the_way_out(log: Path) -> None:
    store = ("--store", str(log))
    for words, message in (
        (("prov", "abcd", "--step", "sample"), "Give RUN, or a selection"),
        (("prov", "zzzz"), "there is no run 'zzzz'"),
        (("prov", "--since", "someday"), "is not a time"),
        (("prov", "--json"), "--json reports on a file; give --out too."),
        (("telemetry",), "--release"),
        (("telemetry", "--release", "a/b"), "release is 'a/b'"),
        (("stac", "--out", "/proc/none/items.json"), "cannot be written"),
    ):
        refused = run_here("export", *words, *store)
        assert refused.returncode == 2, refused.stdout
        assert message in " ".join((refused.stderr + refused.stdout).split())
        assert "Traceback" not in refused.stderr


def test_the_format_follows_the_suffix_or_the_option(log: Path, tmp_path: Path) -> None:
    for name, suffix, start in (
        ("prov", ".ttl", "@prefix"),
        ("prov", ".jsonld", '{"@context"'),
        ("prov", ".json", '{"prefix"'),
        ("dcat", ".ttl", "@prefix"),
        ("dcat", ".json", '{"@context"'),
    ):
        file = tmp_path / f"{name}{suffix}"
        run_here("export", name, "--store", str(log), "--out", str(file))
        assert file.read_text(encoding="utf-8").startswith(start)
    shown = run_here("export", "prov", "--store", str(log), "--format", "prov-json")
    assert set(json.loads(shown.stdout)) >= {"entity", "activity", "used"}


def test_items_point_to_the_artifact_store_or_to_a_given_address(log: Path, tmp_path: Path) -> None:
    for words, start in (
        ((), (tmp_path / "artifacts").as_uri()),
        (("--base-url", "https://data.example.org/a/"), "https://data.example.org/a/sha256/"),
    ):
        items = json.loads(run_here("export", "stac", "--store", str(log), *words).stdout)["features"]
        assert all(item["assets"]["data"]["href"].startswith(start) for item in items)


def test_a_reader_that_closes_the_pipe_ends_the_export_quietly(log: Path) -> None:
    with subprocess.Popen(
        [*PROGRAM, "export", "cloudevents", "--store", str(log)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
    ) as program:  # fmt: skip
        assert program.stdout is not None
        program.stdout.close()
        assert program.stderr is not None
        assert program.stderr.read() == b""
        assert program.wait(60) == 0


def test_a_fault_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "out.ttl"
    file.write_text("old")

    def fail() -> Iterator[RunHistory]:
        raise ValueError("the store is gone")
        yield

    with pytest.raises(ValueError, match="gone"), open_document(file) as out:
        write_prov(fail(), out, "turtle", ExportOptions())
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("out.ttl", "old")]
    with open_document(file) as out:
        out.write("new")
        assert file.read_text() == "old", "a reader sees the old file until the new one is whole"
    assert file.read_text() == "new"
    assert file.stat().st_mode & 0o777 == read_default_mode()


def test_a_spool_has_each_record_once_in_order() -> None:
    with RecordSpool() as spool:
        spool.add("b", "2", {"n": 1})
        spool.add("b", "1", {"n": 2})
        spool.add("b", "2", {"n": 3})
        spool.add("b", "2", {"n": 4}, keep=True)
        spool.add("a", "9", {})
        assert list(spool.read("b")) == [{"n": 2}, {"n": 3}]
        assert spool.list_sections() == ["a", "b"]


def test_an_export_holds_one_run_in_memory_at_a_time(tmp_path: Path) -> None:
    @oncemore.step(effect="pure", name="work")
    def work(n: int) -> str:
        return "x" * 2000

    def measure(limit: int) -> int:
        tracemalloc.start()
        with (tmp_path / "out").open("w") as file:
            seen = 0

            def read() -> Iterator[Any]:
                nonlocal seen
                for history in read_histories(engine.store, HistoryFilter()):
                    if seen == limit:
                        return
                    seen += 1
                    yield history

            write_prov(read(), file, "json-ld", ExportOptions())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert seen == limit
        return peak

    with oncemore.open(tmp_path / "log.db") as engine, engine:
        for number in range(200):
            work(number)
        few, many = measure(20), measure(200)
    # A page of heads is read at once; beyond it, memory does not grow with the number of runs.
    assert many < few + 300_000, (few, many)


def test_deliveries_of_lineage_are_not_exported(tmp_path: Path) -> None:
    @oncemore.step(effect="pure", name="oncemore.own")
    def own(n: int) -> int:
        return n

    with oncemore.open(tmp_path / "log.db") as engine, engine:
        own(1)
        assert list(read_histories(engine.store, HistoryFilter())) == []
        assert len(list(read_histories(engine.store, HistoryFilter(step="oncemore.own")))) == 1


def test_inner_runs_have_a_parent_and_running_ones_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_histories, "PAGE", 2)
    seen: list[Any] = []

    @oncemore.step(effect="pure", name="inner")
    def inner(n: int) -> int:
        return n

    @oncemore.step(effect="pure", name="outer")
    def outer(n: int) -> int:
        total = inner(n) + inner(n + 1) + inner(n + 2)
        seen.extend(read_histories(engine.store, HistoryFilter()))
        return total

    with oncemore.open(tmp_path / "log.db") as engine, engine:
        outer(1)
        ended = list(read_histories(engine.store, HistoryFilter()))
    assert sorted(each.run.step for each in seen) == ["inner", "inner", "inner", "outer"], "all pages"
    (running,) = (each for each in seen if each.run.step == "outer")
    assert (running.ended, running.attempts[-1].ended) == (None, None)
    parents = {each.parent for each in ended if each.run.step == "inner"}
    (parent,) = parents
    assert parent is not None
    assert (parent.step, parent.key) == ("outer", running.key)
    assert [each.key for each in ended] == sorted(each.key for each in ended)
