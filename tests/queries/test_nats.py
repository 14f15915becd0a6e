"""All queries and commands on a NATS store."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import oncemore
from oncemore import cli
from oncemore.errors import StoreError
from oncemore.log.nats.store import NatsStore, ReadOnlyNatsStore
from oncemore.log.store import Batch, HeadQuery
from oncemore.maintenance.replay import LogReplay
from oncemore.queries.run_timeline import load_timeline
from oncemore.queries.runs import RunFilter, find_run, list_runs
from oncemore.queries.stores import open_read_only
from tests.queries.work import run_all_steps
from tests.servers import nats
from tests.shell import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def node() -> Iterator[nats.Node]:
    try:
        with nats.node() as made:
            yield made
    except nats.NatsUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def url(node: nats.Node) -> str:
    """The URL of a store with runs in every state."""
    address = f"{node.url}/whole?monitor={node.monitor}"
    engine = oncemore.open(address, artifacts="memory:")
    run_all_steps(engine)
    engine.close()
    return address


def shell(*words: str) -> tuple[int, str, str]:
    with CliRunner(env={"NO_COLOR": "1", "COLUMNS": "100"}).isolation() as streams:
        code = cli.run_command(list(words))
        return code, streams[0].getvalue().decode(), streams[1].getvalue().decode()


def told(*words: str, code: int = 0) -> Any:
    ended, said, complained = shell(*words, "--json")
    assert ended == code, said + complained
    return json.loads(complained if code and complained else said)


def test_reading_creates_no_store(node: nats.Node) -> None:
    with (
        pytest.raises(StoreError, match="there is no store in the stream nothing_LOG"),
        open_read_only(f"{node.url}/nothing"),
    ):
        pass
    code, _, complained = shell("runs", "--store", f"{node.url}/nothing")
    assert code == 1
    assert "there is no store in the stream nothing_LOG" in " ".join(complained.split())


def test_runs_are_found_explained_and_replayed(url: str) -> None:
    with open_read_only(url) as store:
        rows = list_runs(store, RunFilter())
        assert [row.step for row in rows][:4] == ["hopeless", "halves", "chart", "announce"]
        for asked, steps in (
            (RunFilter(error="CONNECTION_RESET"), ["pay"]),
            (RunFilter(correlation="corr-chart"), ["chart"]),
            (RunFilter(tenant="tenant-6"), ["flaky"]),
            (RunFilter(dataset="rivers"), ["flaky"]),
            (RunFilter(held=True), ["pay"]),
            (RunFilter(since=rows[0].changed), ["hopeless"]),
        ):
            assert [row.step for row in list_runs(store, asked)] == steps
        found = load_timeline(store, find_run(store, rows[0].run_id))
        assert len(found.lives) == 2
        assert [
            one for each in LogReplay().replay_entries(store.read_entries()) for one in each.differences
        ] == []


def test_a_read_only_store_refuses_writes(url: str) -> None:
    store = ReadOnlyNatsStore(url)
    for use in (
        lambda: store.append(Batch(())),
        lambda: store.open_maintenance().prune_bodies({"run/a": 1}),
        lambda: store.open_maintenance().drop_entities({"run/a": 1}),
        lambda: store.open_maintenance().replace_heads([], 1),
        lambda: store.open_maintenance().import_entries([], []),
        lambda: store.register_worker("me"),
        store.open_maintenance().checkpoint_wal,
    ):
        with pytest.raises(StoreError, match="nothing is written"):
            use()
    store.close()


def test_commands_read_and_the_doctor_repairs(url: str) -> None:
    key = told("runs", "--store", url, "--step", "flaky")[0]["key"]
    assert "delay" in shell("show", key[:8], "--store", url)[1]
    assert "The policy's own delay" in " ".join(shell("explain", key, "--store", url)[1].split())
    assert shell("replay", "--all", "--store", url)[0] == 0
    assert shell("store", "tail", "-n", "2", "--store", url)[1].count("\n") == 2
    assert told("store", "health", "--store", url)["healthy"] is True
    good = told("store", "doctor", "--rebuild", "--store", url)
    found = {check["name"]: check for check in good["checks"]}
    assert found["sync mode"]["status"] == "ok"
    assert "sync_interval: always" in found["sync mode"]["observation"]
    assert found["replicas"]["status"] == "warn"
    assert found["rebuild"]["status"] == "ok"
    store = NatsStore(url)
    for step in ("flaky", "pay"):
        (head,) = store.list_heads(HeadQuery("run", step=step))
        wrong = head._replace(
            by=head.by._replace(state="PENDING"), head=head.head.replace(b"standard", b"other")
        )
        assert store.open_maintenance().replace_heads([wrong], store.wait_for_change(0, 0.0)) == 1
    store.close()
    bad = told("store", "doctor", "--rebuild", "--store", url, code=1)
    assert bad["checks"][-1]["observation"].endswith("2 heads are wrong")
    assert shell("store", "doctor", "--rebuild", "--write", "--store", url)[0] == 0
    assert told("store", "doctor", "--rebuild", "--store", url)["checks"][-1]["status"] == "ok"


def test_the_doctor_reports_weak_durability_of_a_server(node: nats.Node, url: str) -> None:
    """A server without monitoring is a warning; one that acknowledges before it syncs is bad."""
    checks = {
        check["name"]: check for check in told("store", "doctor", "--store", f"{node.url}/whole")["checks"]
    }
    assert checks["sync mode"]["status"] == "warn"
    assert "unverified" in checks["sync mode"]["observation"]
    assert "?monitor=" in checks["sync mode"]["advice"]
    with nats.node(sync="") as lazy:
        address = f"{lazy.url}/lazy?monitor={lazy.monitor}"
        NatsStore(f"{address}&unsafe_ok=true").close()
        checks = {
            check["name"]: check for check in told("store", "doctor", "--store", address, code=1)["checks"]
        }
        assert checks["sync mode"]["status"] == "bad"
        assert "power loss can take away" in checks["sync mode"]["observation"]


MODULE = """
import oncemore

@oncemore.step(effect="idempotent", name="bill")
def bill(order: str, size: int = 1) -> str:
    if order == "B-0":
        raise ValueError("there is no such order")
    return order + "." * size
"""


def test_a_run_is_submitted_worked_verified_pruned_and_erased(
    node: nats.Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "nats_shop.py").write_text(MODULE, encoding="utf-8")
    at = ("--store", f"{node.url}/shop")
    for order in ("order=B-1", "order=B-2 size=3000000", "order=B-0", "order=B-3"):
        assert told("runs", "submit", "nats_shop:bill", *order.split(), *at)["status"] == "PENDING"
    assert (
        told("runs", "cancel", "nats_shop:bill", "order=B-3", "--reason", "withdrawn", *at)["status"]
        == "HARD_FAIL"
    )
    code, said, complained = shell("worker", "nats_shop", "--drain", *at)
    assert code == 0, said + complained
    states = {row["key"]: row["state"] for row in told("runs", *at)}
    assert sorted(states.values()) == ["COMPLETE", "COMPLETE", "HARD_FAIL", "HARD_FAIL"]
    assert (
        told("runs", "rerun", "nats_shop:bill", "order=B-3", "--reason", "after all", *at)["status"]
        == "COMPLETE"
    )
    sizes = told("store", "sizes", *at)
    assert sizes["kinds"]["run"]["bytes"] > 3_000_000
    assert shell("store", "verify", *at)[0] == 0
    assert told("store", "prune", "--older-than", "60s", "--yes", "--reason", "tidy", *at)
    key = told("runs", "submit", "nats_shop:bill", "order=B-2", "size=3000000", *at)["key"]
    code, said, complained = shell("store", "erase", key, "--reason", "asked to", "--yes", *at)
    assert code == 0, said + complained
    assert told("store", "sizes", *at)["kinds"]["run"]["bytes"] < 100_000
    assert shell("store", "verify", *at)[0] == 0
    assert told("store", "doctor", "--rebuild", *at)["checks"][-1]["status"] == "ok"
    code, _, complained = shell("store", "backup", "copy.db", *at)
    assert code != 0
    assert "nats stream backup" in " ".join(complained.split())
    ran = run("exec", "--key", "k", *at, "--", "echo", "done")
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr


def test_a_password_is_never_printed(node: nats.Node, url: str) -> None:
    with_password = re.sub("//", "//ada:c4n4ry@", url, count=1)
    for words in (
        (
            "store",
            "doctor",
        ),
        ("runs",),
        (
            "store",
            "health",
        ),
        (
            "store",
            "sizes",
        ),
        ("runs", "--json"),
    ):
        _, said, complained = shell(*words, "--store", with_password)
        assert "c4n4ry" not in said + complained
    ran = run("store", "doctor", "--store", with_password)
    assert ran.returncode == 0, ran.stderr
    assert f"ada@127.0.0.1:{node.port}/whole" in ran.stdout
    assert "c4n4ry" not in ran.stdout + ran.stderr
