"""Our exports against the published texts of OpenLineage and DCAT-AP, where a folder has them.

Neither text is in a package that can be installed, and neither is ours to copy. `ONCEMORE_PUBLISHED` names a
folder with `OpenLineage.json` and `dcat-ap/*.ttl`; docs/how-to/export-lineage.md says where they come from.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oncemore.lineage.exports import ExportOptions, read_open_lineage, write_dcat

if TYPE_CHECKING:
    from oncemore.lineage.history import RunHistory

#: Read while the file is imported: the tests run without settings from outside.
FOLDER = os.environ.get("ONCEMORE_PUBLISHED")
pytestmark = pytest.mark.filterwarnings("ignore:(Dataset|ConjunctiveGraph):DeprecationWarning")
#: Constraints of older shapes that DCAT 3 itself contradicts: only SHA-1, and sizes as decimals.
OUTDATED = ("checksumAlgorithm_sha1", "byteSize")


@pytest.fixture
def published() -> Path:
    """The folder with the published texts; the test is skipped without it."""
    if not FOLDER:
        pytest.skip("ONCEMORE_PUBLISHED names no folder with OpenLineage.json and dcat-ap/*.ttl")
    return Path(FOLDER)


def test_events_are_valid_by_the_published_schema_of_open_lineage(
    published: Path, histories: list[RunHistory]
) -> None:
    from jsonschema import Draft202012Validator, FormatChecker

    schema = json.loads((published / "OpenLineage.json").read_text(encoding="utf-8"))
    validator = Draft202012Validator(schema, format_checker=FormatChecker())
    events = list(read_open_lineage(histories, ExportOptions()))
    assert len(events) > 4
    for event in events:
        validator.validate(event)
    # The schema can fail: an event without its run, and one with a wrong time.
    assert not validator.is_valid({**events[0], "run": {}})
    assert not validator.is_valid({**events[0], "eventTime": "yesterday"})


def test_the_catalogue_meets_the_published_shapes_of_dcat_ap(
    published: Path, histories: list[RunHistory]
) -> None:
    import pyshacl
    import rdflib

    shapes = rdflib.Graph()
    for path in sorted((published / "dcat-ap").glob("*.ttl")):
        shapes.parse(path)
    assert len(shapes) > 100
    file = io.StringIO()
    write_dcat(
        histories, file, "turtle", ExportOptions(base="https://example.org/", publisher="Survey office")
    )
    graph = rdflib.Graph().parse(data=file.getvalue(), format="turtle")
    _, report, _ = pyshacl.validate(graph, shacl_graph=shapes)
    assert isinstance(report, rdflib.Graph)
    shacl = rdflib.Namespace("http://www.w3.org/ns/shacl#")
    found = [
        " ".join(str(value) for _, value in report.predicate_objects(result))
        for result in report.subjects(rdflib.RDF.type, shacl.ValidationResult)
        if report.value(result, shacl.resultSeverity) == shacl.Violation
    ]
    assert [text for text in found if not any(name in text for name in OUTDATED)] == []
