"""`nova-cat` with real files from a real server: fetched, checked, skipped, released and recorded."""

from __future__ import annotations

import json
import logging
from hashlib import sha256
from http.client import IncompleteRead
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

import oncemore
from oncemore.demo.archive_server import ArchiveServer, image, make_broken_files, make_search, table
from oncemore.errors import MissingExtra, UsageError
from oncemore.log.store import HeadQuery
from oncemore.outbox import JsonLinesSink as Lines
from oncemore.outbox import OutboxRelay
from oncemore.profiles.nova_cat import (
    InvalidInput,
    JsonLogFormatter,
    NovaCat,
    QuarantineError,
    RetryableError,
    TerminalError,
    UnusableData,
    download,
    events,
    fits,
    names,
    validate,
)
from oncemore.testing import FakeClock
from tests.fixtures import _isolated
from tests.test_docs import run_page

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["_isolated"]

ROOT = Path(__file__).resolve().parents[2]
NOVA = str(uuid4())


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with FakeClock() as clock:
        yield clock


@pytest.fixture
def engine(tmp_path: Path, clock: FakeClock) -> Iterator[oncemore.Engine]:
    with oncemore.open(tmp_path / "log.db") as engine:
        yield engine


@pytest.fixture
def archive() -> Iterator[ArchiveServer]:
    with ArchiveServer() as archive:
        yield archive


def product(locator: str, **more: Any) -> dict[str, Any]:
    told = {
        "schema_version": "1", "data_product_id": str(uuid4()), "nova_id": NOVA, "provider": "A",
        "locator": locator, "provenance": "test archive",
    }  # fmt: skip
    return {**told, **more}


# Acquisition: the worked example of section 5.4 --------------------------------------------------------


@pytest.mark.req("SCEN-8", "COOL-3", "COOL-11", "COOL-13", "CONC-4")
def test_the_worked_example(
    engine: oncemore.Engine, archive: ArchiveServer, clock: FakeClock, tmp_path: Path
) -> None:
    good = image()
    where = archive.put("/v1369.fits", good, "429", "429", "429", "429", "200")
    given, cat = product(where, sha256=sha256(good).hexdigest()), NovaCat()
    began = engine.now()
    first = cat.acquire(given)
    assert (first.outcome, first.error_class, first.reason) == ("RETRYABLE_FAILURE", "RETRYABLE", "HTTP_429")
    assert [round(attempt.began - began) for attempt in first.attempts] == [0, 10, 70, 250]
    assert archive.count("/v1369.fits") == 4
    record = first.product
    assert record is not None
    assert record[2:5] == ("FAILED", "UNVALIDATED", 1), "design §7: FAILED, there are no bytes"
    assert record.next_eligible_attempt_at - record.last_attempt_at == 300.0
    assert first.job.providers["A"].errors == {"THROTTLED": 4}
    assert first.job.providers["A"].cooldown == record.next_eligible_attempt_at
    again = cat.acquire(given)
    assert (again.outcome, again.succeeded, again.attempts) == ("SKIPPED_BACKOFF", True, ())
    assert again.product == record
    clock.advance(300.0)
    third = cat.acquire(given)
    assert (third.outcome, archive.count("/v1369.fits")) == ("SUCCESS", 5)
    assert third.product[2:5] == ("ACQUIRED", "VALID", 2)  # type: ignore[index]
    assert third.product.last_successful_fingerprint == f"sha256:{given['sha256']}"  # type: ignore[union-attr]
    assert third.value[0]["artifact"].read() == good
    assert cat.acquire(given).outcome == "SKIPPED_DUPLICATE"
    assert cat.acquire({**given, "provenance": "told anew"}).outcome == "SKIPPED_DUPLICATE"
    assert archive.count("/v1369.fits") == 5
    listed = {one.job.job_id: one for one in cat.executions()}
    for made in (first, again, third):
        stored = listed[made.job.job_id]
        assert stored[:4] == made[:4]
        assert stored.correlation_id == made.correlation_id
        assert stored.job.providers == made.job.providers
    assert [attempt.number for attempt in listed[first.job.job_id].job.runs[0].attempts] == [5]  # type: ignore[union-attr]
    out = tmp_path / "events.jsonl"
    assert OutboxRelay(engine, {"*": Lines(out)}).run_once().delivered == 1
    (event,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert event["payload"]["correlation_id"] == event["correlation_id"] == third.correlation_id
    keys = [head.entity.removeprefix("run/") for head in engine.store.list_heads(HeadQuery("run"))]
    assert not [key for key in keys if key in out.read_text()]


@pytest.mark.req("COOL-12", "CLASS-7")
def test_a_file_broken_in_each_way_is_quarantined_with_its_own_reason(
    engine: oncemore.Engine, archive: ArchiveServer
) -> None:
    cat, files = NovaCat(), make_broken_files()
    for reason, data in files.items():
        path = f"/{reason}.fits"
        made = cat.acquire(given := product(archive.put(path, data)))
        assert (made.outcome, made.error_class, made.reason) == ("QUARANTINE", "QUARANTINE", reason)
        assert made.product[2:5] == ("ACQUIRED", "QUARANTINED", 1)  # type: ignore[index]
        assert cat.acquire(given).outcome == "SKIPPED_QUARANTINED"
        assert archive.count(path) == 1
    assert {item.error["code"] for item in engine.quarantine} == set(files)
    assert set(files) | {names.CHECKSUM_MISMATCH} == {
        *names.INTEGRITY_REASONS, *names.FORMAT_REASONS, *names.DOMAIN_REASONS,
    }  # fmt: skip
    kept = {one.read() for one in engine.artifacts.list()}
    assert kept == set(files.values()), "the bytes are there for whoever looks"
    assert cat.acquire(product(archive.put("/good.fits", table()))).outcome == "SUCCESS"


@pytest.mark.req("CLASS-8", "COOL-10")
def test_bytes_with_another_digest_are_quarantined_and_fetched_after_a_release(
    engine: oncemore.Engine, archive: ArchiveServer
) -> None:
    good, cat = image(), NovaCat()
    given = product(archive.put("/x.fits", good), sha256="0" * 64)
    made = cat.acquire(given)
    assert (made.outcome, made.reason, archive.count("/x.fits")) == ("QUARANTINE", "CHECKSUM_MISMATCH", 1)
    (item,) = engine.quarantine
    assert item.reason == "checksum_mismatch"
    assert cat.acquire(given).outcome == "SKIPPED_QUARANTINED"
    engine.cooldowns.release(given["data_product_id"], reason="the catalogue was wrong", by="a curator")
    assert len(engine.quarantine) == 0
    assert cat.acquire({**given, "sha256": sha256(good).hexdigest()}).outcome == "SUCCESS"
    assert archive.count("/x.fits") == 2


@pytest.mark.req("CLASS-6", "CLASS-5")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema_version": "9"}, "UNSUPPORTED_SCHEMA_VERSION"),
        ({"schema_version": None}, "UNSUPPORTED_SCHEMA_VERSION"),
        ({"data_product_id": "7f0c"}, "INVALID_UUID"),
        ({"data_product_id": None}, "INVALID_UUID"),
        ({"data_product_id": 7}, "INVALID_UUID"),
        ({"nova_id": "V1369 Cen"}, "INVALID_UUID"),
        ({"locator": None}, "INVALID_FIELD"),
        ({"locator": "ftp://archive/x.fits"}, "INVALID_FIELD"),
        ({"provenance": ""}, "INVALID_FIELD"),
        ({"provider": ["A"] * 500}, "INVALID_FIELD"),
        ({"sha256": "abc"}, "INVALID_FIELD"),
    ],
)
def test_a_malformed_input_is_terminal_without_a_request(
    engine: oncemore.Engine, archive: ArchiveServer, change: dict[str, Any], reason: str
) -> None:
    cat = NovaCat()
    made = cat.acquire({**product(archive.put("/x.fits", image())), **change})
    assert (made.outcome, made.error_class, made.reason) == ("TERMINAL_FAILURE", "TERMINAL", reason)
    assert (archive.asked, len(engine.quarantine)) == ([], 0)
    assert made.job.items[0].result == "TERMINAL_FAILURE"


@pytest.mark.req("CLASS-5", "CONC-4")
@pytest.mark.parametrize("turn", ["429", "503", "500", "408", "cut"])
def test_a_transient_failure_is_tried_again(
    engine: oncemore.Engine, archive: ArchiveServer, turn: str
) -> None:
    made = NovaCat().acquire(product(archive.put("/x.fits", image(), turn, "200")))
    assert (made.outcome, archive.count("/x.fits"), len(made.attempts)) == ("SUCCESS", 2, 2)
    assert made.product.attempt_count_total == 1  # type: ignore[union-attr]


def test_a_stalled_server_is_asked_again(engine: oncemore.Engine, archive: ArchiveServer) -> None:
    made = NovaCat(fetch=lambda locator: download(locator, 0.2)).acquire(
        product(archive.put("/x.fits", image(), "stall", "200"))
    )
    assert (made.outcome, [one.error["code"] for one in made.attempts if one.error]) == (
        "SUCCESS", ["TIMEOUT_READ"],
    )  # fmt: skip


def test_a_404_is_terminal_and_retry_after_is_obeyed(
    engine: oncemore.Engine, archive: ArchiveServer, clock: FakeClock
) -> None:
    cat = NovaCat()
    gone = cat.acquire(given := product(f"{archive.url}/nowhere.fits"))
    assert (gone.outcome, gone.reason) == ("TERMINAL_FAILURE", "HTTP_404")
    assert cat.acquire(given).outcome == "SKIPPED_TERMINAL"
    asks = cat.acquire(product(archive.put("/busy.fits", image(), "429,7200")))
    assert (asks.outcome, archive.count("/busy.fits")) == ("RETRYABLE_FAILURE", 1)
    record = asks.product
    assert record is not None
    assert record.next_eligible_attempt_at - record.last_attempt_at == pytest.approx(7200.0, abs=1.0)


def test_a_file_that_is_too_large_is_terminal(
    engine: oncemore.Engine, archive: ArchiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncemore.profiles.nova_cat.fits.MAX_BYTES", 1000)
    made = NovaCat().acquire(product(archive.put("/x.fits", image())))
    assert (made.outcome, made.reason) == ("TERMINAL_FAILURE", "INVALID_FIELD")


def test_a_short_response_is_retryable(archive: ArchiveServer) -> None:
    where = archive.put("/x.fits", image(), "cut")
    with pytest.raises(IncompleteRead):
        download(where)


@pytest.mark.req("TIME-4")
def test_an_attempt_has_fifteen_minutes(engine: oncemore.Engine, clock: FakeClock) -> None:
    left: list[float | None] = []

    def fetch(locator: str) -> bytes:
        left.append(oncemore.time_remaining())
        return image()

    assert NovaCat(fetch=fetch).acquire(product("http://a/x")).outcome == "SUCCESS"
    assert left[0] == pytest.approx(900.0, abs=5.0)


# Discovery and references -----------------------------------------------------------------------------


def records(archive: ArchiveServer, count: int = 2, **change: Any) -> bytes:
    rows = [
        {"native_id": f"n{at}", "locator": f"{archive.url}/{at}.fits", "provenance": "archive", **change}
        for at in range(count)
    ]
    return json.dumps(rows).encode()


@pytest.mark.req("CONC-2", "CONC-3", "CONC-7", "IDEM-13")
def test_providers_are_asked_one_after_another_and_once_an_hour(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    with ArchiveServer(hold_s=0.02) as archive:
        turns = {"A": ("200",), "B": ("429", "200"), "C": ("200",)}
        providers = {
            name: make_search(archive.put(f"/{name}", records(archive), *turn))
            for name, turn in turns.items()
        }
        cat = NovaCat(providers=providers)
        given = {"schema_version": "1", "nova_id": NOVA}
        made = cat.discover(given)
        assert (made.outcome, archive.peak) == ("SUCCESS", 1)
        assert [len(found) for found in made.value] == [2, 2, 2]
        assert made.job.providers["B"].errors == {"THROTTLED": 1}
        assert made.job.providers["B"].last_error["code"] == "HTTP_429"  # type: ignore[index]
        assert made.job.providers["A"].errors == made.job.providers["C"].errors == {}
        asked = len(archive.asked)
        assert cat.discover(given).value == made.value
        assert len(archive.asked) == asked, "the answer of this hour is there"
        clock.advance(3600.0)
        later = cat.discover(given)
        assert len(archive.asked) == asked + 3
        assert [[one["data_product_id"] for one in found] for found in later.value] == [
            [one["data_product_id"] for one in found] for found in made.value
        ], "the same product has the same id"
    topics = [head.by.step for head in engine.store.list_heads(HeadQuery("event"))]
    assert topics == [events.DISCOVERED] * 6, "each is told of once, however often it is found"


@pytest.mark.req("CONC-2")
@pytest.mark.parametrize(("told", "peak"), [({}, 5), ({"max_concurrency": 3}, 3)])
def test_references_are_reconciled_up_to_the_limit_at_a_time(
    engine: oncemore.Engine, told: dict[str, Any], peak: int
) -> None:
    with ArchiveServer(hold_s=0.06) as archive:
        where = archive.put("/reference", b'{"title": "Spectra of V1369 Cen"}')
        cat = NovaCat(resolve=lambda one: json.loads(download(f"{where}?id={one}")), **told)
        given = {"schema_version": "1", "nova_id": NOVA, "references": [str(uuid4()) for _ in range(15)]}
        made = cat.reconcile(given)
        assert (made.outcome, made.job.counts["done"], archive.peak) == ("SUCCESS", 15, peak)
        assert cat.reconcile(given).outcome == "SUCCESS"
        assert len(archive.asked) == 15
    topics = [head.by.step for head in engine.store.list_heads(HeadQuery("event"))]
    assert topics == [events.LINKED] * 15


@pytest.mark.req("CONC-2", "COOL-11")
def test_an_acquisition_sends_one_request_at_a_time(engine: oncemore.Engine) -> None:
    with ArchiveServer(hold_s=0.02) as archive:
        made = NovaCat().acquire(product(archive.put("/x.fits", image(), "503", "503", "200")))
        assert (made.outcome, archive.peak, len(made.job.items)) == ("SUCCESS", 1, 1)


@pytest.mark.parametrize(
    ("found", "outcome", "reason"),
    [
        ([{"title": "a"}, {"title": "b"}], "QUARANTINE", "AMBIGUOUS_NAME"),
        ([], "QUARANTINE", "AMBIGUOUS_NAME"),
        ("text", "QUARANTINE", "MALFORMED_PROVIDER_RECORD"),
        ({"object_type": "dwarf nova"}, "TERMINAL_FAILURE", "NOT_A_CLASSICAL_NOVA"),
    ],
)
@pytest.mark.req("CLASS-7", "CLASS-6")
def test_a_resolved_reference_is_linked_quarantined_or_terminal(
    engine: oncemore.Engine, found: Any, outcome: str, reason: str
) -> None:
    made = NovaCat(resolve=lambda one: found).reconcile(
        {"schema_version": "1", "nova_id": NOVA, "references": [str(uuid4())]}
    )
    assert (made.outcome, made.reason) == (outcome, reason)


def test_reconciliation_needs_ids_and_a_resolve_function(engine: oncemore.Engine) -> None:
    given = {"schema_version": "1", "nova_id": NOVA, "references": ["2014ApJ"]}
    assert NovaCat(resolve=dict).reconcile(given).reason == "INVALID_UUID"
    given = {**given, "references": [str(uuid4())]}
    assert "NovaCat(resolve=…) is missing" in NovaCat().reconcile(given).message
    assert NovaCat().reconcile({"schema_version": "1", "nova_id": NOVA}).outcome == "SUCCESS"
    assert NovaCat().discover({"schema_version": "1", "nova_id": NOVA, "providers": ["X"]}).reason == (
        "INVALID_FIELD"
    )


@pytest.mark.parametrize(
    "rows",
    [
        [7],
        [{"native_id": "", "locator": "x", "provenance": "x"}],
        [{"native_id": "n", "locator": "x", "provenance": "x", "sha256": "short"}],
        [
            {"native_id": "n", "locator": "x", "provenance": "x"},
            {"native_id": "n", "locator": "y", "provenance": "x"},
        ],
    ],
)
def test_a_malformed_provider_record_is_quarantined(engine: oncemore.Engine, rows: list[Any]) -> None:
    made = NovaCat(providers={"A": lambda nova_id: rows}).discover({"schema_version": "1", "nova_id": NOVA})
    assert (made.outcome, made.reason) == ("QUARANTINE", "MALFORMED_PROVIDER_RECORD")


# What is on record --------------------------------------------------------------------------------------


@pytest.mark.req("CORR-1", "CORR-2", "CORR-3")
@pytest.mark.parametrize("given_id", ["c-1369", None, 7])
def test_one_correlation_id_is_in_every_record(
    engine: oncemore.Engine,
    archive: ArchiveServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    given_id: Any,
) -> None:
    caplog.set_level(logging.INFO, "oncemore.nova_cat")
    caplog.handler.setFormatter(JsonLogFormatter())
    made = NovaCat().acquire(product(archive.put("/x.fits", image(), "503", "200"), correlation_id=given_id))
    assert made.outcome == "SUCCESS"
    assert made.correlation_id == given_id or (given_id != "c-1369" and len(made.correlation_id) == 36)
    out = tmp_path / "events.jsonl"
    OutboxRelay(engine, {"*": Lines(out)}).run_once()
    event = json.loads(out.read_text())
    lines = [json.loads(line) for line in caplog.text.splitlines() if '"workflow"' in line]
    assert [line["message"].partition(": ")[2][:6] for line in lines] == [
        "began", "try", "failed", "try", "SUCCES",
    ]  # fmt: skip
    found = {
        event["correlation_id"], event["payload"]["correlation_id"], made.job.correlation_id,
        *(attempt.correlation_id for run in made.job.runs if run for attempt in run.attempts),
        *(line["correlation_id"] for line in lines),
        *(one.correlation_id for one in engine.jobs()),
    }  # fmt: skip
    assert found == {made.correlation_id}


@pytest.mark.req("CORR-5")
def test_a_generated_correlation_id_is_not_part_of_a_key(
    engine: oncemore.Engine, archive: ArchiveServer
) -> None:
    given, cat = product(archive.put("/x.fits", image())), NovaCat()
    first, second = cat.acquire(given), cat.acquire(given)
    assert first.correlation_id != second.correlation_id
    assert first.job.items[0].key == second.job.items[0].key
    assert archive.count("/x.fits") == 1


@pytest.mark.req("MSG-7", "IDEM-15")
def test_every_event_fits_its_schema_with_the_id_and_without_a_key(
    engine: oncemore.Engine, archive: ArchiveServer, tmp_path: Path
) -> None:
    reference = str(uuid4())
    cat = NovaCat(
        providers={"A": make_search(archive.put("/A", records(archive, 1)))},
        resolve=lambda one: {"title": "x"},
    )
    archive.put("/0.fits", image())
    ((found,),) = cat.discover({"schema_version": "1", "nova_id": NOVA}).value
    assert cat.acquire(found).outcome == "SUCCESS"
    cat.reconcile({"schema_version": "1", "nova_id": NOVA, "references": [reference]})
    out = tmp_path / "events.jsonl"
    OutboxRelay(engine, {"*": Lines(out)}).run_once()
    sent = [json.loads(line) for line in out.read_text().splitlines()]
    assert {one["topic"] for one in sent} == set(events.SCHEMAS)
    for one in sent:
        schema = events.SCHEMAS[one["topic"]]
        assert set(one["payload"]) == set(schema["required"]) == set(schema["properties"])
        assert schema["additionalProperties"] is False
    for schema in events.SCHEMAS.values():
        assert "correlation_id" in schema["required"]
        assert not [name for name in schema["properties"] if "key" in name]
    keys = [head.entity.removeprefix("run/") for head in engine.store.list_heads(HeadQuery("run"))]
    assert len(keys) >= 6
    assert not [key for key in keys if key in out.read_text()]


@pytest.mark.req("IDEM-14")
def test_each_of_the_four_keyed_steps_leaves_one_effect(
    engine: oncemore.Engine, archive: ArchiveServer
) -> None:
    cat, reference = NovaCat(resolve=lambda one: {"title": "x"}), str(uuid4())
    record = {"native_id": "n", "locator": "http://a/x", "provenance": "p", "sha256": None}
    given = product(archive.put("/x.fits", image()))
    fields = tuple(given.get(name) for name in ("data_product_id", "nova_id", "provider", "locator",
                                                "provenance", "sha256", "schema_version"))  # fmt: skip
    for _ in range(2):
        cat.identity_assignment("A", NOVA, record)
        cat.acquire_artifact(*fields)
        cat.validation_result(given["data_product_id"], {"points": 1})
        cat.linking(NOVA, reference, {"title": "x"})
    assert archive.count("/x.fits") == 1
    assert len(list(engine.store.list_heads(HeadQuery("event")))) == 3
    assert len(engine.artifacts.list()) == 1
    assert {step.name.rpartition(".")[2] for step in cat.steps} >= set(names.STEP_KEYS)


def test_a_worker_knows_its_steps(engine: oncemore.Engine, archive: ArchiveServer) -> None:
    cat, given = NovaCat(engine=engine), product(archive.put("/x.fits", image()))
    fields = [given.get(name) for name in ("data_product_id", "nova_id", "provider", "locator",
                                           "provenance", "sha256", "schema_version")]  # fmt: skip
    cat.acquire_artifact.submit(*fields)
    assert oncemore.Worker(engine, cat.steps).run_until_idle().done == 1
    assert engine.cooldowns.check(given["data_product_id"]) == "SKIPPED_DUPLICATE"


# Names and numbers ----------------------------------------------------------------------------------------


def test_errors_have_the_names_of_the_state_machine() -> None:
    assert [kind.__name__ for kind in (RetryableError, TerminalError, QuarantineError)] == list(
        names.ERROR_NAMES.values()
    )
    assert issubclass(InvalidInput, TerminalError)
    assert issubclass(UnusableData, QuarantineError)
    for kind, code, says in ((InvalidInput, "OTHER", "the reasons are"), (UnusableData, "X", "reasons")):
        with pytest.raises(UsageError, match=says):
            kind(code)
    import pickle

    made = pickle.loads(pickle.dumps(InvalidInput("INVALID_UUID", "no")))  # noqa: S301
    assert (made.code, str(made)) == ("INVALID_UUID", "no")


@pytest.mark.req("COOL-7")
def test_a_profile_that_extends_it_has_its_own_numbers(
    tmp_path: Path, archive: ArchiveServer, clock: FakeClock, engine: oncemore.Engine
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        'profile: mine\nversion: "1"\nextends: nova-cat\nproviders: {A: {cooldown: {base_s: 900}}}\n'
    )
    made = NovaCat(profile=str(path)).acquire(product(archive.put("/x.fits", image(), "429")))
    record = made.product
    assert record is not None
    assert record.next_eligible_attempt_at - record.last_attempt_at == 900.0


def test_spectra_in_both_layouts_are_read() -> None:
    good = image()
    found = validate(good, sha256(good).hexdigest().upper())
    assert (found.profile, found.points, found.first_nm, found.last_nm) == ("image-1d", 2000, 400.0, 499.95)
    assert validate(image((4000.0, 1.0), CUNIT1=None, checksum=False, CRPIX1=2.0)).first_nm == 399.9
    assert validate(table())[:4] == ("table", 100, 400.0, 409.9)
    garbled = good.replace(b"BITPIX  =                  -32", b"BITPIX  =                  -33")
    assert garbled != good
    for data in (b"", b"<html>no such file</html>", table(names=("X", "FLUX")), image(CUNIT1="furlong"),
                 image(CTYPE1="FREQ"), table(waves=[4000.0]), table(unit="furlong"), garbled):  # fmt: skip
        with pytest.raises(UnusableData):
            validate(data)


def test_without_astropy_the_extra_is_named_before_any_request(
    engine: oncemore.Engine, archive: ArchiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = archive.put("/x.fits", image())
    monkeypatch.setitem(__import__("sys").modules, "astropy.io", None)
    with pytest.raises(MissingExtra, match=r"pip install 'oncemore\[fits\]'"):
        NovaCat().acquire(product(where))
    assert archive.asked == []
    assert fits.PROFILES


def test_the_code_on_the_page_runs() -> None:
    run_page("nova-cat.md", (ROOT / "docs/reference/nova-cat.md").read_text(encoding="utf-8"))
