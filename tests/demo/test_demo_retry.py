"""`oncemore demo retry`: its output agrees with the server's log, and it always ends."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import oncemore
from oncemore.demo import retry_demo as demo
from oncemore.demo.flaky_server import ALWAYS, RESET, FlakyServer, ScriptedFault
from oncemore.demo.terminal import LiveTerminal
from tests.timing import measure_shortest

SOURCE = str(Path(oncemore.__file__).parents[1])
COMMAND = [sys.executable, "-W", "error", "-m", "oncemore.demo.retry_demo"]
#: How much sooner than asked a visit may seem to come: the two sides read their clocks one after the other.
CLOCKS_S = 0.02


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "ONCEMORE_RETRY")}
    return {**kept, "TERM": "xterm", **changes}


@pytest.fixture(scope="module")
def story() -> str:
    """Run the demo into a file; return its output."""
    run = subprocess.run(
        [*COMMAND, "--fast"], capture_output=True, text=True, timeout=60, check=False, env=environment()
    )
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout


@pytest.fixture(scope="module")
def calls() -> tuple[dict[str, demo.DemoCall], dict[str, demo.DemoCall]]:
    """The same calls, made here: ours and the loop's, by path."""
    screen = LiveTerminal(io.StringIO())
    with FlakyServer(demo.make_faults(demo.FAST)) as server:
        ours = {
            path: demo.call_with_oncemore(screen, server, demo.FAST, path)
            for path in demo.describe_paths(demo.FAST)
        }
        naive = {path: demo.call_naively(server, demo.FAST, path) for path in demo.describe_paths(demo.FAST)}
    return ours, naive


def test_it_fits_on_a_usual_screen_and_is_plain_text_in_a_file(story: str) -> None:
    lines = story.splitlines()
    assert len(lines) <= 62
    assert max(map(len, lines)) <= 80
    assert story.isascii()
    assert "\033" not in story
    assert "\r" not in story


def test_every_wait_has_its_reason_and_one_is_explained_in_full(story: str) -> None:
    assert "1. CONNECTION_RESET (transient); attempt 2 of 3 follows in 0.0752 s." in story
    words = " ".join(story.split())
    assert "The provider asked for a wait of 0.3 s; the delay is never shorter. Policy custom" in words
    assert "HTTP_429 (throttled); attempt 2 of 3 follows in" in words
    assert "3. HTTP_500 (transient); given up: all 3 attempts are used." in words
    assert "1. HTTP_404 (permanent); not tried again" in words
    assert "1. TIMEOUT_ATTEMPT_LIMIT (transient); attempt 2 of 3 follows in" in words
    assert (
        "deferred: the provider asked for a wait of 2 min 0 s, and a wait here may last 30 s at most."
        in words
    )


def test_the_call_that_was_put_off_says_when_to_come_back(story: str) -> None:
    found = re.search(r"HTTPError raised\. Note: Worth trying again from (\d{4}-\d\d-\d\dT[\d:]+Z)\.", story)
    assert found
    again = time.mktime(time.strptime(found[1], "%Y-%m-%dT%H:%M:%SZ")) - time.timezone
    assert 0 < again - time.time() <= 120


def test_the_table_counts_the_shown_attempts(story: str) -> None:
    rows = {
        row[0]: row[1:]
        for line in story.splitlines()
        if (row := line.split())
        and row[0] in (*demo.describe_paths(demo.FAST), "together")
        and row[1].isdigit()
    }
    assert {path: row[0] for path, row in rows.items()} == {
        "/reset": "2", "/busy": "2", "/limit": "2", "/broken": "3", "/missing": "1", "/slow": "2",
        "/rest": "1", "together": "13",
    }  # fmt: skip
    scenes = re.split(r"(?m)^(?=/)", story.partition("Now the same calls")[0])[1:]
    for scene in scenes:
        path = scene.split()[0]
        assert len(re.findall(r"(?m)^   \d\. ", scene)) == int(rows[path][0])
    waited = re.findall(r"(\d+\.\d+) s +\d", story.partition("outcome")[2])
    assert sum(map(float, waited[:-1])) == pytest.approx(float(waited[-1]), abs=0.04)
    assert rows["together"][1:3] == ["4", "answers"]
    assert rows["together"][-4:] == ["19", "6", "2", "answers"]
    assert "oncemore 0, the loop 6" in story


@pytest.mark.req("BACKOFF-16")
def test_the_server_was_never_asked_before_the_time_it_had_named(
    calls: tuple[dict[str, demo.DemoCall], dict[str, demo.DemoCall]],
) -> None:
    ours, _ = calls
    for path, rest_s in (("/busy", demo.FAST.busy_s), ("/limit", demo.FAST.dated_s)):
        first, second = ours[path].requests
        assert second.not_before is not None
        assert second.not_before - first.at >= rest_s
        assert second.at >= second.not_before - CLOCKS_S
        assert second.at - second.not_before < 3
        assert [visit.early for visit in (first, second)] == [False, False]
    assert [visit.status for visit in ours["/rest"].requests] == [503]


def test_each_fault_was_real_and_ended_as_told(
    calls: tuple[dict[str, demo.DemoCall], dict[str, demo.DemoCall]],
) -> None:
    ours, _ = calls
    assert {path: [visit.status for visit in call.requests] for path, call in ours.items()} == {
        "/reset": [RESET, 200], "/busy": [503, 200], "/limit": [429, 200], "/broken": [500, 500, 500],
        "/missing": [404], "/slow": [200, 200], "/rest": [503],
    }  # fmt: skip
    assert {path: call.outcome for path, call in ours.items()} == {
        "/reset": "200", "/busy": "200", "/limit": "200", "/broken": "raised 500", "/missing": "raised 404",
        "/slow": "200", "/rest": "put off 503",
    }  # fmt: skip
    slow = ours["/slow"].requests
    assert demo.FAST.timeout_s <= slow[1].at - slow[0].at < demo.FAST.slow_s


def test_the_loop_was_really_run_and_came_too_early(
    calls: tuple[dict[str, demo.DemoCall], dict[str, demo.DemoCall]],
) -> None:
    _, naive = calls
    assert {path: len(call.requests) for path, call in naive.items()} == {
        "/reset": 2, "/busy": 3, "/limit": 3, "/broken": 3, "/missing": 3, "/slow": 2, "/rest": 3,
    }  # fmt: skip
    assert {path: call.early_requests for path, call in naive.items() if call.early_requests} == {
        "/busy": 2,
        "/limit": 2,
        "/rest": 2,
    }
    assert [path for path, call in naive.items() if call.good] == ["/reset", "/slow"]


def test_a_reset_is_a_reset_to_the_client() -> None:
    with FlakyServer({"/reset": ScriptedFault(RESET, ALWAYS)}) as server, pytest.raises(ConnectionResetError):
        demo.fetch_status(server.url_for("test", "/reset"))


@pytest.mark.req("CLASS-18")
def test_control_c_ends_it_at_once_without_a_traceback() -> None:
    def press() -> float:
        with subprocess.Popen(
            COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
        ) as run:
            assert run.stdout is not None
            assert run.stderr is not None
            while "throttled" not in run.stdout.readline():  # now it waits for two seconds
                pass
            pressed = time.monotonic()
            run.send_signal(signal.SIGINT)
            rest = run.stdout.read()
            assert run.wait(10) == 130
            took = time.monotonic() - pressed
            assert rest.endswith("Stopped.\n")
            assert run.stderr.read() == ""
        return took

    assert measure_shortest(press, 1.0) < 1.0


def test_a_reader_that_has_seen_enough_ends_it_quietly() -> None:
    with subprocess.Popen(
        [*COMMAND, "--fast"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.readline()
        run.stdout.close()
        assert run.wait(20) == 0
        assert run.stderr.read() == ""


def on_a_terminal(**changes: str) -> str:
    """What a terminal is sent during the fast demo."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([*COMMAND, "--fast"], stdout=theirs, env=environment(**changes)) as run:
        os.close(theirs)
        sent = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            sent += part
    os.close(ours)
    assert run.returncode == 0
    return sent.decode()


def test_a_terminal_gets_colours_and_a_countdown_that_leaves_nothing_behind(story: str) -> None:
    sent = on_a_terminal()
    assert "\033[33m" in sent
    assert "waiting 0.3 s" in sent
    lines = [line.rpartition("\r")[2] for line in sent.replace("\r\n", "\n").split("\n")]
    plain = re.sub(r"\033\[\d*m", "", "\n".join(lines))
    assert "waiting" not in plain
    assert len(plain.splitlines()) == len(story.splitlines())


@pytest.mark.parametrize("changes", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colours_on_request(changes: dict[str, str]) -> None:
    assert "\033" not in on_a_terminal(**changes)


def test_it_needs_the_standard_library_only_and_no_proxy() -> None:
    # Without site-packages; and with a proxy in the environment without a listener.
    script = (
        f"import runpy, sys; sys.path.insert(0, {SOURCE!r}); sys.argv[1:] = ['--fast']; "
        "runpy.run_module('oncemore.demo.retry_demo', run_name='__main__')"
    )
    run = subprocess.run(
        [sys.executable, "-S", "-c", script],
        capture_output=True, text=True, timeout=60, check=False,
        env={"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "LC_ALL": "C"},
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
    assert "oncemore 0, the loop 6" in run.stdout


def test_with_retries_switched_off_it_says_so_and_still_tells_the_truth() -> None:
    run = subprocess.run(
        [*COMMAND, "--fast"],
        capture_output=True, text=True, timeout=60, check=False, env=environment(ONCEMORE_RETRY="off"),
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
    assert "ONCEMORE_RETRY=off is set" in run.stdout
    assert re.search(r"(?m)^together +7  0 answers", run.stdout)
