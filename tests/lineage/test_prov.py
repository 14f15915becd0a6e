"""PROV-O and PROV-JSON, read back by rdflib and prov."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import prov.model
import pytest
import rdflib
from rdflib.namespace import DCTERMS, PROV, RDF

import oncemore
from oncemore.lineage.exports import ExportOptions, write_prov
from oncemore.lineage.history import RunHistory
from oncemore.lineage.ids import entity_id
from oncemore.lineage.rdf import Literal, Statement, encode_iri, refer, write_json_ld, write_turtle
from oncemore.log.record import RunRecord
from oncemore.testing import instant_waits
from tests.lineage.pipeline import run_pipeline

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# rdflib warns about parts of itself.
pytestmark = pytest.mark.filterwarnings("ignore:(Dataset|ConjunctiveGraph):DeprecationWarning")
TERMS = rdflib.Namespace("urn:oncemore:terms:")


def export(histories: Sequence[RunHistory], form: str, **options: Any) -> str:
    file = io.StringIO()
    assert write_prov(histories, file, form, ExportOptions(**options)) == len(histories)
    return file.getvalue()


def parse(text: str, form: str) -> rdflib.Graph:
    return rdflib.Graph().parse(data=text, format=form)


@pytest.mark.req("LIN-1")
@pytest.mark.parametrize("form", ["turtle", "json-ld"])
def test_each_artifact_has_its_inputs_its_run_and_its_sources(histories: list[RunHistory], form: str) -> None:
    graph = parse(export(histories, form), form)
    seen = 0
    for history in histories:
        if history.lineage is None:
            continue
        activity = rdflib.URIRef(history.lineage.activity)
        assert (activity, RDF.type, PROV.Activity) in graph
        used = {rdflib.URIRef(each) for each in history.lineage.used}
        assert set(graph.objects(activity, PROV.used)) == used
        for entity in map(rdflib.URIRef, history.lineage.generated):
            assert (entity, PROV.wasGeneratedBy, activity) in graph
            assert set(graph.objects(entity, PROV.wasDerivedFrom)) >= used
            seen += 1
        derivations = {str(node) for node in graph.subjects(PROV.hadActivity, activity)}
        assert derivations == set(history.lineage.derived), "the ids of the log"
    assert seen == 8, "two artifacts with their results, and four other results"
    artifacts = {each["digest"] for history in histories for each in history.artifacts}
    titles = {str(graph.value(rdflib.URIRef(entity_id(each)), DCTERMS.title)) for each in artifacts}
    assert titles == {"sample.csv"}


def test_turtle_and_json_ld_say_the_same(histories: list[RunHistory]) -> None:
    one, two = (parse(export(histories, form, with_plan=True), form) for form in ("turtle", "json-ld"))
    assert set(one) == set(two)
    assert export(histories, "turtle") == export(histories, "turtle")


def test_a_run_with_retries_has_an_activity_for_each_attempt(histories: list[RunHistory]) -> None:
    graph = parse(export(histories, "turtle"), "turtle")
    informed = list(graph.subject_objects(PROV.wasInformedBy))
    assert len(informed) == 2, "three attempts of one run, and no others have been tried again"
    (work,) = {graph.value(attempt, DCTERMS.isPartOf) for attempt, _ in informed}
    assert graph.value(work, TERMS.attempts).toPython() == 3
    assert graph.value(work, TERMS.state).toPython() == "COMPLETE"


def test_prov_json_is_read_by_prov_with_the_same_ids(histories: list[RunHistory]) -> None:
    text = export(histories, "prov-json", with_plan=True, conforms_to=("KFM-PROV v11",))
    document = prov.model.ProvDocument.deserialize(content=text, format="json")
    graph = parse(export(histories, "turtle", with_plan=True), "turtle")

    def ids(kind: type) -> set[str]:
        return {record.identifier.uri for record in document.get_records(kind)}

    assert ids(prov.model.ProvActivity) <= {str(node) for node in graph.subjects(RDF.type, PROV.Activity)}
    assert ids(prov.model.ProvEntity) == {str(node) for node in graph.subjects(RDF.type, PROV.Entity)}
    assert ids(prov.model.ProvDerivation) == {str(node) for node in graph.subjects(RDF.type, PROV.Derivation)}
    assert len(list(document.get_records(prov.model.ProvUsage))) == len(
        list(graph.triples((None, PROV.used, None)))
    )
    assert "KFM-PROV v11" in document.get_provn()
    starts = {record.get_startTime() for record in document.get_records(prov.model.ProvActivity)}
    assert None not in starts


@pytest.mark.req("LIN-8")
def test_the_policy_is_the_plan_of_each_run(histories: list[RunHistory]) -> None:
    graph = parse(export(histories, "turtle", with_plan=True), "turtle")
    for history in histories:
        from oncemore.lineage.history import history_activity

        activity = rdflib.URIRef(history_activity(history))
        association = graph.value(activity, PROV.qualifiedAssociation)
        plan = graph.value(association, PROV.hadPlan)
        assert (plan, RDF.type, PROV.Plan) in graph
        name, _, version = history.run.policy.rpartition(":")[0].partition("@")
        assert graph.value(plan, TERMS.version).toPython() == version
        assert graph.value(plan, DCTERMS.title).toPython() == name
        classes = {str(each).rpartition("/")[2] for each in graph.objects(plan, RDF.type)}
        alignments = {"E29_Design_or_Procedure", "TechArticle", "geosparql#FeatureCollection"}
        assert alignments | {"time#ProperInterval"} <= classes
    assert PROV.Plan not in set(parse(export(histories, "turtle"), "turtle").objects(None, RDF.type))


def test_a_second_store_gives_the_same_ids(histories: list[RunHistory], tmp_path: Path) -> None:
    from oncemore.queries.run_histories import HistoryFilter, read_histories
    from oncemore.queries.stores import open_read_only

    with oncemore.open(tmp_path / "other.db") as engine, instant_waits():
        run_pipeline(engine)
    with open_read_only(str(tmp_path / "other.db")) as store:
        others = list(read_histories(store, HistoryFilter()))
    assert [each.run.run_id for each in others] != [each.run.run_id for each in histories]
    for kind in (PROV.Activity, PROV.Entity, PROV.Derivation):
        one, two = (
            set(parse(export(each, "turtle"), "turtle").subjects(RDF.type, kind))
            for each in (histories, others)
        )
        assert one == two != set()


def test_work_that_was_run_twice_is_one_activity_with_one_start(tmp_path: Path) -> None:
    from oncemore.queries.run_histories import HistoryFilter, read_histories

    @oncemore.step(effect="pure", name="double")
    def double(n: int) -> int:
        return 2 * n

    with oncemore.open(tmp_path / "two.db") as engine, engine:
        double(4)
        double.rerun(4, reason="again")
        histories = list(read_histories(engine.store, HistoryFilter()))
    assert [history.is_latest for history in histories] == [False, True]
    graph = parse(export(histories, "turtle"), "turtle")
    assert len(set(graph.subjects(RDF.type, PROV.Activity))) == 1
    assert len(set(graph.objects(None, PROV.startedAtTime))) == 1
    document = prov.model.ProvDocument.deserialize(content=export(histories, "prov-json"), format="json")
    (activity,) = document.get_records(prov.model.ProvActivity)
    assert activity.get_startTime() is not None


def test_texts_with_quotes_lines_and_signs_come_back() -> None:
    texts = ['a "quoted" \\ text', "two\nlines\r\ttab", "\x01\x7f", "ümläut 🙂", "{}<>|^`"]
    statements = [Statement("urn:x:1", "dct:title", Literal(text)) for text in texts]
    statements += [Statement("urn:x:1", "dct:relation", refer(f"urn:x:{text}")) for text in texts]
    for write, form in ((write_turtle, "turtle"), (write_json_ld, "json-ld")):
        graph = parse("\n".join(write(statements, ["dct", "xsd"])), form)
        assert {str(each) for each in graph.objects(None, DCTERMS.title)} == set(texts)
        assert len(set(graph.objects(None, DCTERMS.relation))) == len(texts)
    assert encode_iri("a b>é") == "a%20b%3Eé"


def test_a_run_that_waits_and_an_empty_export_are_valid() -> None:
    waiting = RunHistory("k" * 64, RunRecord(step="wait", run_id="r", state="PENDING"), 1.0)
    for form in ("turtle", "json-ld"):
        parse(export([waiting], form, with_plan=True), form)
        parse(export([], form), form)
    for runs in ([waiting], []):
        document = json.loads(export(runs, "prov-json", with_plan=True))
        assert set(document) >= {"prefix"}
        prov.model.ProvDocument.deserialize(content=json.dumps(document), format="json")


def test_an_attempt_that_still_runs_has_no_end(histories: list[RunHistory]) -> None:
    history = next(each for each in histories if len(each.attempts) == 3)
    running = history.attempts[-1]._replace(ended=None, outcome="RUNNING")
    open_run = history._replace(attempts=(*history.attempts[:-1], running), ended=None)
    graph = parse(export([open_run], "turtle"), "turtle")
    assert len(list(graph.subject_objects(PROV.startedAtTime))) == 4
    assert len(list(graph.subject_objects(PROV.endedAtTime))) == 2
