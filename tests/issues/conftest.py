"""Every test of a reported fault has a folder, an environment and a store of its own."""

from tests.fixtures import _isolated, clock, engine

__all__ = ["_isolated", "clock", "engine"]
