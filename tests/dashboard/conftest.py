"""A served dashboard, and a browser that looks at it.

The browser is Debian's chromium (`make browser` installs it). Without it the tests in the browser are
skipped, and say so; everything else runs.
"""

from __future__ import annotations

import logging
import random
import shutil
import socket
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import pytest
import uvicorn
from starlette.testclient import TestClient

import oncemore
from oncemore.cli.dashboard import _end_streams_before
from oncemore.dashboard import DashboardUser, create_app
from oncemore.log.store import HeadQuery
from tests.dashboard.sample_store import SampleRuns, fill_store
from tests.fixtures import _isolated
from tests.storm import storm
from tests.storm.crew import Crew, Warm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page

    from oncemore.dashboard.app import Dashboard

__all__ = ["_isolated"]

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER_FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
REVIEWER = DashboardUser("reviewer", "reviewer")
OPERATOR = DashboardUser("operator", "operator")
VIEWER = DashboardUser("viewer", "viewer")
HOST = "http://127.0.0.1"
#: How many workers die before the pages are looked at.
STORM_KILLS = 12


class ServedDashboard(NamedTuple):
    """A dashboard that answers on a port of this machine, and the runs of its store."""

    app: Dashboard
    url: str
    runs: SampleRuns


def list_paths(served: ServedDashboard) -> list[str]:
    """Return the address of one page of every kind."""
    runs, engine = served.runs, served.app.engine
    item = next(item for item in engine.quarantine.list() if item.id == runs.unknown)
    breaker = next(iter(engine.store.list_heads(HeadQuery("breaker")))).entity.partition("/")[2]
    return [
        *("/", "/runs", "/runs?state=HARD_FAIL&since=1h", "/runs?step=nothing", "/review", "/limits"),
        *("/review?show=acknowledged", "/schedules", "/policies", "/policies?a=kfm-loop&b=kfm-rules"),
        *("/energy?base_since=2d&base_until=1d", "/what-if", "/what-if?policy=kfm-loop"),
        *("/policies/kfm-loop", "/ledger", "/categories", f"/limits/{quote(breaker, safe='')}"),
        *(f"/runs/{run}" for run in (runs.complete, runs.retried, runs.failed, runs.unknown, runs.workflow)),
        *(f"/runs/{run}" for run in (runs.approval, runs.workflow_child, runs.program, *runs.storm)),
        f"/review/{item.entity}",
        f"/escalations/{runs.escalation}",
    ]


@contextmanager
def serve(app: Any) -> Iterator[str]:
    """Serve an application on a free port inside the block; yield its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        )
        started = threading.Event()
        # uvicorn tells nobody that it has started; its own method is called once it listens.
        server.startup = _notify_after(server.startup, started)  # type: ignore[method-assign]
        server.shutdown = _end_streams_before(server.shutdown, app)  # type: ignore[method-assign]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        assert started.wait(30)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def _notify_after(startup: Callable[..., Any], started: threading.Event) -> Callable[..., Any]:
    async def start(sockets: Any = None) -> None:
        await startup(sockets=sockets)
        started.set()

    return start


@pytest.fixture(scope="module")
def quiet_log() -> Iterator[None]:
    """Leave out the warnings of the many attempts that fail on purpose."""
    logger = logging.getLogger("oncemore")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, quiet_log: None) -> Iterator[ServedDashboard]:
    """A dashboard over one of everything, which no test changes."""
    with _serve_sample(tmp_path_factory.mktemp("sample"), hostile=False) as served:
        yield served


@pytest.fixture(scope="module")
def stormy(quiet_log: None) -> Iterator[ServedDashboard]:
    """A dashboard over the store of a storm: workers were killed (SIGKILL), and much was taken over.

    One of everything else is in the store as well.
    """
    seed = f"{random.SystemRandom().getrandbits(32):08x}"
    print(f"seed of the storm: {seed}")
    # A short path: that of a unix socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="storm-") as folder:
        warm = Warm()
        crew = Crew(warm, Path(folder))
        try:
            orders = storm.rage(crew, STORM_KILLS, seed)
            storm.finish(crew, orders[: len(orders) // 2])
            with oncemore.open(crew.place["store"]) as engine:
                runs = fill_store(engine)._replace(storm=find_storm_runs(engine))
                app = create_app(engine, identify=identify_sample)
                with serve(app) as url:
                    yield ServedDashboard(app, url, runs)
        finally:
            crew.close()
            warm.close()


def find_storm_runs(engine: oncemore.Engine) -> tuple[str, ...]:
    """Return runs that lost attempts in a storm: of each state the one that lost the most."""
    from oncemore.queries.runs import RunFilter, list_runs

    rows = [row for row in list_runs(engine.store, RunFilter(limit=10_000)) if row.crashes]
    worst = {row.held_for or row.state: row.run_id for row in sorted(rows, key=lambda row: row.crashes)}
    assert "COMPLETE" in worst, "no run was taken over; the storm needs more kills"
    return tuple(worst.values())


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, quiet_log: None) -> Iterator[ServedDashboard]:
    """A dashboard over the same store, in which every name and text is that of an attacker."""
    with _serve_sample(tmp_path_factory.mktemp("hostile"), hostile=True) as served:
        yield served


@pytest.fixture
def changing(tmp_path: Any, quiet_log: None) -> Iterator[ServedDashboard]:
    """A dashboard over a store of its own, for a test that changes it."""
    with _serve_sample(tmp_path / "changing", hostile=False) as served:
        yield served


@contextmanager
def _serve_sample(folder: Any, *, hostile: bool) -> Iterator[ServedDashboard]:
    folder.mkdir(exist_ok=True)
    engine = oncemore.open(folder / "log.db")
    try:
        runs = fill_store(engine, hostile=hostile)
        app = create_app(engine, identify=identify_sample)
        with serve(app) as url:
            yield ServedDashboard(app, url, runs)
    finally:
        engine.close()


def identify_sample(token: str) -> DashboardUser | None:
    """Return the user of a bearer token of the tests."""
    return {"viewer": VIEWER, "operator": OPERATOR, "reviewer": REVIEWER}.get(token.removesuffix("-token"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real browser; skips the test without one.

    For one module only: its driver keeps an event loop in this thread, which other tests must not meet.
    """
    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("there is no chromium on this machine; `make browser` installs it")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=BROWSER_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """A function that opens a page of a dashboard, signed in; script errors fail the test."""
    contexts, problems = [], list[str]()

    def open_signed_in(
        served: ServedDashboard, path: str = "/", user: DashboardUser = REVIEWER, **options: Any
    ) -> Page:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(served.url + served.app.create_link(user))
        if path != "/":
            page.goto(served.url + path)
        return page

    yield open_signed_in
    for context in contexts:
        context.close()
    assert problems == []


def sign_in(app: Any, user: DashboardUser = REVIEWER) -> TestClient:
    """Return a client with a session of a user."""
    client = TestClient(app, base_url=HOST, follow_redirects=False)
    assert client.get(app.create_link(user)).status_code == 303
    return client


def read_form_token(client: TestClient) -> str:
    """Return the form token of a client's session, from a page."""
    page = client.get("/").text
    return page.partition('name="form_token" value="')[2].partition('"')[0]
