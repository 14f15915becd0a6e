"""The contract of a store, as checks that anybody can run on their own.

    @pytest.mark.parametrize("check", contract.CHECKS, ids=contract.name)
    def test_my_store_keeps_the_contract(check, tmp_path):
        check(lambda: MyStore(tmp_path))

A check is given a way to open the store; each call gives a handle on the *same* data (for a store in
memory: the same object). What they hold a store to is written in `oncemore.log.store`.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from oncemore.errors import StoreError, UsageError
from oncemore.log.record import NOWHERE, link
from oncemore.log.store import Batch, Conflict, Entry, Head, Index, Query, Stored, Write
from oncemore.policy.canonical_json import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncemore.log.store import Store

    Opener = Callable[[], Store]


def name(check: Callable[[Opener], None]) -> str:
    """Return a check's name as a sentence, for a test's id."""
    return check.__name__.replace("_", " ")


def write(entity: str, before: Head | None, body: bytes = b"{}", **by: Any) -> Write:
    """Make the next entry of an entity, linked to the head that was read."""
    version = 0 if before is None else before.version
    header = f"{entity}:{version + 1}".encode()
    prev = NOWHERE if before is None else before.hash
    index, head = Index(**{"kind": "run", **by}), b"head of " + header
    return Write(entity, version, header, body, link(prev, header, fingerprint(body)), head, index)


def put(store: Store, *writes: Write, sync: bool = True) -> Stored | Conflict:
    """Append one batch and wait for its answer."""
    return store.append(Batch(writes, {}, sync)).wait()


def stored(answer: Stored | Conflict) -> Stored:
    """Return an answer that must be `Stored`."""
    assert isinstance(answer, Stored), f"refused: {answer}"
    return answer


def whole(store: Store, entity: str, pruned: int = 0) -> list[Entry]:
    """Return all entries of an entity, once versions, links, bodies (from `pruned` on) are checked."""
    prev, found = NOWHERE, list(store.entries(entity))
    for version, entry in enumerate(found, 1):
        assert (entry.entity, entry.version, entry.prev) == (entity, version, prev)
        assert (entry.body is None) == (version < pruned)
        assert entry.body is None or entry.body_digest == fingerprint(entry.body)
        assert entry.hash == link(prev, entry.header, entry.body_digest)
        prev = entry.hash
    head = store.head(entity)
    assert (head.version if head else 0) == len(found)
    assert (head.hash if head else NOWHERE) == prev
    assert head is None or (head.seq, head.body) == (found[-1].seq, found[-1].body)
    return found


def an_entity_that_was_never_written_has_no_head_and_no_entries(open_store: Opener) -> None:
    """Asking for nothing gives nothing."""
    store = open_store()
    assert store.head("run/none") is None
    assert list(store.entries("run/none")) == []
    assert list(store.heads(Query("run"))) == []


def what_is_written_can_be_read_back(open_store: Opener) -> None:
    """Head and entries show what was appended, also through another handle."""
    store = open_store()
    first = write("run/a", None, b'{"n":1}', state="PENDING", due=5.0, step="load", worker="w", dataset="d")
    (seq,) = stored(put(store, first)).seqs
    for handle in (store, open_store()):
        head = handle.head("run/a")
        assert head == Head("run/a", 1, first.hash, first.head, first.by, seq, first.body)
        (entry,) = whole(handle, "run/a")
        assert (entry.seq, entry.header, entry.body) == (seq, first.header, first.body)


def a_stale_write_is_refused_with_the_head_that_is_there(open_store: Opener) -> None:
    """A compare-and-set that misses stores nothing and says what it met."""
    store = open_store()
    first = write("run/a", None)
    stored(put(store, first))
    for stale in (first, write("run/a", Head("run/a", 7, b"x" * 32, b"", Index("run"), 1))):
        answer = put(store, stale)
        assert isinstance(answer, Conflict)
        assert answer.entity == "run/a"
        assert answer.head == store.head("run/a")
    missing = put(store, write("run/b", Head("run/b", 1, b"x" * 32, b"", Index("run"), 1)))
    assert missing == Conflict("run/b", None)
    assert len(whole(store, "run/a")) == 1


def a_head_comes_with_the_body_of_its_last_entry(open_store: Opener) -> None:
    """`head` and the head of a conflict have it; a list of heads, which may be long, does not."""
    store = open_store()
    head: Head | None = None
    for body in (b"first", b"", b"third"):
        before = head
        stored(put(store, write("run/a", before, body)))
        head = store.head("run/a")
        assert head is not None
        assert head.body == body
    assert put(store, write("run/a", before)) == Conflict("run/a", head)
    guarded = store.append(Batch((write("run/b", None),), {"run/a": 2})).wait()
    assert guarded == Conflict("run/a", head)
    (listed,) = store.heads(Query("run"))
    assert listed.body is None
    assert listed._replace(body=b"third") == head


def several_entities_are_stored_together_or_not_at_all(open_store: Opener) -> None:
    """One stale member leaves no trace of the others."""
    store = open_store()
    stored(put(store, write("run/a", None), write("worker/w", None, kind="worker")))
    a, w = store.head("run/a"), store.head("worker/w")
    stored(put(store, write("run/a", a), write("worker/w", w), write("run/new", None)))
    answer = put(store, write("run/b", None), write("run/a", a), write("run/c", None))
    assert isinstance(answer, Conflict)
    assert answer.entity == "run/a"
    assert store.head("run/b") is None
    assert store.head("run/c") is None
    assert [len(whole(store, entity)) for entity in ("run/a", "worker/w", "run/new")] == [2, 2, 1]


def a_guard_holds_without_being_written(open_store: Opener) -> None:
    """A batch may depend on what it only read; reading moves no version."""
    store = open_store()
    stored(put(store, write("dataset/d", None, kind="dataset")))
    assert isinstance(store.append(Batch((write("run/a", None),), {"dataset/d": 1})).wait(), Stored)
    refused = store.append(Batch((write("run/b", None),), {"dataset/d": 2})).wait()
    assert refused == Conflict("dataset/d", store.head("dataset/d"))
    assert store.head("run/b") is None
    absent = store.append(Batch((write("run/c", None),), {"switch/off": 0})).wait()
    assert isinstance(absent, Stored)
    alone = store.append(Batch((), {"dataset/d": 1})).wait()
    assert alone == Stored(())
    assert len(whole(store, "dataset/d")) == 1


def a_guard_that_has_moved_refuses_the_batch(open_store: Opener) -> None:
    """What was read before a change cannot be acted on after it, even when both happen at once."""
    store = open_store()
    stored(put(store, write("dataset/d", None, kind="dataset")))
    stored(put(store, write("dataset/d", store.head("dataset/d"), kind="dataset")))
    late = store.append(Batch((write("run/late", None),), {"dataset/d": 1})).wait()
    assert late == Conflict("dataset/d", store.head("dataset/d"))
    moves: list[Stored] = []
    relied: list[tuple[int, int]] = []

    def act(mine: int, turn: int) -> Callable[[], None]:
        seen = store.head("dataset/d")
        assert seen is not None
        if turn % 4 == mine:
            change = write("dataset/d", seen, b"%d" % turn, kind="dataset")
            return lambda: moves.append(stored(put(store, change)))
        return lambda: relied.extend(_relying(store, seen, f"run/{mine}-{turn}"))

    _at_once(act, 4, 20)
    assert len(moves) == 20
    moved = {entry.version: entry.seq for entry in whole(store, "dataset/d")}
    for version, seq in relied:
        assert moved[version] < seq < moved.get(version + 1, seq + 1)
    assert len(list(store.heads(Query("run")))) == len(relied)


def a_guard_that_may_be_looked_at_late_is_told_of_all_the_same(open_store: Opener) -> None:
    """Who allows a late look is never told "stored" where a guard had moved; what stands then is named."""
    store = open_store()
    stored(put(store, write("dataset/d", None, kind="dataset")))
    fits = store.append(Batch((write("run/fits", None),), {"dataset/d": 1}, late=True)).wait()
    assert fits == Stored((whole(store, "run/fits")[0].seq,))
    stored(put(store, write("dataset/d", store.head("dataset/d"), kind="dataset")))
    moved = store.append(Batch((write("run/moved", None),), {"dataset/d": 1}, late=True)).wait()
    assert isinstance(moved, Conflict)
    assert (moved.entity, moved.head) == ("dataset/d", store.head("dataset/d"))
    assert moved.stands == tuple(entry.seq for entry in whole(store, "run/moved"))
    assert store.looks_late or not moved.stands
    moves: list[Stored] = []
    relied: list[tuple[int, int]] = []

    def act(mine: int, turn: int) -> Callable[[], None]:
        seen = store.head("dataset/d")
        assert seen is not None
        if turn % 4 == mine:
            change = write("dataset/d", seen, b"%d" % turn, kind="dataset")
            return lambda: moves.append(stored(put(store, change)))
        return lambda: relied.extend(_relying(store, seen, f"run/{mine}-{turn}", late=True))

    _at_once(act, 4, 20)
    at = {entry.version: entry.seq for entry in whole(store, "dataset/d")}
    for version, seq in relied:
        assert at[version] < seq < at.get(version + 1, seq + 1)


def _relying(store: Store, seen: Head, entity: str, *, late: bool = False) -> list[tuple[int, int]]:
    """Write an entity on the strength of another; return the version of that and the seq, if it holds."""
    answer = store.append(Batch((write(entity, None),), {seen.entity: seen.version}, late=late)).wait()
    if isinstance(answer, Stored):
        return [(seen.version, answer.seqs[0])]
    assert answer.entity == seen.entity
    assert answer.head is not None
    assert answer.head.version > seen.version
    return []


def a_batch_that_contradicts_itself_is_refused(open_store: Opener) -> None:
    """An entity stands in a batch once."""
    store = open_store()
    for batch in (
        Batch((write("run/a", None), write("run/a", None))),
        Batch((write("run/a", None),), {"run/a": 0}),
    ):
        try:
            store.append(batch).wait()
        except UsageError:
            continue
        raise AssertionError("accepted")
    assert store.head("run/a") is None


def seqs_rise_and_the_whole_log_is_in_their_order(open_store: Opener) -> None:
    """Whoever follows the log by seq meets every entry once."""
    store = open_store()
    given: list[int] = []
    for n in range(5):
        given += stored(put(store, write(f"run/{n}", None), write(f"worker/{n}", None))).seqs
    log = list(store.entries())
    assert [entry.seq for entry in log] == given == sorted(set(given))
    assert [entry.seq for entry in store.entries(after=given[3])] == given[4:]
    head = store.head("run/0")
    stored(put(store, write("run/0", head)))
    assert [entry.version for entry in store.entries("run/0", after=1)] == [2]


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
        stored(put(store, write(entity, None, **by)))

    def found(**query: object) -> list[str]:
        return [head.entity for head in store.heads(Query(**{"kind": "run", **query}))]  # type: ignore[arg-type]

    assert found() == ["run/2", "run/3", "run/1", "run/4"]
    assert found(due_by=20.0) == ["run/2", "run/3"]
    assert found(state="SOFT_FAIL") == ["run/2", "run/1"]
    assert found(step="load", due_by=99.0) == ["run/2", "run/1"]
    assert found(worker="w1") == ["run/2"]
    assert found(dataset="d1") == ["run/3"]
    assert found(kind="worker") == ["worker/1"]
    assert found(limit=2) == ["run/2", "run/3"]
    head = store.head("run/2")
    stored(put(store, write("run/2", head, state="COMPLETE", step="load")))
    assert found(due_by=99.0) == ["run/3", "run/1"]


def the_newest_heads_are_listed_first_when_asked(open_store: Opener) -> None:
    """By their last entries, between two of them, by the beginning of a name and by what they hold."""
    store, seqs = open_store(), dict[str, int]()
    for n, turn in enumerate([1, 2, 3, 4, 2, 1]):
        entity = f"run/{'ab'[turn % 2]}{turn}"
        change = write(entity, store.head(entity), b'{"n":%d}' % n, state="EO"[turn % 2])
        (seqs[entity],) = stored(put(store, change)).seqs
    stored(put(store, write("worker/a1", None, kind="worker")))

    def found(**query: object) -> list[str]:
        heads = store.heads(Query(**{"kind": "run", "newest": True, **query}))  # type: ignore[arg-type]
        return [head.entity for head in heads]

    assert found() == ["run/b1", "run/a2", "run/a4", "run/b3"]
    assert found(limit=2) == ["run/b1", "run/a2"]
    assert found(state="O") == ["run/b1", "run/b3"]
    assert found(below=seqs["run/a2"]) == ["run/a4", "run/b3"]
    assert found(above=seqs["run/a4"]) == ["run/b1", "run/a2"]
    assert found(above=seqs["run/b3"], below=seqs["run/b1"]) == ["run/a2", "run/a4"]
    assert found(begins="run/a") == ["run/a2", "run/a4"]
    assert found(begins="run/a", newest=False) == ["run/a2", "run/a4"]
    assert found(begins="run/%") == []
    assert found(holds=b"run/b1:2") == ["run/b1"]
    assert found(tells=b'"n":4') == ["run/a2"]
    assert found(tells=b'"n":1') == [], "that is what an earlier entry tells"
    (told,) = store.heads(Query("run", tells=b'"n":3'))
    assert (told.entity, told.body) == ("run/a4", b'{"n":3}')


def heads_that_were_rebuilt_can_be_put_in_their_places(open_store: Opener) -> None:
    """They stand as if they had been written so; what has moved on since is left alone."""
    store = open_store()
    for entity in ("run/a", "run/b"):
        stored(put(store, write(entity, None, state="PENDING")))
    a, b = store.head("run/a"), store.head("run/b")
    assert a is not None
    assert b is not None
    upto = store.changed(0, 0.0)
    wrong = [head._replace(head=b"wrong", by=Index("run", "COMPLETE", 7.0, "s", "w", "d")) for head in (a, b)]
    assert store.mend(wrong, upto) == 2
    assert store.head("run/a") == wrong[0]
    assert [head.entity for head in open_store().heads(Query("run", due_by=8.0))] == ["run/a", "run/b"]
    stored(put(store, write("run/b", b)))
    moved = store.head("run/b")
    assert store.mend([a, b], upto) == 1
    assert (store.head("run/a"), store.head("run/b")) == (a, moved)
    assert store.mend([], upto) == 0
    stored(put(store, write("run/a", a)))
    assert len(whole(store, "run/a")) == 2


def entries_of_another_log_are_taken_over_as_they_are(open_store: Opener) -> None:
    """With versions, links, bodies and what is pruned of them; what is appended later goes on from there."""
    from oncemore.log.memory import MemoryStore

    source, store = MemoryStore(), open_store()
    stored(put(store, write("run/here", None)))
    for number in range(3):
        for entity in ("run/a", "run/b"):
            stored(
                put(source, write(entity, source.head(entity), b"%d" % number, state=f"S{number}", due=5.0))
            )
    source.prune({"run/a": 2})
    log = list(source.entries())
    for page in (log[:4], log[4:]):
        last = {entry.entity: entry for entry in page}
        heads = [
            head._replace(version=last[head.entity].version, hash=last[head.entity].hash)
            for head in source.heads(Query("run"))
        ]
        store.adopt(page, heads)
    for entity, pruned in (("run/a", 2), ("run/b", 1)):
        mine, theirs = whole(store, entity, pruned), list(source.entries(entity))
        assert [entry._replace(seq=0) for entry in mine] == [entry._replace(seq=0) for entry in theirs]
        head, there = store.head(entity), source.head(entity)
        assert head is not None
        assert there is not None
        assert head._replace(seq=0) == there._replace(seq=0)
        stored(put(store, write(entity, head, b"later")))
    assert [entry.entity for entry in store.entries()][1:7] == [entry.entity for entry in log]
    seqs = [entry.seq for entry in open_store().entries()]
    assert seqs == sorted(set(seqs))


def what_is_not_the_next_of_its_entity_is_not_taken_over(open_store: Opener) -> None:
    """Nothing of it: neither out of order, nor twice, nor on top of something else."""
    from oncemore.log.memory import MemoryStore

    source, store = MemoryStore(), open_store()
    for number in range(2):
        stored(put(source, write("run/a", source.head("run/a"), b"%d" % number)))
    stored(put(source, write("run/b", None)))
    one, two, other = source.entries()
    a, b = source.head("run/a"), source.head("run/b")
    assert a is not None
    assert b is not None
    first = a._replace(version=1, hash=one.hash)
    for entries, heads in (
        ([two], [a]),
        ([other, two], [a, b]),
        ([one, one], [first]),
        ([one._replace(prev=b"x" * 32)], [first]),
        ([one, two], [first]),
        ([one, two], []),
        ([one], [first, b]),
    ):
        with _refused():
            store.adopt(entries, heads)
        assert list(store.entries()) == []
        assert store.head("run/a") is None
    store.adopt([one], [first])
    with _refused():
        store.adopt([one], [first])
    store.adopt([two], [a])
    assert len(whole(store, "run/a")) == 2


@contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except StoreError:
        return
    raise AssertionError("it was not refused")


def odd_names_and_bodies_are_kept_as_they_are(open_store: Opener) -> None:
    """Any text is a name, any bytes are a body."""
    store = open_store()
    names = ["run/é\u0301\U0001f600", "run/" + "x" * 500, "run/a'b\"c;--", "run/%_*", "run/ a\tb"]
    bodies = [b"", b"\x00\xff" * 10, b"x" * 1_000_000]
    for entity in names:
        for body in bodies:
            stored(put(store, write(entity, store.head(entity), body)))
        assert [entry.body for entry in whole(store, entity)] == bodies


def of_many_that_expect_the_same_version_one_wins(open_store: Opener) -> None:
    """Threads that race for one entity, each with a handle of its own, never lose or double a step."""
    handles = [open_store() for _ in range(8)]
    wins: list[tuple[int, bytes]] = []

    def race(mine: int, turn: int) -> Callable[[], None]:
        store = handles[mine]
        mine_next = write("run/hot", store.head("run/hot"), b"%d" % mine)

        def go() -> None:
            if isinstance(put(store, mine_next), Stored):
                wins.append((turn, mine_next.body))

        return go

    _at_once(race, 8, 20)
    assert [turn for turn, _ in wins] == list(range(20))
    assert [entry.body for entry in whole(open_store(), "run/hot")] == [body for _, body in wins]


def batches_that_have_nothing_in_common_do_not_disturb_each_other(open_store: Opener) -> None:
    """Threads on their own entities are never refused, and every answer is their own."""
    store = open_store()

    def work(mine: int, turn: int) -> Callable[[], None]:
        entity = f"run/{mine}"
        change = write(entity, store.head(entity), b"%d" % turn)

        def go() -> None:
            (seq,) = stored(put(store, change, sync=turn % 2 == 0)).seqs
            head = store.head(entity)
            assert head is not None
            assert (head.version, head.seq) == (turn + 1, seq)

        return go

    _at_once(work, 8, 25)
    for mine in range(8):
        assert [entry.body for entry in whole(store, f"run/{mine}")] == [b"%d" % n for n in range(25)]


def tickets_can_be_awaited(open_store: Opener) -> None:
    """Tasks share commits; each gets its own answer, conflicts included."""

    async def main() -> None:
        store = open_store()
        batches = [Batch((write(f"run/{n % 10}", None, b"%d" % n),)) for n in range(40)]
        answers = await asyncio.gather(*[_awaited(store, batch) for batch in batches])
        assert sum(isinstance(answer, Stored) for answer in answers) == 10
        for answer in answers:
            assert isinstance(answer, Stored) or answer.head == store.head(answer.entity)

    asyncio.run(main())


async def _awaited(store: Store, batch: Batch) -> Stored | Conflict:
    return await store.append(batch)


def batches_that_wait_for_the_disk_and_those_that_do_not_may_mix(open_store: Opener) -> None:
    """Whether a batch asks for `sync` changes when it is answered, never what is stored or its order."""

    async def main() -> None:
        store = open_store()
        for turn in range(4):
            batches = [
                Batch((write(f"run/{n}", store.head(f"run/{n}"), b"%d" % turn),), {}, (n + turn) % 3 == 0)
                for n in range(12)
            ]
            for answer in await asyncio.gather(*[_awaited(store, batch) for batch in batches]):
                stored(answer)

    asyncio.run(main())
    for n in range(12):
        assert [entry.body for entry in whole(open_store(), f"run/{n}")] == [b"0", b"1", b"2", b"3"]


def pruned_bodies_are_gone_and_the_chain_still_verifies(open_store: Opener) -> None:
    """Digests, headers, the head and everybody else's bodies stay; what comes next links as ever."""
    store = open_store()
    for entity in ("run/a", "run/b"):
        for n in range(4):
            stored(put(store, write(entity, store.head(entity), b"secret %d" % n)))
    before, head = whole(store, "run/a"), store.head("run/a")
    store.prune({"run/a": 3})
    store.prune({"run/a": 2})
    for handle in (store, open_store()):
        after = whole(handle, "run/a", pruned=3)
        assert [entry.body for entry in after] == [None, None, b"secret 2", b"secret 3"]
        assert after == [entry._replace(body=after[at].body) for at, entry in enumerate(before)]
        assert handle.head("run/a") == head
        assert len(whole(handle, "run/b")) == 4
        assert [entry for entry in handle.entries() if entry.entity == "run/a"] == after
    stored(put(store, write("run/a", head, b"next")))
    store.prune({"run/a": 99})
    whole(store, "run/a", pruned=99)
    stored(put(store, write("run/a", store.head("run/a"), b"last")))
    assert whole(store, "run/a", pruned=6)[-1].body == b"last"


def pruning_what_is_not_there_changes_nothing(open_store: Opener) -> None:
    """Neither an unknown entity nor version 0 or 1 is an error."""
    store = open_store()
    stored(put(store, write("run/a", None)))
    for entity, version in (("run/none", 9), ("run/a", 0), ("run/a", 1)):
        store.prune({entity: version})
    assert len(whole(store, "run/a")) == 1
    assert store.head("run/none") is None


def bodies_of_several_entities_are_pruned_together(open_store: Opener) -> None:
    """Each up to its own version; an unknown one among them changes nothing."""
    store = open_store()
    for entity in ("run/a", "run/b", "run/c"):
        for n in range(3):
            stored(put(store, write(entity, store.head(entity), b"secret %d" % n)))
    store.prune({"run/a": 2, "run/none": 9, "run/b": 4})
    for handle in (store, open_store()):
        assert [len(whole(handle, name, pruned=at)) for name, at in (("run/a", 2), ("run/b", 4))] == [3, 3]
        assert len(whole(handle, "run/c")) == 3
    store.prune({})


def what_is_dropped_is_gone_if_it_is_as_it_was_seen(open_store: Opener) -> None:
    """Head and entries go together, others stay, no number comes twice, and the name can be used anew."""
    store = open_store()
    for entity in ("run/a", "run/b", "run/c"):
        for _ in range(2):
            stored(put(store, write(entity, store.head(entity))))
    stored(put(store, write("chore/last", None, kind="chore")))
    last = list(store.entries())[-1].seq
    assert store.drop({"run/a": 2, "run/b": 1, "run/none": 1}) == 1
    for handle in (store, open_store()):
        assert handle.head("run/a") is None
        assert list(handle.entries("run/a")) == []
        assert {entry.entity for entry in handle.entries()} == {"run/b", "run/c", "chore/last"}
        assert len(whole(handle, "run/b")) == len(whole(handle, "run/c")) == 2
    assert store.drop({"run/a": 2}) == 0
    (seq,) = stored(put(store, write("run/a", None, b"anew"))).seqs
    assert seq > last
    assert [entry.body for entry in whole(store, "run/a")] == [b"anew"]


def heads_can_be_gone_through_page_by_page(open_store: Opener) -> None:
    """In the order of their names, whatever is due when; nothing twice, nothing left out."""
    store = open_store()
    names = [f"run/{n:02}" for n in range(7)]
    for at, entity in enumerate(names):
        state = "DONE" if at % 3 else "OPEN"
        stored(put(store, write(entity, None, due=None if at % 2 else 9.0 - at, state=state)))
    stored(put(store, write("worker/w", None, kind="worker")))
    seen: list[str] = []
    while page := list(store.heads(Query("run", limit=2, after=seen[-1] if seen else ""))):
        assert len(page) <= 2
        seen += [head.entity for head in page]
    assert seen == names
    done = store.heads(Query("run", state="DONE", after="run/01"))
    assert [head.entity for head in done] == ["run/02", "run/04", "run/05"]


def a_house_says_how_much_there_is(open_store: Opener) -> None:
    """Entities, entries and bytes by kind; what was pruned weighs less; a store of its own is no copy."""
    store = open_store()
    stored(put(store, write("run/a", None, b"x" * 5000)))
    stored(put(store, write("run/a", store.head("run/a"))))
    stored(put(store, write("worker/w", None, kind="worker")))
    house = store.house()
    weights = house.weights()
    assert {kind: weight[:2] for kind, weight in weights.items()} == {"run": (1, 2), "worker": (1, 1)}
    assert 5000 < weights["run"].bytes < 6000
    store.prune({"run/a": 2})
    assert house.weights()["run"].bytes < 1000
    room = house.room()
    assert room.file >= 0
    assert room.wal >= 0
    assert house.spare() >= 0
    assert house.held() == ""
    house.acknowledge()
    assert house.tidy() == ""


def a_worker_that_is_here_is_not_gone(open_store: Opener) -> None:
    """No handle takes it for dead until it leaves; that shows at once where a store says that it sees it."""
    store, other = open_store(), open_store()
    first, second = store.enter("worker-1"), store.enter("worker-2")
    for handle in (store, other, open_store()):
        assert not handle.gone("worker-1")
        assert not handle.gone("worker-2")
    first.close()
    first.close()
    assert other.gone("worker-1") or not store.sees_deaths
    assert not other.gone("worker-2")
    assert not store.gone("worker-2")
    second.close()


def asking_for_an_unknown_worker_is_no_error(open_store: Opener) -> None:
    """A name that nobody entered by is answered, as often as one asks."""
    store = open_store()
    assert store.gone("nobody") in (True, False)
    assert store.gone("nobody") in (True, False)


def waiting_for_a_change_ends_when_there_is_one(open_store: Opener) -> None:
    """`changed` returns at an append of any handle, and at its timeout."""
    store, other = open_store(), open_store()
    last = store.changed(0, 0.0)
    assert store.changed(last, 0.05) == last
    timer = threading.Timer(0.1, lambda: put(other, write("run/a", None)))
    timer.start()
    assert store.changed(last, 10.0) > last
    timer.join()


def facts_say_what_the_store_gives(open_store: Opener) -> None:
    """A store names its engine and its durability, and goes by a clock that moves."""
    store = open_store()
    facts = store.facts()
    assert facts.url
    assert facts.engine
    assert facts.durable
    assert store.now() <= store.now()


def _at_once(act: Callable[[int, int], Callable[[], None]], many: int, turns: int) -> None:
    """Let threads prepare each turn, and then all go at the same moment."""
    line, faults = threading.Barrier(many, timeout=60), list[BaseException]()

    def run(mine: int) -> None:
        try:
            for turn in range(turns):
                go = act(mine, turn)
                line.wait()
                go()
                line.wait()
        except BaseException as fault:  # noqa: BLE001 - reported by the check
            faults.append(fault)
            line.abort()

    threads = [threading.Thread(target=run, args=(mine,)) for mine in range(many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread is stuck"
    assert not faults, faults


CHECKS = (
    an_entity_that_was_never_written_has_no_head_and_no_entries,
    what_is_written_can_be_read_back,
    a_stale_write_is_refused_with_the_head_that_is_there,
    a_head_comes_with_the_body_of_its_last_entry,
    several_entities_are_stored_together_or_not_at_all,
    a_guard_holds_without_being_written,
    a_guard_that_has_moved_refuses_the_batch,
    a_guard_that_may_be_looked_at_late_is_told_of_all_the_same,
    a_batch_that_contradicts_itself_is_refused,
    seqs_rise_and_the_whole_log_is_in_their_order,
    heads_are_found_by_what_they_are_indexed_by,
    the_newest_heads_are_listed_first_when_asked,
    heads_that_were_rebuilt_can_be_put_in_their_places,
    entries_of_another_log_are_taken_over_as_they_are,
    what_is_not_the_next_of_its_entity_is_not_taken_over,
    odd_names_and_bodies_are_kept_as_they_are,
    of_many_that_expect_the_same_version_one_wins,
    batches_that_have_nothing_in_common_do_not_disturb_each_other,
    tickets_can_be_awaited,
    batches_that_wait_for_the_disk_and_those_that_do_not_may_mix,
    pruned_bodies_are_gone_and_the_chain_still_verifies,
    pruning_what_is_not_there_changes_nothing,
    bodies_of_several_entities_are_pruned_together,
    what_is_dropped_is_gone_if_it_is_as_it_was_seen,
    heads_can_be_gone_through_page_by_page,
    a_house_says_how_much_there_is,
    a_worker_that_is_here_is_not_gone,
    asking_for_an_unknown_worker_is_no_error,
    waiting_for_a_change_ends_when_there_is_one,
    facts_say_what_the_store_gives,
)
