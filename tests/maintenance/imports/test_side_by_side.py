"""Two versions of a worker on one log: the older one reads or refuses entries of the newer one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import oncemore
from oncemore.log.entry_codec import decode_head, encode_head
from oncemore.log.memory import MemoryStore
from oncemore.log.record import (
    ArtifactRecord,
    EventRecord,
    MaintenanceRecord,
    RecordedPolicy,
    RunRecord,
    WorkerRecord,
)
from tests.crash.harness import open_engine_on

GOLDEN = Path(__file__).parents[2] / "golden" / "log-2.jsonl"
KINDS = {
    "run": RunRecord,
    "worker": WorkerRecord,
    "event": EventRecord,
    "artifact": ArtifactRecord,
    "maintenance": MaintenanceRecord,
    "policy": RecordedPolicy,
}
ran: list[str] = []


@oncemore.step(effect="idempotent", name="side.pay")
def pay(order: str) -> str:
    ran.append(order)
    return f"paid {order}"


def golden_heads() -> list[tuple[str, bytes]]:
    lines = (json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines())
    return [(line["head_of"], line["head"].encode()) for line in lines if "head_of" in line]


@pytest.mark.parametrize(("entity", "head"), golden_heads(), ids=lambda value: str(value)[:20])
def test_a_head_of_an_older_version_is_read_with_defaults_for_what_it_lacks(entity: str, head: bytes) -> None:
    kind: Any = KINDS[entity.partition("/")[0]]
    fields = msgspec.json.decode(head)
    last = kind._fields[-1]
    older = msgspec.json.encode(fields[: len(kind._fields)])  # without its last field
    assert getattr(decode_head(older, kind), last) == kind._field_defaults[last]


@pytest.mark.parametrize(("entity", "head"), golden_heads(), ids=lambda value: str(value)[:20])
def test_a_head_of_a_newer_version_is_refused_with_advice(entity: str, head: bytes) -> None:
    kind: Any = KINDS[entity.partition("/")[0]]
    newer = msgspec.json.encode([*msgspec.json.decode(encode_head(decode_head(head, kind))), "a new field"])
    with pytest.raises(
        oncemore.StoreError, match="a newer oncemore wrote it; nothing was changed, use that version"
    ):
        decode_head(newer, kind)


def test_an_older_worker_skips_runs_of_a_newer_version_and_does_the_rest() -> None:
    ran.clear()
    store = MemoryStore()
    with open_engine_on(store) as engine:
        pay("a")
        key = f"run/{pay.key('a')}"
        head = store.load_head(key)
        assert head is not None
        newer = msgspec.json.encode([*msgspec.json.decode(head.head), "a new field"])
        store._heads[key] = store._heads[key]._replace(head=newer)
        before = list(store.read_entries(key))
        for _ in range(2):
            with pytest.raises(oncemore.StoreError, match="a newer oncemore wrote it"):
                pay("a")
        with pytest.raises(oncemore.StoreError, match="a newer oncemore wrote it"):
            engine.prune(older_than=60)
        assert list(store.read_entries(key)) == before
        assert pay("b") == "paid b"
    assert ran == ["a", "b"]


def test_two_versions_of_a_step_share_results_unless_it_is_pure(engine: oncemore.Engine) -> None:
    def version(number: str, effect: Any) -> Any:
        @oncemore.step(effect=effect, name=f"side.{effect}", version=number)
        def work() -> str:
            return number

        return work

    old, new = version("1", "idempotent"), version("2", "idempotent")
    assert (old(), new(), old()) == ("1", "1", "1")
    old, new = version("1", "pure"), version("2", "pure")
    assert (old(), new(), old()) == ("1", "2", "1"), (
        "each version has its own; name one version while both run"
    )
