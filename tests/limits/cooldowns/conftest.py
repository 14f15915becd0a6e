"""Every test of cooldowns has a folder and a store of its own."""

from tests.fixtures import _isolated, clock, engine

__all__ = ["_isolated", "clock", "engine"]
