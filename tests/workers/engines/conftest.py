"""Every test here has a folder and an environment of its own."""

from tests.fixtures import _isolated, clock

__all__ = ["_isolated", "clock"]
