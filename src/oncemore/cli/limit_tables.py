"""Prints breakers and shared resources."""

from __future__ import annotations

from oncemore._time_spans import seconds
from oncemore.queries.times import ago, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.cli.output import Paper
    from oncemore.log.record import Quota
    from oncemore.queries.limits import Breaker, Move

HEADS = ("provider", "state", "again in", "failures", "opened", "last error")


def print_breakers(paper: Paper, found: Sequence[Breaker], now: float) -> None:
    """Print each on a line of its own."""
    if not found:
        paper.line("No breaker has anything to tell: nothing has failed.", "green")
        return
    rows = [
        (
            one.name, one.state, seconds(one.left_s) if one.left_s else "now",
            f"{one.failures} of {one.limit}", f"{one.opens} times",
            f"{one.error}, {ago(one.failed_at, now)} ago" if one.failed_at else "",
        )
        for one in found
    ]  # fmt: skip
    paper.table([HEADS, *rows])


def print_breaker(paper: Paper, one: Breaker, moves: Sequence[Move], now: float) -> None:
    """Print one with what last happened to it."""
    paper.line(f"{one.name}: {one.state}", "green" if one.state == "CLOSED" else "yellow")
    if one.left_s:
        assert one.until is not None
        paper.line(f"  calls go through again in {seconds(one.left_s)}, at {shown(one.until)}")
    if one.probe:
        paper.line(f"  one call is trying it, of worker {one.probe}")
    paper.line(f"  opens after {one.limit}, for {seconds(one.cooldown_s)}; has opened {one.opens} times")
    paper.line()
    rows = [(shown(move.at), move.state, str(move.failures), _why(move)) for move in moves]
    paper.table([("when", "state", "failures", "why"), *rows], right=(2,))


def _why(move: Move) -> str:
    if move.by:
        return f"{move.by}: {move.reason}"
    run = f" (run {move.run[:12]})" if move.run else ""
    return f"{move.error}{f': {move.message}' if move.message else ''}{run}" if move.error else ""


def print_resources(paper: Paper, found: Sequence[Quota], now: float) -> None:
    """Print each on a line of its own."""
    if not found:
        paper.line("Nothing is shared here: no pace was slowed, no rate and no budget was used.", "green")
        return
    rows = [(one.name, _pace(one), _rate(one, now), _budget(one), str(one.throttled)) for one in found]
    paper.table([("provider", "at once", "rate", "retry budget", "throttled"), *rows])


def _pace(one: Quota) -> str:
    return f"{one.now} of {one.most}" if one.most else "-"


def _rate(one: Quota, now: float) -> str:
    if not one.per:
        return "-"
    wait = f", next in {seconds(one.next_at - now)}" if one.next_at > now else ", now"
    return f"{one.per} in {seconds(one.period_s)}{wait}"


def _budget(one: Quota) -> str:
    return f"{one.tokens:g} of {one.capacity:g}" if one.capacity else "-"
