"""`oncemore demo`: a pipeline is really killed and finishes, and the count at the end cannot be fooled."""

from __future__ import annotations

import ast
import fcntl
import io
import os
import pty
import re
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import oncemore
from oncemore.demo.child_processes import run_in_folder
from oncemore.demo.effect_counts import EffectCount, EffectTotals, count_effects, read_json_lines
from oncemore.demo.pipeline import pipeline_demo
from oncemore.demo.pipeline import pipeline_summary as summary
from oncemore.demo.pipeline.order_plan import AT_A_TIME, HELD, SCRIPTS, make_plan
from oncemore.demo.pipeline.status_table import (
    LEGEND,
    NAME_WIDTH,
    NewsLine,
    StatusCell,
    StatusTable,
    column_widths,
    error_word,
    fit_text,
    format_cell,
)
from oncemore.demo.summary_lines import count_lines
from oncemore.demo.terminal import LiveTerminal, cut_line, wrap_text
from oncemore.policy import files
from tools import pictures

if TYPE_CHECKING:
    from collections.abc import Iterator

DEMO = Path(oncemore.__file__).parent / "demo"
COMMAND = [sys.executable, "-W", "error", "-m", "oncemore", "demo"]
SEED = "7"
KINDS = ("HTTP charges", "table rows", "files", "webhook messages")
#: Time limit of a fast run, on a busy machine.
LONGEST_S = 100


def environment(**changes: str) -> dict[str, str]:
    hidden = ("NO_COLOR", "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**kept, "TERM": "xterm", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **changes}


def run_demo(*options: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *options],
        capture_output=True, text=True, timeout=LONGEST_S, check=False, env=environment(**changes),
    )  # fmt: skip


def table_of(text: str) -> dict[str, EffectCount]:
    """The counts that were printed, by kind."""
    found = {}
    for line in text.splitlines():
        for kind in KINDS:
            if line.startswith(kind):
                found[kind] = EffectCount(kind, *map(int, line.removeprefix(kind).split()))
    return found


def children_of(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it ended while we looked
            continue
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found


def is_gone(pid: int, total_timeout_s: float = 5.0) -> bool:
    ends = time.monotonic() + total_timeout_s
    while time.monotonic() < ends:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


# A complete run with --keep.


class DemoOutput(NamedTuple):
    """The output of a run, and its folder."""

    text: str
    folder: Path
    commands: list[str]


@pytest.fixture(scope="module")
def output() -> Iterator[DemoOutput]:
    """A run of the demo into a file, with its folder kept."""
    run = run_demo("--fast", "--seed", SEED, "--keep")
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    folder = Path(run.stdout.splitlines()[0].rpartition(" in ")[2])
    after = run.stdout.partition("What to try next\n")[2]
    commands = [line.strip() for line in after.splitlines() if re.match(r"  \S", line)]
    yield DemoOutput(run.stdout, folder, commands)
    shutil.rmtree(folder)


def test_every_effect_is_there_once_after_three_real_kills(output: DemoOutput) -> None:
    counts = table_of(output.text)
    assert set(counts) == set(KINDS)
    for count in counts.values():
        assert (count.asked, count.applied, count.duplicated, count.lost) == (7, 7, 0, 0)
    assert counts["HTTP charges"].tried > 14, "the faults were met"
    assert counts["webhook messages"].tried > 7
    killed = re.findall(r"kill -9 of the pipeline, pid (\d+)", output.text)
    assert len(killed) == len(set(killed)) == 3
    assert output.text.count("the pipeline is started again") == 3
    assert "Requests earlier than the provider had asked for: 0." in " ".join(output.text.split())


def test_the_kills_come_in_the_worst_moments(output: DemoOutput) -> None:
    seen = read_json_lines(output.folder / "recorder.jsonl")
    points = {line["kill_point"]: line["order"] for line in seen if line["event"] == "kill_point"}
    assert list(points) == ["after-charge", "after-commit", "after-delivery"]
    rows = rows_of(output.text)
    charge, *_ = rows[points["after-charge"]]
    assert charge.endswith("killed ok"), "it was charged, killed, and asked again under the same key"
    assert rows[points["after-commit"]][1].endswith("killed found"), (
        "its row was there, and not written again"
    )
    assert "killed" in rows[points["after-delivery"]][3]
    order = points["after-delivery"]
    assert f"webhook: already has the message of {order} (same id)" in output.text


def rows_of(text: str) -> dict[str, list[str]]:
    """The cells of each order at the end."""
    at = [NAME_WIDTH]
    for size in column_widths(80).values():
        at.append(at[-1] + size)
    return {
        line.split()[0]: [line[a:b].strip() for a, b in pairwise(at)]
        for line in text.splitlines()
        if re.match(r"order-\d  ", line)
    }


def test_every_attempt_of_every_order_can_be_read(output: DemoOutput) -> None:
    rows, plan = rows_of(output.text), make_plan(SEED)
    assert list(rows) == [order for order, _ in plan.orders]
    asked: dict[str, int] = {}
    for line in read_json_lines(output.folder / "recorder.jsonl"):
        if line["event"] == "requested" and line["path"] == "charges":
            asked[line["order"]] = asked.get(line["order"], 0) + 1
    for order, cells in rows.items():
        words = cells[0].split()
        assert asked[order] <= len(words) <= asked[order] + 3, "a killed attempt may not have come to ask"
        (refused,) = plan.refused_orders
        assert words[-1] == ("402" if order == refused else "ok")
        assert (cells[1:] == ["-", "-", "-"]) == (order == refused)


def test_one_wait_is_explained_and_computed_again(output: DemoOutput) -> None:
    words = " ".join(output.text.split())
    found = re.search(r"Why did (order-\d) wait ([\d.]+) s after attempt (\d) of charge\?", words)
    assert found
    assert f"Attempt {found[3]} failed with HTTP_429 (throttled); attempt {int(found[3]) + 1} of 8" in words
    assert f"The provider asked for a wait of {found[2]} s; the delay is never shorter." in words
    assert "the same, to the byte." in words


@pytest.mark.parametrize("number", range(4))
def test_what_to_try_next_works(output: DemoOutput, number: int) -> None:
    assert len(output.commands) == 4
    before = (output.folder / "tried.jsonl").read_text()
    run = subprocess.run(
        ["bash", "-c", output.commands[number]],
        capture_output=True, text=True, timeout=60, check=False, env=environment(), cwd="/",
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, ""), output.commands[number]
    assert run.stdout
    assert (output.folder / "tried.jsonl").read_text() == before, "something was done again"
    assert count_effects(output.folder, make_plan(SEED).expected_orders).is_exact


def test_plain_text_fits_and_has_nothing_that_steers(output: DemoOutput) -> None:
    assert output.text.isascii()
    assert "\033" not in output.text
    assert "\r" not in output.text
    above = output.text.partition("What to try next")[0]
    assert max(len(line) for line in above.splitlines()[1:]) <= 80
    assert LEGEND.split() == [w for w in LEGEND.split() if w in output.text.split()]


# The count cannot be fooled.


def test_a_careless_pipeline_is_found_out() -> None:
    run = run_demo("--fast", "--seed", SEED, "--careless")
    assert (run.returncode, run.stderr) == (1, "")
    counts = table_of(run.stdout)
    assert counts["HTTP charges"].duplicated >= 3
    assert counts["table rows"].duplicated >= 1
    assert (counts["files"].duplicated, counts["webhook messages"].duplicated) == (0, 0)
    assert all(count.lost == 0 for count in counts.values())
    assert "Effects were duplicated or lost" in run.stdout
    assert "careless on purpose" in " ".join(run.stdout.split())


@pytest.fixture
def copy(output: DemoOutput, tmp_path: Path) -> Path:
    shutil.copytree(output.folder, tmp_path / "copy")
    return tmp_path / "copy"


def changed(folder: Path) -> dict[str, tuple[int, int, int]]:
    """What is counted there, where it is not all well: applied, duplicated, lost."""
    counts = count_effects(folder, make_plan(SEED).expected_orders).counts
    return {one.effect: one[3:] for one in counts if one[3:] != (7, 0, 0)}


def test_a_lost_or_added_row_file_charge_or_message_is_counted(copy: Path) -> None:
    assert changed(copy) == {}
    first, second, *_ = make_plan(SEED).expected_orders
    database = sqlite3.connect(copy / "shop.db")
    database.execute("DELETE FROM sales WHERE sale = ?", (first,))
    database.execute("INSERT INTO sales SELECT * FROM sales WHERE sale = ?", (second,))
    database.commit()
    database.close()
    one, *_ = (copy / "artifacts" / "sha256").glob("*/*")
    one.with_name("another").write_text(f"{one.read_text()}\nonce more")
    book = copy / "recorder.jsonl"
    output = book.read_text().splitlines(keepends=True)
    charged = next(line for line in output if '"charged"' in line)
    taken = next(line for line in output if '"accepted"' in line)
    book.write_text("".join([*(line for line in output if line is not taken), charged]))
    assert changed(copy) == {
        "HTTP charges": (8, 1, 0),
        "table rows": (7, 1, 1),
        "files": (8, 1, 0),
        "webhook messages": (6, 0, 1),
    }


def test_what_is_done_of_a_refused_order_is_too_much(copy: Path) -> None:
    (refused,) = make_plan(SEED).refused_orders
    with (copy / "recorder.jsonl").open("a") as book:
        book.write(f'{{"at": 0, "event": "charged", "order": "{refused}"}}\n{{"half a li')
    assert changed(copy) == {"HTTP charges": (8, 1, 0)}


def test_an_empty_folder_has_lost_everything(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "shop.db").close()
    assert {one[1:] for one in count_effects(tmp_path, ["order-1"]).counts} == {(1, 0, 0, 0, 1)}


#: The code that records and counts effects. It may import the standard library and itself, and nothing else.
COUNTING = ("pipeline.shop_services", "exoarmur.host_services", "effect_counts", "local_server")


@pytest.mark.parametrize("name", COUNTING)
def test_the_code_that_counts_imports_nothing_of_the_engine(name: str) -> None:
    tree = ast.parse((DEMO / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8"))
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules -= {f"oncemore.demo.{module}" for module in COUNTING}
    assert {module.split(".")[0] for module in modules} <= sys.stdlib_module_names


def test_a_pipeline_that_gets_nowhere_ends_too_and_all_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_demo, "LIMIT_S", 1.0)
    monkeypatch.setattr(
        pipeline_demo.PipelineProcesses,
        "start_pipeline",
        lambda self: self.start_python("-c", "import time; time.sleep(60)"),
    )
    out, began = io.StringIO(), time.monotonic()
    assert pipeline_demo.main(out, seed=SEED, fast=True, plain=True) == 1
    assert time.monotonic() - began < 20
    assert [(one.applied, one.lost) for one in table_of(out.getvalue()).values()] == [(0, 7)] * 4
    assert "The pipeline did not finish" in out.getvalue()


# However it ends, it leaves nothing behind.


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_all_of_its_processes(number: signal.Signals, code: int) -> None:
    with subprocess.Popen(
        [*COMMAND, "--seed", SEED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        folder = Path(run.stdout.readline().split()[-1])
        while "charge" not in run.stdout.readline() or not (folder / "tried.jsonl").exists():
            assert run.poll() is None
        started = children_of(run.pid)
        assert len(started) == 2
        run.send_signal(number)
        assert run.wait(10) == code
        assert run.stderr.read() == ""
        assert all(is_gone(pid) for pid in started)
        assert not folder.exists()
        assert ("Stopped." in run.stdout.read()) == (number == signal.SIGINT)


def test_no_process_outlives_a_demo_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        COMMAND, stdout=subprocess.PIPE, text=True, env=environment(TMPDIR=str(tmp_path))
    ) as run:
        assert run.stdout is not None
        while "charge: " not in run.stdout.readline():
            assert run.poll() is None
        started = children_of(run.pid)
        run.kill()
        run.wait(10)
    left = [pid for pid in started if not is_gone(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert (len(started), left) == (2, [])


def test_a_reader_that_has_seen_enough_ends_it_quietly() -> None:
    with subprocess.Popen(
        [*COMMAND, "--fast"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        folder = Path(run.stdout.readline().split()[-1])
        run.stdout.close()
        assert run.wait(30) == 0
        assert run.stderr.read() == ""
        assert not folder.exists()


# On a terminal.


def terminal(columns: int, rows: int) -> tuple[int, int]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    return ours, theirs


def on_a_terminal(columns: int, rows: int, *options: str, **changes: str) -> str:
    """Return the bytes that a terminal of this size gets during a fast run."""
    ours, theirs = terminal(columns, rows)
    with subprocess.Popen([*COMMAND, "--fast", *options], stdout=theirs, env=environment(**changes)) as run:
        os.close(theirs)
        sent = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            sent += part
    os.close(ours)
    assert run.returncode == 0
    return sent.decode()


class FakeTerminal:
    """A terminal with the few escape sequences of the demo; `lines` is its screen."""

    def __init__(self) -> None:
        self.lines, self.row, self.column = [""], 0, 0
        self.frames: list[list[str]] = []

    def take(self, sent: str) -> None:
        for found in re.finditer(r"\033\[\??([\d;]*)([A-Za-z])|\r|\n|[^\033\r\n]+", sent):
            text = found[0]
            if text == "\r":
                self.column = 0
            elif text == "\n":
                self.row += 1
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif text[0] == "\033":
                self._steer(found[2], found[1])
            else:
                before = self.lines[self.row].ljust(self.column)
                after = before[self.column + len(text) :]
                self.lines[self.row] = before[: self.column] + text + after
                self.column += len(text)

    def _steer(self, what: str, number: str) -> None:
        if what == "A":
            self.frames.append(list(self.lines))
            self.row -= int(number)
            assert self.row >= 0
        elif what == "K":
            self.lines[self.row] = self.lines[self.row][: self.column]
        elif what == "J":
            del self.lines[self.row + 1 :]
        else:
            assert what in "mhl", f"the screen does not know {what}"


@pytest.fixture(scope="module")
def narrow() -> tuple[str, FakeTerminal]:
    sent = on_a_terminal(60, 24, "--seed", SEED)
    screen = FakeTerminal()
    screen.take(sent)
    return sent, screen


def test_a_terminal_is_drawn_on_in_place_and_never_too_wide(narrow: tuple[str, FakeTerminal]) -> None:
    sent, screen = narrow
    assert len(screen.frames) > 10
    for frame in screen.frames:
        assert sum("charge (HTTP)" in line for line in frame) == 1, "one view, drawn over"
        assert all(len(line) <= 60 for line in frame[1:])
    text = [" ".join(frame) for frame in screen.frames]
    assert any(re.search(r"wait \d+\.\d s", frame) for frame in text)
    assert any("kill -9 of the pipeline, pid" in frame for frame in text)
    assert "\033[32m" in sent


def test_a_terminal_is_left_as_it_was_found(narrow: tuple[str, FakeTerminal]) -> None:
    sent, screen = narrow
    assert sent.count("\033[?25l") == sent.count("\033[?25h") == 1
    assert sent.index("\033[?25l") < sent.index("\033[?25h") < sent.index("What to try next")
    assert table_of("\n".join(screen.lines))["table rows"][3:] == (7, 0, 0)


def test_a_terminal_gets_its_cursor_back_from_control_c() -> None:
    ours, theirs = terminal(80, 24)
    with subprocess.Popen(COMMAND, stdout=theirs, stderr=theirs, env=environment()) as run:
        os.close(theirs)
        sent = b""
        while b"charge (HTTP)" not in sent:
            sent += os.read(ours, 65536)
        started = children_of(run.pid)
        run.send_signal(signal.SIGINT)
        while True:
            try:
                sent += os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
    os.close(ours)
    assert run.returncode == 130
    assert started
    assert all(is_gone(pid) for pid in started)
    assert sent.rpartition(b"\033[?25l")[2].count(b"\033[?25h") == 1
    assert sent.replace(b"\r\n", b"\n").endswith(b"Stopped.\n")


class InterruptedTerminal(io.StringIO):
    """A terminal at which Ctrl-C arrives right after the given write or flush."""

    def __init__(self, interrupted: int) -> None:
        super().__init__()
        self.left = interrupted

    def isatty(self) -> bool:
        return True

    def _interrupt(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt

    def write(self, text: str) -> int:
        written = super().write(text)
        self._interrupt()
        return written

    def flush(self) -> None:
        super().flush()
        self._interrupt()


@pytest.mark.parametrize("number", range(1, 10))
def test_the_cursor_is_shown_again_wherever_control_c_arrives(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    out = InterruptedTerminal(number)
    screen, board = LiveTerminal(out), StatusTable(["order-1"])

    def run(folder: Path) -> int:
        try:
            for at in range(3):
                board.add_fact({"source": "demo", "event": "start", "pid": at, "t": 1.0})
                screen.draw_frame(board.frame_lines(80, float(at)))
        finally:
            screen.end_drawing()
        return 0

    # Six calls draw three frames, two show the cursor, and no call is left for the last number.
    assert run_in_folder(screen, run, keep=False) == (0 if number == 9 else 130)
    assert out.getvalue().rfind("\033[?25h") > out.getvalue().rfind("\033[?25l") >= 0


def test_every_frame_is_one_write() -> None:
    written: list[str] = []

    class Out(io.StringIO):
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    screen, board = LiveTerminal(Out(), 0), StatusTable(["order-1"])
    screen.coloured = screen.live = True
    screen.draw_frame(board.frame_lines(80, 0.0))
    screen.draw_frame(board.frame_lines(80, 0.1))
    assert len(written) == 1, "nothing has changed"
    board.add_fact({"source": "demo", "event": "start", "pid": 7, "t": 1.0})
    screen.draw_frame(board.frame_lines(80, 1.0))
    assert len(written) == 2
    assert written[1].startswith(f"\033[{len(board.frame_lines(80, 1.0))}A\r")


@pytest.mark.parametrize(
    ("size", "options", "changes"),
    [
        ((80, 24), {"plain": True}, {}),
        ((80, 24), {}, {"NO_COLOR": "1"}),
        ((80, 24), {}, {"TERM": "dumb"}),
        ((80, 17), {}, {}),
    ],
    ids=["asked", "NO_COLOR", "dumb", "too low"],
)
def test_a_terminal_without_a_view_gets_lines(
    size: tuple[int, int], options: dict[str, bool], changes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = terminal(*size)
    with os.fdopen(theirs, "w") as out:
        assert LiveTerminal(out, 18).live is (size[1] > 18)
        assert LiveTerminal(out, 18).terminal_size() == size
        for name, value in changes.items():
            monkeypatch.setenv(name, value)
        assert not LiveTerminal(out, 18, **options).live
        monkeypatch.setenv("COLUMNS", "66")
        assert LiveTerminal(out, 18).terminal_size()[0] == 66
    os.close(ours)


def test_a_terminal_that_changes_its_size_is_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = io.StringIO()
    screen = LiveTerminal(out, 0)
    screen.coloured = True
    for width in ("80", "70"):
        monkeypatch.setenv("COLUMNS", width)
        screen.draw_frame([[("here", "")]])
    assert out.getvalue().count("\033[H\033[2J") == 1


# The parts.


def test_a_seed_gives_the_same_plan_and_every_plan_has_its_kills() -> None:
    plans = [make_plan(str(seed)) for seed in range(200)]
    assert plans[3] == make_plan("3")
    assert len({str(plan.charges) for plan in plans}) > 100
    for plan in plans:
        assert sorted(plan.charges.values()) == sorted([*SCRIPTS, HELD])
        (held,) = [order for order, script in plan.charges.items() if script == HELD]
        assert held in [order for order, _ in plan.orders[:AT_A_TIME]]
        assert len(plan.expected_orders) == 7
        assert set(plan.messages) <= set(plan.expected_orders)


def log(order: str, step: str, state: str, **more: Any) -> dict[str, Any]:
    base = {"t": 1.0, "source": "log", "attempt": 1, "reason": "", "code": "", "until": 0.0, "sentence": ""}
    return {**base, "order": order, "step": step, "state": state, **more}


def test_a_cell_has_a_word_for_every_attempt() -> None:
    board = StatusTable(["order-1", "order-2"])
    at = ("order-1", "charge")
    board.add_fact(log("order-1", "charge", "RUNNING"))
    assert format_cell(board.cells[at], 0) == "..."
    board.add_fact(log("order-1", "charge", "SOFT_FAIL", reason="retry", code="HTTP_429", until=4.0))
    assert format_cell(board.cells[at], 1.5) == "429 wait 2.5 s"
    assert format_cell(board.cells[at], 9.0) == "429 wait 0.0 s"
    board.add_fact(log("order-1", "charge", "RUNNING"))
    board.add_fact({"source": "demo", "event": "kill", "pid": 1, "t": 2.0})
    assert board.cells[at] == StatusCell(("429", "killed"), "cut")
    board.add_fact(log("order-1", "charge", "SOFT_FAIL", reason="lease_expired"))
    board.add_fact(log("order-1", "charge", "COMPLETE"))
    assert format_cell(board.cells[at], 0) == "429 killed ok"
    assert format_cell(board.cells["order-2", "notify"], 0) == "."


def test_a_process_that_the_demo_did_not_kill_is_shown_as_killed_too() -> None:
    board = StatusTable(["order-1"])
    board.add_fact(log("order-1", "book", "RUNNING"))
    board.add_fact(log("order-1", "book", "SOFT_FAIL", reason="lease_expired"))
    assert board.cells["order-1", "book"].words == ("killed",)


def test_a_message_is_done_when_it_has_arrived_and_not_before() -> None:
    board, at = StatusTable(["order-1"]), ("order-1", "notify")
    board.add_fact(log("order-1", "notify", "COMPLETE"))
    assert board.cells[at].state == "queued"
    for state, code in (("PENDING", ""), ("SENDING", ""), ("PENDING", "HTTP_503"), ("SENDING", "")):
        board.add_fact(log("order-1", "send", state, code=code))
    assert format_cell(board.cells[at], 0) == "503 ..."
    board.add_fact(log("order-1", "send", "DELIVERED"))
    assert format_cell(board.cells[at], 0) == "503 ok"
    board.add_fact(
        log("order-1", "send", "DEAD", code="HTTP_410", sentence="attempt 1 failed with HTTP_410; over.")
    )
    assert board.news[-1].text == "order-1 send: HTTP_410; over"


@pytest.mark.parametrize("width", [40, 60, 80, 133])
def test_the_whole_width_is_used_and_no_more(width: int) -> None:
    board = StatusTable(["order-1"])
    board.news.append(NewsLine(1.0, "x" * 300, ""))
    for line in board.frame_lines(width, 0.0):
        assert sum(len(text) for text, _ in line) <= width
    assert sum(column_widths(width).values()) == width - NAME_WIDTH


def test_text_that_is_too_long_is_cut_where_it_matters_least() -> None:
    assert fit_text("503 429 killed ok", 12) == "..killed ok "
    assert fit_text("ok", 6) == "ok    "
    assert cut_line([("abcdef", "red"), ("ghi", "")], 4) == [("ab..", "red")]
    assert [error_word(code) for code in ("HTTP_503", "TIMEOUT_READ", "CONNECTION_RESET", "")] == [
        "503", "late", "reset", "error",
    ]  # fmt: skip
    assert wrap_text("one two", 20, "dim", "- ") == [[("- one two", "dim")]]


def test_a_decision_that_comes_out_otherwise_is_said(tmp_path: Path) -> None:
    kept = pictures.kept()
    policy = pictures.policy_of(make_plan(kept["seed"], kept["pace"]))
    *about, proof = kept["proved"]
    assert summary.explain_decision((*about, proof), policy, 80)[1]
    altered = {**proof, "delay_s": proof["delay_s"] + 1e-6}
    said, same = summary.explain_decision((*about, altered), policy, 80)
    assert not same
    assert "NOT the same" in "".join(text for line in said for text, _ in line)
    assert not summary.explain_decision((*about, proof), policy.replace(max_delay_s=7.0), 80)[1]
    assert summary.choose_decision([]) is None


def test_the_verdict_follows_the_counts() -> None:
    good, twice = EffectCount("files", 7, 9, 7, 0, 0), EffectCount("files", 7, 9, 8, 1, 0)
    assert EffectTotals((good,), 0).is_exact
    assert not EffectTotals((good, twice), 0).is_exact
    assert not EffectTotals((good._replace(lost=1),), 0).is_exact
    assert [line[0][1] for line in count_lines((good, twice), 80)] == [
        "bold",
        "green",
        "red",
    ]


def test_an_option_of_another_demo_is_refused() -> None:
    run = run_demo("retry", "--keep")
    assert (run.returncode, run.stdout) == (2, "")
    assert "--keep is not an option of the demo retry; it takes --fast" in " ".join(run.stderr.split())


def test_the_module_is_the_command(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "oncemore.demo", "--help"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0
    usage = "".join(run.stdout.split())  # the list of demos is longer than a line
    # A list of the names would be broken inside of one of them; the text below names each.
    assert "oncemoredemo[OPTIONS][DEMO]" in usage
    names = ("pipeline(", "retry:", "kfm-loop:", "kfm-rules:", "lit:", "nova-cat:", "exoarmur:")
    assert all(name in usage for name in names)


# The pictures.


@pytest.mark.parametrize("name", ["demo-live.svg", "demo-end.svg"])
def test_the_pictures_in_the_docs_are_what_the_code_draws(name: str) -> None:
    drawn = pictures.pictures(pictures.kept())
    assert set(drawn) == {path.name for path in pictures.FOLDER.glob("demo-*.svg")}
    assert (pictures.FOLDER / name).read_text(encoding="utf-8") == drawn[name], "run tools/pictures.py"


def test_a_picture_is_one_file_that_describes_itself() -> None:
    drawn = pictures.picture("a <title>", [[("one  ", "bold"), (" two & three", "")], []])
    assert "http" not in drawn.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "<script" not in drawn
    assert '<desc id="desc">one   two &amp; three\n</desc>' in drawn
    assert f'class="bold" x="16" textLength="{3 * 8.4:g}"' in drawn
    assert f'x="{16 + 6 * 8.4:g}"' in drawn


def test_the_policy_file_of_a_plan_is_a_good_one(tmp_path: Path) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text(make_plan("1", 0.15).policy_yaml())
    assert files.policy(str(path)).schedule.base == pytest.approx(0.12)
