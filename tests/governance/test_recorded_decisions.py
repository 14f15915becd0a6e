"""Decisions on the command line: each is one entry of the ledger with who, when and why (GOV-17)."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import cli
from oncemore.errors import Error, NeedsReview, PermanentError
from oncemore.governance.record_checks import check_records
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.steps.engine import Engine

BY = ("--by", "council member")


@oncemore.step(effect="idempotent", name="odd")
def review(item: str) -> str:
    raise NeedsReview("ODD", item)


@oncemore.step(effect="once", name="pay", reconcile=None)
def pay(item: str) -> str:
    raise TimeoutError(item)


@oncemore.step(effect="idempotent", name="delete", requires_approval=True)
def delete(item: str) -> str:
    return item


@oncemore.step(effect="idempotent", name="broken", dataset="burials")
def break_item(item: str) -> str:
    raise PermanentError(item)


@oncemore.step(effect="idempotent", name="tried", attempts=2)
def try_twice(item: str) -> str:
    raise oncemore.TransientError(item)


def prepare_work(path: Path) -> dict[str, str]:
    """Leave one run for each decision; return their ids by name."""
    with FakeClock(), oncemore.open(path) as engine:
        engine.datasets.register("burials", care_label="Sensitive", reason="first", by="council member")
        work: dict[str, tuple[Callable[..., Any], str]] = {
            "release": (review, "a"), "reject": (review, "b"), "rerun": (review, "c"),
            "escalate": (review, "d"), "settle": (pay, "e"), "approve": (delete, "f"),
            "ack": (break_item, "g"),
        }  # fmt: skip
        ids = {}
        for name, (step, item) in work.items():
            with suppress(Error):
                step(item)
            ids[name] = step.last_run(item).run_id  # type: ignore[attr-defined]
        return ids


def read_ledger(path: Path) -> list[dict[str, Any]]:
    assert cli.run_command(["ledger", "reports", "--root", "reports", "--store", str(path)]) == 0
    text = Path("reports/docs/reports/audit/versioning_ledger.json").read_text("utf-8")
    entries: list[dict[str, Any]] = json.loads(text)["entries"]
    return [entry for entry in entries if entry["kind"] == "decision"]


@pytest.mark.req("GOV-17")
def test_each_decision_leaves_one_entry_with_actor_time_and_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.db"
    ids = prepare_work(path)
    commands: dict[str, list[str]] = {
        "release": ["quarantine", "release", ids["release"]],
        "reject": ["quarantine", "reject", ids["reject"]],
        "rerun": ["quarantine", "rerun", ids["rerun"]],
        "escalate": ["quarantine", "escalate", ids["escalate"]],
        "settle": ["quarantine", "settle", ids["settle"], "--not-applied"],
        "approve": ["control", "approve", ids["approve"]],
        "revoke": ["control", "approve", ids["approve"], "--revoke"],
        "acknowledge": ["escalations", "ack", ids["ack"]],
        "on": ["control", "switch", "on"],
        "off": ["control", "switch", "off"],
        "register": ["control", "dataset", "register", "soils", "--set", "care_label=Public"],
        "label": ["control", "dataset", "label", "soils", "--set", "licence=CC-BY-4.0"],
        "restrict": ["control", "dataset", "restrict", "soils"],
        "block": ["control", "dataset", "block", "soils"],
        "withdraw": ["control", "dataset", "withdraw", "soils"],
        "release_dataset": ["control", "dataset", "release", "soils"],
        "assign": ["control", "roles", "assign", "root", "reviewer"],
    }
    for name, command in commands.items():
        before = len(read_ledger(path))
        line = [*command, "--reason", f"because of {name}", *BY, "--store", str(path)]
        # Without a reason the command is refused, and leaves no entry.
        without = [word for word in line if word not in ("--reason", f"because of {name}")]
        assert cli.run_command(without) == 2, name
        capsys.readouterr()
        assert cli.run_command(line) == 0, (name, capsys.readouterr().err)
        entries = read_ledger(path)
        assert len(entries) == before + 1, name
        made = entries[-1]
        assert (made["by"], made["reason"]) == ("council member", f"because of {name}"), name
        assert made["action"] == name.partition("_")[0]
        assert made["at"].endswith("Z")


@pytest.mark.req("GOV-13")
def test_a_forced_rerun_needs_a_reason_and_is_in_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with FakeClock(), oncemore.open(path):
        for step in (try_twice, review):
            with suppress(Error):
                step("x")  # type: ignore[operator]
    with oncemore.open(path) as engine:
        held = engine.quarantine.list()[0].id
    here = "tests.governance.test_recorded_decisions"
    forced = {
        "rerun": ["runs", "rerun", f"{here}:try_twice", "item=x"],
        "rerun of a held run": ["quarantine", "rerun", held, "--extra-attempts", "3"],
    }
    for command in forced.values():
        assert cli.run_command([*command, *BY, "--store", str(path)]) == 2
    assert read_ledger(path) == []
    for name, command in forced.items():
        cli.run_command([*command, "--reason", name, *BY, "--store", str(path)])
    entries = read_ledger(path)
    assert [(entry["action"], entry["reason"], entry["by"]) for entry in entries] == [
        ("rerun", name, "council member") for name in forced
    ]


@pytest.mark.req("CI-5")
def test_attempts_beyond_the_bound_are_found_unless_the_ledger_has_the_decision(
    tmp_path: Path, engine: Engine
) -> None:
    with FakeClock():
        with suppress(Error):
            review("x")
        (item,) = engine.quarantine
        engine.quarantine.rerun(item, by="council member", reason="one more", extra_attempts=5)
        with suppress(Error):
            review("x")
    store = engine.store
    assert check_records(store, engine.cipher).findings == ()

    class WithoutDecision:
        """The same records, without the entry of the decision's reason."""

        def read_entries(self, *args: Any) -> Any:
            for entry in store.read_entries(*args):
                body = entry.body or b""
                yield entry._replace(body=body.replace(b'"decision"', b'"remark"'))

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

    found: Any = WithoutDecision()
    assert {finding.rule for finding in check_records(found, engine.cipher).findings} >= {"bound_raised"}
