"""Settings from the environment, one name each.

    ONCEMORE_RETRY   on | off   "off" makes `oncemore.retry` call the work once: no repeat, no wait

It is read when a function is decorated. Anything but the values above is an error that names the
variable. (To switch retries off for one test, use `oncemore.testing`.)
"""

from __future__ import annotations

from os import environ

from oncemore.errors import UsageError

_SWITCH = {"": True, "on": True, "off": False}


def retries_on() -> bool:
    """Whether `oncemore.retry` may repeat work; ONCEMORE_RETRY=off says no."""
    value = environ.get("ONCEMORE_RETRY")
    if value is None:
        return True
    try:
        return _SWITCH[value.strip().lower()]
    except KeyError:
        raise UsageError(f"ONCEMORE_RETRY is {value!r}; it must be on or off") from None
