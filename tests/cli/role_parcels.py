"""Steps for `test_command_roles`: their module is imported by the commands under test."""

from __future__ import annotations

import oncemore
from oncemore.errors import NeedsReview, PermanentError


@oncemore.step(effect="idempotent", name="pay")
def pay(item: int) -> int:
    """Return the item."""
    return item


@oncemore.step(effect="idempotent", name="broken")
def break_down(item: int) -> int:
    """Fail for good."""
    raise PermanentError("broken")


@oncemore.step(effect="idempotent", name="odd")
def find_odd(item: int) -> int:
    """Ask for a review."""
    raise NeedsReview("ODD", "look")


@oncemore.step(effect="once", name="charge")
def lose_reply(item: int) -> int:
    """Leave the outcome unknown."""
    raise TimeoutError("lost")


@oncemore.step(effect="idempotent", name="delete", requires_approval=True)
def delete_all(item: int) -> int:
    """Wait for an approval."""
    return item


@oncemore.workflow(name="wait")
def wait_for_word(item: int) -> object:
    """Wait for a signal."""
    return oncemore.wait_for("approved")
