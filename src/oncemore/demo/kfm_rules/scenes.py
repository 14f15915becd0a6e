"""The scenes of the demo, in the order of section 5.1 of the requirements.

Each scene plays against the STAC server and notes two things: the requests that the server logged, and the
state that the log of the engine holds.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import oncemore
from oncemore import clock as clocks
from oncemore import events
from oncemore.demo.kfm_rules.demo_output import STAGE_WIDTH, make_record
from oncemore.demo.kfm_rules.gate_scene import play_gate
from oncemore.demo.kfm_rules.ledger_scene import play_ledgers
from oncemore.demo.kfm_rules.stac_pipeline import PIPELINE, PROVIDER, STAGE, ingest_item, poll_stac_api
from oncemore.demo.kfm_rules.stac_server import COLLECTION, ITEMS, RETRY_AFTER, SLOW_DOWN
from oncemore.limits.shared_breaker import list_breakers
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from oncemore.demo.kfm_rules.demo_output import DemoOutput
    from oncemore.demo.kfm_rules.stac_server import StacServer

SOFT_DAY = "2026-10-01"
OUTAGE_DAYS = ("2026-10-02", "2026-10-03", "2026-10-04", "2026-10-05")
BAD_ITEM, NEXT_ITEM = "kfm-0007", "kfm-0008"
OPERATOR = "operator"


class KfmRulesDemo:
    """The parts of the demo: the engine, the server, the output, and the folder for files."""

    def __init__(self, engine: oncemore.Engine, server: StacServer, output: DemoOutput, folder: Path) -> None:
        self.engine, self.server, self.output, self.folder = engine, server, output, folder
        self._live_call: tuple[str, str] | None = None
        self._during_wait: Callable[[], None] | None = None

    def show_event(self, event: events.ProcessEvent) -> None:
        """Print failed attempts of a live call, and changes of the breaker, when they happen."""
        if isinstance(event, events.BreakerChanged):
            self.output.write_breaker(event)
        elif isinstance(event, events.AttemptFailed) and self._live_call and event.action == "retry":
            run = poll_stac_api.last_run(self.server.url, *self._live_call)
            assert run is not None
            self.output.write_failed_attempt(run, run.proofs[-1])
            if self._during_wait is not None:
                self._during_wait()
            # Where waits end at once, there is nothing to count down.
            if not isinstance(clocks.current, FakeClock):
                self.output.terminal.start_countdown("waiting", event.delay_s)

    def is_circuit_open(self) -> bool:
        """Return whether the breaker of the provider lets nothing through."""
        return any(one.name == PROVIDER and one.state == "OPEN" for one in list_breakers(self.engine))

    def poll(self, day: str) -> tuple[oncemore.Run[Any], int]:
        """Poll a day; return the run and the number of requests that the server got."""
        before = len(self.server.requests)
        run = poll_stac_api.run(self.server.url, day, COLLECTION)
        return run, len(self.server.requests) - before

    def poll_live(
        self, day: str, collection: str, during_wait: Callable[[], None] | None = None
    ) -> tuple[oncemore.Run[Any], int]:
        """Poll a day as `poll` does; print each failed attempt, then call `during_wait`."""
        before = len(self.server.requests)
        self._live_call, self._during_wait = (day, collection), during_wait
        run = poll_stac_api.run(self.server.url, day, collection)
        self._live_call = self._during_wait = None
        return run, len(self.server.requests) - before

    def pass_cooldown(self) -> None:
        """Let the time until the end of the breaker's cooldown pass, on the clock of the demo."""
        open_until = max((one.open_until for one in list_breakers(self.engine)), default=0.0)
        seconds = max(0.0, open_until - self.engine.now()) + 0.05
        if not isinstance(clocks.current, FakeClock):
            self.output.terminal.start_countdown("cooldown", seconds)
        clocks.current.sleep(seconds)
        self.output.terminal.end_countdown()

    # Scene 1 ----------------------------------------------------------------------------------------

    def play_soft_failures(self) -> None:
        """The server throttles twice and then delivers."""
        self.server.queue_faults(SLOW_DOWN, RETRY_AFTER)
        run, sent = self.poll_live(SOFT_DAY, COLLECTION)
        items = len(run.value) if run.status == "COMPLETE" else 0
        number = f"attempt {run.state.attempt}/{run.state.max_attempts}"
        if items:
            self.output.write_attempt(number, f"200, {items} items", "success", "green", STAGE)
        record = make_record(self.engine, run)
        self.output.write_record(record)
        log = self.server.requests_for(SOFT_DAY)
        gap_s = log[-1].at - log[-2].at if len(log) > 1 else 0.0
        statuses = ", ".join(str(request.status) for request in log)
        self.output.write_row(
            f"server log: {statuses}; the last request came {gap_s:.3f} s after the one before"
        )
        self.output.count("soft failures: 503, 503, 200", sent, 3)
        self.output.expect("Retry-After was kept", gap_s >= 2.0, True)
        self.output.expect("items", items, ITEMS)
        expected = (3, "exp_full_jitter", ["HTTP_503", "HTTP_503"], "success", False)
        fields = ("attempts", "retry_policy", "errors", "final_status", "circuit_open")
        self.output.expect("compliance record", tuple(record[name] for name in fields), expected)

    # Scene 2 ----------------------------------------------------------------------------------------

    def play_outage(self) -> None:
        """Every request fails: two polls use up their attempts, the third opens the breaker."""
        self.server.is_down = True
        statuses = [("HARD_FAIL", 5), ("HARD_FAIL", 5), ("SOFT_FAIL", 1), ("PENDING", 0)]
        for number, (day, (status, requests)) in enumerate(zip(OUTAGE_DAYS, statuses, strict=True), 1):
            run, sent = self.poll(day)
            self._write_poll(day, run, sent)
            self.output.count(f"outage: poll {number}", sent, requests)
            self.output.expect(f"state of poll {number}", run.status, status)
        self.output.expect("breaker open", self.is_circuit_open(), True)
        self._play_probe()
        self._play_recovery()

    def _write_poll(self, day: str, run: oncemore.Run[Any], sent: int) -> None:
        code = run.attempts[-1].error["code"] if run.attempts and run.attempts[-1].error else ""
        if run.status == "COMPLETE":
            text, tint = f"{sent} request, {len(run.value)} items, success", "green"
        elif run.status == "HARD_FAIL":
            text, tint = f"{sent} requests, {code} each, {run.reason}", "red"
        elif sent:
            text, tint = f"{sent} request, {code}, the rest waits", "yellow"
        else:
            text, tint = "refused: circuit open (0 requests sent)", "yellow"
        number = OUTAGE_DAYS.index(day) + 1
        self.output.write_row(f"poll {number}  {text}", tint, f"{STAGE:<{STAGE_WIDTH}}")  # type: ignore[arg-type]

    def _play_probe(self) -> None:
        """One request is let through after the cooldown, and fails."""
        self.pass_cooldown()
        self.output.write_row("300 s later, the server is still down:", "dim")
        polls = [self.poll(day) for day in OUTAGE_DAYS[2:]]
        for day, (run, sent) in zip(OUTAGE_DAYS[2:], polls, strict=True):
            self._write_poll(day, run, sent)
        self.output.count("outage: after 300 s, both waiting polls", sum(sent for _, sent in polls), 1)
        self.output.expect("breaker still open", self.is_circuit_open(), True)

    def _play_recovery(self) -> None:
        """The server is well again: the probe succeeds and the waiting polls are done."""
        self.server.is_down = False
        self.pass_cooldown()
        self.output.write_row("300 s later, the server is well again:", "dim")
        polls = [self.poll(day) for day in OUTAGE_DAYS[2:]]
        for day, (run, sent) in zip(OUTAGE_DAYS[2:], polls, strict=True):
            self._write_poll(day, run, sent)
        self.output.count("outage: after 600 s, both waiting polls", sum(sent for _, sent in polls), 2)
        self.output.expect("states", [run.status for run, _ in polls], ["COMPLETE", "COMPLETE"])
        self.output.expect("breaker open", self.is_circuit_open(), False)

    # Scene 3 ----------------------------------------------------------------------------------------

    def play_bad_data(self) -> None:
        """An item breaks the schema: one request, quarantine, and the pipeline is halted."""
        self.server.break_item(BAD_ITEM)
        run = ingest_item.run(self.server.url, BAD_ITEM)
        self.output.expect("held for", run.held_for, "quarantined")
        for item in self.engine.quarantine:
            dataset = self.engine.datasets.get(item.dataset)
            label = "" if dataset is None else dataset.care_label
            text = f'QUARANTINED  {item.error["code"]}  attempts {item.attempts}  care "{label}"'
            self.output.write_row(text, "red", f"item {BAD_ITEM}  ")
            self.output.expect("error class", item.error["code"], "SCHEMA_INVALID")
        self.output.count(f"bad data: item {BAD_ITEM}", len(self.server.requests_for_item(BAD_ITEM)), 1)
        self._play_halted_item()
        reason = f"{BAD_ITEM} is set aside"
        if self.engine.switches.status():
            self.engine.switches.off(pipeline=PIPELINE, reason=reason, by=OPERATOR)
            self.output.write_row(f"pipeline {PIPELINE} released by {OPERATOR}: {reason}", "dim")
        done = ingest_item.run(self.server.url, NEXT_ITEM)
        sent = len(self.server.requests_for_item(NEXT_ITEM))
        self.output.write_row(f"{done.status}", "green", f"item {NEXT_ITEM}  ")
        self.output.count(f"bad data: item {NEXT_ITEM}, after the release", sent, 1)

    def _play_halted_item(self) -> None:
        """The next item is refused, because the pipeline is halted."""
        refused = False
        try:
            ingest_item(self.server.url, NEXT_ITEM)
        except oncemore.NotPermitted:
            refused = True
        sent = len(self.server.requests_for_item(NEXT_ITEM))
        self.output.write_row(
            f"refused: the pipeline is halted ({sent} requests sent)", "yellow", f"item {NEXT_ITEM}  "
        )
        self.output.count(f"bad data: item {NEXT_ITEM}, while halted", sent, 0)
        self.output.expect("refused while halted", refused, True)


def read_time() -> float:
    """Return seconds for the server's log: real ones, and those that the fake clock was moved by."""
    return time.monotonic() + clocks.current.offset


#: Title, reason and function of each scene.
SCENES: tuple[tuple[str, str, Callable[[KfmRulesDemo], None]], ...] = (
    (
        "Two soft failures",
        "The provider is busy. A retry is allowed, but only with a random wait, and never sooner than the "
        "provider asks.",
        KfmRulesDemo.play_soft_failures,
    ),
    (
        "An outage",
        "Nothing answers. Five attempts for each poll would only prolong it: the third failed operation "
        "opens the breaker for all.",
        KfmRulesDemo.play_outage,
    ),
    (
        "Bad data",
        "An item breaks the STAC schema. Asking again does not repair it, so that nothing is retried and "
        "nothing after it begins.",
        KfmRulesDemo.play_bad_data,
    ),
    (
        "A dataset is relabelled",
        "The provider is busy, and a retry is planned. While it waits, a steward restricts the dataset: what "
        "was permitted a second ago is not permitted any more.",
        play_gate,
    ),
    (
        "The ledgers",
        "What happened must be readable for people who were not there, and checkable with a public key and "
        "a file.",
        play_ledgers,
    ),
)
