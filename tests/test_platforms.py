"""What works on macOS and Windows: each case runs in a process without the names that those systems lack.

`absent_names` removes them; Windows lacks all that macOS lacks. It shows that nothing absent is asked for,
not how another system behaves.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

RETRY = """
import asyncio, logging, threading, time
import oncemore

calls = []

@oncemore.retry(on="transient", attempts=3, timeout=30, wait=0)
def fetch():
    calls.append(threading.current_thread())
    if len(calls) < 3:
        raise ConnectionResetError("lost")
    return len(calls)

@oncemore.retry(on=ValueError, attempts=2, wait=0)
async def fetch_later():
    calls.append(None)
    if len(calls) < 5:
        raise ValueError("not yet")
    return len(calls)

@oncemore.retry(on=OSError, attempts=2, wait=0, policy="standard")
def fetch_by_policy():
    raise OSError("always")

@oncemore.retry(on=OSError, attempts=1, timeout=0.01)
def block():
    threading.Event().wait(1)

assert fetch() == 3, calls
assert asyncio.run(fetch_later()) == 5, calls
try:
    fetch_by_policy()
except OSError as error:
    assert "2 attempts" in "".join(error.__notes__), error.__notes__
try:
    block()
except oncemore.AttemptTimeout:
    print("ok")
"""
HTTP = """
import asyncio
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
import httpx, httpx2, requests
import oncemore.http

answers = []

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        answers.append(503 if len(answers) % 2 == 0 else 200)
        self.send_response(answers[-1])
        self.send_header("Retry-After", "0")
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *words):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/"
with httpx2.Client(transport=oncemore.http.Transport()) as client:
    assert client.get(url).status_code == 200
async def fetch():
    async with httpx2.AsyncClient(transport=oncemore.http.AsyncTransport()) as client:
        return (await client.get(url)).status_code
assert asyncio.run(fetch()) == 200
with requests.Session() as session:
    session.mount("http://", oncemore.http.Adapter())
    assert session.get(url, timeout=10).status_code == 200
assert answers == [503, 200] * 3, answers
server.shutdown()
print("ok")
"""
STEP = """
import threading
import oncemore

calls = []

@oncemore.step(effect="idempotent", on="transient", attempts=3, wait=0)
def charge(order):
    calls.append(order)
    if len(calls) == 1:
        raise ConnectionResetError("lost")
    return f"{order} charged"

@oncemore.step(effect="pure", timeout=0.01, attempts=1)
def block(order):
    threading.Event().wait(1)

with oncemore.open(URL):
    assert charge("a") == charge("a") == "a charged"
    assert len(calls) == 2, calls
    try:
        block("a")
    except oncemore.StepFailed:
        print("ok")
"""
#: The parts that work without POSIX.
WORKS = {
    "retry": RETRY,
    "http": HTTP,
    "step in memory": f"URL = 'memory:'\n{STEP}",
    "modules": """
import oncemore, oncemore.backoff, oncemore.events, oncemore.http, oncemore.inbox, oncemore.jitter
import oncemore.outbox, oncemore.telemetry, oncemore.testing
import oncemore.log.nats.store, oncemore.log.postgres.store, oncemore.dashboard
oncemore.telemetry.enable_opentelemetry()
oncemore.telemetry.enable_prometheus()
assert all(getattr(oncemore, name) is not None for name in oncemore.__all__)
print("ok")
""",
}
#: Command lines that work everywhere: words, exit code, what they print.
COMMANDS = (
    (["--version"], 0, "oncemore 0"),
    (["--help"], 0, "Usage"),
    (["policy", "show", "standard"], 0, "digest verified"),
    (["policy", "check", "mine.yaml"], 0, "mine.yaml"),
    (["lint", "loop.py"], 1, "OM101"),
    (["migrate", "tenacity", "old.py", "--diff"], 0, "+@oncemore.retry"),
    (["migrate", "tenacity", "old.py", "--write"], 0, "old.py"),
    (["runs"], 2, "name a server"),
)
#: Uses of POSIX alone, and a part of the message that refuses them on Windows.
REFUSED = {
    "oncemore.open('log.db')": "take a server",
    "oncemore.step(effect='pure', isolate='process')(print)": "helper thread",
    "oncemore.outbox.JsonLinesSink('events.jsonl')": "take a webhook",
    "oncemore.outbox.CommandSink(['true'])": "take a webhook",
    "run(['exec', '--key', 'a', '--effect', 'pure', '--', 'true'])": "oncemore exec needs POSIX",
    "run(['demo'])": "oncemore demo needs POSIX",
    "run(['runs', '--store', 'there.db'])": "name a server",
}
MAIN = """
import sys
def run(words):
    from oncemore.cli import main
    sys.argv[1:] = words
    main()
"""


def run_on(
    platform: str, code: str, folder: Path, *, name: str = "", loaded: str = "sys"
) -> subprocess.CompletedProcess[str]:
    """Run code in an empty folder without the names that a platform lacks, as a program of a name.

    `loaded` are modules of others that choose by platform when they are imported.
    """
    start = f"import sys, {loaded}; sys.argv[0] = {name or '-c'!r}\n"
    return subprocess.run(
        [sys.executable, "-c", f"{start}import absent_names\n{code}"],
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": str(ROOT / "tests"), "ONCEMORE_TEST_PLATFORM": platform, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("part", WORKS)
def test_a_part_works_without_the_names_of_posix(part: str, tmp_path: Path) -> None:
    ran = run_on("windows", WORKS[part], tmp_path, loaded="trio" if part == "http" else "sys")
    assert (ran.returncode, ran.stdout) == (0, "ok\n"), ran.stderr


@pytest.mark.parametrize("store_url", ["postgres", "nats"], indirect=True)
def test_a_step_works_on_a_server(store_url: str, tmp_path: Path) -> None:
    ran = run_on("windows", f"URL = {store_url!r}\n{STEP}", tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "ok\n"), ran.stderr


def test_a_step_on_a_file_works_where_posix_is_there(tmp_path: Path) -> None:
    ran = run_on("macos", f"URL = 'log.db'\n{STEP}", tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "ok\n"), ran.stderr


@pytest.mark.parametrize(("words", "code", "text"), COMMANDS, ids=lambda value: str(value)[:30])
def test_commands_without_a_store_work(words: list[str], code: int, text: str, tmp_path: Path) -> None:
    tmp_path.joinpath("mine.yaml").write_text('name: mine\nversion: "1"\nextends: standard\n')
    tmp_path.joinpath("loop.py").write_text(
        "import requests\n\nwhile True:\n    try:\n        requests.get('http://x', timeout=1)\n"
        "        break\n    except requests.RequestException:\n        pass\n"
    )
    tmp_path.joinpath("old.py").write_text(
        "from tenacity import retry, stop_after_attempt\n\n"
        "@retry(stop=stop_after_attempt(3), reraise=True)\ndef fetch():\n    return 1\n"
    )
    ran = run_on("windows", f"{MAIN}\nrun({words!r})", tmp_path, name="oncemore")
    assert ran.returncode == code, ran.stderr
    assert text in ran.stdout + ran.stderr


@pytest.mark.parametrize("use", REFUSED)
def test_what_needs_posix_says_so_on_windows(use: str, tmp_path: Path) -> None:
    tmp_path.joinpath("there.db").touch()
    ran = run_on("windows", f"{MAIN}\nimport oncemore, oncemore.outbox\n{use}", tmp_path)
    message = re.sub(r"\s+", " ", ran.stderr)
    assert ran.returncode != 0
    assert "POSIX file locks and processes" in message, ran.stderr
    assert REFUSED[use] in message, ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["there.db"], "something was written"


def test_the_platforms_of_these_tests_lack_what_they_should(tmp_path: Path) -> None:
    code = (
        "import os, signal\nprint(hasattr(os, 'fork'), hasattr(signal, 'SIGKILL'), os.path.exists('/proc'))"
    )
    assert run_on("windows", code, tmp_path).stdout == "False False False\n"
    assert run_on("macos", code, tmp_path).stdout == "True True False\n"
    assert "No module named 'fcntl'" in run_on("windows", "import fcntl", tmp_path).stderr
