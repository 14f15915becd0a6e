"""Settings from the environment, one name each.

    ONCEMORE_RETRY        on | off   "off" makes `oncemore.retry` call the work once: no repeat, no wait
    ONCEMORE_POLICY_ROOT  a folder   policies by name: its *.yaml, and those in retry-loop/policies below it

They are read when a function is decorated, or a policy is asked for by its name. Anything but the values
above is an error that names the variable. (To switch retries off for one test, use `oncemore.testing`.)

Settings of durable steps are read in `configured.py`; their usual numbers and bounds stand here, where the
engine finds them too.
"""

from __future__ import annotations

from os import environ

from oncemore.errors import UsageError

LEASE_S, SHORTEST_LEASE_S, LONGEST_LEASE_S = 60.0, 0.05, 86_400.0
#: How often a lease is renewed within its length.
BEATS = 3
INLINE_WAIT_S = 60.0
RESTORED_COPY_CHOICES = ("hold", "trust")
NOTIFY_EVERY_S, LONGEST_NOTIFY_EVERY_S = 300.0, 86_400.0
NOTIFY_OF = ("all", "holds", "failures")
#: At which sizes to say something, in MiB: of the store, of its write-ahead file, of what the disk has left.
WARN_FILE_MB, WARN_WAL_MB, WARN_LEFT_MB = 10_240.0, 256.0, 256.0

_SWITCH = {"": True, "on": True, "off": False}


def are_retries_enabled() -> bool:
    """Whether `oncemore.retry` may repeat work; ONCEMORE_RETRY=off says no."""
    value = environ.get("ONCEMORE_RETRY")
    if value is None:
        return True
    try:
        return _SWITCH[value.strip().lower()]
    except KeyError:
        raise UsageError(f"ONCEMORE_RETRY is {value!r}; it must be on or off") from None


#: The setting `policy` that has every step name a policy of its own (PROD-10).
POLICY_REQUIRED = "required"


def policy_root() -> str | None:
    """Return the folder whose policy files are known by name, or None; ONCEMORE_POLICY_ROOT names it."""
    return environ.get("ONCEMORE_POLICY_ROOT") or None
