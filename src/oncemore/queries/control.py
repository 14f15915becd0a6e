"""What people have stopped, as far as it can be seen in a store."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.control.model import Control
    from oncemore.log.store import Store
    from oncemore.queries.runs import Row

WAITING = ("PENDING", "SOFT_FAIL")


def control_of(store: Store) -> Control:
    """Return the switches of a store."""
    from oncemore.control.model import CONTROL, Control
    from oncemore.log.entry_codec import head_of

    head = store.head(CONTROL)
    return Control() if head is None else head_of(head.head, Control)


def with_stops(store: Store, rows: Sequence[Row]) -> list[Row]:
    """Return rows that say which switch keeps them from going on, where one does."""
    if not any(row.state in WAITING for row in rows):
        return list(rows)
    from oncemore.control.model import stops

    control = control_of(store)
    return [
        row._replace(stopped="moved" if control.moved else stops(control, (row.step,), row.tenant))
        if row.state in WAITING
        else row
        for row in rows
    ]


def why(control: Control, name: str) -> str:
    """Say who has thrown a switch, and why."""
    told = control.on.get(name, {})
    who = f" by {told['by']}" if told.get("by") else ""
    return f"the switch {name} was thrown{who}" + (f": {told['reason']}" if told.get("reason") else "")
