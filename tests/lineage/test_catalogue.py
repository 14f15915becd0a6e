"""STAC items are accepted by pystac and its schemas of STAC 1.0.0, DCAT catalogues by pyshacl."""

from __future__ import annotations

import io
import json
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyshacl
import pystac
import pytest
import rdflib
from jsonschema import Draft7Validator
from pystac.extensions.file import FileExtension
from pystac.validation.stac_validator import JsonSchemaSTACValidator
from rdflib.namespace import DCAT, DCTERMS, PROV, RDF

import oncemore.lineage
from oncemore.lineage.catalogue import EXTENSION_URL, FILE_EXTENSION, format_interval
from oncemore.lineage.exports import ExportOptions, write_dcat, write_stac
from oncemore.lineage.history import AttemptHistory, list_generated, list_used
from oncemore.lineage.ids import entity_id

if TYPE_CHECKING:
    from oncemore.lineage.history import RunHistory

# rdflib warns about parts of itself.
pytestmark = pytest.mark.filterwarnings("ignore:(Dataset|ConjunctiveGraph):DeprecationWarning")
SCHEMA = Path(oncemore.lineage.__file__).parent / "schemas" / "stac-processing-v1.json"
SHAPES = Path(__file__).with_name("dcat-ap-shapes.ttl")
SPDX = rdflib.Namespace("http://spdx.org/rdf/terms#")
TERMS = rdflib.Namespace("urn:oncemore:terms:")


def measured(histories: list[RunHistory], *, has_figures: bool = True) -> list[RunHistory]:
    """Return the runs as if each attempt had these figures, or none."""
    figures = {"energy_kWh": 0.25, "carbon_kgCO2e": 0.125} if has_figures else {}
    return [
        history._replace(attempts=tuple(each._replace(telemetry=figures) for each in history.attempts))
        for history in histories
    ]


def export_stac(histories: list[RunHistory], base: Path, **options: Any) -> list[dict[str, Any]]:
    file = io.StringIO()
    count = write_stac(histories, file, ExportOptions(base=base.as_uri(), **options))
    items = json.loads(file.getvalue())["features"]
    assert len(items) == count
    return items  # type: ignore[no-any-return]


def check_item(item: dict[str, Any]) -> None:
    """Validate an item by the schemas of STAC 1.0.0 that pystac carries, and by our extension."""
    validator = JsonSchemaSTACValidator()
    assert validator.validate_core(item, pystac.STACObjectType.ITEM, "1.0.0") is not None
    validator.schema_cache[EXTENSION_URL] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    validator.validate_extension(item, pystac.STACObjectType.ITEM, "1.0.0", EXTENSION_URL)


@pytest.mark.req("LIN-2")
@pytest.mark.parametrize("has_figures", [True, False], ids=["measured", "not measured"])
def test_items_are_valid_stac_and_their_checksums_match_the_files(
    log: Path, histories: list[RunHistory], has_figures: bool
) -> None:
    items = export_stac(measured(histories, has_figures=has_figures), log.parent / "artifacts")
    assert len(items) == 2
    for plain in items:
        check_item(plain)
        item = pystac.Item.from_dict(plain)
        assert plain["stac_version"] == "1.0.0"
        asset = item.assets["data"]
        file = Path(unquote(urlsplit(asset.href).path))
        checksum = FileExtension.ext(asset).checksum
        assert checksum == "1220" + sha256(file.read_bytes()).hexdigest()
        assert FileExtension.ext(asset).size == file.stat().st_size
        for fields in (item.properties, asset.extra_fields):
            assert fields["processing:attempt"] == 1
            assert fields["processing:energy_kWh"] == (0.25 if has_figures else None)
            assert fields["processing:carbon_kgCO2e"] == (0.125 if has_figures else None)
        assert has_figures or item.properties["oncemore:unavailable"]
    assert {item["properties"]["start_datetime"] for item in items} == {
        "2026-10-01T00:00:00Z",
        "2026-10-02T00:00:00Z",
    }


def test_the_validators_refuse_items_that_are_wrong(log: Path, histories: list[RunHistory]) -> None:
    item = export_stac(measured(histories, has_figures=False), log.parent / "artifacts")[0]
    broken: list[Any] = [
        {**item, "stac_version": "0.9"},
        {name: value for name, value in item.items() if name != "geometry"},
        {**item, "properties": {**item["properties"], "processing:attempt": 0}},
        {**item, "properties": {**item["properties"], "start_datetime": "yesterday", "datetime": None}},
        {**item, "stac_extensions": ["https://stac-extensions.github.io/processing/v1.2.0/schema.json"]},
    ]
    unexplained = {name: value for name, value in item["properties"].items() if "unavailable" not in name}
    broken.append({**item, "properties": unexplained})
    for wrong in broken[1:]:
        with pytest.raises(Exception, match=r"[Vv]alidation|[Vv]alid|schema"):
            check_item(wrong)


def test_the_schema_of_our_extension_is_a_schema_and_the_profile_is_named(
    log: Path, histories: list[RunHistory]
) -> None:
    Draft7Validator.check_schema(json.loads(SCHEMA.read_text(encoding="utf-8")))
    url = "https://example.org/stac-processing-v1.json"
    (item, _) = export_stac(histories, log.parent / "artifacts", extension=url, conforms_to=("KFM-STAC v11",))
    assert item["stac_extensions"] == [FILE_EXTENSION, url]
    assert item["properties"]["oncemore:conforms_to"] == ["KFM-STAC v11"]


def test_an_artifact_is_derived_from_the_artifacts_that_its_run_has_read(histories: list[RunHistory]) -> None:
    history = next(each for each in histories if each.run.step == "summarise")
    output = {"digest": "ab" * 32, "size": 3, "name": "out.csv", "h3": "8928308280fffff"}
    (item,) = export_stac([history._replace(artifacts=(output,))], Path("/data"))
    check_item(item)
    (link,) = item["links"]
    assert (link["rel"], link["title"]) == ("derived_from", "sample.csv")
    assert item["properties"]["oncemore:h3"] == output["h3"]
    assert item["properties"]["datetime"] is not None, "without a date it is the time of COMMIT"


@pytest.mark.parametrize(
    ("day", "first", "last"),
    [
        ("2026-10-01", "2026-10-01", "2026-10-01"),
        ("2024-02", "2024-02-01", "2024-02-29"),
        ("2026-12", "2026-12-01", "2026-12-31"),
        ("2026", "2026-01-01", "2026-12-31"),
    ],
)
def test_the_interval_of_a_date(day: str, first: str, last: str) -> None:
    interval = format_interval(day, 0.0)
    assert interval["datetime"] is None
    assert interval["start_datetime"] == f"{first}T00:00:00Z"
    assert interval["end_datetime"] == f"{last}T23:59:59Z"


# DCAT -----------------------------------------------------------------------------------------------


def export_dcat(histories: list[RunHistory], form: str, base: str, **options: Any) -> rdflib.Graph:
    file = io.StringIO()
    write_dcat(histories, file, form, ExportOptions(base=base, **options))
    return rdflib.Graph().parse(data=file.getvalue(), format=form)


@pytest.mark.req("LIN-3")
@pytest.mark.parametrize("form", ["turtle", "json-ld"])
def test_the_catalogue_meets_the_shapes_and_its_checksums_match(
    log: Path, histories: list[RunHistory], form: str
) -> None:
    base = (log.parent / "artifacts").as_uri()
    names = ("KFM-DCAT v11",)
    graph = export_dcat(measured(histories), form, base, publisher="Survey office", conforms_to=names)
    conforms, _, text = pyshacl.validate(graph, shacl_graph=str(SHAPES))
    assert conforms, text
    datasets = list(graph.subjects(RDF.type, DCAT.Dataset))
    assert len(datasets) == 2
    for dataset in datasets:
        distribution = graph.value(dataset, DCAT.distribution)
        checksum = graph.value(distribution, SPDX.checksum)
        file = Path(unquote(urlsplit(str(graph.value(distribution, DCAT.downloadURL))).path))
        value = graph.value(checksum, SPDX.checksumValue)
        assert bytes(value.toPython()).hex() == sha256(file.read_bytes()).hexdigest()
        assert graph.value(distribution, DCAT.byteSize).toPython() == file.stat().st_size
        assert str(graph.value(distribution, DCAT.mediaType)).endswith("/text/csv")
        values = [graph.value(dataset, TERMS[name]) for name in ("attempt", "energy_kWh", "carbon_kgCO2e")]
        assert [value.toPython() for value in values] == [1, 0.25, 0.125]
    (standard,) = graph.subjects(RDF.type, DCTERMS.Standard)
    assert str(graph.value(standard, DCTERMS.title)) == "KFM-DCAT v11"


def test_both_forms_say_the_same_and_the_shapes_find_a_missing_property(histories: list[RunHistory]) -> None:
    one, two = (export_dcat(histories, form, "https://example.org/a b/") for form in ("turtle", "json-ld"))
    assert set(one) == set(two)
    one.remove((None, DCAT.accessURL, None))
    conforms, _, text = pyshacl.validate(one, shacl_graph=str(SHAPES))
    assert not conforms
    assert "accessURL" in text


def test_a_run_that_is_not_complete_has_no_records(histories: list[RunHistory]) -> None:
    failed = [history for history in histories if history.run.state != "COMPLETE"]
    assert failed
    assert export_stac(failed, Path("/data")) == []
    attempts = (AttemptHistory(1, 0.0),)
    odd = [history._replace(artifacts=({"digest": "ab" * 32},), attempts=attempts) for history in failed]
    assert list(export_dcat(odd, "turtle", "/data").subjects(RDF.type, DCAT.Dataset)) == []


def test_equal_bytes_are_one_entity_and_a_dataset_names_its_sources(histories: list[RunHistory]) -> None:
    history = next(each for each in histories if each.run.step == "summarise")
    output = {"digest": "ab" * 32, "size": 3, "name": "out.csv"}
    twice = history._replace(artifacts=(output, {**output, "name": "copy.csv"}), used=history.used * 2)
    assert len(list(list_used(twice))) == len(list(list_used(history)))
    assert len(list(list_generated(twice))) == 2, "the bytes of both artifacts, and the result"
    graph = export_dcat([twice], "turtle", "/data")
    datasets = list(graph.subjects(RDF.type, DCAT.Dataset))
    assert len(datasets) == 2, "two names, two records"
    sources = {str(each) for each in graph.objects(datasets[0], PROV.wasDerivedFrom)}
    assert sources == {entity_id(edge["digest"]) for edge in history.used}
