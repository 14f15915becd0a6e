"""The contract of a store as checks: a new store is correct if all of them pass.

    @pytest.mark.parametrize("check", store_contract.CHECKS, ids=store_contract.check_name)
    def test_my_store_keeps_the_contract(check, tmp_path):
        check(lambda: MyStore(tmp_path))

A check takes a function that opens the store; each call returns a handle on the *same* data (for a store in
memory: the same object). `oncemore.log.store` describes the promises. The checks import `log`.
"""

from __future__ import annotations

from oncemore.testing.store_contract._helpers import (
    append_writes,
    check_name,
    make_write,
    read_verified_entries,
    require_stored,
)
from oncemore.testing.store_contract.appending import (
    a_batch_that_contradicts_itself_is_refused,
    a_guard_holds_without_being_written,
    a_guard_that_has_moved_refuses_the_batch,
    a_head_comes_with_the_body_of_its_last_entry,
    a_late_guard_that_has_moved_is_reported,
    a_stale_write_is_refused_with_the_head_that_is_there,
    an_entity_that_was_never_written_has_no_head_and_no_entries,
    batches_that_have_nothing_in_common_do_not_disturb_each_other,
    batches_that_wait_for_the_disk_and_those_that_do_not_may_mix,
    each_of_several_guards_is_compared,
    odd_names_and_bodies_are_stored_unchanged,
    one_of_many_racing_writers_wins,
    seqs_rise_and_the_whole_log_is_in_their_order,
    several_entities_are_stored_together_or_not_at_all,
    tickets_can_be_awaited,
    what_is_written_can_be_read_back,
)
from oncemore.testing.store_contract.listing import (
    all_heads_can_be_read_beside_the_log,
    facts_describe_the_store,
    heads_are_found_by_what_they_are_indexed_by,
    heads_can_be_listed_page_by_page,
    the_newest_heads_are_listed_first_when_asked,
    waiting_for_a_change_ends_when_there_is_one,
)
from oncemore.testing.store_contract.maintenance import (
    a_registered_worker_is_not_gone,
    asking_for_an_unknown_worker_is_no_error,
    bodies_of_several_entities_are_pruned_together,
    entries_of_another_log_are_imported_unchanged,
    entries_out_of_order_are_not_imported,
    maintenance_reports_sizes,
    pruned_bodies_are_gone_and_the_chain_still_verifies,
    pruning_what_is_not_there_changes_nothing,
    rebuilt_heads_can_be_put_in_place,
    unchanged_entities_can_be_dropped,
)

# Tests run in this order: plain reads and writes first, maintenance last.
CHECKS = (
    an_entity_that_was_never_written_has_no_head_and_no_entries,
    what_is_written_can_be_read_back,
    a_stale_write_is_refused_with_the_head_that_is_there,
    a_head_comes_with_the_body_of_its_last_entry,
    several_entities_are_stored_together_or_not_at_all,
    a_guard_holds_without_being_written,
    each_of_several_guards_is_compared,
    a_guard_that_has_moved_refuses_the_batch,
    a_late_guard_that_has_moved_is_reported,
    a_batch_that_contradicts_itself_is_refused,
    seqs_rise_and_the_whole_log_is_in_their_order,
    heads_are_found_by_what_they_are_indexed_by,
    the_newest_heads_are_listed_first_when_asked,
    rebuilt_heads_can_be_put_in_place,
    entries_of_another_log_are_imported_unchanged,
    entries_out_of_order_are_not_imported,
    odd_names_and_bodies_are_stored_unchanged,
    one_of_many_racing_writers_wins,
    batches_that_have_nothing_in_common_do_not_disturb_each_other,
    tickets_can_be_awaited,
    batches_that_wait_for_the_disk_and_those_that_do_not_may_mix,
    pruned_bodies_are_gone_and_the_chain_still_verifies,
    pruning_what_is_not_there_changes_nothing,
    bodies_of_several_entities_are_pruned_together,
    unchanged_entities_can_be_dropped,
    all_heads_can_be_read_beside_the_log,
    heads_can_be_listed_page_by_page,
    maintenance_reports_sizes,
    a_registered_worker_is_not_gone,
    asking_for_an_unknown_worker_is_no_error,
    waiting_for_a_change_ends_when_there_is_one,
    facts_describe_the_store,
)

__all__ = [
    "CHECKS",
    "a_batch_that_contradicts_itself_is_refused",
    "a_guard_holds_without_being_written",
    "a_guard_that_has_moved_refuses_the_batch",
    "a_head_comes_with_the_body_of_its_last_entry",
    "a_late_guard_that_has_moved_is_reported",
    "a_registered_worker_is_not_gone",
    "a_stale_write_is_refused_with_the_head_that_is_there",
    "all_heads_can_be_read_beside_the_log",
    "an_entity_that_was_never_written_has_no_head_and_no_entries",
    "append_writes",
    "asking_for_an_unknown_worker_is_no_error",
    "batches_that_have_nothing_in_common_do_not_disturb_each_other",
    "batches_that_wait_for_the_disk_and_those_that_do_not_may_mix",
    "bodies_of_several_entities_are_pruned_together",
    "check_name",
    "each_of_several_guards_is_compared",
    "entries_of_another_log_are_imported_unchanged",
    "entries_out_of_order_are_not_imported",
    "facts_describe_the_store",
    "heads_are_found_by_what_they_are_indexed_by",
    "heads_can_be_listed_page_by_page",
    "maintenance_reports_sizes",
    "make_write",
    "odd_names_and_bodies_are_stored_unchanged",
    "one_of_many_racing_writers_wins",
    "pruned_bodies_are_gone_and_the_chain_still_verifies",
    "pruning_what_is_not_there_changes_nothing",
    "read_verified_entries",
    "rebuilt_heads_can_be_put_in_place",
    "require_stored",
    "seqs_rise_and_the_whole_log_is_in_their_order",
    "several_entities_are_stored_together_or_not_at_all",
    "the_newest_heads_are_listed_first_when_asked",
    "tickets_can_be_awaited",
    "unchanged_entities_can_be_dropped",
    "waiting_for_a_change_ends_when_there_is_one",
    "what_is_written_can_be_read_back",
]
