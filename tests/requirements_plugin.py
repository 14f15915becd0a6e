"""Remembers, for `make requirements`, which marked tests passed.

At the end of a run `.requirements-run.json` holds for every test its `req` marks and its outcome.
Only "passed" counts there, and it means that set-up, call and teardown all passed. Under xdist the
marks travel with the reports to the controller, which alone writes.

A whole run (no paths, nothing deselected or uncollectable, not interrupted) replaces what was
there, so that tests that are gone leave the list. Any other run updates the tests it ran and leaves
the rest alone.

A mark with an id that `docs/requirements.md` does not have is an error of collection: a typo in an
id would otherwise only show as a requirement that stays open.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tools.requirements import PAGE, RUN, read_page

if TYPE_CHECKING:
    from collections.abc import Generator

_PROPERTY = "req"
_PHASES = {"setup", "call", "teardown"}


def pytest_configure(config: pytest.Config) -> None:
    ids = frozenset(read_page(config.rootpath / PAGE).requirements)
    config.pluginmanager.register(_Marks(ids), "requirement-marks")
    # A worker collects and runs; the controller (or a plain session) hears of everything and writes.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Record(config), "requirement-record")


class _Marks:
    """Checks the marks as tests are collected, and sends them along with the reports."""

    def __init__(self, ids: frozenset[str]) -> None:
        self.ids = ids

    @pytest.hookimpl(wrapper=True)
    def pytest_pycollect_makeitem(self, collector: pytest.Collector) -> Generator[None, Any, Any]:
        made = yield
        for item in made if isinstance(made, list) else [made]:
            if isinstance(item, pytest.Item):
                item.user_properties.append((_PROPERTY, self.marks_of(item)))
        return made

    def marks_of(self, item: pytest.Item) -> list[str]:
        marks = list(item.iter_markers("req"))
        if any(not mark.args or mark.kwargs for mark in marks):
            raise pytest.Collector.CollectError(f'{item.nodeid}: write @pytest.mark.req("ID", ...)')
        named = [name for mark in marks for name in mark.args]
        if unknown := [name for name in named if name not in self.ids]:
            raise pytest.Collector.CollectError(
                f"{item.nodeid}: {PAGE.as_posix()} has no requirement {', '.join(map(repr, unknown))}"
            )
        return sorted(set(named))


class _Record:
    """Gathers outcomes and writes the file."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.marks: dict[str, list[str]] = {}
        self.phases: dict[str, dict[str, str]] = {}
        self.uncollected = False

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.uncollected |= report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == _PROPERTY:
                self.marks[report.nodeid] = list(value)  # type: ignore[call-overload]
        outcome = "xfail" if hasattr(report, "wasxfail") else report.outcome
        self.phases.setdefault(report.nodeid, {})[report.when] = outcome

    def outcome(self, test: str) -> str:
        """One word for a test: "passed" when all three phases did, else the first other word."""
        phases = self.phases[test]
        other = [word for word in phases.values() if word != "passed"]
        return other[0] if other else "passed" if phases.keys() >= _PHASES else "unfinished"

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if not self.phases:
            return
        path = self.config.rootpath / RUN
        now = datetime.now(UTC).isoformat(timespec="seconds")
        whole = self.whole(session, exitstatus)
        before = {} if whole or not path.exists() else json.loads(path.read_text(encoding="utf-8"))
        ran = {
            test: {"req": self.marks.get(test, []), "outcome": self.outcome(test), "at": now}
            for test in sorted(self.phases)
        }
        after = {
            "last_run": now,
            "last_whole_run": now if whole else before.get("last_whole_run"),
            "tests": before.get("tests", {}) | ran,
        }
        # Written aside and moved, so that a reader never meets half a file.
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.write_text(json.dumps(after, indent=1), encoding="utf-8")
        draft.replace(path)

    def whole(self, session: pytest.Session, exitstatus: int) -> bool:
        """Whether every test of the project had its turn."""
        option = self.config.option
        narrowed = (
            self.config.args_source is not pytest.Config.ArgsSource.TESTPATHS
            or any(
                getattr(option, name, None)
                for name in ("keyword", "markexpr", "deselect", "ignore", "ignore_glob")
            )
            or any(getattr(option, name, None) for name in ("lf", "stepwise"))
        )
        finished = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        return (
            not narrowed
            and finished
            and not self.uncollected
            and not session.shouldstop
            and not session.shouldfail
        )
