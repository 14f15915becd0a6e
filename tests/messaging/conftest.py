"""Fixtures: every test has its own store and folder."""

from tests.fixtures import _isolated, clock, engine

__all__ = ["_isolated", "clock", "engine"]
