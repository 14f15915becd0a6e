"""What holds for every test: how chance is drawn, who remembers the outcome, what a test is called."""

from __future__ import annotations

import gc
import os
import signal
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.servers import mariadb, postgres

if TYPE_CHECKING:
    from collections.abc import Generator

pytest_plugins = ("pytester", "tests.requirements_plugin", "tests.signed_policies", "tests.stores")

# Chance is never fixed: a new run tries new examples. What fails is printed with the blob that
# replays it, and pytest-randomly prints the seed of everything else in the header of the run. There
# is no deadline per example, because a busy machine would make it a matter of luck.
settings.register_profile("default", deadline=None, derandomize=False, print_blob=True, max_examples=100)
settings.register_profile("torture", settings.get_profile("default"), max_examples=2_000)
settings.load_profile("torture" if os.environ.get("ONCEMORE_TORTURE") else "default")

# Who runs the tests in the background or under nohup has these ignored, and all programs started here would.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

HERE = Path(__file__).parent
#: What `make torture` runs at length: these folders, and whatever kills processes.
TORTURE = tuple(HERE / name for name in ("torture", "crash", "sim", "storm"))


@cache
def is_torture(path: Path) -> bool:
    """Return whether `make torture` runs the tests of this file at length."""
    return path.name in ("test_kills.py", "test_killed.py") or any(map(path.is_relative_to, TORTURE))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_torture(item.path):
            item.add_marker(pytest.mark.torture)


def pytest_collection() -> None:
    """Do not search for garbage while tests are collected: every process imports thousands of modules."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what was imported to collect the tests out of every later search for garbage."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Let nobody watch the lines of a test that is marked so."""
    if not item.get_closest_marker("unmeasured"):
        return (yield)
    watches = sys.gettrace()
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(watches)


def pytest_sessionfinish() -> None:
    postgres.end()
    mariadb.end()


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """Refuse names that differ from process to process: xdist's workers could not agree on them."""
    made = yield
    for item in made if isinstance(made, list) else []:
        if " at 0x" in item.name:
            raise pytest.Collector.CollectError(f"{item.nodeid}: an address in the name; give it an id")
    return made


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how much was tried: what tests recorded, numbers added up, sentences as they are."""
    counts: dict[str, int] = {}
    sentences: dict[str, list[str]] = {}
    for report in (each for some in terminalreporter.stats.values() for each in some):
        properties = getattr(report, "user_properties", ()) if getattr(report, "when", "") == "call" else ()
        for name, told in properties:
            if isinstance(told, int):
                counts[name] = counts.get(name, 0) + told
            elif name != "req":  # which belongs to the requirements plugin
                sentences.setdefault(name, []).append(str(told))
    if counts or sentences:
        terminalreporter.section("what was tried")
        for name, number in sorted(counts.items()):
            terminalreporter.write_line(f"{name}: {number:,}")
        for name, lines in sorted(sentences.items()):
            for line in lines:
                terminalreporter.write_line(f"{name}: {line}")
