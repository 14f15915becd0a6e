"""Settings from the environment, one name each.

    ONCEMORE_RETRY        on | off   "off" makes `oncemore.retry` call the work once: no repeat, no wait
    ONCEMORE_POLICY_ROOT  a folder   policies by name: its *.yaml, and those in retry-loop/policies below it

They are read when a function is decorated, or a policy is asked for by its name. Anything but the values
above is an error that names the variable. (To switch retries off for one test, use `oncemore.testing`.)
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


def policy_root() -> str | None:
    """Return the folder whose policy files are known by name, or None; ONCEMORE_POLICY_ROOT names it."""
    return environ.get("ONCEMORE_POLICY_ROOT") or None
