"""The lines of the demo: attempts, the breaker, the compliance record, and the counts of the server."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore.demo.terminal import wrap_text
from oncemore.lineage.telemetry_files import build_compliance_record
from oncemore.queries.run_histories import HistoryFilter, read_histories

if TYPE_CHECKING:
    import oncemore
    from oncemore.demo.terminal import LiveTerminal, Tint
    from oncemore.events import BreakerChanged

#: Width of the columns of an attempt: the stage, its number, its reply.
STAGE_WIDTH, ATTEMPT_WIDTH, REPLY_WIDTH = 15, 13, 25
#: The release whose telemetry file the compliance record points to, and the fields of the printed record.
RELEASE = "v10.3.1"
RECORD_FIELDS = (
    *("pipeline_id", "stage", "attempts", "retry_policy", "errors", "final_status", "circuit_open"),
    *("energy_wh", "co2_g", "telemetry_ref"),
)


class CountedRequests(NamedTuple):
    """A line of the last table: the requests that the server logged, and those that the rules allow."""

    name: str
    seen: int
    expected: int


class DemoOutput:
    """Writes the demo; `faults` lists what differs from the expected."""

    def __init__(self, terminal: LiveTerminal) -> None:
        self.terminal, self.width = terminal, terminal.terminal_size()[0]
        self.faults: list[str] = []
        self.counts: list[CountedRequests] = []

    def write_heading(self, title: str, reason: str) -> None:
        """Write the title of a scene and why it matters."""
        self.terminal.write_line()
        self.terminal.write_line(title, "bold")
        self.terminal.write_paragraph(reason, "dim")
        self.terminal.write_line()

    def write_row(self, text: str, tint: Tint = "", lead: str = "") -> None:
        """Write a line; one that is too long continues below the end of `lead`."""
        self.terminal.write_lines(wrap_text(text, self.width, tint, lead))

    def write_attempt(self, number: str, reply: str, outcome: str, tint: Tint, stage: str) -> None:
        """Write an attempt with its reply and what follows."""
        left = f"{stage:<{STAGE_WIDTH}}{number:<{ATTEMPT_WIDTH}}"
        outcomes = outcome.split("\n")
        line = f"{reply:<{REPLY_WIDTH}}{outcomes[0]}"
        self.terminal.write_lines([[(left, ""), (line, tint)]])
        for more in outcomes[1:]:
            self.terminal.write_lines([[(" " * STAGE_WIDTH + more, "dim")]])

    def write_failed_attempt(self, run: oncemore.Run[Any], proof: dict[str, Any]) -> None:
        """Write a failed attempt from the proof of its decision."""
        failure, state = proof["failure"], run.state
        asked, draw = failure["retry_after"], proof["terms"]["jittered_s"]
        # The text of the error is "HTTP Error 503: SlowDown".
        message = str((run.attempts[proof["attempt"] - 1].error or {}).get("message", ""))
        detail = f"Retry-After: {asked:g}" if asked is not None else message.rpartition(": ")[2]
        outcome = f"retryable  next in {proof['delay_s']:.3f} s"
        if asked is not None:
            outcome += f"\n(provider asked {asked:g} s; draw was {draw:.3f} s)"
        number = f"attempt {proof['attempt']}/{state.max_attempts}"
        self.write_attempt(number, f"{failure['code']} {detail}", outcome, "yellow", state.step)

    def write_breaker(self, event: BreakerChanged) -> None:
        """Write a change of the breaker."""
        until = format_utc_time(event.until)
        text, tint = {
            "circuit_opened": (
                f"breaker OPEN after {event.failures} failed operations, half-open at {until}", "red",
            ),
            "circuit_half_open": ("breaker HALF_OPEN, one request is let through", "yellow"),
            "circuit_probe_failed": (f"breaker OPEN again ({event.error_code}), half-open at {until}", "red"),
            "circuit_closed": ("breaker CLOSED", "green"),
        }.get(event.change, (f"breaker {event.state}", ""))  # fmt: skip
        self.write_row(text, tint, f"provider {event.provider}  ")  # type: ignore[arg-type]

    def write_record(self, record: dict[str, Any]) -> None:
        """Write a record as JSON."""
        self.terminal.write_lines(wrap_text(json.dumps(record), self.width, "", ""))

    def count(self, name: str, seen: int, expected: int) -> None:
        """Note a number of requests for the last table."""
        self.counts.append(CountedRequests(name, seen, expected))

    def expect(self, what: str, seen: object, expected: object) -> None:
        """Note a fault if a value is not the expected one."""
        if seen != expected:
            self.faults.append(f"{what}: {seen}, and not {expected}")

    def write_counts(self, total: int) -> None:
        """Write the requests that the server logged, scene by scene; a wrong number is a fault."""
        self.terminal.write_line()
        self.terminal.write_line("What the server's own log says", "bold")
        self.terminal.write_paragraph("It knows nothing of policies; it only counts requests.", "dim")
        self.terminal.write_line()
        for counted in self.counts:
            is_right = counted.seen == counted.expected
            note = "" if is_right else f"  the rules say {counted.expected}"
            self.expect(f"requests, {counted.name}", counted.seen, counted.expected)
            noun = "request" if counted.seen == 1 else "requests"
            tint: Tint = "green" if is_right else "red"
            self.terminal.write_lines(
                [[(f"  {counted.name:<52}", ""), (f"{counted.seen:>3} {noun}{note}", tint)]]
            )
        counted_total = sum(counted.seen for counted in self.counts)
        self.expect("requests in all scenes", counted_total, total)
        self.terminal.write_line(f"  {'all scenes':<52}{total:>3} requests")


def make_record(engine: oncemore.Engine, run: oncemore.Run[Any]) -> dict[str, Any]:
    """Return the compliance record of an operation (TELEM-3), as a release exports it."""
    (history,) = read_histories(engine.store, HistoryFilter(names=(run.key,)))
    record = build_compliance_record(history, RELEASE)
    return {name: record[name] for name in RECORD_FIELDS}


def format_utc_time(at: float) -> str:
    """Return the time of the day in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}Z"
