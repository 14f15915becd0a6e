"""Every test here has an isolated environment."""

from tests.fixtures import _isolated, clock, engine

__all__ = ["_isolated", "clock", "engine"]
