"""Events of OpenLineage: accepted by the classes of its own client, and delivered once to a receiver."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from uuid import UUID

import attr
import pytest
from openlineage.client import event_v2, facet_v2
from openlineage.client.serde import Serde

import oncemore
from oncemore.lineage.exports import PRODUCER, ExportOptions, read_open_lineage
from oncemore.lineage.history import AttemptHistory, ParentRun, RunHistory
from oncemore.lineage.open_lineage import event_id, run_events
from oncemore.lineage.send_events import send_events
from oncemore.log.record import RunRecord
from oncemore.testing import instant_waits
from tests.shell import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: The classes that the client generates from the published schemas, by the name of the facet.
FACETS = {
    "parent": facet_v2.parent_run.ParentRunFacet,
    "errorMessage": facet_v2.error_message_run.ErrorMessageRunFacet,
    "version": facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet,
    "jobType": facet_v2.job_type_job.JobTypeJobFacet,
}


def list_events(histories: list[RunHistory], **options: Any) -> list[dict[str, Any]]:
    return list(read_open_lineage(histories, ExportOptions(**options)))


def check_event(event: dict[str, Any]) -> None:
    """Build an event with the generated classes, which refuse unknown fields and wrong values.

    The event that they write must be equal to ours: no field is missing, and every schema has its address.
    """
    run, job = event["run"], event["job"]
    built = event_v2.RunEvent(
        eventTime=event["eventTime"],
        eventType=event_v2.RunState(event["eventType"]),
        producer=event["producer"],
        run=event_v2.Run(runId=run["runId"], facets=build_facets(run["facets"])),
        job=event_v2.Job(namespace=job["namespace"], name=job["name"], facets=build_facets(job["facets"])),
        inputs=[build_dataset(event_v2.InputDataset, each) for each in event["inputs"]],
        outputs=[build_dataset(event_v2.OutputDataset, each) for each in event["outputs"]],
    )
    written = json.loads(Serde.to_json(built))
    if parent := written["run"]["facets"].get("parent"):
        assert [parent[name].pop("facets") for name in ("run", "job")] == [{}, {}]
    for dataset in (*written["inputs"], *written["outputs"]):
        # Our datasets have no facets of one input or output; the client writes empty ones.
        assert not dataset.pop("inputFacets", {})
        assert not dataset.pop("outputFacets", {})
    assert written == json.loads(Serde.to_json(event))


def build_dataset(kind: Any, dataset: dict[str, Any]) -> Any:
    return kind(namespace=dataset["namespace"], name=dataset["name"], facets=build_facets(dataset["facets"]))


def build_facets(facets: dict[str, Any]) -> dict[str, Any]:
    built = {}
    for name, facet in facets.items():
        fields = {field: value for field, value in facet.items() if not field.startswith("_")}
        if name in FACETS:
            if name == "parent":
                fields["run"] = facet_v2.parent_run.Run(**fields["run"])
                fields["job"] = facet_v2.parent_run.Job(**fields["job"])
            made = FACETS[name](producer=facet["_producer"], **fields)
            assert made._schemaURL == facet["_schemaURL"]
            built[name] = made
        else:
            # A facet of our own: the base class, which allows further fields.
            assert name.startswith("oncemore_")
            base = facet_v2.RunFacet(producer=facet["_producer"])
            assert base._schemaURL == facet["_schemaURL"]
            built[name] = {**attr.asdict(base), **fields}
    return built


def test_every_event_is_accepted_by_the_generated_classes(histories: list[RunHistory]) -> None:
    events = list_events(histories, namespace="survey", conforms_to=("KFM-PDC v11",))
    for event in events:
        check_event(event)
        assert event["run"]["facets"]["oncemore_run"]["conformsTo"] == ["KFM-PDC v11"]
    kinds = [event["eventType"] for event in events]
    assert [kinds.count(kind) for kind in ("START", "RUNNING", "COMPLETE", "FAIL")] == [7, 2, 6, 1]


def test_the_check_refuses_wrong_events(histories: list[RunHistory]) -> None:
    event = list_events(histories)[0]
    for wrong in (
        {**event, "eventTime": "yesterday"},
        {**event, "eventType": "DONE"},
        {**event, "run": {**event["run"], "runId": "not a uuid"}},
        {**event, "job": {**event["job"], "facets": {"jobType": {"_producer": "x", "wrong": 1}}}},
    ):
        with pytest.raises((ValueError, TypeError, AssertionError)):
            check_event(wrong)


def test_a_run_has_one_start_and_one_end_in_order(histories: list[RunHistory]) -> None:
    by_run: dict[str, list[dict[str, Any]]] = {}
    for event in list_events(histories):
        by_run.setdefault(event["run"]["runId"], []).append(event)
    assert len(by_run) == len(histories)
    for events in by_run.values():
        kinds = [event["eventType"] for event in events]
        assert kinds[0] == "START"
        assert kinds[-1] in ("COMPLETE", "FAIL")
        assert set(kinds[1:-1]) <= {"RUNNING"}
        assert [event["eventTime"] for event in events] == sorted(event["eventTime"] for event in events)
        UUID(events[0]["run"]["runId"])
    tried = next(events for events in by_run.values() if len(events) == 4)
    facets = tried[1]["run"]["facets"]
    assert facets["oncemore_attempt"]["attempt"] == 1
    assert facets["errorMessage"]["message"].startswith("ConnectionResetError")
    assert "sk-secret" not in json.dumps(tried)
    (output,) = tried[-1]["outputs"]
    assert output["facets"]["version"]["datasetVersion"] == f"sha256:{output['name']}"


def test_an_artifact_has_one_name_where_it_is_written_and_where_it_is_read(
    histories: list[RunHistory],
) -> None:
    names: dict[str, set[str]] = {"inputs": set(), "outputs": set()}
    for event in list_events(histories):
        for side, found in names.items():
            found |= {each["name"] for each in event[side] if each["name"].startswith("sample.csv")}
    assert (
        names["inputs"]
        == names["outputs"]
        == {
            "sample.csv/date=2026-10-01/site=north",
            "sample.csv/date=2026-10-02/site=north",
        }
    )


def test_an_event_is_the_same_before_and_after_the_run_has_ended(histories: list[RunHistory]) -> None:
    whole = next(each for each in histories if len(each.attempts) == 3)
    begun = whole._replace(run=whole.run._replace(state="RUNNING"), ended=None, used=(), result="",
                           attempts=whole.attempts[:1])  # fmt: skip
    early, late = (list_events([each]) for each in (begun, whole))
    assert early == late[:2]
    assert len({event_id(event) for event in late}) == len(late)


def test_runs_that_wait_are_cancelled_or_have_a_parent() -> None:
    base = RunHistory("k" * 64, RunRecord(step="work", run_id="r", run_number=2), 5.0)
    assert list_events([base]) == []
    lost = AttemptHistory(1, 1.0, 2.0, "HARD_FAIL", "cancelled")
    parent = ParentRun("outer", "p" * 64, "c", 1)
    cancelled = base._replace(
        run=base.run._replace(state="HARD_FAIL", reason="cancelled"), started=1.0, ended=2.0,
        attempts=(lost,), parent=parent,
    )  # fmt: skip
    start, end = run_events(cancelled, producer=PRODUCER, namespace="n")
    assert (start["eventType"], end["eventType"]) == ("START", "ABORT")
    for event in (start, end):
        check_event(event)
        assert event["run"]["facets"]["parent"]["job"]["name"] == "outer"
    released = cancelled._replace(attempts=(), run=cancelled.run._replace(reason="rejected"))
    assert [event["eventType"] for event in list_events([released])] == ["START", "FAIL"]


# Delivery -------------------------------------------------------------------------------------------


class Receiver(ThreadingHTTPServer):
    """Counts the events that it accepts; it refuses the first requests with 503."""

    def __init__(self, refusals: int) -> None:
        super().__init__(("127.0.0.1", 0), ReceiverHandler)
        self.refusals, self.accepted, self.tokens = refusals, list[dict[str, Any]](), set[str]()
        self.ids: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/api/v1/lineage"


class ReceiverHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.tokens.add(self.headers.get("Authorization"))
        if server.refusals > 0:
            server.refusals -= 1
            self.send_response(503)
        else:
            server.accepted.append(json.loads(body))
            server.ids.append(self.headers["ce-id"])
            self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver(refusals=2) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_events_are_retried_and_delivered_once_per_id(
    histories: list[RunHistory], receiver: Receiver, tmp_path: Path
) -> None:
    events = list_events(histories)
    with instant_waits():
        report = send_events(events, receiver.url, tmp_path / "sent.db", token="secret")
    assert (report.sent, report.present) == (len(events), 0)
    assert receiver.accepted == events
    assert receiver.ids == [event_id(event) for event in events]
    assert receiver.tokens == {"Bearer secret"}
    again = send_events(events, receiver.url, tmp_path / "sent.db")
    assert (again.sent, again.present) == (0, len(events))
    assert len(receiver.accepted) == len(events)


def test_an_interrupted_delivery_goes_on_where_it_stopped(
    histories: list[RunHistory], receiver: Receiver, tmp_path: Path
) -> None:
    events = list_events(histories)
    receiver.refusals = 100
    with instant_waits(), pytest.raises(oncemore.RetriesExhausted):
        send_events(events, receiver.url, tmp_path / "sent.db", attempts=2)
    assert (receiver.refusals, receiver.accepted) == (98, [])
    receiver.refusals = 0
    send_events(events[:3], receiver.url, tmp_path / "sent.db")
    report = send_events(events, receiver.url, tmp_path / "sent.db")
    assert report.present == 3
    assert receiver.accepted == events


def test_the_command_sends_to_a_receiver(log: Path, receiver: Receiver, tmp_path: Path) -> None:
    receiver.refusals = 0
    words = (
        "export",
        "openlineage",
        "--store",
        str(log),
        "--to",
        receiver.url,
        "--sent",
        str(tmp_path / "s.db"),
    )
    first = run(*words, "--token-env", "TOKEN", TOKEN="abc")
    assert first.returncode == 0, first.stderr
    assert "created a new store" in first.stderr, "the log of deliveries"
    assert "sent 16 events" in first.stdout
    assert receiver.tokens == {"Bearer abc"}
    second = run(*words)
    assert "sent 0 events" in second.stdout
    assert "16 had been delivered before" in " ".join(second.stdout.split())
    assert len(receiver.accepted) == 16
    missing = run(*words, "--token-env", "TOKEN")
    assert missing.returncode == 2
    assert "TOKEN" in missing.stderr
    both = run(*words, "--out", "events.jsonl")
    assert "Give --out or --to, not both" in both.stderr
