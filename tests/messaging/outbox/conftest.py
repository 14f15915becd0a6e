"""Fixtures: every test has its own store and folder."""

from tests.rooms import _alone, clock, engine

__all__ = ["_alone", "clock", "engine"]
