"""Every test of cooldowns has a folder and a store of its own."""

from tests.rooms import _alone, clock, engine

__all__ = ["_alone", "clock", "engine"]
