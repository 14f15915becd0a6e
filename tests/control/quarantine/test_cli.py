"""`oncemore quarantine`: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import oncemore
from oncemore import cli
from oncemore.queries.times import format_age
from tests.control.quarantine.helpers import charge, doubtful

BY = ("--by", "operator", "--reason", "looked at it")


@pytest.fixture(autouse=True)
def _shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log with two things in quarantine, in the folder of the settings."""
    (tmp_path / "oncemore.toml").write_text('store = "log.db"\n')
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    with oncemore.open(tmp_path / "log.db"):
        doubtful.run(1)
        charge.run(1)


class Ran:
    """What a command printed, and how it ended."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: str) -> None:
        self.code = cli.run_command(["quarantine", *words])
        self.out, self.err = capsys.readouterr()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda *words: Ran(capsys, *words)


def ids(run: Any) -> dict[str, str]:
    return {item["step"]: item["id"] for item in run("list", "--json").json}


@pytest.mark.req("CLI-2")
def test_the_list_is_one_line_each_the_longest_first(run: Any) -> None:
    shown = run("list")
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert lines[0].split() == ["id", "since", "kind", "step", "attempts", "reason"]
    assert lines[1].split()[-4:] == ["doubtful", "1", "quarantined:", "AMBIGUOUS_NAME"]
    assert lines[2].split()[-4:] == ["charge", "1", "outcome_unknown:", "TIMEOUT"]
    assert "oncemore quarantine show" in lines[-1]
    assert "\x1b" not in shown.out


def test_the_list_is_filtered_and_may_be_empty(run: Any) -> None:
    assert [item["step"] for item in run("list", "--step", "charge", "--json").json] == ["charge"]
    assert [item["step"] for item in run("list", "--reason", "quarantined", "--json").json] == ["doubtful"]
    assert run("list", "--ids").out.split() == [item["id"] for item in run("list", "--json").json]
    assert run("list", "--kind", "event").out == "No quarantined items match.\n"
    assert len(run("list", "--since", "1h", "--json").json) == 2
    wrong = run("list", "--since", "lately")
    assert (wrong.code, "'lately' is not a time" in wrong.err) == (2, True)


def test_the_evidence_is_shown_with_what_can_be_decided(run: Any) -> None:
    found = ids(run)
    text = " ".join(run("show", found["doubtful"][:13]).out.split())
    for part in (
        "quarantined", "NeedsReview: two stars for 1", "AMBIGUOUS_NAME", "oncemore:NeedsReview", "SOFT_FAIL",
        "quarantined until a person decides", "release", "reject", "rerun",
    ):  # fmt: skip
        assert part in text
    case = run("show", found["charge"], "--json").json
    assert case["choices"] == ["settle", "reject"]
    assert case["item"]["error"]["code"] == "TIMEOUT"
    assert len(case["input_hash"]) == 64


def test_decisions_are_made_and_told(run: Any) -> None:
    found = ids(run)
    released = run("release", found["doubtful"], *BY)
    assert released.code == 0
    assert released.out.startswith(f"released run {found['doubtful']} of doubtful\n")
    with oncemore.open("log.db"):
        doubtful.run(1)
    again = run("rerun", found["doubtful"], "--extra-attempts", "2", *BY, "--json").json
    assert (again["decided"], again["by"], again["extra_attempts"]) == ("rerun", "operator", 2)
    with oncemore.open("log.db"):
        assert doubtful.run(1).state.max_attempts == 5
    assert run("reject", found["doubtful"], *BY).code == 0
    settled = run("settle", found["charge"], "--applied", '{"receipt": 7}', *BY, "--json").json
    assert settled["item"]["step"] == "charge"
    assert run("list").out == "No quarantined items match.\n"
    with oncemore.open("log.db"):
        assert charge(1) == {"receipt": 7}
        assert doubtful.last_run(1).status == "HARD_FAIL"  # type: ignore[union-attr]
        made = [record for record in doubtful.last_run(1).records() if record["kind"] == "DECISION"]  # type: ignore[union-attr]
        assert len(made) == 3 + 3, "three of the policy, three of a person"


def test_what_did_not_happen_is_tried_again(run: Any) -> None:
    assert run("settle", ids(run)["charge"], "--not-applied", *BY).code == 0
    with oncemore.open("log.db"):
        assert charge.run(1).state.attempt == 2


def test_earlier_decisions_and_who_was_told_are_shown(run: Any, tmp_path: Path) -> None:
    item = ids(run)["doubtful"]
    run("release", item, *BY)
    with oncemore.open("log.db", notify=["file:told.jsonl"]):
        doubtful.run(1)
        doubtful.run(2)
    text = run("show", item).out
    assert "release by operator: looked at it" in text
    assert ": delivered" in text
    other = next(
        one["id"] for one in run("list", "--json").json if one["id"] != item and one["step"] == "doubtful"
    )
    assert "due at" in run("show", other).out
    assert (tmp_path / "told.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("release", "nobody-has-this", *BY), 1, "nothing in quarantine has the id"),
        (("show", "abc"), 2, "4 characters or more"),
        (("release", "CHARGE", *BY), 2, "settle it"),
        (("settle", "DOUBTFUL", "--not-applied", *BY), 2, "is not in doubt"),
        (("settle", "CHARGE", *BY), 2, "either --applied with the value, or --not-applied"),
        (("settle", "CHARGE", "--not-applied", "--applied", "1", *BY), 2, "either --applied"),
        (("settle", "CHARGE", "--applied", "done", *BY), 2, "the value is not JSON"),
        (("release", "DOUBTFUL", "--by", "operator"), 2, "--reason"),
        (("release", "DOUBTFUL", "--by", "operator", "--reason", " "), 2, "reason is missing"),
        (("release", "DOUBTFUL", "--version", "7", *BY), 1, "has version 2 now"),
        (("rerun", "DOUBTFUL", "--extra-attempts", "0", *BY), 2, "extra-attempts"),
        (("list", "--store", "nowhere.db"), 2, "there is no store at"),
        (("notify",), 2, "no notification can be sent"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_an_exit_code(
    run: Any, words: tuple[str, ...], code: int, told: str
) -> None:
    found = ids(run)
    real = [found.get(word.lower(), word) if word.isupper() else word for word in words]
    ended = run(*real)
    assert (ended.code, ended.out) == (code, "")
    assert told in " ".join(ended.err.split())
    in_json = json.loads(run(*real, "--json").err)
    assert told in in_json["error"]["message"]
    assert not Path("nowhere.db").exists()


def test_a_store_that_cannot_be_read_is_one_sentence_too(run: Any, tmp_path: Path) -> None:
    (tmp_path / "broken.db").write_text("this is no database, and never was one" * 100)
    ended = run("list", "--store", "broken.db")
    assert ended.code == 1
    assert ended.err.startswith("oncemore: ")


def test_what_was_not_told_is_told_by_hand(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMORE_NOTIFY", "file:told.jsonl")
    monkeypatch.setenv("ONCEMORE_NOTIFY_EVERY_S", "0")
    assert run("notify", "--json").json["delivered"] == 0
    with oncemore.open("log.db") as engine:
        from tests.control.quarantine.helpers import make_manual_notifier

        engine.notifier = make_manual_notifier(print)
        from oncemore.messaging.sink_urls import parse_sinks

        engine.notifier.sinks = parse_sinks("file:told.jsonl")
        doubtful.run(5)
    told = run("notify")
    assert told.out == "1 delivered, 0 to be retried, 0 given up, 0 not due\n"
    assert len((tmp_path / "told.jsonl").read_text().splitlines()) == 1


def test_a_notice_that_is_given_up_by_hand_is_said_so(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (command := Path("fail.sh")).write_text("")  # cannot be run: it is no program
    sink = json.dumps([{"command": [f"./{command}"], "name": "x"}])
    monkeypatch.setenv("ONCEMORE_NOTIFY", sink)
    from oncemore.messaging.sink_urls import parse_sinks
    from tests.control.quarantine.helpers import make_manual_notifier

    with oncemore.open("log.db") as engine:
        engine.notifier = make_manual_notifier(print)
        engine.notifier.sinks = parse_sinks(json.loads(sink))
        doubtful.run(5)
    ended = run("notify")
    assert (ended.code, "1 given up" in ended.out) == (1, True)
    assert [item["step"] for item in run("list", "--kind", "event", "--json").json] == [
        "oncemore.quarantine.x"
    ]
    assert "not deliverable" in run("show", _held(run)).out


def _held(run: Any) -> str:
    return str([item["id"] for item in run("list", "--step", "doubtful", "--json").json][-1])


def test_how_long_ago_is_told_in_one_unit() -> None:
    assert (
        format_age(0.0, 59.0),
        format_age(0.0, 3599.0),
        format_age(0.0, 7200.0),
        format_age(0.0, 200_000.0),
    ) == (
        "59 s",
        "59 min",
        "2 h",
        "2 d",
    )


def test_digests_of_altered_bytes_are_shown(run: Any) -> None:
    from tests.artifacts.conftest import alter

    @oncemore.step(effect="pure", name="report", artifact="report")
    def report() -> Any:
        return oncemore.current().put(b"the report")

    with oncemore.open("log.db") as engine:
        digest = report().digest
        alter(engine.artifact_store.backend, digest)
        report.run()
    item = ids(run)["report"]
    text = run("show", item).out
    assert f"expected     {digest}" in text
    assert "found" in text
    refused = run("release", item, *BY)
    assert (refused.code, "cannot be released" in refused.err) == (2, True)
