"""See it work: seven calls to a flaky local server, the waits and the reasons, in twenty seconds.

    python -m oncemore.demo.retry.story          (or: oncemore demo retry)
    python -m oncemore.demo.retry.story --fast   the same with shorter waits, as the tests run it

Needs the standard library only. The server is real and speaks HTTP on the loopback address; the waits
are real; what is printed about them comes from the hooks and the decisions, and the table from the
server's own log. Afterwards the same calls are made with the loop that everybody writes first, so that
the two can be compared. Everything is bounded: it ends by itself, and at once with Ctrl-C.
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
from oncemore.demo.retry.server import ALWAYS, RESET, FlakyServer, ScriptedFault
from oncemore.screen import TerminalStream
from oncemore.settings import are_retries_enabled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oncemore.demo.retry.server import ServerVisit
    from oncemore.screen import Tint

    Fetch = Callable[[str], int]

ATTEMPTS = 3
SEED = "hello"
MARGIN = " " * 6
STOPPED = 130  # what shells call "ended by Ctrl-C"


class DemoTiming(NamedTuple):
    """How long everything takes."""

    first_wait_s: float
    limit_s: float
    busy_s: float
    dated_s: float
    rest_s: float
    slow_s: float
    naive_wait_s: float


CALM = DemoTiming(first_wait_s=1, limit_s=1, busy_s=2, dated_s=2.5, rest_s=120, slow_s=2.5, naive_wait_s=0.2)
FAST = DemoTiming(
    first_wait_s=0.1, limit_s=1, busy_s=0.3, dated_s=0.2, rest_s=120, slow_s=5, naive_wait_s=0.02
)


def make_faults(pace: DemoTiming) -> dict[str, ScriptedFault]:
    """Return how each path of the server fails, in the order of the story."""
    return {
        "/reset": ScriptedFault(RESET),
        "/busy": ScriptedFault(503, rest_s=pace.busy_s),
        "/limit": ScriptedFault(429, rest_s=pace.dated_s, form="date"),
        "/broken": ScriptedFault(500, ALWAYS),
        "/missing": ScriptedFault(404, ALWAYS),
        "/slow": ScriptedFault(200, slow_s=pace.slow_s),
        "/rest": ScriptedFault(503, rest_s=pace.rest_s),
    }


def describe_paths(pace: DemoTiming) -> dict[str, str]:
    """Return what each path does, in words."""
    return {
        "/reset": "drops the connection, once",
        "/busy": f"answers 503 with Retry-After: {pace.busy_s:g} (here with all of report.explain())",
        "/limit": "answers 429 with a date in Retry-After",
        "/broken": "answers 500, every time",
        "/missing": "answers 404",
        "/slow": f"takes {pace.slow_s:g} s at first, where {pace.limit_s:g} s is the limit",
        "/rest": f"answers 503 with Retry-After: {pace.rest_s:g}",
    }


class DemoCall(NamedTuple):
    """How one call went: what came of it, how long it waited, and what the server saw of it."""

    path: str
    outcome: str
    good: bool
    waited_s: float
    visits: list[ServerVisit]

    @property
    def early_requests(self) -> int:
        """How often the server was asked although it had asked for rest."""
        return sum(visit.early for visit in self.visits)


# No proxy: whatever the environment says, the server is on this machine.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch_status(url: str, limit_s: float = 10.0) -> int:
    """Ask once; return the status, or raise what urllib raises, with its connection closed."""
    try:
        with _direct.open(url, timeout=limit_s) as answer:
            return int(answer.status)
    except HTTPError as error:
        error.close()
        raise


def describe_error(error: Exception) -> str:
    """Return an error in a word."""
    return f"{error.code}" if isinstance(error, HTTPError) else type(error).__name__


def call_with_oncemore(screen: TerminalStream, server: FlakyServer, pace: DemoTiming, path: str) -> DemoCall:
    """Make one call through oncemore.retry, telling what happens while it happens."""
    waits: list[float] = []

    def tell(report: oncemore.RetryReport) -> None:
        waits.append(report.delay_s)
        why = report.explain() if path == "/busy" else decision_sentence(report.decision)
        show_attempt(screen, report.number, why, "yellow")
        screen.start_countdown(f"{MARGIN}waiting", report.delay_s)

    patient = oncemore.retrying(
        fetch_status, on="transient", attempts=ATTEMPTS, timeout=pace.limit_s, seed=SEED,
        wait=oncemore.backoff.exponential(pace.first_wait_s), on_retry=tell,
    )  # fmt: skip
    try:
        outcome, good = f"{patient(server.url_for('ours', path))}", True
    except Exception as error:
        if oncemore.get_decision(error) is None:
            raise  # not the call's but the screen's: nobody looks any more
        outcome, good = show_error(screen, error), False
    visits = server.visits_of("ours", path)
    if good:
        show_attempt(screen, len(visits), f"{outcome} OK; returned.", "green")
    return DemoCall(path, outcome, good, sum(waits), visits)


def decision_sentence(decision: oncemore.Decision) -> str:
    """Return what was decided, as one sentence."""
    return f"{decision.proof()['sentence']}"


def show_attempt(screen: TerminalStream, number: int, text: str, tint: Tint) -> None:
    """Show an attempt as an item of a list; that it failed needs no words there."""
    screen.write_paragraph(text.partition(" failed with ")[2] or text, tint, f"   {number}. ")


def show_error(screen: TerminalStream, error: Exception) -> str:
    """Show why a call ended with an error, and when to come back; return the outcome in a word or two."""
    decision = oncemore.get_decision(error)
    assert decision is not None
    show_attempt(screen, decision.situation.attempt, decision_sentence(decision), "red")
    later = decision.action == "defer"
    note = error.__notes__[-1] if later else ""
    hint = f" Note: {note[note.index('Worth') :]}" if later else ""
    screen.write_paragraph(f"{type(error).__name__} raised.{hint}", "red", MARGIN)
    return f"{'put off' if later else 'raised'} {describe_error(error)}"


def call_naively(server: FlakyServer, pace: DemoTiming, path: str) -> DemoCall:
    """Make one call as a loop around `except Exception` does, with the same limits."""
    outcome, good = "", False
    for _ in range(ATTEMPTS):
        try:
            outcome, good = f"{fetch_status(server.url_for('naive', path), pace.limit_s)}", True
            break
        except Exception as error:  # noqa: BLE001 - that is the very habit shown here
            outcome = f"gave up {describe_error(error)}"
            time.sleep(pace.naive_wait_s)
    return DemoCall(path, outcome, good, 0.0, server.visits_of("naive", path))


def format_visits(visits: list[ServerVisit]) -> str:
    """Return what the server saw of one call: what it answered when, and what it had asked for."""
    first = visits[0].at
    seen = [f"{_format_visit(visit)} at {visit.at - first:.2f} s" for visit in visits]
    wished = [f"; it had asked for {v.wished - first:.2f} s" for v in visits if v.wished is not None]
    return f"Server log: {', '.join(seen)}{''.join(wished[-1:])}."


def _format_visit(visit: ServerVisit) -> str:
    return "reset" if visit.status == RESET else f"{'slow ' if visit.slow else ''}{visit.status}"


def comparison_lines(ours: list[DemoCall], naive: list[DemoCall]) -> list[str]:
    """Return the comparison as lines."""
    row = "{:<9}{:>9}  {:<13}{:>8}    {:>9}{:>11}  {}".format
    lines = [
        row("", "oncemore", "", "", "the loop", "", ""),
        row("call", "attempts", "outcome", "waited", "attempts", "too early", "outcome"),
    ]
    lines += [
        row(
            our.path, len(our.visits), our.outcome, _format_seconds(our.waited_s),
            len(loop.visits), loop.early_requests or "", loop.outcome,
        )
        for our, loop in zip(ours, naive, strict=True)
    ]  # fmt: skip
    lines.append(
        row(
            "together",
            _count_requests(ours),
            f"{_count_answers(ours)} answers",
            _format_seconds(sum(c.waited_s for c in ours)),
            _count_requests(naive),
            sum(call.early_requests for call in naive),
            f"{_count_answers(naive)} answers",
        )
    )
    return lines


def _format_seconds(value: float) -> str:
    return f"{value:.2f} s" if value else ""


def _count_requests(calls: list[DemoCall]) -> int:
    return sum(len(call.visits) for call in calls)


def _count_answers(calls: list[DemoCall]) -> int:
    return sum(call.good for call in calls)


def print_introduction(screen: TerminalStream, pace: DemoTiming) -> None:
    """Say what is about to be seen."""
    screen.write_line("Seven calls to a flaky server on this machine, all of them through", "bold")
    screen.write_line(f'    @oncemore.retry(on="transient", attempts={ATTEMPTS}, timeout={pace.limit_s:g})')
    screen.write_line("    def fetch(url): ...")
    if not are_retries_enabled():
        screen.write_paragraph(
            "ONCEMORE_RETRY=off is set: every call is tried once, and nothing waits.", "red"
        )


def run_story(screen: TerminalStream, server: FlakyServer, pace: DemoTiming) -> None:
    """Tell the whole story."""
    print_introduction(screen, pace)
    ours = []
    for path, what in describe_paths(pace).items():
        screen.write_line()
        screen.write_line(f"{path} {what}", "bold")
        ours.append(call_with_oncemore(screen, server, pace, path))
        if len(ours[-1].visits) > 1:
            screen.write_paragraph(format_visits(ours[-1].visits), "dim", MARGIN)
    screen.write_line()
    screen.write_line("Now the same calls with a plain loop: except Exception, sleep, three tries ...")
    naive = [call_naively(server, pace, path) for path in describe_paths(pace)]
    screen.write_line()
    print_conclusion(screen, ours, naive)


def print_conclusion(screen: TerminalStream, ours: list[DemoCall], naive: list[DemoCall]) -> None:
    """Show the table, what it means, and where to go from here."""
    for number, text in enumerate(comparison_lines(ours, naive)):
        screen.write_line(text.rstrip(), "bold" if number < 2 else "")
    screen.write_line()
    screen.write_line(
        f"Came back although asked to wait: oncemore {sum(call.early_requests for call in ours)} times, "
        f"the loop {sum(call.early_requests for call in naive)} times."
    )
    screen.write_line("What to try next:  README.md, then docs/tutorial/01-first-retry.md")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="oncemore demo retry", description="Seven calls to a flaky local server, explained."
    )
    parser.add_argument("--fast", action="store_true", help="shorter waits, as the tests run it")
    pace = FAST if parser.parse_args(arguments).fast else CALM
    screen = TerminalStream(sys.stdout)
    try:
        with FlakyServer(make_faults(pace)) as server:
            run_story(screen, server, pace)
    except KeyboardInterrupt:
        screen.write_line()
        screen.write_line("Stopped.")
        return STOPPED
    except BrokenPipeError:  # whoever read this has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        screen.end_countdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
