"""Every store keeps the contract that ships with the package."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from oncemore.errors import StoreError
from oncemore.log.memory import CompletedTicket, MemoryStore
from oncemore.log.store import Batch, Entry, EntryWrite, Head, HeadQuery, MaintenanceStore, Store
from oncemore.testing import store_contract


@pytest.mark.parametrize("check", store_contract.CHECKS, ids=store_contract.check_name)
def test_every_store_keeps_the_contract(
    check: Callable[[Callable[[], Store]], None], open_store: Callable[[], Store]
) -> None:
    check(open_store)


@pytest.mark.parametrize("protocol", [Store, MaintenanceStore])
def test_the_protocol_of_a_store_stays_small(protocol: type) -> None:
    methods = [name for name, member in vars(protocol).items() if callable(member) and name[0] != "_"]
    assert len(methods) <= 10, methods


def test_a_store_serves_its_maintenance_operations(store: Store) -> None:
    maintenance = store.open_maintenance()
    missing = [name for name in vars(MaintenanceStore) if name[0] != "_" and not hasattr(maintenance, name)]
    assert missing == []


def test_a_closed_store_in_memory_refuses_every_call_and_wakes_waiting_threads() -> None:
    store = MemoryStore()
    store.close()
    assert store.wait_for_change(0, 60.0) == 0
    for use in (
        lambda: store.load_head("run/a"),
        lambda: store.open_maintenance().prune_bodies({"run/a": 1}),
        lambda: store.append(Batch(())),
    ):
        with pytest.raises(StoreError, match="closed"):
            use()


class HeadsWithoutBodies(MemoryStore):
    def _with_body(self, head: Head | None) -> Head | None:
        return head


class ListsWithBodies(MemoryStore):
    def list_heads(self, query: HeadQuery) -> Iterator[Head]:
        return (self.load_head(head.entity) or head for head in list(super().list_heads(query)))


class Careless(MemoryStore):
    """Stores every batch without a comparison."""

    def append(self, batch: Batch) -> CompletedTicket:
        return super().append(Batch(batch.writes[:1], {}, batch.sync))


class Unguarded(MemoryStore):
    def append(self, batch: Batch) -> CompletedTicket:
        return super().append(batch._replace(guards={}))


class LastWins(MemoryStore):
    def append(self, batch: Batch) -> CompletedTicket:
        with self._changed:
            now = [
                write._replace(expect=head.version if (head := self._heads.get(write.entity)) else 0)
                for write in batch.writes
            ]
        return super().append(batch._replace(writes=tuple(now)))


class PrunesTooMuch(MemoryStore):
    def prune_bodies(self, before: Mapping[str, int]) -> None:
        super().prune_bodies({entity: version + 1 for entity, version in before.items()})


class PrunesEverybody(MemoryStore):
    def prune_bodies(self, before: Mapping[str, int]) -> None:
        super().prune_bodies(dict.fromkeys(self._heads, max(before.values())))


class PrunesDigests(MemoryStore):
    def prune_bodies(self, before: Mapping[str, int]) -> None:
        super().prune_bodies(before)
        self._log[:] = [e._replace(body_digest=b"") if e and e.body is None else e for e in self._log]


class PrunesNothing(MemoryStore):
    def prune_bodies(self, before: Mapping[str, int]) -> None:
        pass


class PrunesOne(MemoryStore):
    def prune_bodies(self, before: Mapping[str, int]) -> None:
        super().prune_bodies(dict(list(before.items())[:1]))


class DropsWhatMoved(MemoryStore):
    def drop_entities(self, at: Mapping[str, int]) -> int:
        return super().drop_entities({name: self._heads[name].version for name in at if name in self._heads})


class DropsHeadsOnly(MemoryStore):
    def drop_entities(self, at: Mapping[str, int]) -> int:
        log = list(self._log)
        gone = super().drop_entities(at)
        self._log[:] = log
        return gone


class PagesByDue(MemoryStore):
    def list_heads(self, query: HeadQuery) -> Iterator[Head]:
        after, whole = query.after, super().list_heads(query._replace(after=None, limit=1000))
        return iter([head for head in whole if after is None or head.entity > after][: query.limit])


class ListsByDue(MemoryStore):
    def list_heads(self, query: HeadQuery) -> Iterator[Head]:
        return super().list_heads(query._replace(by_creation=False))


class TakesAllForDead(MemoryStore):
    def is_worker_gone(self, worker: str) -> bool:
        return True


class KnowsNobody(MemoryStore):
    def is_worker_gone(self, worker: str) -> bool:
        self._live_workers.remove(worker)
        return False


class Forgetful(MemoryStore):
    def _apply_write(self, write: EntryWrite) -> int:
        return super()._apply_write(write._replace(body=b"") if len(self._log) % 5 == 4 else write)


class Faulty(MemoryStore):
    def append(self, batch: Batch) -> CompletedTicket:
        if len(self._log) > 3:
            raise StoreError("the disk is gone")
        return super().append(batch)


class Disordered(MemoryStore):
    def read_entries(self, entity: str | None = None, after: int = 0) -> Iterator[Entry]:
        return reversed(list(super().read_entries(entity, after)))


class OldestFirst(MemoryStore):
    def list_heads(self, query: HeadQuery) -> Iterator[Head]:
        return reversed(list(super().list_heads(query)))


class TellsOfAll(MemoryStore):
    def list_heads(self, query: HeadQuery) -> Iterator[Head]:
        return super().list_heads(query._replace(body_contains=b""))


class MendsOver(MemoryStore):
    def replace_heads(self, heads: Sequence[Head], upto: int) -> int:
        return super().replace_heads(heads, len(self._log))


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (OldestFirst, store_contract.the_newest_heads_are_listed_first_when_asked),
        (TellsOfAll, store_contract.the_newest_heads_are_listed_first_when_asked),
        (MendsOver, store_contract.rebuilt_heads_can_be_put_in_place),
        (HeadsWithoutBodies, store_contract.a_head_comes_with_the_body_of_its_last_entry),
        (ListsWithBodies, store_contract.a_head_comes_with_the_body_of_its_last_entry),
        (Careless, store_contract.a_batch_that_contradicts_itself_is_refused),
        (Careless, store_contract.several_entities_are_stored_together_or_not_at_all),
        (Unguarded, store_contract.a_guard_holds_without_being_written),
        (Unguarded, store_contract.a_guard_that_has_moved_refuses_the_batch),
        (LastWins, store_contract.a_stale_write_is_refused_with_the_head_that_is_there),
        (LastWins, store_contract.one_of_many_racing_writers_wins),
        (PrunesTooMuch, store_contract.pruned_bodies_are_gone_and_the_chain_still_verifies),
        (PrunesTooMuch, store_contract.pruning_what_is_not_there_changes_nothing),
        (PrunesEverybody, store_contract.pruned_bodies_are_gone_and_the_chain_still_verifies),
        (PrunesDigests, store_contract.pruned_bodies_are_gone_and_the_chain_still_verifies),
        (PrunesNothing, store_contract.pruned_bodies_are_gone_and_the_chain_still_verifies),
        (PrunesOne, store_contract.bodies_of_several_entities_are_pruned_together),
        (DropsWhatMoved, store_contract.unchanged_entities_can_be_dropped),
        (DropsHeadsOnly, store_contract.unchanged_entities_can_be_dropped),
        (ListsByDue, store_contract.all_heads_can_be_read_beside_the_log),
        (PagesByDue, store_contract.heads_can_be_listed_page_by_page),
        (TakesAllForDead, store_contract.a_registered_worker_is_not_gone),
        (KnowsNobody, store_contract.asking_for_an_unknown_worker_is_no_error),
        (Forgetful, store_contract.batches_that_wait_for_the_disk_and_those_that_do_not_may_mix),
        (Forgetful, store_contract.batches_that_have_nothing_in_common_do_not_disturb_each_other),
        (Faulty, store_contract.batches_that_have_nothing_in_common_do_not_disturb_each_other),
        (Faulty, store_contract.one_of_many_racing_writers_wins),
        (Faulty, store_contract.a_guard_that_has_moved_refuses_the_batch),
        (Disordered, store_contract.seqs_rise_and_the_whole_log_is_in_their_order),
    ],
    ids=lambda value: value.__name__,
)
def test_a_store_that_breaks_the_contract_is_caught(
    broken: type[MemoryStore], check: Callable[[Callable[[], Store]], None]
) -> None:
    store = broken()
    with pytest.raises((AssertionError, StoreError, KeyError)):
        check(lambda: store)
