"""Every test here has an isolated environment."""

from tests.rooms import _alone, clock, engine

__all__ = ["_alone", "clock", "engine"]
