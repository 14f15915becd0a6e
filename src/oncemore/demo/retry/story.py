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
from oncemore.demo.retry.server import ALWAYS, RESET, Fault, FlakyServer
from oncemore.screen import Screen
from oncemore.settings import retries_on

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oncemore.demo.retry.server import Visit
    from oncemore.screen import Tint

    Fetch = Callable[[str], int]

ATTEMPTS = 3
SEED = "hello"
MARGIN = " " * 6
STOPPED = 130  # what shells call "ended by Ctrl-C"


class Pace(NamedTuple):
    """How long everything takes."""

    first_wait_s: float
    limit_s: float
    busy_s: float
    dated_s: float
    rest_s: float
    slow_s: float
    naive_wait_s: float


CALM = Pace(first_wait_s=1, limit_s=1, busy_s=2, dated_s=2.5, rest_s=120, slow_s=2.5, naive_wait_s=0.2)
FAST = Pace(first_wait_s=0.1, limit_s=1, busy_s=0.3, dated_s=0.2, rest_s=120, slow_s=5, naive_wait_s=0.02)


def faults(pace: Pace) -> dict[str, Fault]:
    """Return how each path of the server fails, in the order of the story."""
    return {
        "/reset": Fault(RESET),
        "/busy": Fault(503, rest_s=pace.busy_s),
        "/limit": Fault(429, rest_s=pace.dated_s, form="date"),
        "/broken": Fault(500, ALWAYS),
        "/missing": Fault(404, ALWAYS),
        "/slow": Fault(200, slow_s=pace.slow_s),
        "/rest": Fault(503, rest_s=pace.rest_s),
    }


def scenes(pace: Pace) -> dict[str, str]:
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


class Call(NamedTuple):
    """How one call went: what came of it, how long it waited, and what the server saw of it."""

    path: str
    outcome: str
    good: bool
    waited_s: float
    visits: list[Visit]

    @property
    def early(self) -> int:
        """How often the server was asked although it had asked for rest."""
        return sum(visit.early for visit in self.visits)


# No proxy: whatever the environment says, the server is on this machine.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch(url: str, limit_s: float = 10.0) -> int:
    """Ask once; return the status, or raise what urllib raises, with its connection closed."""
    try:
        with _direct.open(url, timeout=limit_s) as answer:
            return int(answer.status)
    except HTTPError as error:
        error.close()
        raise


def outcome_of(error: Exception) -> str:
    """Return an error in a word."""
    return f"{error.code}" if isinstance(error, HTTPError) else type(error).__name__


def our_call(screen: Screen, server: FlakyServer, pace: Pace, path: str) -> Call:
    """Make one call through oncemore.retry, telling what happens while it happens."""
    waits: list[float] = []

    def tell(report: oncemore.Report) -> None:
        waits.append(report.delay_s)
        why = report.explain() if path == "/busy" else sentence_of(report.decision)
        show_attempt(screen, report.number, why, "yellow")
        screen.countdown(f"{MARGIN}waiting", report.delay_s)

    patient = oncemore.retrying(
        fetch, on="transient", attempts=ATTEMPTS, timeout=pace.limit_s, seed=SEED,
        wait=oncemore.exponential(pace.first_wait_s), on_retry=tell,
    )  # fmt: skip
    try:
        outcome, good = f"{patient(server.url('ours', path))}", True
    except Exception as error:
        if oncemore.decision(error) is None:
            raise  # not the call's but the screen's: nobody looks any more
        outcome, good = show_error(screen, error), False
    visits = server.log("ours", path)
    if good:
        show_attempt(screen, len(visits), f"{outcome} OK; returned.", "green")
    return Call(path, outcome, good, sum(waits), visits)


def sentence_of(decision: oncemore.Decision) -> str:
    """Return what was decided, as one sentence."""
    return f"{decision.proof()['sentence']}"


def show_attempt(screen: Screen, number: int, text: str, tint: Tint) -> None:
    """Show an attempt as an item of a list; that it failed needs no words there."""
    screen.say(text.partition(" failed with ")[2] or text, tint, f"   {number}. ")


def show_error(screen: Screen, error: Exception) -> str:
    """Show why a call ended with an error, and when to come back; return the outcome in a word or two."""
    decision = oncemore.decision(error)
    assert decision is not None
    show_attempt(screen, decision.situation.attempt, sentence_of(decision), "red")
    later = decision.action == "defer"
    note = error.__notes__[-1] if later else ""
    hint = f" Note: {note[note.index('Worth') :]}" if later else ""
    screen.say(f"{type(error).__name__} raised.{hint}", "red", MARGIN)
    return f"{'put off' if later else 'raised'} {outcome_of(error)}"


def naive_call(server: FlakyServer, pace: Pace, path: str) -> Call:
    """Make one call as a loop around `except Exception` does, with the same limits."""
    outcome, good = "", False
    for _ in range(ATTEMPTS):
        try:
            outcome, good = f"{fetch(server.url('naive', path), pace.limit_s)}", True
            break
        except Exception as error:  # noqa: BLE001 - that is the very habit shown here
            outcome = f"gave up {outcome_of(error)}"
            time.sleep(pace.naive_wait_s)
    return Call(path, outcome, good, 0.0, server.log("naive", path))


def log_line(visits: list[Visit]) -> str:
    """Return what the server saw of one call: what it answered when, and what it had asked for."""
    first = visits[0].at
    seen = [f"{_answer(visit)} at {visit.at - first:.2f} s" for visit in visits]
    wished = [f"; it had asked for {v.wished - first:.2f} s" for v in visits if v.wished is not None]
    return f"Server log: {', '.join(seen)}{''.join(wished[-1:])}."


def _answer(visit: Visit) -> str:
    return "reset" if visit.status == RESET else f"{'slow ' if visit.slow else ''}{visit.status}"


def table(ours: list[Call], naive: list[Call]) -> list[str]:
    """Return the comparison as lines."""
    row = "{:<9}{:>9}  {:<13}{:>8}    {:>9}{:>11}  {}".format
    lines = [
        row("", "oncemore", "", "", "the loop", "", ""),
        row("call", "attempts", "outcome", "waited", "attempts", "too early", "outcome"),
    ]
    lines += [
        row(
            our.path, len(our.visits), our.outcome, _seconds(our.waited_s),
            len(loop.visits), loop.early or "", loop.outcome,
        )
        for our, loop in zip(ours, naive, strict=True)
    ]  # fmt: skip
    lines.append(
        row(
            "together", _requests(ours), f"{_answers(ours)} answers", _seconds(sum(c.waited_s for c in ours)),
            _requests(naive), sum(call.early for call in naive), f"{_answers(naive)} answers",
        )
    )  # fmt: skip
    return lines


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value else ""


def _requests(calls: list[Call]) -> int:
    return sum(len(call.visits) for call in calls)


def _answers(calls: list[Call]) -> int:
    return sum(call.good for call in calls)


def introduce(screen: Screen, pace: Pace) -> None:
    """Say what is about to be seen."""
    screen.line("Seven calls to a flaky server on this machine, all of them through", "bold")
    screen.line(f'    @oncemore.retry(on="transient", attempts={ATTEMPTS}, timeout={pace.limit_s:g})')
    screen.line("    def fetch(url): ...")
    if not retries_on():
        screen.say("ONCEMORE_RETRY=off is set: every call is tried once, and nothing waits.", "red")


def tell(screen: Screen, server: FlakyServer, pace: Pace) -> None:
    """Tell the whole story."""
    introduce(screen, pace)
    ours = []
    for path, what in scenes(pace).items():
        screen.line()
        screen.line(f"{path} {what}", "bold")
        ours.append(our_call(screen, server, pace, path))
        if len(ours[-1].visits) > 1:
            screen.say(log_line(ours[-1].visits), "dim", MARGIN)
    screen.line()
    screen.line("Now the same calls with a plain loop: except Exception, sleep, three tries ...")
    naive = [naive_call(server, pace, path) for path in scenes(pace)]
    screen.line()
    conclude(screen, ours, naive)


def conclude(screen: Screen, ours: list[Call], naive: list[Call]) -> None:
    """Show the table, what it means, and where to go from here."""
    for number, text in enumerate(table(ours, naive)):
        screen.line(text.rstrip(), "bold" if number < 2 else "")
    screen.line()
    screen.line(
        f"Came back although asked to wait: oncemore {sum(call.early for call in ours)} times, "
        f"the loop {sum(call.early for call in naive)} times."
    )
    screen.line("What to try next:  README.md, then docs/tutorial/01-first-retry.md")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="oncemore demo retry", description="Seven calls to a flaky local server, explained."
    )
    parser.add_argument("--fast", action="store_true", help="shorter waits, as the tests run it")
    pace = FAST if parser.parse_args(arguments).fast else CALM
    screen = Screen(sys.stdout)
    try:
        with FlakyServer(faults(pace)) as server:
            tell(screen, server, pace)
    except KeyboardInterrupt:
        screen.line()
        screen.line("Stopped.")
        return STOPPED
    except BrokenPipeError:  # whoever read this has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        screen.rest()
    return 0


if __name__ == "__main__":
    sys.exit(main())
