"""Counts of effects, messages and audit events in `oncemore demo exoarmur`.

effects    from the recorder's file of the hosts
messages   from the streams, read message by message with nats-py
events     from the agents' files, compared with the audit stream
decisions  from the audit stream, compared with the log
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import oncemore
from oncemore.audit import AuditStream, RetryAttempt, parse_event
from oncemore.demo.effect_counts import RECORDER_FILE, make_count, read_json_lines
from oncemore.log.nats.servers import connect_first, parse_servers
from oncemore.log.store import HeadQuery
from oncemore.profiles.exoarmur.policy import builtin_categories

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from oncemore.audit import AuditEvent
    from oncemore.demo.effect_counts import EffectCount
    from oncemore.demo.exoarmur.agent_plan import AgentPlan

#: Names of the effects, by their path.
EFFECTS = {"execute": "intents executed", "contain": "hosts contained", "release": "hosts released"}
STREAMS = {"BELIEFS": "beliefs in stream", "INTENTS": "intents in stream", "AUDIT": "audit events"}
MAX_RUNS = 10_000


class EffectReport(NamedTuple):
    """The counts, the audit stream, and the faults that were found in it."""

    counts: tuple[EffectCount, ...]
    audit: AuditStream
    faults: tuple[str, ...]

    @property
    def is_exact(self) -> bool:
        """Whether everything is there once."""
        return not any(one.duplicated or one.lost for one in self.counts)


async def read_stream(url: str, stream: str) -> list[bytes]:
    """Return every message of a stream, in order."""
    client = await connect_first(parse_servers(url), 10.0)
    try:
        return await read_messages(client.jetstream(timeout=5.0), stream)
    finally:
        await client.close()


async def read_messages(streams: Any, stream: str) -> list[bytes]:
    """Return the messages of a stream, each read by its number.

    By number and not by a consumer, so that no message can be skipped. The demo deletes none.
    """
    state = (await streams.stream_info(stream)).state
    messages = (streams.get_msg(stream, number) for number in range(1, state.last_seq + 1))
    return [message.data or b"" for message in await asyncio.gather(*messages)]


async def count_effects(
    folder: Path, url: str, plan: AgentPlan, sent: Mapping[str, list[str]], tried: Mapping[str, int]
) -> EffectReport:
    """Count everything.

    sent   the names of the messages that each stream acknowledged
    tried  the number of publications per stream
    """
    counts = count_host_effects(folder, plan)
    for stream, names in sent.items():
        stored = Counter(json.loads(one)["name"] for one in await read_stream(url, stream))
        counts.append(make_count(STREAMS[stream], frozenset(names), tried[stream], stored))
    trails = [
        [json.dumps(one) for one in read_json_lines(folder / name)]
        for name in ("audit.jsonl", "audit-2.jsonl")
    ]
    events = [parse_event(json.loads(one)) for one in await read_stream(url, "AUDIT")]
    # Compared as text, after the same round trip as the lines in the files.
    texts = [json.dumps(event.to_dict()) for event in events]
    written = [one for trail in trails for one in trail]
    counts.append(make_count(STREAMS["AUDIT"], frozenset(written), len(written), Counter(texts)))
    faults = (*_find_disorder(trails, texts), *find_untried_categories(events))
    return EffectReport(tuple(counts), AuditStream(events), faults)


def count_host_effects(folder: Path, plan: AgentPlan) -> list[EffectCount]:
    """Count the recorded effects on hosts."""
    lines = read_json_lines(folder / RECORDER_FILE)
    wanted = {"execute": plan.valid_intents, "contain": (*plan.hosts, plan.critical), "release": plan.hosts}
    return [
        make_count(
            name,
            frozenset(wanted[path]),
            sum(line["event"] == "requested" and line["path"] == path for line in lines),
            Counter(line["order"] for line in lines if line["event"] == "applied" and line["path"] == path),
        )
        for path, name in EFFECTS.items()
    ]


def _find_disorder(trails: list[list[str]], texts: list[str]) -> list[str]:
    """Return the agents whose events are in another order in the stream than in their files."""
    # Events of two agents may interleave; only the order within one agent counts.
    order = {text: at for at, text in enumerate(texts)}
    places = [[order[one] for one in trail if one in order] for trail in trails]
    return [
        f"the events of agent {number} came in another order"
        for number, positions in enumerate(places, 1)
        if positions != sorted(positions)
    ]


def find_untried_categories(events: Iterable[AuditEvent]) -> list[str]:
    """Return the categories without any failure: the demo should show a failure under each of the 17."""
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
    """Return the decided waits in the audit stream, and those in the log."""
    # Operations that only read have no run in the log.
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
