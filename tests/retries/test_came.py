"""What an item of a job came to, as its lane notes it."""

from oncemore.log.record import LoadedHead
from oncemore.workers.item_result import ItemNotes, ItemResult


def test_an_item_that_asks_for_no_resource_is_done_by_itself() -> None:
    notes = ItemNotes()
    notes.record_resource(None, LoadedHead("run/k", 0, b"", None))
    assert notes.resource == ""
    assert notes.build_result() == ItemResult("", "done", result="SUCCESS")
