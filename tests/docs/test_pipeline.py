"""The commands of the tutorial's pipeline, run as a reader would: the process really dies, at every line."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import mariadb, nats, postgres

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "03-a-pipeline.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The desk of the page, on a port that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "DESK": str(port)}
    (tmp_path / "desk.py").write_text(blocks("python")[0], encoding="utf-8")
    process = subprocess.Popen([sys.executable, "desk.py"], cwd=tmp_path, env=environment)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield environment
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=["sqlite", "postgresql", "mysql", "nats"])
def store(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The one variable that changes; a new store is a branch here."""
    try:
        if request.param == "sqlite":
            yield {}
        elif request.param == "postgresql":
            with postgres.database() as url:
                yield {"ONCEMORE_STORE": url}
        elif request.param == "mysql":
            with mariadb.database() as url:
                yield {"ONCEMORE_STORE": url}
        else:
            with nats.node() as node:
                yield {"ONCEMORE_STORE": f"{node.url}/shop"}
    except (postgres.NoPostgres, mariadb.NoMariadb, nats.NatsUnavailable) as reason:
        pytest.skip(str(reason))


def test_a_pipeline_that_is_killed_at_every_line_leaves_everything_once(
    tmp_path: Path, desk: dict[str, str], store: dict[str, str]
) -> None:
    desk = {**desk, **store}
    _, pipeline, look = blocks("python")
    # A server cannot see that a process is dead: its lease must end, and a test's is short.
    pipeline = pipeline.replace('artifacts="artifacts")', 'artifacts="artifacts", lease_s=1.5)')
    assert "lease_s=1.5" in pipeline
    (tmp_path / "pipeline.py").write_text(pipeline, encoding="utf-8")
    (tmp_path / "look.py").write_text(look, encoding="utf-8")

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=desk, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip

    for line in blocks("sh")[0].splitlines():
        command, says = line.split("#")
        done = run(*shlex.split(command)[1:])
        if says.strip().startswith("Killed"):
            assert done.returncode == -signal.SIGKILL, done
        else:
            assert done.stdout.splitlines()[-1] == says.strip(), done
    shown = run("look.py")
    assert shown.stdout == blocks("text")[0], shown.stderr


HOW = PAGE.parents[1] / "how-to" / "outgrow-one-machine.md"


def test_both_pages_have_the_same_lines_one_for_each_store() -> None:
    tutorial, how = (
        re.findall(r"(?m)^export ONCEMORE_STORE=(\S+)", page.read_text(encoding="utf-8"))
        for page in (PAGE, HOW)
    )
    assert tutorial == how
    assert [re.match(r"\w+://|", address)[0] for address in how] == [
        "",
        "postgresql://",
        "mysql://",
        "nats://",
    ]  # type: ignore[index]
