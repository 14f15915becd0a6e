"""Lineage as W3C PROV: statements of PROV-O, and the sections of PROV-JSON.

A run is an activity, its inputs and outputs are entities. A run with several attempts also has an activity
for each of them, and each attempt is informed by the one before. All ids follow from keys and digests: the
same work on the same bytes has the same ids in every store. The key itself is not exported.
"""

from __future__ import annotations

from datetime import UTC, datetime

from oncemore.lineage.history import derive_id, history_activity, list_generated, list_used, sum_measured
from oncemore.lineage.ids import URN_PREFIX
from oncemore.lineage.rdf import PREFIXES, Literal, Statement, name_type, number, refer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from oncemore.lineage.history import RunHistory

    Section = tuple[str, str, dict[str, Any]]

PROV_PREFIXES = ("crm", "dct", "geo", "oncemore", "prov", "rdf", "schema", "time", "xsd")
#: The classes of the document from which a policy comes, besides `prov:Plan`.
PLAN_CLASSES = (
    "crm:E29_Design_or_Procedure",
    "schema:TechArticle",
    "time:ProperInterval",
    "geo:FeatureCollection",
)
_JSON_PREFIX = "oncemore"
_JSON_NAMESPACE = f"{URN_PREFIX}:"


def format_instant(at: float) -> str:
    """Return a POSIX time in RFC 3339, in UTC with microseconds."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def software_agent(version: str) -> str:
    """Return the id of this software, as the agent of activities."""
    return f"{URN_PREFIX}:agent:oncemore-{version}"


def plan_id(history: RunHistory) -> str:
    """Return the id of the policy that a run began with: its name, version and digest."""
    return derive_id("plan", policy=history.run.policy)


def attempt_id(activity: str, run_number: int, position: int) -> str:
    """Return the id of an attempt, by its position in its run."""
    return derive_id("attempt", of=activity, run=run_number, attempt=position)


# PROV-O ---------------------------------------------------------------------------------------------


def describe_catalogue(version: str, conforms_to: tuple[str, ...]) -> Iterator[Statement]:
    """Yield the statements about the document itself: its agent, and the profiles that it follows."""
    agent = software_agent(version)
    yield Statement(agent, "rdf:type", name_type("prov:SoftwareAgent"))
    yield Statement(agent, "dct:title", Literal(f"oncemore {version}"))
    for name in conforms_to:
        yield Statement(agent, "dct:conformsTo", Literal(name))


def prov_statements(history: RunHistory, version: str, *, with_plan: bool = False) -> Iterator[Statement]:
    """Yield the statements of PROV-O about a run."""
    activity = history_activity(history)
    yield from _describe_activity(history, activity, version, with_plan)
    yield from _describe_attempts(history, activity)
    used = dict(list_used(history))
    for entity, facts in used.items():
        yield from _describe_entity(entity, facts)
    for entity, facts in list_generated(history):
        yield from _describe_entity(entity, facts)
        yield Statement(entity, "prov:wasGeneratedBy", refer(activity))
        for source in used:
            yield Statement(entity, "prov:wasDerivedFrom", refer(source))
            yield Statement(entity, "prov:qualifiedDerivation", refer(_derivation(entity, source, activity)))
        for source in used:
            derivation = _derivation(entity, source, activity)
            yield Statement(derivation, "rdf:type", name_type("prov:Derivation"))
            yield Statement(derivation, "prov:entity", refer(source))
            yield Statement(derivation, "prov:hadActivity", refer(activity))
    if with_plan and history.run.policy:
        yield from _describe_plan(history)


def _derivation(output: str, source: str, activity: str) -> str:
    """Return the id of a derivation, the same as in `RunLineage.derived`."""
    return derive_id("derivation", of=output, **{"from": source}, by=activity.rpartition(":")[2])


def _describe_activity(
    history: RunHistory, activity: str, version: str, with_plan: bool
) -> Iterator[Statement]:
    run = history.run
    yield Statement(activity, "rdf:type", name_type("prov:Activity"))
    # An activity has one start and one end: those of the latest run of the work.
    if history.is_latest:
        for name, value in _activity_facts(history).items():
            yield Statement(activity, name, value)
    for entity, _ in list_used(history):
        yield Statement(activity, "prov:used", refer(entity))
    agent = software_agent(version)
    yield Statement(activity, "prov:wasAssociatedWith", refer(agent))
    if with_plan and run.policy:
        association = derive_id("association", activity=activity, agent=agent, plan=run.policy)
        yield Statement(activity, "prov:qualifiedAssociation", refer(association))
        yield Statement(association, "rdf:type", name_type("prov:Association"))
        yield Statement(association, "prov:agent", refer(agent))
        yield Statement(association, "prov:hadPlan", refer(plan_id(history)))


def _activity_facts(history: RunHistory) -> dict[str, Literal]:
    """Return the plain facts about a run, by prefixed name."""
    run, sums = history.run, sum_measured(history.attempts)
    facts = {
        "dct:title": Literal(run.step),
        "oncemore:runId": Literal(run.run_id),
        "oncemore:runNumber": number(run.run_number),
        "oncemore:state": Literal(run.state),
        "oncemore:attempts": number(len(history.attempts)),
    }
    if history.started is not None:
        facts["prov:startedAtTime"] = Literal(format_instant(history.started), "xsd:dateTime")
    if history.ended is not None:
        facts["prov:endedAtTime"] = Literal(format_instant(history.ended), "xsd:dateTime")
    for name, figure in (
        ("energy_kWh", sums.energy_kWh),
        ("carbon_kgCO2e", sums.carbon_kgCO2e),
    ):
        if figure is not None and history.attempts:
            facts[f"oncemore:{name}"] = number(float(figure))
    return facts


def _describe_attempts(history: RunHistory, activity: str) -> Iterator[Statement]:
    """Yield the statements about the attempts of a run that has more than one."""
    if len(history.attempts) < 2:
        return
    # A single attempt would repeat the activity of its run.
    before = ""
    for position, attempt in enumerate(history.attempts, 1):
        own = attempt_id(activity, history.run.run_number, position)
        yield Statement(own, "rdf:type", name_type("prov:Activity"))
        yield Statement(own, "dct:isPartOf", refer(activity))
        yield Statement(own, "oncemore:attempt", number(position))
        yield Statement(own, "oncemore:state", Literal(attempt.outcome))
        yield Statement(own, "prov:startedAtTime", Literal(format_instant(attempt.began), "xsd:dateTime"))
        if attempt.ended is not None:
            yield Statement(own, "prov:endedAtTime", Literal(format_instant(attempt.ended), "xsd:dateTime"))
        if before:
            yield Statement(own, "prov:wasInformedBy", refer(before))
        before = own


def _describe_entity(entity: str, facts: dict[str, Any]) -> Iterator[Statement]:
    yield Statement(entity, "rdf:type", name_type("prov:Entity"))
    yield Statement(entity, "oncemore:sha256", Literal(facts["digest"], "xsd:hexBinary"))
    yield Statement(entity, "dct:title", Literal(facts["name"]))
    yield Statement(entity, "oncemore:kind", Literal(facts["kind"]))
    if "size" in facts:
        yield Statement(entity, "oncemore:size", number(facts["size"]))


def _describe_plan(history: RunHistory) -> Iterator[Statement]:
    name, _, rest = history.run.policy.partition("@")
    version, _, digest = rest.rpartition(":")
    plan = plan_id(history)
    yield Statement(plan, "rdf:type", name_type("prov:Plan"))
    yield Statement(plan, "rdf:type", name_type("prov:Entity"))
    for class_name in PLAN_CLASSES:
        yield Statement(plan, "rdf:type", name_type(class_name))
    yield Statement(plan, "dct:title", Literal(name))
    yield Statement(plan, "oncemore:version", Literal(version))
    yield Statement(plan, "oncemore:digest", Literal(digest))


# PROV-JSON ------------------------------------------------------------------------------------------


def prov_json_prefixes() -> dict[str, str]:
    """Return the prefixes of a PROV-JSON document."""
    return {_JSON_PREFIX: _JSON_NAMESPACE, "terms": PREFIXES["oncemore"], "dct": PREFIXES["dct"]}


def prov_sections(history: RunHistory, version: str, *, with_plan: bool = False) -> Iterator[Section]:
    """Yield section, id and record of each part of PROV-JSON about a run."""
    activity, agent = history_activity(history), software_agent(version)
    names = {"oncemore": "terms", "dct": "dct"}
    facts: dict[str, Any] = {}
    for name, literal in _activity_facts(history).items():
        prefix, _, local = name.partition(":")
        # PROV-JSON has its own names for the times of an activity.
        short = {"startedAtTime": "prov:startTime", "endedAtTime": "prov:endTime"}.get(local)
        facts[short or f"{names[prefix]}:{local}"] = literal.text if short else _json_value(literal)
    if history.is_latest:
        yield "activity", _shorten(activity), facts
    yield "agent", _shorten(agent), {"prov:type": _json_name("prov:SoftwareAgent")}
    association = {"prov:activity": _shorten(activity), "prov:agent": _shorten(agent)}
    if with_plan and history.run.policy:
        association["prov:plan"] = _shorten(plan_id(history))
        title, _, plan_version = history.run.policy.partition("@")
        plan = {"prov:type": _json_name("prov:Plan"), "dct:title": title, "terms:version": plan_version}
        yield "entity", _shorten(plan_id(history)), plan
    yield "wasAssociatedWith", _shorten(derive_id("association", **association)), association
    used = dict(list_used(history))
    for entity, edge in used.items():
        yield "entity", _shorten(entity), _json_entity(edge)
        usage = {"prov:activity": _shorten(activity), "prov:entity": _shorten(entity)}
        yield "used", _shorten(derive_id("usage", **usage)), usage
    for entity, edge in list_generated(history):
        yield "entity", _shorten(entity), _json_entity(edge)
        generation = {"prov:entity": _shorten(entity), "prov:activity": _shorten(activity)}
        yield "wasGeneratedBy", _shorten(derive_id("generation", **generation)), generation
        for source in used:
            yield (
                "wasDerivedFrom",
                _shorten(_derivation(entity, source, activity)),
                {
                    "prov:generatedEntity": _shorten(entity),
                    "prov:usedEntity": _shorten(source),
                    "prov:activity": _shorten(activity),
                },
            )


def _shorten(iri: str) -> str:
    """Return one of our ids as a qualified name of PROV-JSON."""
    return f"{_JSON_PREFIX}:{iri.removeprefix(_JSON_NAMESPACE)}"


def _json_name(name: str) -> dict[str, str]:
    return {"$": name, "type": "prov:QUALIFIED_NAME"}


def _json_value(literal: Literal) -> Any:
    return {"$": literal.text, "type": literal.datatype} if literal.datatype else literal.text


def _json_entity(facts: dict[str, Any]) -> dict[str, Any]:
    # Without the kind: one entity can be the result of a run and the argument of another.
    return {"terms:sha256": facts["digest"]}
