"""`oncemore relay`: deliver the events of the outbox."""

from __future__ import annotations

import signal
import sys

import click

from oncemore.cli.commands import (
    CommandReport,
    documented_command,
    flag_option,
    json_option,
    store_option,
    value_option,
    write_report,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.cli.output import OutputWriter
    from oncemore.messaging.delivery import DeliveryStats
    from oncemore.outbox import OutboxRelay

EXAMPLES = """
oncemore relay --to 'orders.*=https://example.org/hook' --to '*=file:rest.jsonl'
oncemore relay --to '*=nats://localhost:4222' --once --json
"""


@documented_command("relay", EXAMPLES)
@value_option(
    "--to routes",
    "TOPIC=ADDRESS",
    "Send events of a topic, or of a pattern with *, to https://…, file:PATH, nats://… or sqs:https://….",
    multiple=True,
    required=True,
)
@flag_option("--once", "Send the events that are due now, then end.")
@store_option
@json_option
def relay(routes: tuple[str, ...], once: bool, store: str | None, in_json: bool) -> int:
    """Deliver the events that steps emitted.

    Each event is sent at least once under a stable id, in order for each run. Any number of relays may share
    a store. An event that cannot be delivered becomes a dead letter (`oncemore quarantine list`). Without
    --once the relay runs until SIGTERM or Ctrl-C. With --once the exit code is 1 if a sink did not accept an
    event.
    """
    from oncemore.outbox import OutboxRelay
    from oncemore.queries.stores import open_existing

    sinks = dict(_parse_route(route) for route in routes)
    with open_existing(store) as engine:
        sender = OutboxRelay(engine, sinks)
        try:
            if once:
                stats: DeliveryStats = sender.run_once()
                code = 1 if stats.failed or stats.dead else 0
                return write_report(
                    CommandReport(stats._asdict(), lambda out: _print_stats(out, stats), code), in_json
                )
            _run_until_stopped(sender, f"{', '.join(sinks)} on {engine.url}")
            return 0
        finally:
            sender.close()


def _parse_route(text: str) -> tuple[str, str]:
    topic, equals, address = text.partition("=")
    if not (topic and equals and address):
        raise click.BadParameter(
            f"{text!r} is not of the form TOPIC=ADDRESS, such as '*=file:events.jsonl'.", param_hint="'--to'"
        )
    return topic, address


def _run_until_stopped(sender: OutboxRelay, subject: str) -> None:
    """Send events until SIGTERM or Ctrl-C; the current event is finished first."""
    import threading

    from oncemore.cli.worker import log_to_stderr
    from oncemore.steps.engine import log

    log_to_stderr()
    stop = threading.Event()
    previous = {
        number: signal.signal(number, lambda *received: stop.set())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        log.info("oncemore: relay started for %s", subject)
        sender.run(stop)
        log.info("oncemore: relay ended")
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        sys.stderr.flush()


def _print_stats(out: OutputWriter, stats: DeliveryStats) -> None:
    counts = ", ".join(f"{count} {name}" for name, count in stats._asdict().items() if count)
    out.write_line(counts or "No event is due.", "green" if not counts else "")
