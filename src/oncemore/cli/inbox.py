"""`oncemore inbox`: take work from a queue, until it is told to stop."""

from __future__ import annotations

import click

from oncemore.cli.commands import Finite, Whole, json_option, leaf, store_option
from oncemore.cli.output import Paper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.inbox import Inbox

EXAMPLES = """
oncemore inbox shop.orders:book --from nats://localhost:4222/ORDERS/shop
oncemore inbox shop.orders:book --from https://sqs.eu-central-1.amazonaws.com/1234/orders.fifo
oncemore inbox shop.orders:book --from nats://localhost:4222/ORDERS/shop --drain --json
"""
LEFT_BEHIND = 1


@leaf("inbox", EXAMPLES)
@click.argument("step", metavar="MODULE:STEP")
@click.option(
    "--from",
    "address",
    metavar="URL",
    required=True,
    help="The queue: nats://host:4222/STREAM/CONSUMER, or the URL of an SQS queue.",
)
@store_option
@click.option(
    "--concurrency",
    metavar="N",
    type=Whole(1, 1000),
    default=5,
    show_default=True,
    help="How many messages may be under way at once.",
)
@click.option(
    "--grace",
    metavar="SECONDS",
    type=Finite(0),
    default=30.0,
    show_default=True,
    help="How long what is under way may take when it is told to stop.",
)
@click.option("--drain", is_flag=True, help="Take what is there now, and end.")
@json_option
def inbox(
    step: str, address: str, store: str | None, concurrency: int, grace: float, drain: bool, in_json: bool
) -> int:
    """Call a step for each message of a queue, once.

    A message is acknowledged when its work is in the log, so that one that is delivered again
    is not done again. One that cannot be read, or has failed for good, is a dead letter:
    `oncemore quarantine list` shows it, and `release` has it taken again. SIGTERM or Ctrl-C
    lets what is under way come to its end. With nats://…?subjects=orders.> a stream that is
    not there is made. --json prints at the end how many messages came to what.
    """
    import logging
    import sys

    from oncemore.inbox import inbox_at
    from oncemore.queries.open_engine import made
    from oncemore.steps.engine import log
    from oncemore.workers.service import steps_in

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if ":" not in step:
        raise click.BadParameter("name the step too, package.module:step.", param_hint="'MODULE:STEP'")
    (known,) = steps_in([step])
    with made(store) as engine:
        taker = inbox_at(known, address, engine=engine, concurrency=concurrency, grace=grace)
        log.info("oncemore: an inbox for %s on %s", known.name, engine.url)
        return _take(taker, drain, in_json)


def _take(taker: Inbox, drain: bool, in_json: bool) -> int:
    """Take letters, and return how it ended; with work left behind, end here and now, as a worker does."""
    import os
    import sys

    from oncemore.steps.engine import log

    taken = taker.drain() if drain else taker.run()
    if in_json:
        Paper(in_json=True).json({**taken._asdict(), "left": len(taker.under_way)})
        sys.stdout.flush()
    told = ", ".join(f"{count} {name}" for name, count in taken._asdict().items() if count)
    log.info("oncemore: an inbox ends: %s", told or "nothing came")
    if taker.threads_left:
        # To give the leases back would be to say that nobody is at it, while these threads still are.
        log.error("oncemore: some work is left to its lease")
        sys.stderr.flush()
        os._exit(LEFT_BEHIND)
    return 0
