"""`oncemore demo nova-cat`: spectra from an archive that throttles, stalls and sends broken files.

The archive is a real HTTP server, the files are real FITS, the store is a temporary SQLite file. Only the
waits end at once, by the fake clock of `oncemore.testing`: the 250 s between four attempts and the cooldowns
are decided and stored as always. The second process is real too, and gets the time of the fake clock.
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
from oncemore.demo.archive_server import ArchiveServer, image, make_broken_files
from oncemore.demo.terminal import LiveTerminal, cut_line, silence_logging, wrap_text
from oncemore.outbox import JsonLinesSink, OutboxRelay
from oncemore.profiles.nova_cat import NovaCat, WorkflowExecution, download, names
from oncemore.profiles.nova_cat.fits import import_readers
from oncemore.steps.refusals import format_utc
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from typing import TextIO

    from oncemore.demo.terminal import Line

NOVA = UUID("0f6e1c9a-3a5d-4c39-8a40-3f1f7a2b9c01")
LEAD_WIDTH = 36
#: Read timeout of downloads. The stall is real, and a minute of it would make a poor demo.
READ_TIMEOUT_S = 0.3
TINTS: dict[str, Any] = {
    names.SUCCESS: "green", names.RETRYABLE_FAILURE: "yellow", names.TERMINAL_FAILURE: "red",
    names.QUARANTINED: "red",
}  # fmt: skip


class NovaCatDemo:
    """A catalogue, its archive and the output; `faults` counts the unexpected results."""

    def __init__(
        self, terminal: LiveTerminal, engine: oncemore.Engine, archive: ArchiveServer, clock: FakeClock
    ) -> None:
        self.terminal, self.engine, self.archive, self.clock = terminal, engine, archive, clock
        self.cat, self.faults = NovaCat(fetch=partial(download, silence_s=READ_TIMEOUT_S)), 0
        self.width = terminal.terminal_size()[0]

    def add_product(
        self, name: str, provider: str, data: bytes, turns: str = "200", **fields: Any
    ) -> dict[str, Any]:
        """Add a file to the archive, with its turns in a row; return its entry in the catalogue."""
        product = {
            "schema_version": "1", "nova_id": str(NOVA), "data_product_id": str(uuid5(NOVA, name)),
            "provider": provider, "locator": self.archive.put(f"/{name}", data, *turns.split()),
            "provenance": "demo archive", "sha256": sha256(data).hexdigest(),
        }  # fmt: skip
        return {**product, **fields}

    def acquire_and_print(self, product: dict[str, Any], expected: str) -> WorkflowExecution:
        """Acquire a product; print the outcome and the archive's replies."""
        before = len(self.archive.asked)
        execution = self.cat.acquire(product)
        # Without the Retry-After of a turn, to keep the column narrow.
        turns = [turn.partition(",")[0] for _, turn in self.archive.asked[before:]]
        self.faults += execution.outcome != expected
        self.print_row(product, " ".join(turns), execution.outcome, _outcome_details(execution))
        return execution

    def print_row(self, product: dict[str, Any], turns: str, outcome: str, details: str) -> None:
        """Print one line: product, provider, the archive's replies, outcome, details."""
        short_id = str(product["data_product_id"])[:4]
        lead = f"{short_id}…  provider {product['provider']}  {turns or '(no request)'}"
        line: Line = [(f"  {lead:<{LEAD_WIDTH}}", ""), (outcome, TINTS.get(outcome, "dim")), (details, "")]
        self.terminal.write_lines([cut_line(line, self.width)])

    def print_heading(self, text: str) -> None:
        """Print the introduction of a scene."""
        self.terminal.write_lines([[], *wrap_text(text, self.width, "bold")])


def _outcome_details(execution: WorkflowExecution) -> str:
    record = execution.product
    if execution.outcome == names.RETRYABLE_FAILURE and record is not None:
        time = format_utc(record.next_eligible_attempt_at).partition(" ")[2]
        return f"  total {record.attempt_count_total}, next {time}"
    if execution.outcome == names.SUCCESS and record is not None:
        state = f"{record.acquisition_status}/{record.validation_status}"
        return f"  {state}  {record.last_successful_fingerprint[:12]}…"
    return f"  {execution.reason}" if execution.reason else ""


def run_scenes(demo: NovaCatDemo, folder: Path) -> None:
    """Run all scenes: throttled, cooling down, fetched, quarantined, released."""
    good = image()
    say, acquire = demo.print_heading, demo.acquire_and_print
    first = demo.add_product("v1369-cen.fits", "A", good, "429 429 429 429 200")
    say("Provider A throttles. Four attempts at 0, 10, 70 and 250 s, then a cooldown of 300 s.")
    throttled = acquire(first, names.RETRYABLE_FAILURE)
    say("Acquired again at once: no request is made. Nor by a second process, nor after a restart.")
    acquire(first, names.SKIPPED_BACKOFF)
    run_second_process(demo, first, folder)
    # A new engine on the same file stands for the restart.
    with oncemore.open(folder / "log.db") as again:
        cooldown = again.cooldowns.get(first["data_product_id"])
        demo.faults += cooldown is None or cooldown.state != "COOLING"
    say("The cooldown is over, and the file is there. A valid file is not fetched twice.")
    # Past the cooldown that was stored above.
    demo.clock.advance(300.0)
    acquire(first, names.SUCCESS)
    acquire(first, names.SKIPPED_DUPLICATE)
    say("Provider B stalls, then cuts its reply, then delivers: attempts of one execution, counted once.")
    slow = demo.add_product("v339-del.fits", "B", image((380.0, 0.1)), "stall cut 200")
    retried = acquire(slow, names.SUCCESS)
    # Attempts inside of one execution count once in the product's record.
    demo.faults += retried.product is None or retried.product.attempt_count_total != 1
    say("Invalid files: one request each, then quarantine, where a person has to decide.")
    wrong = demo.add_product("v407-cyg.fits", "B", good, sha256="0" * 64)
    quarantined = acquire(wrong, names.QUARANTINED)
    for reason, data in make_broken_files().items():
        acquire(demo.add_product(f"{reason.lower()}.fits", "C", data), names.QUARANTINED)
    say("A malformed input is refused before any request.")
    acquire({**first, "data_product_id": "not-a-uuid"}, names.TERMINAL_FAILURE)
    say(
        "A curator finds that the digest in the catalogue was wrong, and releases the product: "
        "oncemore limits cooldowns release …"
    )
    acquire(wrong, names.SKIPPED_QUARANTINED)
    demo.engine.cooldowns.release(wrong["data_product_id"], by="curator", reason="the digest was mistyped")
    acquire({**wrong, "sha256": sha256(good).hexdigest()}, names.SUCCESS)
    print_summary(demo, folder, [throttled, retried, quarantined])


def run_second_process(demo: NovaCatDemo, product: dict[str, Any], folder: Path) -> None:
    """Acquire the same product in a new process on the same store."""
    before = len(demo.archive.asked)
    # With the offset of the fake clock, so that both processes have the same time.
    words = [sys.executable, "-m", "oncemore.demo.nova_cat_demo", str(folder / "log.db"),
             str(demo.clock.offset), json.dumps(product)]  # fmt: skip
    process = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    outcome, requests = process.stdout.strip(), len(demo.archive.asked) - before
    demo.faults += (outcome, requests) != (names.SKIPPED_BACKOFF, 0)
    demo.print_row(product, "", outcome or process.stderr[-200:], "  a second process")


def print_summary(demo: NovaCatDemo, folder: Path, executions: list[WorkflowExecution]) -> None:
    """Print the errors per provider, and deliver and check the events."""
    demo.terminal.write_line()
    for execution in executions:
        errors = ", ".join(
            f"{name} {{{', '.join(f'{code}: {count}' for code, count in provider.errors.items())}}}"
            for name, provider in execution.job.providers.items()
        )
        ids = f"JobRun …{execution.job.job_id[-8:]}  correlation …{execution.correlation_id[-8:]}"
        demo.terminal.write_paragraph(f"{ids}  providers: {errors}")
    out = folder / "events.jsonl"
    OutboxRelay(demo.engine, {"*": JsonLinesSink(out)}).run_once()
    events = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    is_correlated = all(event["payload"]["correlation_id"] == event["correlation_id"] for event in events)
    # Keys are internal: they must not leave in an event.
    has_key = any("key" in name for event in events for name in event["payload"])
    demo.faults += not is_correlated or has_key or len(events) != 3
    demo.terminal.write_paragraph(
        f"{len(events)} events published, each with its correlation id and none with a key. "
        f"{len(demo.engine.quarantine)} products are in quarantine. "
        f"{len(demo.archive.asked)} requests reached the archive."
    )


def main(out: TextIO, *, plain: bool = False) -> int:
    """Run the demo; return 1 if a result was not the expected one."""
    import_readers()  # names the missing extra, before anything starts
    terminal = LiveTerminal(out, plain=plain)
    terminal.write_paragraph(
        "Acquiring spectra under the policy nova-cat, from a server on this machine that misbehaves. "
        "Requests, files and processes are real; waits are decided and stored as always, and end at once."
    )
    with (
        silence_logging(),
        tempfile.TemporaryDirectory(prefix="oncemore-demo-") as folder,
        ArchiveServer() as archive,
        FakeClock() as clock,
        oncemore.open(Path(folder) / "log.db") as engine,
    ):
        demo = NovaCatDemo(terminal, engine, archive, clock)
        run_scenes(demo, Path(folder))
    terminal.write_line()
    faults = f"{demo.faults} unexpected results."
    terminal.write_paragraph(faults if demo.faults else "All results are as expected.", "bold")
    return 1 if demo.faults else 0


def acquire_in_process(store: str, ahead: str, product: str) -> None:
    """Acquire a product in this process, `ahead` seconds after the real time."""
    with silence_logging(), FakeClock() as clock, oncemore.open(store):
        clock.advance(float(ahead))
        print(NovaCat().acquire(json.loads(product)).outcome)


if __name__ == "__main__":
    acquire_in_process(*sys.argv[1:])
