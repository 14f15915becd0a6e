"""`oncemore export asl`: definitions on standard output or in a file, refusals with the knob, checks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from statelint.linter import Linter

from tests.cli.test_cli_policy import Ran

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.req("SFN-1")
def test_a_policy_is_written_as_a_definition(tmp_path: Path) -> None:
    ran = Ran("export", "asl", "nova-cat/acquisition")
    assert (ran.code, ran.err) == (0, "")
    assert Linter.validate(ran.json) == []
    assert ran.json["States"]["Work"]["TimeoutSeconds"] == 900
    assert ran.json["States"]["Work"]["Parameters"]["FunctionName"] == "${Work}"
    file = tmp_path / "slow.json"
    ran = Ran("export", "asl", "nova-cat/acquisition", "--out", str(file), "--function", "Work=fetch")
    assert ran.words.endswith("one retrier with delays of 10 s, 60 s, 180 s.")
    made = json.loads(file.read_text(encoding="utf-8"))
    assert made["States"]["Work"]["Parameters"]["FunctionName"] == "fetch"
    assert Ran("export", "asl", "--check", str(file)).out == f"{file}: valid\n"


@pytest.mark.req("SFN-1", "SFN-5")
@pytest.mark.parametrize("words", [("export", "asl")])
def test_nova_cat_is_the_whole_workflow(words: tuple[str, str], tmp_path: Path) -> None:
    ran = Ran(*words, "nova-cat", "--function", "AcquireArtifact=arn:x")
    assert (ran.code, ran.err) == (0, "")
    assert Linter.validate(ran.json) == []
    assert ran.json["States"]["DiscoverSpectraProducts"]["MaxConcurrency"] == 1
    assert ran.json["States"]["AcquireArtifact"]["Parameters"]["FunctionName"] == "arn:x"
    ran = Ran(*words, "nova-cat", "--workflow", "AcquireAndValidateSpectra", "--json")
    assert (ran.json["form"], ran.json["source"]) == ("workflow", "nova-cat")
    assert "DiscoverSpectraProducts" not in ran.json["definition"]["States"]
    file = tmp_path / "w.json"
    assert Ran(*words, "nova-cat", "--out", str(file)).words.endswith(": 25 states.")


def test_a_file_becomes_a_loop_or_nothing(tmp_path: Path) -> None:
    policy, out = tmp_path / "mine.yaml", tmp_path / "out.json"
    policy.write_text(
        'version: "1"\nprofile: mine\nretry_policy: {max_attempts: 4, delays_s: [1, 5, 30], jitter: none}\n',
        encoding="utf-8",
    )
    ran = Ran("export", "asl", str(policy), "--json", "--out", str(out))
    assert (ran.json["form"], ran.json["delays"], ran.json["retrier"]) == ("loop", [1, 5, 30], None)
    assert json.loads(out.read_text(encoding="utf-8")) == ran.json["definition"]
    assert (
        "a loop with delays of 1 s, 5 s, 30 s" in Ran("export", "asl", str(policy), "--out", str(out)).words
    )
    policy.write_text('version: "1"\nprofile: mine\nretry_policy: {max_attempts: 1}\n', encoding="utf-8")
    assert "one attempt, no retrier" in Ran("export", "asl", str(policy), "--out", str(out)).words


@pytest.mark.req("SFN-8")
def test_what_cannot_be_said_is_refused_with_its_knob() -> None:
    ran = Ran("export", "asl", "kfm-loop")
    assert (ran.code, ran.out) == (1, "")
    told = " ".join(ran.err.split())
    assert "kfm-loop cannot be written in Amazon States Language: tuning (telemetry_tuning" in told
    assert "accept tuning and jitter to export without" in told
    ran = Ran("export", "asl", "lit", "--json")
    assert ran.code == 1
    assert "retry_backoff_seconds (a delay of 0.25 s" in json.loads(ran.err)["error"]["message"]
    ran = Ran("export", "asl", "kfm-loop", "--accept", "tuning")
    assert (ran.code, "jitter (additive" in " ".join(ran.err.split())) == (1, True)
    ran = Ran("export", "asl", "kfm-loop", "--accept", "tuning", "--accept", "jitter", "--json")
    assert (ran.code, ran.json["delays"]) == (0, [20, 40, 80, 160, 320])
    assert ran.json["notes"] == [
        "delays are not tuned by carbon, price and deadline",
        "delays have no jitter",
    ]


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ((), "Give either a POLICY or --check FILE."),
        (("nova-cat", "--check", "x"), "Give either a POLICY or --check FILE."),
        (("standard", "--workflow", "x"), "--workflow is only for nova-cat"),
        (("nova-cat", "--workflow", "x"), "workflow is 'x'; it takes DiscoverSpectraProducts"),
        (("nova-cat", "--accept", "jitter"), "--accept and --provider are for a policy"),
        (("kfm-rules", "--accept", "care"), "'care' cannot be accepted; these can: jitter, tuning"),
        (("nova-cat/default", "--function", "Work"), "--function is 'Work'; write NAME=ARN"),
        (
            ("nova-cat/default", "--function", "Wrok=x"),
            "'Wrok' is not a function of a policy, which has only Work",
        ),
        (("nova-cats",), "there is no policy 'nova-cats'"),
        (("--check", "nowhere.json"), "nowhere.json cannot be read: No such file"),
    ],
)
def test_a_wrong_question_is_one(words: tuple[str, ...], fault: str) -> None:
    ran = Ran("export", "asl", *words)
    assert (ran.code, ran.out) == (2, "")
    assert fault in " ".join(ran.err.split())


def test_a_check_says_where_and_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "machine.json"
    made = Ran("export", "asl", "nova-cat/default").json
    made["States"]["Work"]["Retry"].append(made["States"]["Work"]["Retry"][0])
    file.write_text(json.dumps(made), encoding="utf-8")
    ran = Ran("export", "asl", "--check", str(file))
    assert ran.code == 1
    assert "/States/Work: Retry 1: RetryableError is already handled by Retry 0" in ran.words
    ran = Ran("export", "asl", "--check", str(file), "--json")
    assert (ran.code, ran.json["good"]) == (1, False)
    assert ran.json["faults"][0]["rule"] == "unreachable"
    file.write_text("{", encoding="utf-8")
    assert "the file is not valid JSON" in Ran("export", "asl", "--check", str(file)).words
    file.write_text("[" * 200_000, encoding="utf-8")
    assert "the file is not valid JSON" in Ran("export", "asl", "--check", str(file)).words
    del made["States"]["Work"]["Retry"][1]
    made["Comment"] = "x" * (1 << 20)
    file.write_text(json.dumps(made), encoding="utf-8")
    assert (
        "the definition has more than 1048576 characters (size)"
        in Ran("export", "asl", "--check", str(file)).words
    )
    monkeypatch.setattr("oncemore.stepfunctions.service.MAX_BYTES", 10)
    assert Ran("export", "asl", "--check", str(file)).code == 2
