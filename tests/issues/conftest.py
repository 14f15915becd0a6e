"""Every test of a reported fault has a folder, an environment and a store of its own."""

from tests.rooms import _alone, clock, engine

__all__ = ["_alone", "clock", "engine"]
