"""A real server is killed around the effect of a request; another one gets the same request."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest

import oncemore
from oncemore.steps.history import verify_chain
from tests.http.shop import FRONTS, HOST, Book, Shop, make_app, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]


#: Kind of application, effect, where the process dies, how often it may; what the same request then gets, how
#: often it happened.
CASES = [
    ("asgi", "once", "before", "10", "outcome-unknown", 0),
    ("asgi", "once", "effect", "10", "outcome-unknown", 1),
    ("asgi", "idempotent", "before", "10", "", 1),
    ("asgi", "idempotent", "effect", "10", "", 2),
    ("asgi", "idempotent", "effect", "1", "held", 1),
    ("django-async", "once", "effect", "10", "outcome-unknown", 1),
    ("django", "idempotent", "before", "10", "", 1),
]


def started(folder: Path, front: str, *how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.http.shop", front, str(folder / "log.db"), str(folder / "book")]
    return subprocess.Popen([*command, *how], cwd=ROOT, env=quiet(), stdout=subprocess.PIPE, text=True)


def quiet() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}


@contextlib.contextmanager
def reopened(folder: Path, front: str, effect: str) -> Iterator[str]:
    with oncemore.open(folder / "log.db") as engine:
        app = make_app(front, Shop(folder / "book"), effect=effect, engine=engine)
        with serving(app, is_async=FRONTS[front]) as url:
            yield url
        verify_chain(engine.store.read_entries())


def order(url: str, user: str = "anna") -> httpx2.Response:
    headers = {"Idempotency-Key": '"k1"', "X-User": user}
    with httpx2.Client(trust_env=False, verify=False, timeout=30) as client:
        return client.post(f"{url}/orders", content=b"one", headers=headers)


def test_after_a_kill_the_effect_decides_on_the_repeat(tmp_path: Path) -> None:
    folders = [tmp_path / "-".join(case[:4]) for case in CASES]
    for folder in folders:
        folder.mkdir()
    victims = [started(folder, *case[:4]) for folder, case in zip(folders, CASES, strict=True)]
    for process in victims:  # all at once: most of the time is their start
        with process:
            assert process.stdout is not None
            with pytest.raises(httpx2.TransportError):
                order(process.stdout.readline().strip())
            assert process.wait(30) == -signal.SIGKILL
    for folder, (front, effect, *_, problem, lines) in zip(folders, CASES, strict=True):
        with reopened(folder, front, effect) as url:
            got = order(url)
            assert (got.status_code, len(Book(folder / "book").lines)) == (409 if problem else 201, lines), (
                folder
            )
        # After a restart in peace, and behind a server of another kind: the stored response is the same.
        with reopened(folder, "wsgi", effect) as url:
            again = order(url)
        assert (again.status_code, again.content) == (got.status_code, got.content)
        assert len(Book(folder / "book").lines) == lines
        if problem:
            assert got.json()["type"] == f"urn:oncemore:idempotency:{problem}"
        else:
            assert again.headers["idempotent-replayed"] == "true"


#: A Flask application as gunicorn loads it. The file `kill` lets the worker die in its next order.
GUNICORN_MODULE = """
from pathlib import Path
from tests.http.shop import Shop, make_app

class Fragile(Shop):
    def begin_order(self, method, body):
        if Path("kill").exists():
            Path("kill").unlink()
            self.where = "effect"
        super().begin_order(method, body)

once = make_app("wsgi", Fragile(Path("book-once")), effect="once", name="once")
idempotent = make_app("wsgi", Fragile(Path("book-idempotent")), effect="idempotent", name="idempotent")

def app(environ, start_response):
    chosen = once if environ["HTTP_X_USER"] == "once" else idempotent
    return chosen(environ, start_response)
"""


def test_a_worker_of_gunicorn_is_killed_and_the_next_one_gets_the_repeat(tmp_path: Path) -> None:
    (tmp_path / "flask_shop.py").write_text(GUNICORN_MODULE)
    with socket.create_server((HOST, 0)) as probe:
        port = probe.getsockname()[1]
    environment = {
        **quiet(),
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "ONCEMORE_STORE": str(tmp_path / "log.db"),
    }
    command = [sys.executable, "-m", "gunicorn", "-b", f"{HOST}:{port}", "--log-level", "error"]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "flask_shop:app"], cwd=tmp_path, env=environment, stdout=log, stderr=log
        )
    try:
        until_connected(port, server, tmp_path / "log")
        for effect, status, lines in (("idempotent", 201, 2), ("once", 409, 1)):
            (tmp_path / "kill").touch()
            with pytest.raises(httpx2.TransportError):
                order(f"http://{HOST}:{port}", effect)
            got = order(f"http://{HOST}:{port}", effect)
            assert (got.status_code, len(Book(tmp_path / f"book-{effect}").lines)) == (status, lines)
            again = order(f"http://{HOST}:{port}", effect)
            assert (again.status_code, again.content) == (got.status_code, got.content)
            assert len(Book(tmp_path / f"book-{effect}").lines) == lines
    finally:
        server.terminate()
        server.wait(30)


def until_connected(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(3000):
        assert server.poll() is None, log.read_text()
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), 1):
            return
        time.sleep(0.01)
    raise AssertionError(log.read_text())
