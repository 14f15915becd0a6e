"""`oncemore inbox`: call a step for each message of a queue until stopped."""

from __future__ import annotations

import click

from oncemore.cli.commands import FiniteNumber, WholeNumber, documented_command, json_option, store_option
from oncemore.cli.output import OutputWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.inbox import Inbox

EXAMPLES = """
oncemore inbox shop.orders:book --from nats://localhost:4222/ORDERS/shop
oncemore inbox shop.orders:book --from https://sqs.eu-central-1.amazonaws.com/1234/orders.fifo
oncemore inbox shop.orders:book --from nats://localhost:4222/ORDERS/shop --drain --json
"""
EXIT_WORK_LEFT = 1


@documented_command("inbox", EXAMPLES)
@click.argument("step", metavar="MODULE:STEP")
@click.option(
    "--from",
    "address",
    metavar="URL",
    required=True,
    help="Queue: nats://host:4222/STREAM/CONSUMER, or the URL of an SQS queue.",
)
@store_option
@click.option(
    "--concurrency",
    metavar="N",
    type=WholeNumber(1, 1000),
    default=5,
    show_default=True,
    help="Number of messages to process at the same time.",
)
@click.option(
    "--grace",
    metavar="SECONDS",
    type=FiniteNumber(0),
    default=30.0,
    show_default=True,
    help="Time that running work may take after a stop signal.",
)
@click.option("--drain", is_flag=True, help="Process the messages that are waiting now, then end.")
@json_option
def inbox(
    step: str, address: str, store: str | None, concurrency: int, grace: float, drain: bool, in_json: bool
) -> int:
    """Call a step once for each message of a queue.

    A message is acknowledged after its result is in the log, so a redelivered message is not processed
    twice. A message that cannot be decoded or has failed permanently becomes a dead letter: `oncemore
    quarantine list` shows it, and `oncemore quarantine release` delivers it again. On SIGTERM or Ctrl-C,
    running work may finish. nats://…?subjects=orders.> creates a missing stream. --json prints the number of
    messages by result at the end.
    """
    import logging
    import sys

    from oncemore.inbox import inbox_from_url
    from oncemore.queries.stores import open_or_create
    from oncemore.steps.engine import log
    from oncemore.workers.find_steps import find_steps

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if ":" not in step:
        raise click.BadParameter("write the step too: package.module:step.", param_hint="'MODULE:STEP'")
    (found_step,) = find_steps([step])
    with open_or_create(store) as engine:
        receiver = inbox_from_url(found_step, address, engine=engine, concurrency=concurrency, grace=grace)
        log.info("oncemore: inbox for %s started on %s", found_step.name, engine.url)
        return _receive_messages(receiver, drain, in_json)


def _receive_messages(receiver: Inbox, drain: bool, in_json: bool) -> int:
    """Receive messages and return the exit code.

    If work is still running after the grace period, the process ends at once, as a worker does.
    """
    import os
    import sys

    from oncemore.steps.engine import log

    stats = receiver.drain() if drain else receiver.run()
    if in_json:
        OutputWriter(in_json=True).write_json({**stats._asdict(), "left": len(receiver.active_ids)})
        # `os._exit` below does not flush.
        sys.stdout.flush()
    summary = ", ".join(f"{count} {name}" for name, count in stats._asdict().items() if count)
    log.info("oncemore: inbox ended: %s", summary or "no messages")
    if receiver.running_threads:
        # Closing the engine would release the leases, and another worker would run the same work beside
        # these threads. Without the release, the work is free only when the leases have expired.
        log.error("oncemore: some work was still running; it is free when its lease expires")
        sys.stderr.flush()
        os._exit(EXIT_WORK_LEFT)
    return 0
