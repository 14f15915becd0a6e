"""Write each kind of export to a text file, from histories that are read one at a time.

Every function returns the number of records that it has written. Two exports of an unchanged log are equal
byte for byte: no export has the time at which it was made.
"""

from __future__ import annotations

import json
from itertools import chain

from oncemore._values import Value
from oncemore._version import __version__
from oncemore.errors import UsageError
from oncemore.lineage import catalogue, prov, telemetry_files
from oncemore.lineage.cloud_events import cloud_events
from oncemore.lineage.document_file import RecordSpool, open_document
from oncemore.lineage.open_lineage import run_events
from oncemore.lineage.rdf import write_json_ld, write_turtle
from oncemore.lineage.telemetry_files import SCHEMAS, SECTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from typing import Any, TextIO

    from oncemore.lineage.history import RunHistory
    from oncemore.lineage.rdf import Statement

    Histories = Iterable[RunHistory]

#: The form of each format name of RDF.
RDF_WRITERS: dict[str, Callable[[Iterable[Statement], Iterable[str]], Iterator[str]]] = {
    "turtle": write_turtle,
    "json-ld": write_json_ld,
}
PRODUCER = f"urn:oncemore:software:{__version__}"


class ExportOptions(Value):
    """The options that all exports have.

    conforms_to  names of profiles that the export follows; they are part of it
    namespace    the namespace of jobs and datasets in OpenLineage, and the source of CloudEvents
    base         the address below which the bytes of artifacts are found
    with_plan    whether PROV links every run to its policy
    """

    conforms_to: tuple[str, ...] = ()
    namespace: str = "oncemore"
    base: str = "artifacts"
    with_plan: bool = False
    extension: str = catalogue.EXTENSION_URL
    publisher: str = "oncemore"


# PROV and DCAT --------------------------------------------------------------------------------------


def write_prov(histories: Histories, file: TextIO, form: str, options: ExportOptions) -> int:
    """Write lineage as PROV-O in Turtle or JSON-LD, or as PROV-JSON; return the number of runs."""
    counter = _Counter(histories)
    if form == "prov-json":
        _write_prov_json(counter, file, options)
    else:
        statements = chain(
            prov.describe_catalogue(__version__, options.conforms_to),
            (
                statement
                for history in counter
                for statement in prov.prov_statements(history, __version__, with_plan=options.with_plan)
            ),
        )
        _write_lines(file, RDF_WRITERS[form](statements, prov.PROV_PREFIXES))
    return counter.count


def _write_prov_json(histories: Histories, file: TextIO, options: ExportOptions) -> None:
    """Write PROV-JSON. It has one object per section, so that an entity of two runs must be written once."""
    with RecordSpool() as spool:
        agent = {"prov:type": {"$": "prov:SoftwareAgent", "type": "prov:QUALIFIED_NAME"}}
        if options.conforms_to:
            agent["dct:conformsTo"] = list(options.conforms_to)  # type: ignore[assignment]
        for history in histories:
            for section, own, record in prov.prov_sections(history, __version__, with_plan=options.with_plan):
                spool.add(section, own, agent if section == "agent" else record)
        file.write(f'{{"prefix": {json.dumps(prov.prov_json_prefixes())}')
        for section in spool.list_sections():
            file.write(f",\n{json.dumps(section)}: {{")
            separator = "\n"
            for own, text in spool.read_texts(section):
                file.write(f"{separator}{json.dumps(own)}: {text}")
                separator = ",\n"
            file.write("}")
        file.write("}\n")


def write_dcat(histories: Histories, file: TextIO, form: str, options: ExportOptions) -> int:
    """Write the artifacts of runs as a catalogue of DCAT 3; return the number of datasets."""
    count = 0

    def read_statements() -> Iterator[Statement]:
        nonlocal count
        title = f"Artifacts of {options.namespace}"
        yield from catalogue.describe_dcat_catalogue(options.publisher, title, options.conforms_to)
        for history in histories:
            for statement in catalogue.dcat_statements(history, base=options.base):
                count += statement.predicate == "dcat:dataset"
                yield statement

    _write_lines(file, RDF_WRITERS[form](read_statements(), catalogue.DCAT_PREFIXES))
    return count


# Documents of JSON ----------------------------------------------------------------------------------


def write_stac(histories: Histories, file: TextIO, options: ExportOptions) -> int:
    """Write the artifacts of runs as one collection of STAC items; return the number of items."""
    count = 0
    # By hand, so that one item is in memory at a time.
    file.write('{"type": "FeatureCollection", "features": [')
    for history in histories:
        for item in catalogue.stac_items(
            history, base=options.base, extension=options.extension, conforms_to=options.conforms_to
        ):
            file.write(f"{',' if count else ''}\n{json.dumps(item, ensure_ascii=False)}")
            count += 1
    file.write("\n]}\n")
    return count


def read_open_lineage(histories: Histories, options: ExportOptions) -> Iterator[dict[str, Any]]:
    """Yield the events of OpenLineage of all runs."""
    for history in histories:
        yield from run_events(
            history, producer=PRODUCER, namespace=options.namespace, conforms_to=options.conforms_to
        )


def write_open_lineage(histories: Histories, file: TextIO, options: ExportOptions) -> int:
    """Write events of OpenLineage, one per line; return their number."""
    return _write_lines(
        file, (json.dumps(event, ensure_ascii=False) for event in read_open_lineage(histories, options))
    )


def write_cloud_events(histories: Histories, file: TextIO, options: ExportOptions) -> int:
    """Write the transitions of runs as CloudEvents, one per line; return their number."""
    source = f"/{options.namespace}"
    return _write_lines(
        file,
        (
            json.dumps(event, ensure_ascii=False)
            for history in histories
            for event in cloud_events(history, source=source, conforms_to=options.conforms_to)
        ),
    )


class _Counter:
    """Counts histories while they are read."""

    def __init__(self, histories: Histories) -> None:
        self._histories, self.count = histories, 0

    def __iter__(self) -> Iterator[RunHistory]:
        for history in self._histories:
            self.count += 1
            yield history


def _write_lines(file: TextIO, lines: Iterable[str]) -> int:
    count = 0
    for line in lines:
        file.write(f"{line}\n")
        count += 1
    return count


# The telemetry files of a release -------------------------------------------------------------------


class TelemetryReport(Value):
    """The telemetry files of a release: their paths, and their totals by file name."""

    paths: dict[str, str]
    totals: dict[str, dict[str, Any]]


def write_telemetry(
    histories: Histories, root: Path, release: str, options: ExportOptions
) -> TelemetryReport:
    """Write the telemetry files below `releases/RELEASE`, merged with those that exist already."""
    if not telemetry_files.is_release_name(release):
        raise UsageError(f"release is {release!r}; it takes a version such as v10.3.1, without slashes")
    folder = root / "releases" / release
    totals: dict[str, dict[str, Any]] = {}
    with RecordSpool() as spool:
        # All files are read before one is written: a fault leaves all as they are.
        for name in SECTIONS:
            _load_records(folder / name, name, release, spool)
        for history in histories:
            # The log has lost the bodies of a pruned run; an earlier export may have had them.
            is_pruned = bool(history.run.pruned_at) or bool(history.sealed)
            for name, section, own, record in telemetry_files.telemetry_records(history, release):
                spool.add(f"{name} {section}", own, record, keep=is_pruned)
        for name in SECTIONS:
            totals[name] = _write_telemetry_file(folder / name, name, release, spool, options)
    return TelemetryReport({name: str(folder / name) for name in totals}, totals)


def _load_records(path: Path, name: str, release: str, spool: RecordSpool) -> None:
    """Add the records of an existing file, which is read whole; refuse a file that is not one of ours."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}; move it away and export again") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMAS[name]:
        raise UsageError(f"{path} is not a telemetry file ({SCHEMAS[name]}); move it away and export again")
    if document.get("release") != release:
        raise UsageError(f"{path} belongs to release {document.get('release')!r}, not to {release!r}")
    for section in SECTIONS[name]:
        for position, record in enumerate(document.get(section, ())):
            if not isinstance(record, dict) or not isinstance(record.get("record_id"), str):
                raise UsageError(f"{path}: {section}[{position}] has no record_id; move the file away")
            spool.add(f"{name} {section}", record["record_id"], record)


def _write_telemetry_file(
    path: Path, name: str, release: str, spool: RecordSpool, options: ExportOptions
) -> dict[str, Any]:
    sections = SECTIONS[name]
    totals = telemetry_files.compute_totals(name, *(spool.read(f"{name} {each}") for each in sections))
    head: dict[str, Any] = {"schema": SCHEMAS[name], "release": release}
    if options.conforms_to:
        head["conforms_to"] = list(options.conforms_to)
    with open_document(path) as file:
        file.write(json.dumps({**head, "totals": totals}, indent=1)[:-2])
        for section in sections:
            file.write(f',\n "{section}": [')
            separator = "\n  "
            for _, text in spool.read_texts(f"{name} {section}"):
                file.write(separator + text)
                separator = ",\n  "
            file.write("]")
        file.write("\n}\n")
    return totals
