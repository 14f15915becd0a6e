"""`oncemore demo retry`: seven calls to a server that fails on purpose, in twenty seconds.

    python -m oncemore.demo.retry_demo          (or: oncemore demo retry)
    python -m oncemore.demo.retry_demo --fast   the same with shorter waits, as the tests run it

Standard library only. Server and waits are real; the reasons come from the hooks and decisions of
`oncemore.retry`, the table from the server's log. Then the same calls are made with a common hand-written
loop, to compare.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import urllib.request
from typing import TYPE_CHECKING, NamedTuple
from urllib.error import HTTPError

import oncemore
from oncemore.config import are_retries_enabled
from oncemore.demo.flaky_server import ALWAYS, RESET, FlakyServer, ScriptedFault
from oncemore.demo.terminal import STOPPED, LiveTerminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.demo.flaky_server import ServerRequest
    from oncemore.demo.terminal import Tint

ATTEMPTS = 3
#: A fixed seed, so that the planned waits are the same in every run.
SEED = "hello"
MARGIN = " " * 6


class DemoTiming(NamedTuple):
    """Durations of waits, timeouts and faults, in seconds."""

    first_wait_s: float
    timeout_s: float
    busy_s: float
    dated_s: float
    rest_s: float
    slow_s: float
    naive_wait_s: float


NORMAL = DemoTiming(
    first_wait_s=1, timeout_s=1, busy_s=2, dated_s=2.5, rest_s=120, slow_s=2.5, naive_wait_s=0.2
)
FAST = DemoTiming(
    first_wait_s=0.1, timeout_s=1, busy_s=0.3, dated_s=0.2, rest_s=120, slow_s=5, naive_wait_s=0.02
)


def make_faults(timing: DemoTiming) -> dict[str, ScriptedFault]:
    """Return the fault of each path, in the order of the calls."""
    return {
        "/reset": ScriptedFault(RESET),
        "/busy": ScriptedFault(503, retry_after_s=timing.busy_s),
        "/limit": ScriptedFault(429, retry_after_s=timing.dated_s, form="date"),
        "/broken": ScriptedFault(500, ALWAYS),
        "/missing": ScriptedFault(404, ALWAYS),
        "/slow": ScriptedFault(200, slow_s=timing.slow_s),
        "/rest": ScriptedFault(503, retry_after_s=timing.rest_s),
    }


def describe_paths(timing: DemoTiming) -> dict[str, str]:
    """Return the fault of each path in words."""
    return {
        "/reset": "drops the connection, once",
        "/busy": f"answers 503 with Retry-After: {timing.busy_s:g} (here with all of report.explain())",
        "/limit": "answers 429 with a date in Retry-After",
        "/broken": "answers 500, every time",
        "/missing": "answers 404",
        "/slow": f"takes {timing.slow_s:g} s at first, where {timing.timeout_s:g} s is the limit",
        "/rest": f"answers 503 with Retry-After: {timing.rest_s:g}",
    }


class DemoCall(NamedTuple):
    """The result of one call: its outcome, the planned waits, and its requests in the server's log."""

    path: str
    outcome: str
    good: bool
    waited_s: float
    requests: list[ServerRequest]

    @property
    def early_requests(self) -> int:
        """The number of requests before the end of a wait that the server had asked for."""
        return sum(request.early for request in self.requests)


# No proxy, even if the environment names one: the server is on this machine.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch_status(url: str, timeout_s: float = 10.0) -> int:
    """Make one request; return its status, or raise the exception of urllib."""
    try:
        with _opener.open(url, timeout=timeout_s) as reply:
            return int(reply.status)
    except HTTPError as error:
        # The error is also the reply, and holds its connection until it is closed.
        error.close()
        raise


def describe_error(error: Exception) -> str:
    """Return an error as one word."""
    return f"{error.code}" if isinstance(error, HTTPError) else type(error).__name__


def call_with_oncemore(screen: LiveTerminal, server: FlakyServer, timing: DemoTiming, path: str) -> DemoCall:
    """Make one call through `oncemore.retry` and show its attempts as they happen."""
    waits: list[float] = []

    def show_retry(report: oncemore.RetryReport) -> None:
        waits.append(report.delay_s)
        # One full explanation shows the format; seven would hide the rest.
        reason = report.explain() if path == "/busy" else decision_sentence(report.decision)
        show_attempt(screen, report.number, reason, "yellow")
        screen.start_countdown(f"{MARGIN}waiting", report.delay_s)

    fetch = oncemore.retrying(
        fetch_status, on="transient", attempts=ATTEMPTS, timeout=timing.timeout_s, seed=SEED,
        wait=oncemore.backoff.exponential(timing.first_wait_s), on_retry=show_retry,
    )  # fmt: skip
    try:
        outcome, good = f"{fetch(server.url_for('ours', path))}", True
    except Exception as error:
        if oncemore.get_decision(error) is None:
            raise  # an error of the output, such as a closed pipe, and not of the call
        outcome, good = show_error(screen, error), False
    requests = server.requests_of("ours", path)
    if good:
        show_attempt(screen, len(requests), f"{outcome} OK; returned.", "green")
    return DemoCall(path, outcome, good, sum(waits), requests)


def decision_sentence(decision: oncemore.Decision) -> str:
    """Return a decision as one sentence."""
    return f"{decision.proof()['sentence']}"


def show_attempt(screen: LiveTerminal, number: int, text: str, tint: Tint) -> None:
    """Show an attempt as an item of a list, without the words "attempt N failed with"."""
    screen.write_paragraph(text.partition(" failed with ")[2] or text, tint, f"   {number}. ")


def show_error(screen: LiveTerminal, error: Exception) -> str:
    """Show the last decision of a failed call; return the outcome in a word or two."""
    decision = oncemore.get_decision(error)
    assert decision is not None
    show_attempt(screen, decision.situation.attempt, decision_sentence(decision), "red")
    is_deferred = decision.action == "defer"
    note = error.__notes__[-1] if is_deferred else ""
    # The note is long; its last sentence has the time.
    hint = f" Note: {note[note.index('Worth') :]}" if is_deferred else ""
    screen.write_paragraph(f"{type(error).__name__} raised.{hint}", "red", MARGIN)
    return f"{'put off' if is_deferred else 'raised'} {describe_error(error)}"


def call_naively(server: FlakyServer, timing: DemoTiming, path: str) -> DemoCall:
    """Make one call with a loop around `except Exception`, with the same limits."""
    outcome, good = "", False
    # oncemore: allow OM102 because the demo shows this mistake
    for _ in range(ATTEMPTS):
        try:
            outcome, good = f"{fetch_status(server.url_for('naive', path), timing.timeout_s)}", True
            break
        except Exception as error:  # noqa: BLE001 - the habit that is shown here
            # The loop retries everything, at once and without a look at Retry-After.
            outcome = f"gave up {describe_error(error)}"
            time.sleep(timing.naive_wait_s)
    return DemoCall(path, outcome, good, 0.0, server.requests_of("naive", path))


def format_requests(requests: list[ServerRequest]) -> str:
    """Return the requests of one call as the server logged them."""
    first = requests[0].at
    logged = [f"{_format_request(request)} at {request.at - first:.2f} s" for request in requests]
    asked = [
        f"; it had asked for {request.not_before - first:.2f} s"
        for request in requests
        if request.not_before is not None
    ]
    return f"Server log: {', '.join(logged)}{''.join(asked[-1:])}."


def _format_request(request: ServerRequest) -> str:
    return "reset" if request.status == RESET else f"{'slow ' if request.slow else ''}{request.status}"


def comparison_lines(ours: list[DemoCall], naive: list[DemoCall]) -> list[str]:
    """Return the comparison of both callers as the lines of a table."""
    row = "{:<9}{:>9}  {:<13}{:>8}    {:>9}{:>11}  {}".format
    rows: list[tuple[object, ...]] = [
        ("", "oncemore", "", "", "the loop", "", ""),
        ("call", "attempts", "outcome", "waited", "attempts", "too early", "outcome"),
    ]
    for our, loop in zip(ours, naive, strict=True):
        early = loop.early_requests or ""
        waited = _format_seconds(our.waited_s)
        rows.append(
            (our.path, len(our.requests), our.outcome, waited, len(loop.requests), early, loop.outcome)
        )
    waited = _format_seconds(sum(call.waited_s for call in ours))
    early = sum(call.early_requests for call in naive)
    rows.append(
        ("together", *_count_calls(ours), waited, _count_calls(naive)[0], early, _count_calls(naive)[1])
    )
    return [row(*values) for values in rows]


def _format_seconds(value: float) -> str:
    return f"{value:.2f} s" if value else ""


def _count_calls(calls: list[DemoCall]) -> tuple[int, str]:
    """Return the number of requests, and the number of answers in words."""
    return sum(len(call.requests) for call in calls), f"{sum(call.good for call in calls)} answers"


def print_introduction(screen: LiveTerminal, timing: DemoTiming) -> None:
    """Print the decorator that all calls go through."""
    screen.write_line("Seven calls to a flaky server on this machine, all of them through", "bold")
    screen.write_line(
        f'    @oncemore.retry(on="transient", attempts={ATTEMPTS}, timeout={timing.timeout_s:g})'
    )
    screen.write_line("    def fetch(url): ...")
    if not are_retries_enabled():
        screen.write_paragraph(
            "ONCEMORE_RETRY=off is set: every call is tried once, and nothing waits.", "red"
        )


def run_demo(screen: LiveTerminal, server: FlakyServer, timing: DemoTiming) -> None:
    """Make all calls, with oncemore and with the loop, and print the comparison."""
    print_introduction(screen, timing)
    ours = []
    for path, description in describe_paths(timing).items():
        screen.write_line()
        screen.write_line(f"{path} {description}", "bold")
        ours.append(call_with_oncemore(screen, server, timing, path))
        if len(ours[-1].requests) > 1:
            screen.write_paragraph(format_requests(ours[-1].requests), "dim", MARGIN)
    screen.write_line()
    screen.write_line("Now the same calls with a plain loop: except Exception, sleep, three tries ...")
    naive = [call_naively(server, timing, path) for path in describe_paths(timing)]
    screen.write_line()
    for number, text in enumerate(comparison_lines(ours, naive)):
        screen.write_line(text.rstrip(), "bold" if number < 2 else "")
    screen.write_line()
    screen.write_line(
        "Requests earlier than the server had asked for: "
        f"oncemore {sum(call.early_requests for call in ours)}, "
        f"the loop {sum(call.early_requests for call in naive)}."
    )
    screen.write_line("What to try next:  README.md, then docs/tutorial/01-first-retry.md")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="oncemore demo retry", description="Seven calls to a flaky local server, explained."
    )
    parser.add_argument("--fast", action="store_true", help="shorter waits, as the tests run it")
    timing = FAST if parser.parse_args(arguments).fast else NORMAL
    screen = LiveTerminal(sys.stdout)
    try:
        with FlakyServer(make_faults(timing)) as server:
            run_demo(screen, server, timing)
    except KeyboardInterrupt:
        screen.write_line()
        screen.write_line("Stopped.")
        return STOPPED
    except BrokenPipeError:
        # `… | head`: the reader has closed the pipe. Without this the interpreter complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        screen.end_countdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
