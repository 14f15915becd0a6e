"""What really happened in `oncemore demo exoarmur`, counted by others than those who did it.

effects    from the recorder of the world, which only appends
messages   from the streams, read by the client of NATS alone, message by message
events     the lines that the agents wrote down, and what the audit stream holds of them
decisions  the delays in the audit stream, and those in the log
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import oncemore
from oncemore.audit import AuditStream, RetryAttempt, parse_event
from oncemore.demo.pipeline.tally import make_count, read_json_lines
from oncemore.log.nats.servers import connect_first, parse_servers
from oncemore.log.store import HeadQuery
from oncemore.profiles.exoarmur.policy import builtin_categories

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from oncemore.audit import AuditEvent
    from oncemore.demo.exoarmur.cast import AgentPlan
    from oncemore.demo.pipeline.tally import EffectCount

#: What the effects are called, by the path that they come by.
EFFECTS = {"execute": "intents executed", "contain": "hosts contained", "release": "hosts released"}
STREAMS = {"BELIEFS": "beliefs in stream", "INTENTS": "intents in stream", "AUDIT": "audit events"}
MAX_RUNS = 10_000


class EffectReport(NamedTuple):
    """The counts, the audit stream, and what is wrong with any of it."""

    counts: tuple[EffectCount, ...]
    audit: AuditStream
    faults: tuple[str, ...]

    @property
    def is_exact(self) -> bool:
        """Whether everything is there once."""
        return not any(one.duplicated or one.lost for one in self.counts)


async def read_stream(url: str, stream: str) -> list[bytes]:
    """Return every message of a stream in its order, each asked for by its number."""
    line = await connect_first(parse_servers(url), 10.0)
    try:
        return await read_messages(line.jetstream(timeout=5.0), stream)
    finally:
        await line.close()


async def read_messages(streams: Any, stream: str) -> list[bytes]:
    """Return the messages of a stream that nobody has deleted anything from."""
    state = (await streams.stream_info(stream)).state
    asked = (streams.get_msg(stream, number) for number in range(1, state.last_seq + 1))
    return [message.data or b"" for message in await asyncio.gather(*asked)]


async def count_effects(
    folder: Path, url: str, plan: AgentPlan, sent: Mapping[str, list[str]], tried: Mapping[str, int]
) -> EffectReport:
    """Count everything; `sent` has what each stream acknowledged, `tried` how often it was asked to."""
    counts = count_host_effects(folder, plan)
    for stream, names in sent.items():
        there = Counter(json.loads(one)["name"] for one in await read_stream(url, stream))
        counts.append(make_count(STREAMS[stream], frozenset(names), tried[stream], there))
    told = [
        [json.dumps(one) for one in read_json_lines(folder / name)]
        for name in ("audit.jsonl", "audit-2.jsonl")
    ]
    events = [parse_event(json.loads(one)) for one in await read_stream(url, "AUDIT")]
    texts = [json.dumps(event.to_dict()) for event in events]
    all_told = [one for trail in told for one in trail]
    counts.append(make_count(STREAMS["AUDIT"], frozenset(all_told), len(all_told), Counter(texts)))
    audit = AuditStream(events)
    return EffectReport(
        tuple(counts), audit, (*_find_disorder(told, texts), *find_untried_categories(events))
    )


def count_host_effects(folder: Path, plan: AgentPlan) -> list[EffectCount]:
    """Count the effects that the recorder has."""
    seen = read_json_lines(folder / "recorder.jsonl")
    wanted = {"execute": plan.valid_intents, "contain": (*plan.hosts, plan.critical), "release": plan.hosts}
    return [
        make_count(
            name,
            frozenset(wanted[path]),
            sum(line["what"] == "asked" and line["path"] == path for line in seen),
            Counter(line["order"] for line in seen if line["what"] == "applied" and line["path"] == path),
        )
        for path, name in EFFECTS.items()
    ]


def _find_disorder(told: list[list[str]], texts: list[str]) -> list[str]:
    """Say which agent's events came in another order than they were told in."""
    order = {text: at for at, text in enumerate(texts)}
    places = [[order[one] for one in trail if one in order] for trail in told]
    return [
        f"the events of agent {number} came in another order"
        for number, found in enumerate(places, 1)
        if found != sorted(found)
    ]


def find_untried_categories(events: Iterable[AuditEvent]) -> list[str]:
    """Say which of the 17 categories nothing went wrong in: the story is to show all of them at work."""
    met = {event.retry_category for event in events if event.event_type in _TROUBLE}
    return [
        f"nothing went wrong under {name}"
        for name, one in builtin_categories().items()
        if one.code not in met
    ]


_TROUBLE = ("retry_attempt", "retry_exhausted", "retry_refused")


def count_decisions(
    events: Iterable[AuditEvent], engine: oncemore.Engine
) -> tuple[Counter[Any], Counter[Any]]:
    """Return every wait that was decided, as the audit stream has it and as the log has it."""
    reading = {one.code for one in builtin_categories().values() if one.kind == "reading"}
    in_stream = Counter(
        (event.operation, event.attempt_number, event.delay_seconds)
        for event in events
        if isinstance(event, RetryAttempt) and event.retry_category not in reading
    )
    in_log: Counter[Any] = Counter()
    for head in engine.store.list_heads(HeadQuery("run", limit=MAX_RUNS)):
        run: oncemore.Run[Any] = oncemore.Run(engine, head.entity)
        for proof in run.proofs:
            if proof["action"] == "retry":
                in_log[run.step, proof["attempt"], proof["delay_s"]] += 1
    return in_stream, in_log
