"""Reports of a period: every figure follows from records, and can be traced to them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import xml.etree.ElementTree as ET
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import cli
from oncemore.errors import UsageError
from oncemore.lineage.exports import ExportOptions, write_telemetry
from oncemore.profiles.exoarmur import RetryCategory, RetryError, RetryManager
from oncemore.queries.documents import HeadingBlock, TableBlock, TextBlock, render_html, render_markdown
from oncemore.queries.reliability_report import build_reliability
from oncemore.queries.report_period import choose_bucket, group_attempts, load_budgets, load_period
from oncemore.queries.run_histories import HistoryFilter, read_histories
from oncemore.queries.stores import open_read_only
from oncemore.queries.sustainability_report import build_sustainability, compare_periods
from oncemore.steps.history import export_records
from oncemore.telemetry.energy import energy_of_run
from oncemore.testing import FakeClock
from tests.queries.work import run_all_steps

if TYPE_CHECKING:
    from oncemore.queries.report_period import ReportPeriod


def load(path: Path, since: float = 0.0, until: float = 4e9) -> ReportPeriod:
    with open_read_only(str(path)) as store:
        return load_period(store, since, until)


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A store whose attempts have energy, carbon and cost: two pipelines, a retry, a failure."""
    path = tmp_path / "measured.db"
    signals = {"grid_intensity": 400.0, "energy_price": 0.25, "compute_unit_cost": 1.0}

    @oncemore.step(effect="pure", name="etl.clean", pipeline="etl")
    def clean(n: int) -> int:
        return sum(range(20_000)) + n

    @oncemore.step(effect="idempotent", name="etl.load", pipeline="etl", on=TimeoutError)
    def load_rows(n: int) -> int:
        sum(range(20_000))
        if oncemore.current().number == 1:
            raise TimeoutError("busy")
        return n

    @oncemore.step(effect="idempotent", name="mail.send", pipeline="mail", on=TimeoutError, attempts=2)
    def send(n: int) -> None:
        raise TimeoutError("no answer")

    with oncemore.open(path, signals=signals), FakeClock():
        for n in range(3):
            clean(n)
            load_rows(n)
        with suppress(oncemore.Error):
            send(1)
    return path


def figures(report: Any) -> dict[str, Any]:
    return {figure.name: figure for figure in report.figures}


def test_the_figures_of_a_reliability_report_are_those_of_the_runs(path: Path) -> None:
    report = build_reliability(load(path))
    known = figures(report)
    for name, value in (
        ("runs", 10), ("completed", 7), ("failed", 3), ("held", 1), ("attempts", 19), ("retries", 7),
        ("success_rate", 0.7), ("first_attempt_rate", 0.5), ("exhaustion_rate", 0.2), ("deadlines", 0),
        ("missed_deadlines", 0), ("computed_again", 0),
    ):  # fmt: skip
        assert known[name].value == value, name
    assert report.errors[0].error_class == "TIMEOUT"
    assert (report.errors[0].attempts, report.errors[0].exhausted_runs) == (6, 2)
    assert {failure.state for failure in report.failures} == {"HARD_FAIL", "held"}
    assert [row.category for row in report.categories] == ["standard"]


@pytest.mark.req("GOV-14")
def test_each_report_of_a_period_has_figures_traceable_to_records(measured: Path) -> None:
    with open_read_only(str(measured)) as store:
        entries = {entry.seq: entry.entity for entry in store.read_entries()}
        runs = {run["run_id"] for run in export_records(list(store.read_entries()))}
    period = load(measured)
    for report in (build_reliability(period), build_sustainability(period)):
        for figure in report.figures:
            for record in figure.records:
                kind, _, name = record.partition(" ")
                assert (int(name) in entries) if kind == "entry" else (name in runs)
            # A figure that is not 0 has records, and a count has as many as it says.
            assert bool(figure.value) <= bool(figure.records)
            if figure.unit == "":
                assert figure.value == len(figure.records)
    # The sum of the records behind the energy is the energy.
    energy = figures(build_sustainability(period))["energy_kwh"]
    by_entry = {f"entry {one.attempt.seq}": one.attempt.values.energy_kwh for one in period.attempts}
    assert energy.value == pytest.approx(sum(by_entry[record] for record in energy.records))  # type: ignore[misc]
    half = (period.attempts[0].attempt.ended + period.attempts[-1].attempt.ended) / 2
    older, newer = load(measured, 0.0, half), load(measured, half, 4e9)
    assert 0 < len(older.attempts) < len(period.attempts)
    assert len(older.attempts) + len(newer.attempts) == len(period.attempts)


@pytest.mark.req("DASH-4")
def test_energy_per_pipeline_stage_key_and_period_adds_up_to_the_export(measured: Path) -> None:
    with open_read_only(str(measured)) as store:
        records = list(export_records(list(store.read_entries())))
    exported = energy_of_run(records)
    period = load(measured)
    for by in ("pipeline", "stage", "key", "period"):
        groups = group_attempts(period, by)
        assert sum(group.attempts for group in groups) == exported.total.attempts == 11
        assert sum(group.energy_kwh or 0 for group in groups) == pytest.approx(exported.total.energy_kWh)
        assert sum(group.carbon_kg or 0 for group in groups) == pytest.approx(exported.total.carbon_kgCO2e)
        assert sum(group.cost_usd or 0 for group in groups) == pytest.approx(exported.total.cost_usd)
        assert sum(group.retry_kwh or 0 for group in groups) == pytest.approx(exported.retries.energy_kWh)
    assert exported.total.energy_kWh > 0
    assert exported.total.carbon_kgCO2e == pytest.approx(exported.total.energy_kWh * 0.4)
    stages = {group.name: group for group in group_attempts(period, "stage")}
    assert set(stages) == {"etl.clean", "etl.load", "mail.send"}
    assert {group.name for group in group_attempts(period, "pipeline")} == {"etl", "mail"}
    load_share = stages["etl.load"].retry_share
    assert load_share is not None
    assert 0 < load_share < 1
    assert stages["etl.clean"].retry_share == 0.0
    assert len(group_attempts(period, "key")) == 7


@pytest.mark.req("DASH-1")
def test_two_periods_are_shown_side_by_side(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    period = load(measured)
    half = period.attempts[4].attempt.ended + 0.0001
    words = [
        "report", "sustainability", "--store", str(measured), "--since", f"{half:.6f}", "--until",
        "4000000000", "--baseline-since", "1000000000", "--json",
    ]  # fmt: skip
    assert cli.run_command(words) == 0
    rows = {row[0]: row[2:] for row in json.loads(capsys.readouterr().out)["baseline"]["rows"]}
    baseline, present = load(measured, 1e9, half), load(measured, half, 4e9)
    assert rows["attempts"] == [len(baseline.attempts), len(present.attempts)]
    assert rows["energy_kwh"][0] + rows["energy_kwh"][1] == pytest.approx(
        figures(build_sustainability(period))["energy_kwh"].value
    )
    assert rows["carbon_kg"][0] == pytest.approx(rows["energy_kwh"][0] * 0.4)
    assert rows["computed_again"] == [0, 0]
    assert rows["attempts_per_run"][1] == len(present.attempts) / len(present.runs)
    assert compare_periods(baseline, load(measured, 3e9, 4e9)).rows[-1][3] is None


@pytest.mark.req("DASH-7")
def test_patterns_by_category_equal_those_of_the_audit_stream(tmp_path: Path) -> None:
    path, manager = tmp_path / "log.db", RetryManager()

    async def operate() -> None:
        for n, failures in enumerate((0, 1, 9)):
            left = [TimeoutError("no answer")] * failures

            async def work(left: list[TimeoutError] = left) -> int:
                if left:
                    raise left.pop()
                return 1

            key = f"{n}" * 64
            with suppress(RetryError):
                await manager.execute_with_retry(RetryCategory.KV_PUT, "Put", work, idempotency_key=key)

    with oncemore.open(path), FakeClock():
        asyncio.run(operate())
    (row,) = build_reliability(load(path)).categories
    assert (row.total_attempts, row.success_rate, row.avg_attempts) == (6, 2 / 3, 2.0)
    (audited,) = manager.audit.per_category().values()
    assert (row.operations, row.total_attempts, row.success_rate, row.avg_attempts) == tuple(audited)


@pytest.mark.req("TELEM-13")
def test_another_method_of_measuring_is_visible_in_the_report(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    @oncemore.step(effect="pure", name="work")
    def work(n: int) -> int:
        return n

    for n, energy in enumerate(({"method": "cpu_time"}, {"method": "off"})):
        with oncemore.open(path, energy=energy):
            work(n)
    with oncemore.open(path) as engine:
        # Every energy figure has its method.
        for record in export_records(engine.store.read_entries()):
            snapshot = record["telemetry_snapshot"]
            assert (snapshot["energy_kWh"] is None) == (snapshot["method"] is None), snapshot
    report = build_sustainability(load(path))
    assert dict(report.methods) == {"cpu_time": 1, "not measured": 1}
    assert figures(report)["unmeasured"].value == 1


def test_a_second_delivery_of_every_message_adds_no_energy(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    @oncemore.step(effect="pure", name="nightly")
    def nightly(n: int) -> int:
        return sum(range(5_000)) + n

    energy = []
    with oncemore.open(path):
        for _ in range(2):
            for n in range(10):
                nightly(n)
            report = build_sustainability(load(path))
            energy.append(figures(report)["energy_kwh"].value)
            assert report.computed_again == ()
    assert energy[0] <= energy[1] < energy[0] * 1.01


def test_work_computed_again_is_listed_with_its_energy(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    @oncemore.step(effect="pure", name="again")
    def again(n: int) -> int:
        return n

    with oncemore.open(path):
        again(1)
        again.rerun(1, reason="test")
    report = build_sustainability(load(path))
    assert len(report.computed_again) == 1
    assert figures(report)["computed_again"].value == 1
    assert figures(report)["again_kwh"].value is not None


def test_documents_are_self_contained_and_show_every_figure(measured: Path, tmp_path: Path) -> None:
    for kind in ("reliability", "sustainability"):
        page, text = tmp_path / f"{kind}.html", tmp_path / f"{kind}.md"
        words = ["report", kind, "--store", str(measured), "--until", "4000000000"]
        assert cli.run_command([*words, "--html", str(page), "--markdown", str(text)]) == 0
        html, markdown = page.read_text(), text.read_text()
        assert "<script" not in html
        assert " src=" not in html
        assert "http" not in html.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
        assert html.count("<svg") == 1
        ET.fromstring(html[html.index("<svg") : html.index("</svg>") + 6])  # noqa: S314
        for name in ("attempts", "retries"):
            assert f"<td>{name}</td>" in html
            assert f"| {name} |" in markdown
        assert f"oncemore report {kind} --since" in html


def test_the_records_of_a_figure_can_be_listed(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["report", "reliability", "--store", str(measured), "--until", "4000000000", "--figure"]
    assert cli.run_command([*words, "retries"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("entry ") for line in lines)
    assert cli.run_command([*words, "retries", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == lines
    assert cli.run_command([*words, "retris"]) == 2
    assert "did you mean retries" in " ".join(capsys.readouterr().err.split())
    assert cli.run_command([*words[:-1], "--baseline-until", "1d"]) == 2


def test_a_period_without_length_is_refused(measured: Path) -> None:
    with pytest.raises(UsageError, match="ends before it begins"):
        load(measured, 5.0, 5.0)


def test_an_empty_period_has_no_rates_and_still_a_report(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in ("reliability", "sustainability"):
        words = ["report", kind, "--store", str(measured), "--since", "3900000000", "--until", "4000000000"]
        assert cli.run_command(words) == 0
        assert "not known" in capsys.readouterr().out
    assert choose_bucket(0.0, 3600.0) == 300.0
    assert choose_bucket(0.0, 1e12) == 28 * 86_400.0


def test_names_from_the_log_cannot_change_a_document() -> None:
    name = '<script>alert("x")</script> | *a* [b](c)\n`'
    blocks = [HeadingBlock(name, 1), TextBlock(name), TableBlock(("a", "b"), ((name, "1"),), (1,))]
    page, text = render_html(name, blocks), render_markdown(blocks)
    assert "<script" not in page
    assert "default-src 'none'" in page
    assert "<script" not in text
    (row,) = [line for line in text.splitlines() if line.startswith("| &lt;")]
    assert row.replace("\\|", "").count("|") == 3


def test_runs_of_every_kind_are_read_from_a_memory_store() -> None:
    with oncemore.open("memory:") as engine:
        run_all_steps(engine)
        period = load_period(engine.store, 0.0, 4e9)
    assert len(period.runs) == 10


def test_a_pipeline_is_the_recorded_one_in_reports_and_exports(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    def work() -> int:
        return 7

    names = {"etl.load": "survey", "etl.clean": None, "plain": "survey"}
    with oncemore.open(path):
        for name, pipeline in names.items():
            oncemore.step(effect="pure", name=name, pipeline=pipeline)(work)()
    with open_read_only(str(path)) as store:
        report = write_telemetry(read_histories(store, HistoryFilter()), tmp_path, "v1", ExportOptions())
    focus = json.loads(Path(report.paths["focus-telemetry.json"]).read_text())
    exported = {record["stage_name"]: record["pipeline_id"] for record in focus["records"]}
    assert exported == {"etl.load": "survey", "etl.clean": work.__module__, "plain": "survey"}
    period = load(path)
    assert {one.run.step: one.run.pipeline for one in period.attempts} == exported
    assert [group.name for group in group_attempts(period, "pipeline")] == sorted(set(exported.values()))


def test_a_run_without_a_recorded_pipeline_is_named_by_its_step(measured: Path) -> None:
    with closing(sqlite3.connect(measured)) as connection, connection:
        # As logs of before pipelines were recorded have it.
        connection.execute(
            "UPDATE log SET body = CAST(replace(CAST(body AS TEXT), '\"pipeline\":', '\"other\":') AS BLOB)"
        )
    groups = {group.name for group in group_attempts(load(measured), "pipeline")}
    assert groups == {"etl.clean", "etl.load", "mail.send"}


def test_carbon_budgets_are_shown_with_their_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy, path = tmp_path / "nightly.yaml", tmp_path / "log.db"
    policy.write_text(
        "profile: nightly\nversion: '1'\npriority: P2\nretry_policy: {max_attempts: 3}\n"
        "carbon_budget: {period: month, cap_kgCO2e: 2.0, slow_at: 0.9}\n"
    )

    @oncemore.step(effect="pure", policy=str(policy), name="report")
    def report(item: int) -> int:
        oncemore.current().add_usage(energy_kwh=0.4)
        return item

    october = datetime(2026, 10, 30, tzinfo=UTC)
    with (
        FakeClock(start=october) as clock,
        oncemore.open(path, signals={"grid_intensity": 1000}, max_inline_wait_s=0) as engine,
    ):
        report(1)
        report(2)
        between = engine.now() + 3600
        clock.advance(4 * 86_400)
        report(3)
        end = engine.now() + 3600
    with open_read_only(str(path)) as store:
        both = load_budgets(store, october.timestamp(), end)
        first = load_budgets(store, october.timestamp(), between)
        second = load_budgets(store, end - 7200, end)
        assert load_budgets(store, 0.0, october.timestamp()) == ()
    assert [(each.name, each.unit, each.cap_kg) for each in both] == [("nightly", "month", 2.0)] * 2
    assert [each.used_kg for each in both] == pytest.approx([0.8, 0.4], abs=1e-3)
    assert (first, second) == (both[:1], both[1:])
    words = ["report", "sustainability", "--store", str(path), "--since", "2026-10-30", "--until", f"{end}"]
    assert cli.run_command(words) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("nightly")]
    assert [row[1:4] for row in rows] == [["month", "of", "2026-10-01"], ["month", "of", "2026-11-01"]]
    assert [row[5:7] for row in rows] == [["2", "40.0%"], ["2", "20.0%"]]
