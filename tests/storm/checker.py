"""What must be true after a storm: the log, the recorder's file and the acknowledgements, joined.

chain     every link of the log holds, and every head is the fold of its entries
count     attempts and fences of a key rise by one, none is used twice; a run has at most as many as it may
before    each effect has an INTENT with its attempt and fence, and no later COMMIT of its key precedes it
result    at most one COMMIT per run; what anybody was told is what the log says
effects   idempotent: applied once; once: at most one effect for each run and decision; outbox: events
          exist if and only if their COMMIT does
end       nothing is left RUNNING or waiting, except what is held for a person
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, NamedTuple

import oncemore
from oncemore.errors import StoreError
from oncemore.log.entry_codec import decode_body, decode_head, decode_header
from oncemore.log.result_codec import result_value
from oncemore.steps.history import KINDS, fold_entries, verify_chain


class Report(NamedTuple):
    """The figures of a storm, and what was wrong."""

    runs: int
    complete: int
    failed: int
    held: int
    entries: int
    attempts: int
    lost: int
    received: int
    applied: int
    acknowledged: int
    violations: list[str]

    def __str__(self) -> str:
        told = ", ".join(f"{value} {name}" for name, value in self._asdict().items() if name != "violations")
        return f"{told}, {len(self.violations)} violations"


class _Key:
    """What the log says of a key."""

    def __init__(self) -> None:
        self.state: Any = None
        self.begun: dict[tuple[int, int], int] = {}  # (attempt, fence) → where in the log
        self.commits: list[int] = []
        self.results: list[Any] = []
        self.max_attempts: Counter[str] = Counter()  # attempts of each run
        self.decisions = 0  # by people or reconcile functions, about an unknown outcome
        self.lost = 0  # attempts whose worker died


def check(
    store: str, effects: list[dict[str, Any]], acks: list[dict[str, Any]], *, over: bool = True
) -> Report:
    """Return the figures and violations of a storm; `over` says that everything should have ended."""
    wrong: list[str] = []
    with oncemore.open(store) as engine:
        entries = list(engine.store.read_entries())
        keys, events = _read(entries, wrong)
        _check_chain(engine.store, entries, wrong)
    for key, found in keys.items():
        _check_end(key, found, wrong, over=over)
    _check_events(keys, events, wrong)
    _check_effects(keys, effects, wrong)
    _check_acks(keys, acks, wrong)
    states = Counter("held" if key.state.held_for else key.state.state for key in keys.values())
    return Report(
        len(keys), states["COMPLETE"], states["HARD_FAIL"], states["held"], len(entries),
        sum(len(key.begun) for key in keys.values()), sum(key.lost for key in keys.values()), len(effects),
        sum(effect["applied"] for effect in effects), len(acks), wrong,
    )  # fmt: skip


def _read(entries: list[Any], wrong: list[str]) -> tuple[dict[str, _Key], dict[str, Any]]:
    keys: dict[str, _Key] = defaultdict(_Key)
    events: dict[str, Any] = {}
    for entry, (header, state, body) in zip(entries, fold_entries(entries), strict=True):
        kind, _, name = header.entity.partition("/")
        if kind == "event":
            events[name] = state
        if kind != "run":
            continue
        key, before = keys[name], keys[name].state
        if "INTENT" in header.marks:
            key.begun[state.attempt, state.fence] = entry.seq
            key.max_attempts[state.run_id] += 1
            last = (before.attempt, before.fence) if before else (0, 0)
            if (state.attempt, state.fence) != (last[0] + 1, last[1] + 1):
                wrong.append(f"{name[:8]}: attempt {state.attempt}, fence {state.fence} after {last}")
            if not state.worker:
                wrong.append(f"{name[:8]}: an INTENT of nobody")
        if "COMMIT" in header.marks:
            key.commits.append(entry.seq)
            key.results.append(result_value(body["result"]))
        if body.get("error", {}).get("code") == "LEASE_EXPIRED":
            key.lost += 1
        if before is not None and before.held_for and not state.held_for:
            key.decisions += 1
        key.state = state
    return dict(keys), events


def _check_chain(store: Any, entries: list[Any], wrong: list[str]) -> None:
    try:
        folded = verify_chain(entries)
    except StoreError as error:
        wrong.append(str(error))
        return
    for entity, fold in folded.items():
        head = store.load_head(entity)
        kind: Any = KINDS[entity.partition("/")[0]]
        if head is None or (head.version, head.hash, decode_head(head.head, kind), head.seq) != fold:
            wrong.append(f"{entity}: the head is not the fold of its entries")
    last = {entry.entity: entry for entry in entries}
    for entity, entry in last.items():
        head = store.load_head(entity)
        if head.seq != entry.seq or decode_header(entry.header).version != head.version:
            wrong.append(f"{entity}: the head does not point to its last entry")
        assert entry.body is None or decode_body(entry.body) is not None


def _check_end(name: str, key: _Key, wrong: list[str], *, over: bool) -> None:
    run = key.state
    if over and run.state not in ("COMPLETE", "HARD_FAIL") and not run.held_for:
        wrong.append(f"{run.step} {name[:8]}: left {run.state}, {run.reason}")
    if len(key.commits) > run.run_number:
        wrong.append(f"{run.step} {name[:8]}: {len(key.commits)} COMMITs in {run.run_number} runs")
    if (run.state == "COMPLETE") != bool(key.commits):
        wrong.append(f"{run.step} {name[:8]}: {run.state} with {len(key.commits)} COMMITs")
    for run_id, tried in key.max_attempts.items():
        if tried > run.max_attempts + run.max_crashes:
            wrong.append(f"{run.step} {name[:8]}: {tried} attempts of {run.max_attempts} in {run_id}")
    spent = run.crash_count if run.max_crashes else run.attempt_count
    poison = run.held_for == "poison" and spent == (run.max_crashes or run.max_attempts)
    if run.held_for and not poison and run.effect != "once":
        wrong.append(f"{run.step} {name[:8]}: held, though it may be repeated")


def _check_events(keys: dict[str, _Key], events: dict[str, Any], wrong: list[str]) -> None:
    for name, key in keys.items():
        if key.state.step == "announce":
            mine = sorted(event.ordinal for event in events.values() if event.run_entity == f"run/{name}")
            if mine != ([0, 1] if key.commits else []):
                wrong.append(f"announce {name[:8]}: events {mine} with {len(key.commits)} COMMITs")


def _check_effects(keys: dict[str, _Key], effects: list[dict[str, Any]], wrong: list[str]) -> None:
    received: Counter[str] = Counter()
    applied: Counter[str] = Counter()
    for effect in effects:
        name, made = effect["run"], (effect["attempt"], effect["fence"])
        received[effect["key"]] += 1
        applied[effect["key"]] += effect["applied"]
        if name not in keys or made not in keys[name].begun:
            wrong.append(f"{effect['step']} {name[:8]}: an effect of attempt {made} without its INTENT")
    for effect in effects:
        name, key = effect["key"], keys.get(effect["run"])
        if key is None:
            continue
        if effect["effect"] == "idempotent" and applied[name] != 1:
            wrong.append(f"{effect['step']} {name[:8]}: applied {applied[name]} times")
        if effect["effect"] == "once" and received[name] > 1 + key.decisions:
            wrong.append(f"{effect['step']} {name[:8]}: {received[name]} effects, {key.decisions} decisions")
        if received[name] > len(key.begun):
            wrong.append(
                f"{effect['step']} {name[:8]}: {received[name]} effects of {len(key.begun)} attempts"
            )
    for name, key in keys.items():
        if key.state.state == "COMPLETE" and not any(effect["run"] == name for effect in effects):
            wrong.append(f"{key.state.step} {name[:8]}: COMPLETE without an effect")


def _check_acks(keys: dict[str, _Key], acks: list[dict[str, Any]], wrong: list[str]) -> None:
    for ack in acks:
        key = keys.get(ack["key"])
        if key is None:
            wrong.append(f"{ack['step']} {ack['order']}: acknowledged, and not in the log")
        elif "value" in ack and ack["value"] not in key.results:
            wrong.append(
                f"{ack['step']} {ack['order']}: {ack['value']} was acknowledged, {key.results} is stored"
            )
        elif ack.get("error") == "RetriesExhausted" and key.state.state != "HARD_FAIL":
            wrong.append(f"{ack['step']} {ack['order']}: said to have failed, is {key.state.state}")
