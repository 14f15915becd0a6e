"""A real server is killed around the effect of a request; another one gets the same request."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

import oncemore
import oncemore.http
from oncemore.steps.history import verify_chain
from tests.http.shop import HOST, Book, Shop, serving, who

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]


#: Effect, where the process dies, how often it may; what the same request then gets, how often it happened.
CASES = [
    ("once", "before", "10", "outcome-unknown", 0),
    ("once", "effect", "10", "outcome-unknown", 1),
    ("idempotent", "before", "10", "", 1),
    ("idempotent", "effect", "10", "", 2),
    ("idempotent", "effect", "1", "held", 1),
]


def started(folder: Path, *how: str) -> subprocess.Popen[str]:
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    told = [str(folder / "log.db"), str(folder / "book"), *how]
    command = [sys.executable, "-m", "tests.http.shop", *told]
    return subprocess.Popen(command, cwd=ROOT, env=quiet, stdout=subprocess.PIPE, text=True)


@contextlib.contextmanager
def reopened(folder: Path, effect: str, *, served: bool = True) -> Iterator[Any]:
    with oncemore.open(folder / "log.db") as engine:
        app = oncemore.http.IdempotencyMiddleware(
            Shop(folder / "book").app(), effect=effect, principal=who, engine=engine
        )  # type: ignore[arg-type]
        with serving(app) if served else contextlib.nullcontext(app) as shop:
            yield shop
        verify_chain(engine.store.read_entries())


def order(url: str) -> httpx2.Response:
    with httpx2.Client(trust_env=False, verify=False, timeout=30) as client:
        return client.post(f"{url}/orders", content=b"one", headers={"Idempotency-Key": '"k1"'})


async def order_of(app: Any) -> httpx2.Response:
    """Send a request to the application directly."""
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://shop") as client:
        return await client.post("/orders", content=b"one", headers={"Idempotency-Key": '"k1"'})


def test_after_a_kill_the_effect_decides_on_the_repeat(tmp_path: Path) -> None:
    folders = [tmp_path / "-".join(case[:3]) for case in CASES]
    for folder in folders:
        folder.mkdir()
    victims = [started(folder, *case[:3]) for folder, case in zip(folders, CASES, strict=True)]
    for process in victims:  # all at once: most of the time is their start
        with process:
            assert process.stdout is not None
            with pytest.raises(httpx2.TransportError):
                order(f"http://{HOST}:{process.stdout.readline().strip()}")
            assert process.wait(30) == -signal.SIGKILL
    for folder, (effect, *_, problem, lines) in zip(folders, CASES, strict=True):
        with reopened(folder, effect) as url:
            got = order(url)
            assert (got.status_code, len(Book(folder / "book").lines)) == (409 if problem else 201, lines), (
                folder
            )
        with reopened(folder, effect, served=False) as shop:  # and after a restart in peace
            again = asyncio.run(order_of(shop))
        assert (again.status_code, again.content) == (got.status_code, got.content)
        assert len(Book(folder / "book").lines) == lines
        if problem:
            assert got.json()["type"] == f"urn:oncemore:idempotency:{problem}"
        else:
            assert again.headers["idempotent-replayed"] == "true"
