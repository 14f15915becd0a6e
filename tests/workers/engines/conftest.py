"""Every test here has a room of its own."""

from tests.rooms import _alone, clock

__all__ = ["_alone", "clock"]
