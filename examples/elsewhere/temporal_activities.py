"""The Temporal side of docs/how-to/from-temporal-activities.md: activities, run without a server.

    python examples/elsewhere/temporal_activities.py        (needs temporalio)

The retries are the server's: here the environment for tests stands for it, and says which attempt it is.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment


@activity.defn
async def charge_card(order: str, cents: int) -> str:
    """Charge a card under a key that is the same in every attempt."""
    info = activity.info()
    if cents <= 0:
        raise ApplicationError("the amount must be positive", non_retryable=True)
    if info.attempt == 1:
        raise ConnectionError("the service is busy")
    return f"receipt of {order} under {info.workflow_id}-{info.activity_id}"


@activity.defn
async def copy_files(names: list[str]) -> int:
    """Copy files one by one; a later attempt begins where the earlier one ended."""
    done = activity.info().heartbeat_details[0] if activity.info().heartbeat_details else 0
    for number, _name in enumerate(names[done:], start=done):
        activity.heartbeat(number + 1)
    return len(names) - done


@workflow.defn
class PayOrder:
    """Charge a card, with the limits and the retries of the activity."""

    @workflow.run
    async def run(self, order: str) -> str:
        """Run the activity and return the receipt."""
        return await workflow.execute_activity(
            charge_card,
            args=[order, 1250],
            start_to_close_timeout=timedelta(seconds=10),
            schedule_to_close_timeout=timedelta(minutes=5),
            retry_policy=RetryPolicy(
                initial_interval=timedelta(seconds=1), backoff_coefficient=2.0, maximum_attempts=4
            ),
        )


async def main() -> None:
    """Run each activity as the server would, and print the results."""
    first, second = ActivityEnvironment(), ActivityEnvironment()
    second.info = dataclasses.replace(second.info, attempt=2, heartbeat_details=[2])
    try:
        await first.run(charge_card, "o-1", 1250)
        failed = ""
    except ConnectionError as error:
        failed = str(error)
    try:
        await second.run(charge_card, "o-1", 0)
        is_final = False
    except ApplicationError as error:
        is_final = error.non_retryable
    print(
        json.dumps(
            {
                "first": failed,
                "final": is_final,
                "receipt": await second.run(charge_card, "o-1", 1250),
                "copied": await second.run(copy_files, ["a", "b", "c"]),
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
