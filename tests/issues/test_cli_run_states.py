"""Five states everywhere (STATE-1), and other names for them in exports that can be read back (STATE-8)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import cli
from oncemore.errors import Error, PermanentError, TransientError
from tests.fixtures import _isolated

if TYPE_CHECKING:
    from oncemore import Engine

__all__ = ["_isolated"]

STATES = ("PENDING", "RUNNING", "SOFT_FAIL", "HARD_FAIL", "COMPLETE")
MAPPING = {"PENDING": "queued", "RUNNING": "started", "SOFT_FAIL": "retrying", "COMPLETE": "succeeded"}


@oncemore.step(effect="idempotent", name="night.work")
def work(what: str) -> str:
    if what == "running":
        with oncemore.open("log.db") as engine:
            seen.append(oncemore.Run(engine, f"run/{oncemore.current().key}").status)
        told.append(said("runs", "--state", "RUNNING"))
    if what == "permanent":
        raise PermanentError("never")
    if what == "again" and oncemore.current().number == 1:
        raise TransientError("once more")
    return what


@oncemore.step(effect="once", name="night.letter")
def letter(what: str) -> str:
    raise TransientError("lost")


seen: list[str] = []
told: list[Any] = []


def said(*words: str) -> Any:
    """Return what a command prints as JSON."""
    from click.testing import CliRunner

    with CliRunner().isolation() as (out, _, _):
        assert cli.run_command([*words, "--store", "log.db", "--json"]) == 0, words
        return json.loads(out.getvalue())


def live(engine: Engine) -> None:
    """Have runs in all states: waiting, running, failed for now, held, failed for good, done, cancelled."""
    work.submit("pending")
    work.submit("cancelled")
    work.cancel("cancelled", reason="withdrawn")
    work("running")
    work("done")
    parked = oncemore.Policy("slow", schedule=oncemore.Schedule("fixed", delays=(600.0,)))
    soft = oncemore.step(effect="idempotent", name="night.soft", policy=parked)(_fail)
    for step, words in ((soft, ("x",)), (work, ("permanent",)), (letter, ("x",))):
        with pytest.raises(Error):
            step(*words)


def _fail(what: str) -> None:
    raise TransientError(what)


@pytest.mark.req("STATE-1")
def test_api_and_command_line_report_one_of_five_states_for_every_run() -> None:
    seen.clear()
    told.clear()
    with oncemore.open("log.db") as engine:
        live(engine)
        listed = said("runs", "--limit", "100")
        keys = [head.entity.removeprefix("run/") for head in engine.store.list_heads(_all_runs())]
        by_api = {key: oncemore.Run(engine, f"run/{key}").status for key in keys}
    assert {row["key"]: row["state"] for row in listed} == by_api
    assert set(by_api.values()) == set(STATES) - {"RUNNING"}
    assert seen == ["RUNNING"]
    assert [row["state"] for row in told[0]] == ["RUNNING"]
    for key, state in by_api.items():
        assert said("show", key)["row"]["state"] == state
        assert said("explain", key)["state"] == state
        assert said("replay", key)["state"] == state


def _all_runs() -> Any:
    from oncemore.log.store import HeadQuery

    return HeadQuery("run", limit=100)


@pytest.mark.req("STATE-8")
def test_a_mapping_renames_states_in_the_export_and_an_import_gives_the_original_run() -> None:
    Path("states.yaml").write_text("".join(f"{state}: {name}\n" for state, name in MAPPING.items()))
    with oncemore.open("log.db") as engine:
        policy = oncemore.Policy("quick", schedule=oncemore.Schedule("exponential", base=0.001))
        again = oncemore.step(effect="idempotent", name="night.work", policy=policy)(work.__wrapped__)
        again("again")
        run = again.last_run("again")
        assert run is not None
        key, records = run.key, run.records()
        before = list(engine.store.read_entries(f"run/{key}"))
    export = ["export", "runs", key, "--states", "states.yaml", "--out", "run.jsonl", "--store", "log.db"]
    assert cli.run_command(export) == 0
    text = Path("run.jsonl").read_text()
    assert not any(f'"{state}"' in text for state in MAPPING)
    lines = [json.loads(line) for line in text.splitlines()]
    states = [record["state"] for line in lines for record in line["records"]]
    assert states == [MAPPING.get(one["state"], one["state"]) for one in records]
    assert {"queued", "started", "retrying", "succeeded"} <= set(states)
    assert (
        cli.run_command(
            ["store", "import-runs", "run.jsonl", "--states", "states.yaml", "--store", "other.db"]
        )
        == 0
    )
    with oncemore.open("log.db") as engine, oncemore.open("other.db") as other:
        after = list(other.store.read_entries(f"run/{key}"))
        assert [(one.header, one.body, one.hash) for one in after] == [
            (one.header, one.body, one.hash) for one in before
        ]
        there, here = (oncemore.Run(one, f"run/{key}") for one in (other, engine))
        assert (there.state, there.value) == (here.state, here.value)
        assert [{**one, "seq": 0} for one in there.records()] == [{**one, "seq": 0} for one in records]
        assert list(engine.store.read_entries(f"run/{key}")) == before  # the stored ones are as they were
    assert cli.run_command(["store", "verify", "--store", "other.db"]) == 0
    again_imported = ["store", "import-runs", "run.jsonl", "--states", "states.yaml", "--store", "other.db"]
    assert cli.run_command(again_imported) == 0


@pytest.mark.parametrize(
    ("mapping", "why"),
    [
        ("COMPLETE: done\nHARD_FAIL: done\n", "two meanings"),
        ("COMPLETE: PENDING\n", "two meanings"),
        ("COMPLETE: COMMIT\n", "two meanings"),
        ("DONE: x\n", "is not a state"),
        ("- x\n", "it must map states"),
        ("COMPLETE: [\n", "is not YAML"),
    ],
)
def test_a_mapping_that_cannot_be_undone_is_refused(
    mapping: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with oncemore.open("log.db"):
        work("done")
    Path("states.yaml").write_text(mapping)
    key = said("runs")[0]["key"]
    assert cli.run_command(["export", "runs", key, "--states", "states.yaml", "--store", "log.db"]) == 2
    assert why in " ".join(capfd.readouterr().err.split())


def test_what_was_altered_or_is_not_over_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with oncemore.open("log.db"):
        work("done")
        work.submit("pending")
    rows = {row["state"]: row["key"] for row in said("runs")}
    for key in rows.values():
        assert cli.run_command(["export", "runs", key, "--out", f"{key}.jsonl", "--store", "log.db"]) == 0
    assert cli.run_command(["store", "import-runs", f"{rows['PENDING']}.jsonl", "--store", "other.db"]) == 2
    assert "it may continue" in " ".join(capfd.readouterr().err.split())
    text = Path(f"{rows['COMPLETE']}.jsonl").read_text()
    for wrong, why in (
        (text.replace('"attempt_count": 1', '"attempt_count": 2'), "was altered"),
        (text.replace("run/", "event/"), "is not a run"),
        ("{}\n", "line 1 is not an entry"),
        ("\n" + text.splitlines()[1], "is out of order"),
    ):
        assert wrong != text
        Path("wrong.jsonl").write_text(wrong)
        assert cli.run_command(["store", "import-runs", "wrong.jsonl", "--store", "other.db"]) in (1, 2)
        assert why in " ".join(capfd.readouterr().err.split()), why
