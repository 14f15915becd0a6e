"""Checks of `list_heads`, `wait_for_change` and `describe_store`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from oncemore.log.store import HeadQuery
from oncemore.testing.store_contract._helpers import append_writes, make_write, require_stored

if TYPE_CHECKING:
    from oncemore.testing.store_contract._helpers import Opener


def heads_are_found_by_what_they_are_indexed_by(open_store: Opener) -> None:
    """Queries filter, order by due time and stop at their limit."""
    store = open_store()
    rows: list[tuple[str, dict[str, Any]]] = [
        ("run/1", {"state": "SOFT_FAIL", "due": 30.0, "step": "load"}),
        ("run/2", {"state": "SOFT_FAIL", "due": 10.0, "step": "load", "worker": "w1"}),
        ("run/3", {"state": "PENDING", "due": 20.0, "step": "send", "dataset": "d1"}),
        ("run/4", {"state": "COMPLETE", "step": "load"}),
        ("worker/1", {"kind": "worker", "due": 5.0}),
    ]
    for entity, by in rows:
        require_stored(append_writes(store, make_write(entity, None, **by)))

    def list_names(**query: object) -> list[str]:
        return [head.entity for head in store.list_heads(HeadQuery(**{"kind": "run", **query}))]  # type: ignore[arg-type]

    assert list_names() == ["run/2", "run/3", "run/1", "run/4"]
    assert list_names(due_by=20.0) == ["run/2", "run/3"]
    # Everything that has a due time, in the order of it.
    assert list_names(due_by=float("inf")) == ["run/2", "run/3", "run/1"]
    assert list_names(state="SOFT_FAIL") == ["run/2", "run/1"]
    assert list_names(step="load", due_by=99.0) == ["run/2", "run/1"]
    assert list_names(worker="w1") == ["run/2"]
    assert list_names(dataset="d1") == ["run/3"]
    assert list_names(kind="worker") == ["worker/1"]
    assert list_names(kind="") == ["worker/1", "run/2", "run/3", "run/1", "run/4"], "heads of all kinds"
    assert list_names(kind="", worker="w1") == ["run/2"]
    assert list_names(limit=2) == ["run/2", "run/3"]
    # A finished run has no due time and leaves the list of due work.
    head = store.load_head("run/2")
    require_stored(append_writes(store, make_write("run/2", head, state="COMPLETE", step="load")))
    assert list_names(due_by=99.0) == ["run/3", "run/1"]


def the_newest_heads_are_listed_first_when_asked(open_store: Opener) -> None:
    """`newest` orders by last entry; `above`, `below`, `begins`, `holds` and `tells` restrict the list."""
    store, seqs = open_store(), dict[str, int]()
    for n, turn in enumerate([1, 2, 3, 4, 2, 1]):
        entity = f"run/{'ab'[turn % 2]}{turn}"
        change = make_write(entity, store.load_head(entity), b'{"n":%d}' % n, state="EO"[turn % 2])
        (seqs[entity],) = require_stored(append_writes(store, change)).seqs
    require_stored(append_writes(store, make_write("worker/a1", None, kind="worker")))

    def list_names(**query: object) -> list[str]:
        heads = store.list_heads(HeadQuery(**{"kind": "run", "newest_first": True, **query}))  # type: ignore[arg-type]
        return [head.entity for head in heads]

    assert list_names() == ["run/b1", "run/a2", "run/a4", "run/b3"]
    assert list_names(limit=2) == ["run/b1", "run/a2"]
    assert list_names(state="O") == ["run/b1", "run/b3"]
    assert list_names(before_seq=seqs["run/a2"]) == ["run/a4", "run/b3"]
    assert list_names(after_seq=seqs["run/a4"]) == ["run/b1", "run/a2"]
    assert list_names(after_seq=seqs["run/b3"], before_seq=seqs["run/b1"]) == ["run/a2", "run/a4"]
    assert list_names(prefix="run/a") == ["run/a2", "run/a4"]
    assert list_names(prefix="run/a", newest_first=False) == ["run/a2", "run/a4"]
    # A prefix is not a pattern.
    assert list_names(prefix="run/%") == []
    assert list_names(kind="", after_seq=seqs["run/a2"]) == ["worker/a1", "run/b1"]
    assert list_names(head_contains=b"run/b1:2") == ["run/b1"]
    assert list_names(body_contains=b'"n":4') == ["run/a2"]
    assert list_names(body_contains=b'"n":1') == [], "only the body of the last entry counts"
    (head,) = store.list_heads(HeadQuery("run", body_contains=b'"n":3'))
    assert (head.entity, head.body) == ("run/a4", b'{"n":3}')


def heads_can_be_listed_page_by_page(open_store: Opener) -> None:
    """Pages are in the order of names, not of due times; each head appears once."""
    store = open_store()
    names = [f"run/{n:02}" for n in range(7)]
    for number, entity in enumerate(names):
        state = "DONE" if number % 3 else "OPEN"
        require_stored(
            append_writes(
                store, make_write(entity, None, due=None if number % 2 else 9.0 - number, state=state)
            )
        )
    require_stored(append_writes(store, make_write("worker/w", None, kind="worker")))
    listed: list[str] = []
    while page := list(store.list_heads(HeadQuery("run", limit=2, after=listed[-1] if listed else ""))):
        assert len(page) <= 2
        listed += [head.entity for head in page]
    assert listed == names
    # Filters apply to pages as well.
    done = store.list_heads(HeadQuery("run", state="DONE", after="run/01"))
    assert [head.entity for head in done] == ["run/02", "run/04", "run/05"]


def all_heads_can_be_read_beside_the_log(open_store: Opener) -> None:
    """`by_creation` lists every head of every kind once, whatever the other fields say."""
    store = open_store()
    names = ["run/b", "worker/w", "run/a", "event/e"]
    for entity in (*names, "run/b"):
        write = make_write(entity, store.load_head(entity), kind=entity.partition("/")[0], due=None)
        require_stored(append_writes(store, write))
    heads = list(store.list_heads(HeadQuery("", by_creation=True, limit=1)))
    assert sorted(head.entity for head in heads) == sorted(names)
    assert {head.entity: head.version for head in heads}["run/b"] == 2
    for head in heads:
        loaded = store.load_head(head.entity)
        assert loaded is not None
        assert head == loaded._replace(body=None)


def waiting_for_a_change_ends_when_there_is_one(open_store: Opener) -> None:
    """`wait_for_change` returns at an append of any handle, and at its timeout."""
    store, other = open_store(), open_store()
    last = store.wait_for_change(0, 0.0)
    # Without an append the timeout ends the wait.
    assert store.wait_for_change(last, 0.05) == last
    timer = threading.Timer(0.1, lambda: append_writes(other, make_write("run/a", None)))
    timer.start()
    assert store.wait_for_change(last, 10.0) > last
    timer.join()


def facts_describe_the_store(open_store: Opener) -> None:
    """A store names its engine and its durability, and its clock does not go back."""
    store = open_store()
    facts = store.open_maintenance().describe_store()
    assert facts.url
    assert facts.engine
    assert facts.durable
    assert store.now() <= store.now()
