"""The values of a queue: its declaration by a step, and the record of a slot."""

from __future__ import annotations

from oncemore._values import Value

#: The largest concurrency of a queue: a full queue is checked slot by slot.
MAX_CONCURRENCY = 1000


class StepQueue(Value):
    """The queue of a step: its name, and how many attempts of it may run at once."""

    name: str
    concurrency: int


class FindQueueSlot(Value):
    """The operation that finds a free slot in a queue, without taking it (`steps.ops`)."""

    queue: StepQueue


class QueueSlot(Value):
    """One slot of a queue: the attempt that took it last (`limits.queue_step`).

    state       always TAKEN: the slot is free as soon as that attempt has ended or its worker has died
    queue       name of the queue
    number      number of the slot, from 0
    limit       concurrency of the queue, as the step of the attempt declared it
    run_entity  run of the attempt; `fence` is the attempt's
    """

    state: str = "TAKEN"
    queue: str = ""
    number: int = 0
    limit: int = 0
    run_entity: str = ""
    fence: int = 0
