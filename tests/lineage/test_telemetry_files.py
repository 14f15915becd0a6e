"""The telemetry files of a release: valid, the same in every export, and no record twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from referencing import Registry, Resource

import oncemore
import oncemore.telemetry
from oncemore.demo.kfm_rules.gate_scene import register_datasets
from oncemore.demo.kfm_rules.stac_pipeline import PIPELINE, STAGE, poll_stac_api
from oncemore.demo.kfm_rules.stac_server import COLLECTION, RETRY_AFTER, SLOW_DOWN, StacServer
from oncemore.lineage import telemetry_files
from oncemore.lineage.exports import ExportOptions, write_telemetry
from oncemore.lineage.history import AttemptHistory, RunHistory, sum_measured
from oncemore.lineage.telemetry_files import ENERGY, FOCUS, PATTERNS
from oncemore.log.record import RunRecord
from oncemore.profiles.kfm.loop import TransientError, retry_loop
from oncemore.queries.run_histories import HistoryFilter, read_histories
from oncemore.queries.stores import open_read_only
from oncemore.telemetry.energy import build_snapshot
from oncemore.telemetry.records import SCHEMAS as SCHEMA_NAMES
from oncemore.testing import instant_waits
from tests.lineage.in_process import run_here

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMAS = Path(oncemore.telemetry.__file__).parent / "schemas"
RELEASE = "v10.3.1"
TEN_FIELDS = {
    *("pipeline_id", "stage_name", "attempt", "delay_ms", "error_class", "retryable", "outcome"),
    *("circuit_open", "energy_wh", "co2_g"),
}


def load_schema(name: str) -> Any:
    return json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))


def make_validator(name: str) -> Any:
    """Return the validator of a file; its schema refers to those of the records, which ship beside it."""
    schemas = [json.loads(path.read_text(encoding="utf-8")) for path in SCHEMAS.glob("*.json")]
    registry = Registry().with_resources((each["$id"], Resource.from_contents(each)) for each in schemas)
    return jsonschema.Draft202012Validator(load_schema(name), registry=registry)


def check_file(path: Path) -> dict[str, Any]:
    """Return a telemetry file after validating it by its published schema."""
    document = json.loads(path.read_text(encoding="utf-8"))
    make_validator(document["schema"]).validate(document)
    ids = [
        (section, record["record_id"])
        for section in ("records", "operations", "energy", "carbon")
        for record in document.get(section, ())
    ]
    assert len(ids) == len(set(ids)), "a record is in a section once"
    return document  # type: ignore[no-any-return]


def export(histories: Iterable[RunHistory], root: Path, **options: Any) -> dict[str, dict[str, Any]]:
    report = write_telemetry(histories, root, RELEASE, ExportOptions(**options))
    return {name: check_file(Path(path)) for name, path in report.paths.items()}


def read_log(path: Path) -> list[RunHistory]:
    with open_read_only(str(path)) as store:
        return list(read_histories(store, HistoryFilter()))


class Report:
    """A node of the retry loop that fails once."""

    node_id = "report"
    calls = 0

    def preflight_checkpoint(self, run: Any, key: str) -> Any:
        return None

    def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise TransientError("warehouse busy")
        return {"rows": 3}


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """A store with work of both documents: the rules, and the loop."""
    path = tmp_path / "both.db"
    with oncemore.open(path) as engine, instant_waits(), StacServer() as server:
        register_datasets(engine)
        server.queue_faults(SLOW_DOWN, RETRY_AFTER)
        poll_stac_api(server.url, "2026-10-01", COLLECTION)
        retry_loop(Report(), {"month": "2026-10"}, {"partition": "date=2026-10"})
    return path


@pytest.mark.req("TELEM-1", "TELEM-3")
def test_two_soft_failures_of_a_real_server_give_the_records_of_the_rules(both: Path, tmp_path: Path) -> None:
    focus = export(read_log(both), tmp_path)[FOCUS]
    records = sorted(focus["records"], key=lambda record: record["attempt"])
    assert [record["attempt"] for record in records] == [1, 2, 3]
    assert all(record.keys() >= TEN_FIELDS for record in records)
    assert [record["error_class"] for record in records] == ["HTTP_503", "HTTP_503", None]
    assert [record["retryable"] for record in records] == [True, True, False]
    assert [record["outcome"] for record in records] == ["failure", "failure", "success"]
    assert records[1]["delay_ms"] >= 2000, "the server has asked for two seconds"
    assert records[2]["delay_ms"] == 0
    assert {record["pipeline_id"] for record in records} == {PIPELINE}
    (operation,) = focus["operations"]
    expected = {
        "pipeline_id": "etl_stac_ingest_v10.3.1",
        "stage": "poll_stac_api",
        "attempts": 3,
        "retry_policy": "exp_full_jitter",
        "errors": ["HTTP_503", "HTTP_503"],
        "final_status": "success",
        "circuit_open": False,
        "telemetry_ref": f"releases/{RELEASE}/focus-telemetry.json",
    }
    assert {name: operation[name] for name in expected} == expected
    assert {"energy_wh", "co2_g"} <= operation.keys()
    assert operation["stage"] == STAGE


@pytest.mark.req("VER-3")
def test_one_store_has_work_of_both_documents_and_both_files_are_valid(both: Path, tmp_path: Path) -> None:
    files = export(read_log(both), tmp_path)
    assert {record["stage_name"] for record in files[FOCUS]["records"]} == {STAGE}
    patterns = files[PATTERNS]
    assert {record["node_id"] for record in patterns["records"]} == {"report"}
    assert patterns["totals"]["attempts"] == 2
    assert (patterns["totals"]["completed"], patterns["totals"]["failed"]) == (1, 0)
    kinds = {record["kind"] for record in patterns["records"]}
    assert {"INTENT", "COMMIT", "DECISION", "TRANSITION"} <= kinds
    proofs = [record["decision_proof"] for record in patterns["records"] if record["decision_proof"]]
    assert proofs[0]["action"] == "retry"


@pytest.mark.req("TELEM-2")
def test_a_second_export_leaves_the_same_files_and_no_record_twice(both: Path, tmp_path: Path) -> None:
    first = export(read_log(both), tmp_path)
    texts = {name: (tmp_path / "releases" / RELEASE / name).read_bytes() for name in first}
    assert export(read_log(both), tmp_path) == first
    for name, text in texts.items():
        assert (tmp_path / "releases" / RELEASE / name).read_bytes() == text
    shown = run_here(
        "export", "telemetry", "--release", RELEASE, "--store", str(both), "--folder", str(tmp_path)
    )
    assert shown.returncode == 0, shown.stderr
    assert "3 attempts" in shown.stdout
    for name, text in texts.items():
        assert (tmp_path / "releases" / RELEASE / name).read_bytes() == text


def test_two_stores_are_merged_and_pruned_runs_keep_their_records(
    both: Path, histories: list[RunHistory], tmp_path: Path
) -> None:
    first = read_log(both)
    export(first, tmp_path)
    merged = export(histories, tmp_path)
    assert merged[FOCUS]["totals"]["operations"] == 1 + len(histories)
    pruned = [
        history._replace(run=history.run._replace(pruned_at=1.0), pipeline="", attempts=tuple(
            attempt._replace(error=None, telemetry={}) for attempt in history.attempts
        ))
        for history in first
    ]  # fmt: skip
    assert export(pruned, tmp_path) == merged


def measured_run(*energies: float | None, reason: str = "no counter") -> RunHistory:
    """Return a run whose attempts had these energies; the last of them has succeeded."""
    attempts = []
    for number, energy in enumerate(energies, 1):
        is_last = number == len(energies)
        usage = {"cpu_s": 1.0, "energy_kWh": energy, "method": "cpu_time"}
        snapshot = {
            **build_snapshot({"duration_s": 1.0}, ends_attempt=True), **usage,
            "carbon_kgCO2e": None if energy is None else energy / 2,
            "unavailable": {
                **({} if energy is not None else {"energy_kWh": reason, "carbon_kgCO2e": reason}),
                "grid_intensity_g_per_kWh": "no source is configured",
            },
        }  # fmt: skip
        state = "COMPLETE" if is_last else "SOFT_FAIL"
        record = {
            "telemetry_snapshot": snapshot, "decision_proof": None, "state": state, "attempt": number,
            "node_id": "work", "error": None if is_last else {"code": "HTTP_503"},
            "run_id": "r1", "idempotency_key": "k" * 64, "at": number + 0.5,
        }  # fmt: skip
        error = record["error"]
        attempts.append(
            AttemptHistory(
                number, float(number), number + 0.5, state, error=error, telemetry=snapshot, end_record=record
            )
        )
    record = RunRecord(state="COMPLETE", step="work", run_id="r1", policy="standard@1:abc")
    return RunHistory(
        "k" * 64, record, 9.0, started=1.0, ended=9.0, attempts=tuple(attempts), pipeline="survey"
    )


def test_energy_is_exported_in_both_units_and_apart_for_retries(tmp_path: Path) -> None:
    history = measured_run(0.002, 0.003, 0.004)
    totals = export([history], tmp_path)[FOCUS]["totals"]
    assert (totals["energy_wh"], totals["retry_energy_wh"]) == (9.0, 7.0)
    assert (totals["co2_g"], totals["retry_co2_g"]) == (4.5, 3.5)
    sums = sum_measured(history.attempts)
    assert sums.retry_energy_kWh == pytest.approx(0.007)


def test_a_missing_figure_is_null_with_its_reason(tmp_path: Path) -> None:
    focus = export([measured_run(0.002, None, reason="no counter")], tmp_path, conforms_to=("KFM v11",))[
        FOCUS
    ]
    assert focus["conforms_to"] == ["KFM v11"]
    assert focus["totals"]["energy_wh"] is None
    assert focus["totals"]["unmeasured_attempts"] == 1
    (operation,) = focus["operations"]
    assert operation["energy_wh"] is None
    assert operation["unavailable"]["energy_wh"] == "no counter"
    validator = make_validator("focus-telemetry-v1")
    (record,) = (each for each in focus["records"] if each["energy_wh"] is None)
    faults: list[Any] = [{"unavailable": {}}, {"energy_wh": -1}, {"attempt": 0}, {"outcome": "maybe"}]
    for changes in (*faults, {"record_id": 1}):
        broken = {**focus, "records": [{**record, **changes}]}
        assert list(validator.iter_errors(broken)), changes


@pytest.mark.req("TELEM-11")
def test_the_four_schemas_ship_and_validate_the_records_of_the_exports(both: Path, tmp_path: Path) -> None:
    files = export(read_log(both), tmp_path)
    exported = {
        "pipelines-retries-rules-v1": files[FOCUS]["records"],
        "retry-loop-v1": files[PATTERNS]["records"],
        "energy-v2": files[ENERGY]["energy"],
        "carbon-v2": files[ENERGY]["carbon"],
    }
    assert set(exported) == set(SCHEMA_NAMES)
    for name, records in exported.items():
        jsonschema.Draft202012Validator.check_schema(load_schema(name))
        assert len(records) >= 3
        for record in records:
            make_validator(name).validate(record)
            # Each required field is asked for: the schema is not one that accepts everything.
            for field in load_schema(name)["required"]:
                broken = {key: value for key, value in record.items() if key != field}
                assert not make_validator(name).is_valid(broken), (name, field)
    # Both runs are there, with all five attempts, and the figures agree with those of the other files.
    assert {record["node_id"] for record in files[ENERGY]["energy"]} == {STAGE, "report"}
    totals = files[ENERGY]["totals"]
    assert (totals["attempts"], totals["unmeasured_attempts"]) == (5, 0)
    polled = sum(each["energy_kWh"] for each in files[ENERGY]["energy"] if each["node_id"] == STAGE)
    assert polled == pytest.approx(files[FOCUS]["operations"][0]["energy_wh"] / 1000)
    assert {record["method"] for record in files[ENERGY]["carbon"]} <= {"cpu_time", "rapl"}


@pytest.mark.parametrize("name", ["focus-telemetry-v1", "patterns-telemetry-v1", "energy-telemetry-v1"])
def test_the_schemas_are_json_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(load_schema(name))
    assert load_schema(name)["title"] == name


def test_an_attempt_that_still_runs_has_no_record_yet(tmp_path: Path) -> None:
    history = measured_run(0.1)
    running = history._replace(attempts=(AttemptHistory(1, 1.0),), ended=None)
    assert export([running], tmp_path)[FOCUS]["totals"]["attempts"] == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "is not a telemetry file"),
        ('{"schema": "focus-telemetry-v1", "release": "v9"}', "belongs to release 'v9'"),
        (
            '{"schema": "focus-telemetry-v1", "release": "v10.3.1", "records": [{}]}',
            r"records\[0\] has no record_id",
        ),
    ],
)
def test_a_file_that_is_not_ours_is_refused_and_stays(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "releases" / RELEASE / FOCUS
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(oncemore.UsageError, match=message):
        export([measured_run(0.1)], tmp_path)
    assert path.read_text() == content
    assert [each.name for each in path.parent.iterdir()] == [FOCUS]


@pytest.mark.parametrize("release", ["", "..", "a/b", "v 1", "x" * 101])
def test_a_release_is_one_folder(tmp_path: Path, release: str) -> None:
    with pytest.raises(oncemore.UsageError, match="release is"):
        write_telemetry([], tmp_path, release, ExportOptions())


@pytest.mark.parametrize(
    ("policy", "is_loop"),
    [
        ("kfm-loop@retry-loop-v11.2:ab", True),
        ("nightly@retry-loop-v12:ab", True),
        ("exp_full_jitter@retry-loop-v10.3:ab", False),
        ("standard@1:ab", False),
        ("", False),
    ],
)
def test_runs_of_the_loop_are_known_by_the_version_of_their_policy(policy: str, is_loop: bool) -> None:
    history = RunHistory("k", RunRecord(policy=policy), 1.0)
    assert telemetry_files.is_loop_run(history) is is_loop
