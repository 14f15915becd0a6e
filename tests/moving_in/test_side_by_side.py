"""Two versions of a worker on one log: what the newer one writes, the older one reads, or leaves alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import oncemore
from oncemore.log.entry_codec import head_bytes, head_of
from oncemore.log.memory import MemoryStore
from oncemore.log.record import Chore, Kept, Outgoing, Run, Worker
from tests.house.crashing import engine_on

GOLDEN = Path(__file__).parents[1] / "golden" / "log-1.jsonl"
KINDS = {"run": Run, "worker": Worker, "event": Outgoing, "artifact": Kept, "chore": Chore}
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
    assert getattr(head_of(older, kind), last) == kind._field_defaults[last]


@pytest.mark.parametrize(("entity", "head"), golden_heads(), ids=lambda value: str(value)[:20])
def test_a_head_of_a_newer_version_is_left_alone_with_a_clear_word(entity: str, head: bytes) -> None:
    kind: Any = KINDS[entity.partition("/")[0]]
    newer = msgspec.json.encode([*msgspec.json.decode(head_bytes(head_of(head, kind))), "a new field"])
    with pytest.raises(
        oncemore.StoreError, match="a newer one wrote it; nothing was changed, use that version"
    ):
        head_of(newer, kind)


def test_an_older_worker_does_nothing_with_a_run_of_a_newer_one_and_goes_on_with_all_others() -> None:
    ran.clear()
    store = MemoryStore()
    with engine_on(store) as engine:
        pay("a")
        key = f"run/{pay.key('a')}"
        head = store.head(key)
        assert head is not None
        newer = msgspec.json.encode([*msgspec.json.decode(head.head), "a new field"])
        store._heads[key] = store._heads[key]._replace(head=newer)
        before = list(store.entries(key))
        for _ in range(2):
            with pytest.raises(oncemore.StoreError, match="a newer one wrote it"):
                pay("a")
        with pytest.raises(oncemore.StoreError, match="a newer one wrote it"):
            engine.prune(older_than=60)
        assert list(store.entries(key)) == before
        assert pay("b") == "paid b"
    assert ran == ["a", "b"]


def test_two_versions_of_a_step_share_what_was_done_unless_it_is_pure(engine: oncemore.Engine) -> None:
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
