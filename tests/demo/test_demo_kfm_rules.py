"""`oncemore demo kfm-rules`: the server's log has the numbers of the document."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import oncemore
from oncemore.demo.kfm_rules import gate_scene, kfm_rules_demo, ledger_scene, scenes
from oncemore.demo.kfm_rules.demo_output import DemoOutput
from oncemore.demo.kfm_rules.scenes import KfmRulesDemo, read_time
from oncemore.demo.kfm_rules.stac_pipeline import check_item, read_json
from oncemore.demo.kfm_rules.stac_server import (
    COLLECTION,
    DOWN,
    RETRY_AFTER,
    SLOW_DOWN,
    StacServer,
    make_item,
)
from oncemore.demo.terminal import LiveTerminal
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[KfmRulesDemo]:
    with (
        StacServer(read_time) as server,
        FakeClock(wall=time.time()),
        oncemore.open(tmp_path / "log.db") as engine,
    ):
        gate_scene.register_datasets(engine)
        demo = KfmRulesDemo(engine, server, DemoOutput(LiveTerminal(io.StringIO(), plain=True)), tmp_path)
        with oncemore.on_event(demo.show_event):
            yield demo


def test_the_command_plays_every_scene() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-m", "oncemore", "demo", "kfm-rules"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    output = " ".join(run.stdout.split())
    for part in (
        "poll_stac_api attempt 1/5 HTTP_503 SlowDown retryable next in 0.",
        "poll_stac_api attempt 2/5 HTTP_503 Retry-After: 2 retryable next in 2.000 s (provider asked 2 s; ",
        "poll_stac_api attempt 3/5 200, 12 items success",
        '{"pipeline_id": "etl_stac_ingest_v10.3.1", "stage": "poll_stac_api", "attempts": 3, "retry_policy": '
        '"exp_full_jitter", "errors": ["HTTP_503", "HTTP_503"], "final_status": "success", '
        '"circuit_open": false, ',
        "provider stac.local breaker OPEN after 3 failed operations, half-open at ",
        "refused: circuit open (0 requests sent)",
        'item kfm-0007 QUARANTINED SCHEMA_INVALID attempts 1 care "Public · Low-Risk"',
        'dataset kfm-heritage-sites now "Restricted · Council only", by data steward',
        "attempt 2/5 not made: dataset kfm-heritage-sites is restricted and permits no operation",
        "CARE_ESCALATION OPEN for the FAIR+CARE Council: attempts 1, HTTP_503, GOVERNANCE_VIOLATION",
        "the breaker in the ledger: OPEN, HALF_OPEN, OPEN, HALF_OPEN, CLOSED",
        "record checks: 8 runs, 43 entries, 0 findings",
        "an export verifies with the public key alone",
        "was altered: its hash does not fit",
        "Every scene held, and the server's log agrees.",
    ):
        assert part in output, part
    assert max(map(len, run.stdout.splitlines())) <= 80


def test_a_wait_is_never_shorter_than_the_provider_asks(demo: KfmRulesDemo) -> None:
    demo.play_soft_failures()
    log = demo.server.requests
    assert [request.status for request in log] == [503, 503, 200]
    assert log[2].at - log[1].at >= 2.0
    assert demo.output.faults == []


def test_the_outage_makes_the_requests_of_the_document(demo: KfmRulesDemo) -> None:
    demo.play_outage()
    days = [demo.server.requests_for(day) for day in scenes.OUTAGE_DAYS]
    # The third poll: its own first call, the probe that fails, and the one that succeeds.
    assert [len(requests) for requests in days] == [5, 5, 3, 1]
    opened, failed_probe, probe = days[2]
    assert failed_probe.at - opened.at >= 300
    assert probe.at - failed_probe.at >= 300
    assert [request.status for request in (opened, failed_probe, probe, days[3][0])] == [503, 503, 200, 200]
    # Between the first call of the third poll and the end of the cooldown, there is no request of any poll.
    assert [one for one in demo.server.requests if opened.at < one.at < opened.at + 300] == []
    assert demo.output.faults == []


def test_bad_data_is_requested_once_and_halts_the_pipeline(demo: KfmRulesDemo) -> None:
    demo.play_bad_data()
    assert len(demo.server.requests_for_item(scenes.BAD_ITEM)) == 1
    assert [(item.error["code"], item.attempts) for item in demo.engine.quarantine] == [("SCHEMA_INVALID", 1)]
    actions = [(entry.action, entry.by) for entry in demo.engine.switches.history()]
    assert [action for action, _ in actions] == ["on", "off"]
    assert actions[1][1] == scenes.OPERATOR


def test_a_dataset_that_is_restricted_during_a_delay_gets_no_second_request(demo: KfmRulesDemo) -> None:
    gate_scene.play_gate(demo)
    assert [request.status for request in demo.server.requests_for(gate_scene.GATE_DAY)] == [503]
    (escalation,) = demo.engine.escalations
    assert (escalation.role, escalation.state) == ("FAIR+CARE Council", "OPEN")
    assert escalation.care_label == gate_scene.RESTRICTED_LABEL
    assert demo.output.faults == []


def test_both_ledgers_hold_what_happened(demo: KfmRulesDemo) -> None:
    demo.play_outage()
    demo.play_bad_data()
    ledger_scene.play_ledgers(demo)
    ledgers = ledger_scene.read_ledgers(demo)
    outcomes = [entry["outcome"] for entry in ledgers["pipeline_retry_log"]]
    assert outcomes == ["exhausted", "exhausted", "success", "success", "quarantined"]
    (quarantine,) = (entry for entry in ledgers["versioning_ledger"] if entry["kind"] == "quarantine")
    for entry in (ledgers["pipeline_retry_log"][-1], quarantine):
        assert (entry["attempts"], entry["error_classes"]) == (1, ["SCHEMA_INVALID"])
        assert (entry["dataset_ids"], entry["care_labels"]) == ([COLLECTION], [gate_scene.PUBLIC_LABEL])
    assert demo.output.faults == []


def test_ledgers_without_the_outage_are_noticed(demo: KfmRulesDemo) -> None:
    ledger_scene.play_ledgers(demo)
    assert demo.output.faults == [
        "entries about the bad item in pipeline_retry_log: 0, and not 1",
        "entries about the bad item in versioning_ledger: 0, and not 1",
        f"breaker in the ledger: [], and not {ledger_scene.BREAKER_STATES}",
    ]


def test_without_cryptography_the_extra_is_named(demo: KfmRulesDemo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    ledger_scene.sign_log(demo)
    assert "oncemore[sign]" in demo.output.terminal._out.getvalue()  # type: ignore[attr-defined]


def test_the_folder_is_kept_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kfm_rules_demo, "SCENES", (("A scene", "It writes.", ledger_scene.read_ledgers),))
    out = io.StringIO()
    assert kfm_rules_demo.main(out, plain=True, keep=True, real_time=True) == 0
    folder = Path(out.getvalue().partition("The log and the ledgers:  ")[2].splitlines()[0])
    assert (folder / "docs/reports/audit/pipeline_retry_log.json").exists()
    shutil.rmtree(folder)


def test_a_difference_ends_with_exit_code_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def poll_too_often(demo: KfmRulesDemo) -> None:
        _, sent = demo.poll(scenes.SOFT_DAY)
        demo.output.count("a poll", sent, 0)

    monkeypatch.setattr(kfm_rules_demo, "SCENES", (("A scene", "It sends too much.", poll_too_often),))
    out = io.StringIO()
    assert kfm_rules_demo.main(out, plain=True, real_time=True) == 1
    assert "Unexpected: requests, a poll: 1, and not 0." in out.getvalue()
    assert "the rules say 0" in out.getvalue()


def test_scenes_notice_what_did_not_happen(demo: KfmRulesDemo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo.server, "queue_faults", lambda *_: None)  # a server that never fails
    monkeypatch.setattr(demo.server, "break_item", lambda _: None)
    demo.play_soft_failures()
    demo.play_bad_data()
    gate_scene.play_gate(demo)
    demo.output.write_counts(len(demo.server.requests))
    faults = "\n".join(demo.output.faults)
    for part in (
        "Retry-After was kept: False",
        "compliance record: (1, ",
        "held for: , and not quarantined",
        "refused while halted: False",
        "held for: , and not governance_violation",
        "refused by the gate: False",
        "escalations: []",
        "requests, soft failures: 503, 503, 200: 1, and not 3",
    ):
        assert part in faults, part


def test_a_server_that_is_never_down_opens_no_breaker(
    demo: KfmRulesDemo, monkeypatch: pytest.MonkeyPatch
) -> None:
    always_up = property(lambda _: False, lambda *_: None)
    monkeypatch.setattr(StacServer, "is_down", always_up, raising=False)
    demo.play_outage()
    assert "breaker open: False, and not True" in demo.output.faults


def test_the_server_replies_as_scripted() -> None:
    with StacServer() as server:
        server.queue_faults(SLOW_DOWN, RETRY_AFTER)
        server.is_down = True
        seen = []
        for _ in range(3):
            with pytest.raises(HTTPError) as caught:
                urlopen(server.url)  # noqa: S310 - our own server
            with caught.value as error:
                seen.append((error.code, json.load(error)["code"], error.headers["Retry-After"]))
        server.is_down = False
        assert read_json(server.url)["type"] == "Catalog"
        assert read_json(f"{server.url}/collections/{COLLECTION}")["type"] == "Collection"
        with pytest.raises(HTTPError, match="404: NotFound"):
            read_json(f"{server.url}/collections/other")
    assert seen == [(503, "SlowDown", None), (503, "ServiceUnavailable", "2"), (503, DOWN.code, None)]


def test_items_are_checked_against_the_schema() -> None:
    check_item(make_item(1))
    check_item({**make_item(1), "geometry": None})
    for change in ({"links": None}, {"properties": []}):
        with pytest.raises(oncemore.PolicyViolation, match="wrong type"):
            check_item({**make_item(1), **change})
    item = make_item(1)
    del item["assets"]
    with pytest.raises(oncemore.PolicyViolation, match="assets is missing"):
        check_item(item)
