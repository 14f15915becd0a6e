"""Artifacts as records of a catalogue: STAC 1.0.0 items, and datasets of DCAT 3.

Both have one record for each artifact of a complete run, under an id that follows from the work and the
artifact's name, with the checksum of its bytes and with `processing:attempt`, `processing:energy_kWh` and
`processing:carbon_kgCO2e`. The public processing extension of STAC refuses these three names, so an item
declares an extension of our own (`schemas/stac-processing-v1.json`) and not that one.
"""

from __future__ import annotations

import re
from datetime import date, timedelta
from hashlib import sha256

from oncemore.lineage.history import derive_id, history_activity, sum_measured
from oncemore.lineage.ids import URN_PREFIX, entity_id
from oncemore.lineage.prov import format_instant
from oncemore.lineage.rdf import Literal, Statement, name_type, number, refer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from oncemore.lineage.history import RunHistory

STAC_VERSION = "1.0.0"
#: The address of our extension unless the user publishes the schema elsewhere.
EXTENSION_URL = "urn:oncemore:stac-processing:v1"
FILE_EXTENSION = "https://stac-extensions.github.io/file/v2.1.0/schema.json"
#: The prefix of a SHA-256 digest as a multihash: the code of the function, and 32 bytes.
SHA256_MULTIHASH = "1220"
DCAT_PREFIXES = ("dcat", "dct", "foaf", "oncemore", "prov", "rdf", "spdx", "xsd")
CATALOGUE = f"{URN_PREFIX}:catalogue"
MEDIA_TYPES = "https://www.iana.org/assignments/media-types/"


def object_path(digest: str) -> str:
    """Return the path of an artifact's bytes inside a folder of artifacts."""
    return f"sha256/{digest[:2]}/{digest}"


def make_href(base: str, digest: str) -> str:
    """Return the address of an artifact's bytes below a base address."""
    return f"{base.rstrip('/')}/{object_path(digest)}"


def record_id(history: RunHistory, name: str) -> str:
    """Return the id of an artifact's record, from the work and the artifact's name."""
    return derive_id("artifact", of=history_activity(history), name=name).rpartition(":")[2]


def _processing_fields(history: RunHistory) -> dict[str, Any]:
    """Return the three values of an artifact's record; a figure that was not measured is null."""
    sums = sum_measured(history.attempts)
    return {
        "processing:attempt": max(1, len(history.attempts)),
        "processing:energy_kWh": sums.energy_kWh,
        "processing:carbon_kgCO2e": sums.carbon_kgCO2e,
    }


# STAC -----------------------------------------------------------------------------------------------


def stac_items(
    history: RunHistory, *, base: str, extension: str = EXTENSION_URL, conforms_to: tuple[str, ...] = ()
) -> Iterator[dict[str, Any]]:
    """Yield one item for each artifact of a complete run."""
    if history.run.state != "COMPLETE" or history.ended is None:
        return
    reason = sum_measured(history.attempts).reason
    for artifact in history.artifacts:
        values = _processing_fields(history)
        asset = {
            "href": make_href(base, artifact["digest"]),
            "type": artifact.get("media_type", "application/octet-stream"),
            "title": artifact["name"],
            "roles": ["data"],
            "file:checksum": SHA256_MULTIHASH + artifact["digest"],
            "file:size": artifact["size"],
            **values,
        }
        properties = {
            **format_interval(artifact.get("date", ""), history.ended),
            "created": format_instant(history.ended),
            **values,
            "oncemore:step": history.run.step,
            "oncemore:activity": history_activity(history),
            **({"oncemore:unavailable": reason} if reason else {}),
            **({f"oncemore:{part}": artifact[part] for part in ("site", "h3") if artifact.get(part)}),
            **({"oncemore:conforms_to": list(conforms_to)} if conforms_to else {}),
        }
        yield {
            "type": "Feature",
            "stac_version": STAC_VERSION,
            "stac_extensions": [FILE_EXTENSION, extension],
            "id": record_id(history, artifact["name"]),
            "geometry": None,
            "properties": properties,
            "links": [
                {"rel": "derived_from", "href": make_href(base, edge["digest"]), "title": edge["name"]}
                for edge in history.used
                if edge["kind"] == "artifact"
            ],
            "assets": {"data": asset},
        }


def format_interval(day: str, created: float) -> dict[str, Any]:
    """Return the time fields of an item: the interval of its date, or the time at which it was made.

    day  a day, a month or a year in ISO 8601; empty if the artifact has no date
    """
    if not day:
        return {"datetime": format_instant(created)}
    year, month, *_ = (*map(int, day.split("-")), 0, 0)
    if len(day) == 10:
        first = date.fromisoformat(day)
        last = first
    elif len(day) == 7:
        first = date(year, month, 1)
        last = date(year + month // 12, month % 12 + 1, 1) - timedelta(days=1)
    else:
        first, last = date(year, 1, 1), date(year, 12, 31)
    return {
        "datetime": None,
        "start_datetime": f"{first.isoformat()}T00:00:00Z",
        "end_datetime": f"{last.isoformat()}T23:59:59Z",
    }


# DCAT -----------------------------------------------------------------------------------------------


def describe_dcat_catalogue(publisher: str, title: str, conforms_to: tuple[str, ...]) -> Iterator[Statement]:
    """Yield the statements about the catalogue itself."""
    agent = f"{URN_PREFIX}:publisher:{sha256(publisher.encode()).hexdigest()[:32]}"
    yield Statement(CATALOGUE, "rdf:type", name_type("dcat:Catalog"))
    yield Statement(CATALOGUE, "dct:title", Literal(title))
    yield Statement(
        CATALOGUE, "dct:description", Literal("Artifacts of finished runs, exported by oncemore.")
    )
    yield Statement(CATALOGUE, "dct:publisher", refer(agent))
    for name in conforms_to:
        yield Statement(CATALOGUE, "dct:conformsTo", refer(f"{URN_PREFIX}:profile:{name}"))
    yield Statement(agent, "rdf:type", name_type("foaf:Agent"))
    yield Statement(agent, "foaf:name", Literal(publisher))
    for name in conforms_to:
        profile = f"{URN_PREFIX}:profile:{name}"
        yield Statement(refer(profile).iri, "rdf:type", name_type("dct:Standard"))
        yield Statement(refer(profile).iri, "dct:title", Literal(name))


def dcat_statements(history: RunHistory, *, base: str) -> Iterator[Statement]:
    """Yield the statements about each artifact of a complete run."""
    if history.run.state != "COMPLETE" or history.ended is None:
        return
    issued = Literal(format_instant(history.ended), "xsd:dateTime")
    for artifact in history.artifacts:
        own = record_id(history, artifact["name"])
        dataset, distribution = f"{URN_PREFIX}:dataset:{own}", f"{URN_PREFIX}:distribution:{own}"
        yield Statement(CATALOGUE, "dcat:dataset", refer(dataset))
        yield Statement(dataset, "rdf:type", name_type("dcat:Dataset"))
        yield Statement(dataset, "dct:title", Literal(artifact["name"]))
        description = f"Output {artifact['name']} of step {history.run.step}."
        yield Statement(dataset, "dct:description", Literal(description))
        yield Statement(dataset, "dct:identifier", Literal(own))
        yield Statement(dataset, "dct:issued", issued)
        if day := artifact.get("date"):
            yield Statement(dataset, "oncemore:date", Literal(day))
        for part in ("site", "h3"):
            if artifact.get(part):
                yield Statement(dataset, f"oncemore:{part}", Literal(artifact[part]))
        yield Statement(dataset, "prov:wasGeneratedBy", refer(history_activity(history)))
        for name, value in _processing_fields(history).items():
            if value is not None:
                yield Statement(dataset, name.replace("processing:", "oncemore:"), number(value))
        for edge in history.used:
            yield Statement(dataset, "prov:wasDerivedFrom", refer(entity_id(edge["digest"])))
        yield Statement(dataset, "dcat:distribution", refer(distribution))
        yield from _describe_distribution(distribution, artifact, base)


def _describe_distribution(distribution: str, artifact: dict[str, Any], base: str) -> Iterator[Statement]:
    href = make_href(base, artifact["digest"])
    checksum = f"{URN_PREFIX}:checksum:sha256:{artifact['digest']}"
    yield Statement(distribution, "rdf:type", name_type("dcat:Distribution"))
    yield Statement(distribution, "dct:title", Literal(artifact["name"]))
    yield Statement(distribution, "dcat:accessURL", refer(href))
    yield Statement(distribution, "dcat:downloadURL", refer(href))
    yield Statement(distribution, "dcat:byteSize", Literal(str(artifact["size"]), "xsd:nonNegativeInteger"))
    # Without parameters such as the charset: IANA registers types only.
    media_type = re.split(";", artifact.get("media_type", "application/octet-stream"))[0]
    yield Statement(distribution, "dcat:mediaType", refer(MEDIA_TYPES + media_type))
    yield Statement(distribution, "spdx:checksum", refer(checksum))
    yield Statement(checksum, "rdf:type", name_type("spdx:Checksum"))
    yield Statement(checksum, "spdx:algorithm", name_type("spdx:checksumAlgorithm_sha256"))
    yield Statement(checksum, "spdx:checksumValue", Literal(artifact["digest"], "xsd:hexBinary"))
