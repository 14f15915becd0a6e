"""What an item of a job came to, as its lane notes it."""

from oncemore.steps.ops import Seen
from oncemore.workers.item_result import Came, Notes


def test_an_item_that_asks_for_no_resource_is_done_by_itself() -> None:
    notes = Notes()
    notes.asks(None, Seen("run/k", 0, b"", None))
    assert notes.resource == ""
    assert notes.done() == Came("", "done", result="SUCCESS")
