"""`oncemore demo nova-cat`: spectra from an archive that throttles, stalls and sends broken files.

The archive is a real HTTP server on the loopback address, the files are real FITS made in memory, the store
is a scratch SQLite file, and every request that is shown was made. Only waits end at once, by the clock that
`oncemore.testing` has for that: the 250 s between four tries and the cooldowns are decided and kept as ever.
A second process and a restart are real too; both are told how far the clock has been moved.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid5

import oncemore
from oncemore.demo.nova_cat.server import ArchiveServer, image, make_broken_files
from oncemore.demo.pipeline.board import cut_line
from oncemore.demo.pipeline.live import LiveTerminal, silence_logging, wrap_text
from oncemore.outbox import JsonLinesSink, OutboxRelay
from oncemore.profiles.nova_cat import NovaCat, WorkflowExecution, download, names
from oncemore.profiles.nova_cat.fits import import_readers
from oncemore.steps.refusals import format_utc
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from typing import TextIO

    from oncemore.demo.pipeline.board import Line

NOVA = UUID("0f6e1c9a-3a5d-4c39-8a40-3f1f7a2b9c01")
LEAD_WIDTH = 36
#: How long a provider may say nothing here: a stall is real, and a minute of it would be no story.
SILENCE_S = 0.3
TINTS: dict[str, Any] = {
    names.SUCCESS: "green", names.RETRYABLE_FAILURE: "yellow", names.TERMINAL_FAILURE: "red",
    names.QUARANTINED: "red",
}  # fmt: skip


class NovaCatDemo:
    """What is told, and what has to be true of it; `faults` says what was not."""

    def __init__(
        self, terminal: LiveTerminal, engine: oncemore.Engine, archive: ArchiveServer, clock: FakeClock
    ) -> None:
        self.terminal, self.engine, self.archive, self.clock = terminal, engine, archive, clock
        self.cat, self.faults = NovaCat(fetch=partial(download, silence_s=SILENCE_S)), 0
        self.width = terminal.terminal_size()[0]

    def add_product(self, name: str, provider: str, data: bytes, *turns: str, **more: Any) -> dict[str, Any]:
        """Have the archive serve a file, and return what the catalogue says of it."""
        found = {
            "schema_version": "1", "nova_id": str(NOVA), "data_product_id": str(uuid5(NOVA, name)),
            "provider": provider, "locator": self.archive.put(f"/{name}", data, *turns),
            "provenance": "demo archive", "sha256": sha256(data).hexdigest(),
        }  # fmt: skip
        return {**found, **more}

    def acquire_and_print(self, given: dict[str, Any], expected: str) -> WorkflowExecution:
        """Run an execution, and show it with what the archive saw."""
        before = len(self.archive.asked)
        made = self.cat.acquire(given)
        seen = [turn.partition(",")[0] for _, turn in self.archive.asked[before:]]
        self.print_row(given, " ".join(seen), made, expected)
        return made

    def print_row(self, given: dict[str, Any], seen: str, made: WorkflowExecution, expected: str) -> None:
        """Show how an execution ended; another end than the expected is a fault."""
        self.faults += made.outcome != expected
        lead = f"{str(given['data_product_id'])[:4]}…  provider {given['provider']}  {seen or '(no request)'}"
        told = [
            (f"  {lead:<{LEAD_WIDTH}}", ""),
            (made.outcome, TINTS.get(made.outcome, "dim")),
            (_outcome_details(made), ""),
        ]
        self.terminal.write_lines([cut_line(told, self.width)])

    def print_heading(self, text: str) -> None:
        """Say what happens next."""
        self.terminal.write_lines([[], *wrap_text(text, self.width, "bold")])


def _outcome_details(made: WorkflowExecution) -> str:
    """Return what is worth knowing beside an outcome."""
    record = made.product
    if made.outcome == names.RETRYABLE_FAILURE and record is not None:
        return f"  total {record.attempt_count_total}, next {_format_time(record.next_eligible_attempt_at)}"
    if made.outcome == names.SUCCESS and record is not None:
        state = f"{record.acquisition_status}/{record.validation_status}"
        return f"  {state}  {record.last_successful_fingerprint[:12]}…"
    return f"  {made.reason}" if made.reason else ""


def _format_time(moment: float) -> str:
    return format_utc(moment).partition(" ")[2]


# The story ------------------------------------------------------------------------------------------


def play_story(story: NovaCatDemo, folder: Path) -> None:
    """Tell it: throttled, left alone, fetched, doubted, let go."""
    good = image()
    say, acquire, clock = story.print_heading, story.acquire_and_print, story.clock
    first = story.add_product("v1369-cen.fits", "A", good, "429", "429", "429", "429", "200")
    say("Provider A throttles. Four tries at 0, 10, 70 and 250 s, then the product is left alone for 300 s.")
    throttled = acquire(first, names.RETRYABLE_FAILURE)
    say("Asked again at once: nobody is asked. Nor by a second process, nor after a restart.")
    acquire(first, names.SKIPPED_BACKOFF)
    run_second_process(story, first, folder)
    with oncemore.open(folder / "log.db") as again:
        left = again.cooldowns.get(first["data_product_id"])
        story.faults += left is None or left.state != "COOLING"
    say("The cooldown is over, and the file is there. What is valid is not fetched twice.")
    clock.advance(300.0)
    acquire(first, names.SUCCESS)
    acquire(first, names.SKIPPED_DUPLICATE)
    say("Provider B stalls, then cuts its answer short, then delivers: tries of one execution, counted once.")
    slow = story.add_product("v339-del.fits", "B", image((380.0, 0.1)), "stall", "cut", "200")
    tried = acquire(slow, names.SUCCESS)
    story.faults += tried.product is None or tried.product.attempt_count_total != 1
    say("Files that nobody should use: one request each, and a person has to look.")
    wrong = story.add_product("v407-cyg.fits", "B", good, sha256="0" * 64)
    doubted = acquire(wrong, names.QUARANTINED)
    for reason, data in make_broken_files().items():
        acquire(story.add_product(f"{reason.lower()}.fits", "C", data), names.QUARANTINED)
    say("An input that is malformed is refused before anybody is asked.")
    acquire({**first, "data_product_id": "not-a-uuid"}, names.TERMINAL_FAILURE)
    say(
        "A curator finds that the catalogue had the wrong digest, and lets the product go: "
        "oncemore cooldowns release …"
    )
    acquire(wrong, names.SKIPPED_QUARANTINED)
    story.engine.cooldowns.release(wrong["data_product_id"], by="curator", reason="the digest was mistyped")
    acquire({**wrong, "sha256": sha256(good).hexdigest()}, names.SUCCESS)
    print_ending(story, folder, [throttled, tried, doubted])


def run_second_process(story: NovaCatDemo, given: dict[str, Any], folder: Path) -> None:
    """Have another process, started now, acquire the same product on the same store."""
    before = len(story.archive.asked)
    words = [sys.executable, "-m", "oncemore.demo.nova_cat.story", str(folder / "log.db"),
             str(story.clock.offset), json.dumps(given)]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    said, asked = done.stdout.strip(), len(story.archive.asked) - before
    story.faults += (said, asked) != (names.SKIPPED_BACKOFF, 0)
    lead = f"{given['data_product_id'][:4]}…  provider {given['provider']}  (no request)"
    line: Line = [
        (f"  {lead:<{LEAD_WIDTH}}", ""),
        (said or done.stderr[-200:], "dim"),
        ("  a second process", ""),
    ]
    story.terminal.write_lines([cut_line(line, story.width)])


def print_ending(story: NovaCatDemo, folder: Path, made: list[WorkflowExecution]) -> None:
    """Show what is on record, and deliver the events."""
    story.terminal.write_lines([[]])
    for one in made:
        met = ", ".join(
            f"{name} {{{', '.join(f'{code}: {count}' for code, count in found.errors.items())}}}"
            for name, found in one.job.providers.items()
        )
        ids = f"JobRun …{one.job.job_id[-8:]}  correlation …{one.correlation_id[-8:]}"
        story.terminal.write_paragraph(f"{ids}  providers: {met}")
    out = folder / "events.jsonl"
    OutboxRelay(story.engine, {"*": JsonLinesSink(out)}).run_once()
    events = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    tied = all(event["payload"]["correlation_id"] == event["correlation_id"] for event in events)
    keyed = any("key" in name for event in events for name in event["payload"])
    story.faults += not tied or keyed or len(events) != 3
    held = len(story.engine.quarantine)
    story.terminal.write_paragraph(
        f"{len(events)} events published, each with its correlation id and none with a key. {held} products "
        f"wait for a person. {len(story.archive.asked)} requests reached the archive."
    )


def main(out: TextIO, *, plain: bool = False) -> int:
    """Tell the story; return 1 if anything in it was not as it should be."""
    import_readers()  # says which extra is missing, before anything is begun
    terminal = LiveTerminal(out, 0, plain=plain)
    terminal.write_paragraph(
        "Acquiring spectra under the policy nova-cat, from a server on this machine that misbehaves. "
        "Requests, files and processes are real; waits are decided and kept as always, and end at once."
    )
    with (
        silence_logging(),
        tempfile.TemporaryDirectory(prefix="oncemore-demo-") as folder,
        ArchiveServer() as archive,
        FakeClock() as clock,
        oncemore.open(Path(folder) / "log.db") as engine,
    ):
        story = NovaCatDemo(terminal, engine, archive, clock)
        play_story(story, Path(folder))
    terminal.write_lines([[]])
    faults = story.faults
    wrong = f"{faults} things were not as they should be."
    terminal.write_paragraph(wrong if faults else "All of it as it should be.", "bold")
    return 1 if faults else 0


def acquire_in_process(store: str, ahead: str, given: str) -> None:
    """Be the second process: acquire a product at the time that the first one is at."""
    with silence_logging(), FakeClock() as clock, oncemore.open(store):
        clock.advance(float(ahead))
        print(NovaCat().acquire(json.loads(given)).outcome)


if __name__ == "__main__":
    acquire_in_process(*sys.argv[1:])
