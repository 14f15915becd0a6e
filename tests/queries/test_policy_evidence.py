"""A changed governed policy needs evidence: the same runs under both versions, before and after."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import UsageError
from oncemore.policy import files
from oncemore.queries.policy_history import list_policy_changes, load_policy_change
from oncemore.queries.stores import open_read_only
from oncemore.testing import FakeClock
from tests.cli.test_cli_policy import Ran

if TYPE_CHECKING:
    from pathlib import Path

# Delays of at most a minute: a call waits for them, instead of being deferred to a worker.
OLD = """profile: mine
version: retry-loop-v1.0
extends: kfm-loop
retry_policy: {max_attempts: 4, max_delay_s: 50}
"""
NEW = OLD.replace("v1.0", "v1.1").replace("max_attempts: 4", "max_attempts: 2")
CHECK = ("policy", "check", "mine.yaml", "--against", "earlier.yaml")
SIMULATE = ("simulate", "--policy", "mine.yaml", "--evidence", "earlier.yaml")
ASSUME = (*SIMULATE, "--failure-probability", "0.5", "--samples", "50", "--attempt-energy", "0.002")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two versions of a governed policy; commands run in it."""
    (tmp_path / "earlier.yaml").write_text(OLD)
    (tmp_path / "mine.yaml").write_text(NEW)
    return tmp_path


def record_runs(store: Path, policy: str, count: int = 4) -> None:
    """Record runs that use up their attempts in vain."""

    @oncemore.step(effect="idempotent", name=f"report.{policy}", policy=files.inspect_file(policy).policy())
    def report(n: int) -> int:
        raise oncemore.TransientError("warehouse busy")

    with oncemore.open(store), FakeClock():
        for n in range(count):
            with suppress(oncemore.StepFailed):
                report(n)


def load_record(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "mine.evidence.json").read_text()))


@pytest.mark.req("VER-1", "DASH-3")
def test_a_change_lacking_a_version_or_the_evidence_is_refused_by_name(folder: Path) -> None:
    # The version of the pattern: a governed file without one cannot be loaded.
    (folder / "mine.yaml").write_text(NEW.replace("retry-loop-v1.1", '"7"'))
    ran = Ran(*CHECK)
    assert (ran.code, "version" in ran.words, "retry-loop-v" in ran.words) == (1, True, True)
    # The version of the file: the number changed, the version did not. The evidence is named as well.
    (folder / "mine.yaml").write_text(NEW.replace("v1.1", "v1.0"))
    ran = Ran(*CHECK)
    assert (ran.code, "the version is still retry-loop-v1.0" in ran.words) == (1, True)
    assert "the evidence before and after is missing" in ran.words
    # The evidence: with its command.
    (folder / "mine.yaml").write_text(NEW)
    ran = Ran(*CHECK)
    assert ran.code == 1
    assert "mine.evidence.json: the evidence before and after is missing" in ran.words
    assert "`oncemore simulate --policy mine.yaml --evidence earlier.yaml`" in ran.words
    made = Ran(*ASSUME, "--intensity", "400")
    assert (made.code, "wrote mine.evidence.json" in made.words) == (0, True), made.err
    assert Ran(*CHECK).code == 0
    # The record links to the view before and after: a page with energy, carbon and duplicate work.
    record = load_record(folder)
    page = (folder / record["page"]).read_text()
    figures = {figure["field"]: figure for figure in record["figures"]}
    for field in ("energy_kwh", "carbon_kg", "repeated_attempts", "repeated_kwh"):
        assert figures[field]["after"] < figures[field]["before"], field
        assert figures[field]["name"] in page
    old, new = (
        files.inspect_file(folder / name).policy().digest[:12] for name in ("earlier.yaml", "mine.yaml")
    )
    assert record["policies"][0]["view"] == f"/policies?a=policy/{old}&b=policy/{new}"


def test_evidence_comes_from_recorded_runs_and_gives_the_same_bytes(folder: Path) -> None:
    store = folder / "log.db"
    record_runs(store, "earlier.yaml")
    words = (*SIMULATE, "--store", str(store), "--attempt-energy", "0.5", "--intensity", "400")
    assert Ran(*words).code == 0
    record = load_record(folder)
    figures = {figure["field"]: figure for figure in record["figures"]}
    assert (record["basis"], record["runs"]) == ("recorded runs", 4)
    assert (figures["attempts"]["before"], figures["attempts"]["after"]) == (16, 8)
    assert figures["carbon_kg"]["before"] == pytest.approx(figures["energy_kwh"]["before"] * 0.4)
    assert {change["field"] for change in record["changes"]} == {"policies.default.max_attempts"}
    first = [(folder / f"mine.evidence.{kind}").read_bytes() for kind in ("json", "html")]
    # The command in the record makes the same evidence again; only the store is not in it.
    again = shlex.split(record["command"])[1:]
    assert Ran(*again, "--store", str(store), "--json").code == 0
    assert [(folder / f"mine.evidence.{kind}").read_bytes() for kind in ("json", "html")] == first
    assert Ran(*CHECK).code == 0


def spoil_digest(record: dict[str, Any]) -> None:
    record["new"]["digest"] = "0" * 64


def spoil_figure(record: dict[str, Any]) -> None:
    for figure in record["figures"]:
        figure["before"] = None if figure["field"] == "carbon_kg" else figure["before"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda record: record.update(format="other/9"), "its format is 'other/9'"),
        (lambda record: record.pop("figures"), "it is not the evidence of a change"),
        (spoil_digest, "the policy after is not the one that was compared"),
        (
            lambda record: record["old"].update(version="retry-loop-v0.1"),
            "about version retry-loop-v0.1 before",
        ),
        (spoil_figure, "it has no value for carbon (--intensity G)"),
        (
            lambda record: record.update(page_digest=""),
            "its page mine.evidence.html is missing or was changed",
        ),
    ],
)
def test_evidence_that_does_not_fit_is_refused(folder: Path, spoil: Any, message: str) -> None:
    assert Ran(*ASSUME, "--intensity", "400").code == 0
    record = load_record(folder)
    spoil(record)
    (folder / "mine.evidence.json").write_text(json.dumps(record))
    ran = Ran(*CHECK)
    assert (ran.code, message in ran.words) == (1, True), ran.words


def test_another_change_voids_the_evidence_and_a_note_does_not(folder: Path) -> None:
    assert Ran(*ASSUME, "--intensity", "400").code == 0
    (folder / "mine.yaml").write_text(f"{NEW}owner: data team\n")
    assert Ran(*CHECK).code == 0
    (folder / "mine.yaml").write_text(NEW.replace("max_attempts: 2", "max_attempts: 3"))
    assert "the policy after is not the one that was compared" in Ran(*CHECK).words
    (folder / "mine.evidence.json").write_bytes(b"\xff")
    assert "it is not the evidence of a change" in Ran(*CHECK).words
    (folder / "mine.evidence.json").unlink()
    (folder / "mine.evidence.json").mkdir()
    assert "it cannot be read" in Ran(*CHECK).words


def test_what_no_delay_depends_on_needs_no_evidence_and_what_is_not_simulated_is_said(folder: Path) -> None:
    (folder / "mine.yaml").write_text(OLD.replace("v1.0", "v1.1") + "escalation: {permanent: other}\n")
    assert Ran(*CHECK).code == 0
    (folder / "mine.yaml").write_text(NEW + "circuit_breaker: {max_failures: 2, cooldown_sec: 9}\n")
    assert Ran(*ASSUME, "--intensity", "400").code == 0
    assert "sections.circuit_breaker.max_failures" in load_record(folder)["not_simulated"]
    assert "The figures do not show the effect of" in (folder / "mine.evidence.html").read_text()


def test_a_file_that_is_not_governed_needs_a_version_only(folder: Path) -> None:
    plain = 'profile: mine\nversion: "1"\nextends: standard\n'
    (folder / "earlier.yaml").write_text(plain)
    (folder / "mine.yaml").write_text(plain.replace('"1"', '"2"') + "retry_policy: {max_attempts: 5}\n")
    assert Ran(*CHECK).code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*ASSUME,), "no value for carbon (--intensity G)"),
        ((*SIMULATE, "--store", "log.db"), "no run in this period was recorded under mine"),
        ((*ASSUME, "--tuning", "on"), "neither --tuning nor another file"),
        (
            ("simulate", "--policy", "kfm-loop", "--evidence", "earlier.yaml"),
            "needs the path of a .yaml file",
        ),
        (
            ("simulate", "--policy", "absent.yaml", "--evidence", "earlier.yaml"),
            "there is no file absent.yaml",
        ),
        (("simulate", "--policy", "mine.yaml", "--evidence", "nowhere"), "neither a file, a profile nor a"),
    ],
)
def test_what_cannot_become_evidence_is_named(folder: Path, words: tuple[str, ...], message: str) -> None:
    (folder / "other.yaml").write_text(OLD.replace("mine", "other"))
    record_runs(folder / "log.db", "other.yaml", 1)
    ran = Ran(*words)
    assert (ran.code, message in " ".join(ran.err.split())) == (2, True), ran.err
    assert not (folder / "mine.evidence.json").exists()


def test_a_proposal_for_a_governed_policy_passes_the_check(folder: Path) -> None:
    store = folder / "log.db"
    record_runs(store, "earlier.yaml", 6)
    words = (
        "policy",
        "propose",
        "earlier.yaml",
        "--store",
        str(store),
        "--min-runs",
        "3",
        "--out",
        "next.yaml",
    )
    ran = Ran(*words, "--until", "4000000000", "--intensity", "300", "--attempt-energy", "0.1")
    assert ran.code == 0, ran.err
    assert Ran("policy", "check", "next.yaml", "--against", "earlier.yaml").code == 0
    assert not list(folder.glob(".*.proposed*"))


# The data of the page ---------------------------------------------------------------------------------


def test_the_changes_of_a_store_are_listed_with_their_figures_before_and_after(folder: Path) -> None:
    store = folder / "log.db"
    record_runs(store, "earlier.yaml")
    record_runs(store, "mine.yaml", 3)
    with open_read_only(str(store)) as opened:
        (change,) = list_policy_changes(opened)
        assert (change.name, change.old_version, change.new_version) == (
            "mine",
            "retry-loop-v1.0",
            "retry-loop-v1.1",
        )
        assert change.view == f"/policies?a={change.old}&b={change.new}"
        view = load_policy_change(opened, change.old, change.new, since=0.0, until=4e9)
        assert {field.field for field in view.difference.fields} == {"version", "max_attempts"}
        measured = {figure.field: (figure.before, figure.after) for figure in view.figures}
        assert (measured["runs"], measured["attempts"]) == ((4, 3), (16, 6))
        assert view.simulated is not None
        simulated = {figure.field: (figure.before, figure.after) for figure in view.simulated.figures}
        # Runs of the new version ended after two attempts; what a third would have met is assumed.
        assert simulated["runs"] == (7, 7)
        assert simulated["attempts"] == (28, 14)
        empty = load_policy_change(opened, change.old, change.new, since=0.0, until=1.0)
        assert (empty.simulated, empty.before.runs) == (None, 0)
        with pytest.raises(UsageError, match="this store has no policy"):
            load_policy_change(opened, "policy/000000000000", change.new, since=0.0, until=1.0)
