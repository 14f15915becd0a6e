"""Every test here has a folder of its own, and leaves nothing enabled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore import _listeners
from oncemore.steps import observers
from tests.fixtures import _isolated, clock, engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.events import ProcessEvent

__all__ = ["_isolated", "clock", "engine"]


@pytest.fixture(autouse=True)
def _nothing_enabled() -> Iterator[None]:
    yield
    assert _listeners.listeners == ()
    assert (observers.start_trace, observers.report_untraced) == (None, None)


@pytest.fixture
def heard() -> Iterator[list[ProcessEvent]]:
    """The events of the process, in order."""
    events: list[ProcessEvent] = []
    with oncemore.on_event(events.append):
        yield events
