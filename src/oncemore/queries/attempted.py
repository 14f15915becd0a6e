"""How often parts of a replay are tried: by policies of their own, of the profile `exoarmur` (REPLAY-7).

    processing   a large replay: once. A log that cannot be read now is looked at by a person, not read again
    validation   computing a result again: twice, when nobody answered. An answer is final, whatever it says

Each counts under its code, `REPLAY_REPLAY_PROCESSING` and `REPLAY_REPLAY_VALIDATION`, in its audit events.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import StoreError
from oncemore.policy.files.loader import quiet_policy
from oncemore.profiles.exoarmur.policy import RetryCategory
from oncemore.retries.decorator import retrying

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")
    Events = list[dict[str, Any]]


class NoAnswer(Exception):
    """Nobody said what comes of a computation: its process ended, or took too long."""


class Part(Value):
    """A part of a replay: its policy and code, and which failures may pass."""

    name: str
    category: RetryCategory
    on: type[Exception]


PROCESSING = Part("replay", RetryCategory.REPLAY_PROCESSING, StoreError)
VALIDATION = Part("validation", RetryCategory.REPLAY_VALIDATION, NoAnswer)


def tried(part: Part, work: Callable[[], T], events: Events) -> T:
    """Do a part of a replay as often as its policy says; what happened is added to the events."""
    # The limit of an attempt is kept by who computes, in a process that can be ended.
    policy = quiet_policy(f"exoarmur/{part.category.name}").but(timeout_s=None)
    return retrying(
        work, on=part.on, policy=policy, category=part.category.value, name=part.name,
        on_event=lambda event: events.append(event.plain()),
    )()  # fmt: skip
