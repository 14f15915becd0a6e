"""The services that the programs call, and the programs themselves: each test in a folder of its own."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from examples.compare.service import Service
from tests.examples.programs import PATIENCE_S, Starter
from tools import compare

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


WITHOUT_STRUCTLOG = """
import runpy, sys
sys.modules["structlog"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as server:
        server.start()
        yield server
        server.release()
        server.shutdown()


@pytest.fixture
def start(service: Service, tmp_path: Path) -> Iterator[Starter]:
    """Start a program in a folder of its own; programs that still run at the end of a test are killed."""
    programs: list[subprocess.Popen[str]] = []

    def start_program(program: str, library: str, *args: str, **variables: str) -> subprocess.Popen[str]:
        path = compare.program_path(program, library)
        words = [sys.executable, "-u", str(path), *args]
        if library == "dbos" and sqlite3.sqlite_version_info < (3, 42):
            pytest.importorskip("pysqlite3", reason="DBOS needs SQLite 3.42")
            words.insert(2, str(compare.COMPARE / "start.py"))
        if library == "stamina":
            # With structlog installed, stamina logs its retries to standard output, among the results.
            words[1:2] = ["-u", "-c", WITHOUT_STRUCTLOG]
        # A file: a pipe that is not read would block a program that logs much.
        with (tmp_path / f"stderr-{len(programs)}").open("w") as errors:
            process = subprocess.Popen(
                words,
                cwd=tmp_path,
                env={**os.environ, "SERVICE": service.url, **variables},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        programs.append(process)
        return process

    yield start_program
    for number, process in enumerate(programs):
        process.kill()
        process.communicate(timeout=PATIENCE_S)
        # Shown if the test fails.
        print(f"-- {process.args[-1]}\n{(tmp_path / f'stderr-{number}').read_text()[-2000:]}")
