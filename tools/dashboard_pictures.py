"""Take the pictures of the dashboard for the docs: docs/pictures/dashboard-*.png.

    python tools/dashboard_pictures.py

Runs real steps for some seconds, serves the dashboard and takes the pictures with the chromium of this
machine (`make browser`). They are taken again by hand when the pages change: no test compares pixels.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import oncemore
from oncemore import backoff
from oncemore.dashboard import DashboardUser, create_app
from tests.dashboard.conftest import BROWSER_FLAGS, BROWSERS, serve
from tests.dashboard.sample_store import fill_store

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
#: File, page, theme, width and height.
PICTURES = (
    ("dashboard-now", "/", "light", 1200, 740),
    ("dashboard-run", "/runs/{run}", "dark", 1200, 860),
    ("dashboard-quarantine", "/review", "light", 1200, 620),
)
MAX_BYTES = 150_000
POLITE = oncemore.Policy("polite", max_attempts=5, schedule=backoff.exponential(1.0), unmatched="retry")


def make_history(engine: oncemore.Engine) -> str:
    """Run work that succeeds, retries and fails; return the run whose page is shown."""
    fill_store(engine)
    failures = {"n": 0}

    @oncemore.step(effect="idempotent", name="catalogue.poll", policy=POLITE, provider="catalogue")
    def poll(day: str) -> dict[str, int]:
        failures["n"] += 1
        time.sleep(0.15)
        if failures["n"] < 4:
            raise ConnectionError("connection refused by catalogue.example")
        return {"items": 128}

    @oncemore.step(effect="pure", name="tiles.render")
    def render(tile: int) -> int:
        time.sleep(0.002)
        return tile

    with engine:
        shown = poll.run("2026-11-17").run_id
        for tile in range(240):
            render(tile)
    return shown


def keep_running(engine: oncemore.Engine, stop: threading.Event) -> None:
    """Hold two attempts open, so that the first page has something that runs."""

    @oncemore.step(effect="pure", name="archive.download")
    def download(name: str) -> None:
        stop.wait(120)

    with engine:
        threads = [threading.Thread(target=download, args=(name,)) for name in ("scan-1", "scan-2")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def take_pictures(url: str, app: Any, run: str) -> None:
    """Take every picture in a browser, and refuse one that is too large for a page."""
    import shutil

    from playwright.sync_api import sync_playwright

    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if program is None:
        sys.exit("there is no chromium on this machine: make browser")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=BROWSER_FLAGS)
        for name, path, theme, width, height in PICTURES:
            context = browser.new_context(
                color_scheme=theme, viewport={"width": width, "height": height}, locale="en-GB"
            )
            page = context.new_page()
            page.goto(url + app.create_link(DashboardUser("operator", "operator")))
            page.goto(url + path.format(run=run))
            page.wait_for_selector("body[data-updated]")
            file = FOLDER / f"{name}.png"
            page.screenshot(path=file)
            print(f"{file.name}: {file.stat().st_size:,} bytes")
            assert file.stat().st_size <= MAX_BYTES, "too large for a page: choose a smaller part"
        browser.close()


def main() -> None:
    """Make a store, serve it, and take the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        engine = oncemore.open(Path(folder) / "log.db")
        run, stop = make_history(engine), threading.Event()
        runner = threading.Thread(target=keep_running, args=(engine, stop))
        runner.start()
        try:
            app = create_app(engine)
            with serve(app) as url:
                take_pictures(url, app, run)
        finally:
            stop.set()
            runner.join()
            engine.close()


if __name__ == "__main__":
    main()
