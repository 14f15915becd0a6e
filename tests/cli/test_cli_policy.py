"""What `oncemore policy` prints: the numbers of the documents, every fault, every difference."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from oncemore import cli
from oncemore.policy import files
from oncemore.queries import policy_catalogue
from oncemore.queries.policies import find_policy
from oncemore.queries.policy_sheet import build_sheet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MISSPELT = "version: retry-loop-v1.0\ngoverned: true\nretry_policy:\n  max_attempt: 6\n  timeout_s: 3\n"
GOOD = 'version: "1"\nretry_policy: {max_attempts: 4, base_delay_s: 1, timeout_s: 5}\n'


class Ran:
    """How a command ended, and what it wrote where."""

    def __init__(self, *words: str, given: str = "") -> None:
        runner = CliRunner(env={"NO_COLOR": "1", "COLUMNS": "80"})
        with runner.isolation(given.encode()) as (out, err, _):
            self.code = cli.run_command(words)
            self.out = out.getvalue().decode()
            self.err = err.getvalue().decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def words(self) -> str:
        return " ".join(self.out.split())


@pytest.fixture(autouse=True)
def _no_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("ONCEMORE_POLICY_ROOT", raising=False)
    yield
    files.forget()


# show


@pytest.mark.req("BACKOFF-23")
def test_show_gives_the_worst_case_as_the_sum_of_the_longest_delays() -> None:
    ran = Ran("policy", "show", "kfm-loop")
    assert (ran.code, ran.err) == (0, "")
    assert "6 attempts, 670 s (11 min 10 s) of delays\n" in ran.out
    assert "1675 s (27 min 55 s) of delays with tuning at its limit, x 2.5\n" in ran.out
    table = re.findall(r"(?m)^ +(\d)  +(\d+)  +(\d+)  +(\d+)  +(\d+)$", ran.out)
    rows = [tuple(map(int, row)) for row in table]
    assert rows == [(1, 20, 20, 30, 75), (2, 40, 40, 50, 125), (3, 80, 80, 90, 225), (4, 160, 160, 170, 425),
                    (5, 320, 320, 330, 825)]  # fmt: skip
    assert sum(row[3] for row in rows) == 670
    assert sum(row[4] for row in rows) == 1675


def test_show_gives_every_value_with_its_meaning_spelling_and_remark() -> None:
    text = Ran("policy", "show", "kfm-rules").words
    assert (
        "base_delay_s 0.5 the first delay, from which the next ones grow [base_delay_sec in the file" in text
    )
    assert "max_delay_s 30 the cap: no delay is longer [max_delay_sec in the file" in text
    assert "timeout_s 30 time limit of one attempt [ours" in text
    loop = Ran("policy", "show", "kfm-loop").words
    assert "jitter_span_s 10 the most that additive jitter adds; default: base_delay_s [ours (G-2)]" in loop
    assert (
        "carbon_low 250 grid intensity where stretching begins [carbon_intensity_threshold_g_per_kWh" in loop
    )
    assert "lease: ttl_s 60, renew_every_s 20" in loop
    assert "Kansas Frontier Matrix, Deterministic Retry Loop Pattern" in loop
    assert "retried TransientError" in loop


def test_show_says_which_file_a_value_is_from() -> None:
    fields = {field.name: field for field in build_sheet(find_policy("p2-batch-reporting")).fields}
    assert (fields["base_delay_s"].value, fields["base_delay_s"].defined_in) == (30.0, "p2-batch-reporting")
    assert (fields["max_delay_s"].value, fields["max_delay_s"].defined_in) == (900.0, "kfm-loop")
    assert (fields["factor"].value, fields["factor"].defined_in) == (2.0, "")


def test_show_counts_retries_as_calls() -> None:
    text = Ran("policy", "show", "nova-cat/acquisition").words
    assert "4 attempts, 250 s (4 min 10 s) of delays" in text
    assert "max_attempts 4 number of calls that may fail, the first included [max_retries in the file" in text
    assert "3850 s (64 min 10 s) in total, with every attempt at its time limit" in text, (
        "as section 5.4 says"
    )


@pytest.mark.parametrize("name", ["EXECUTION_EXPIRATION", "REPLAY_PROCESSING"])
def test_show_calls_one_attempt_no_retry_and_keeps_its_numbers(name: str) -> None:
    text = Ran("policy", "show", f"exoarmur/{name}").words
    assert "1 attempt: no retry" in text
    assert "base_delay_s 1 " in text
    assert "after from planned" not in text
    assert f"{name} 1 (no retry)" in Ran("policy", "show", "exoarmur").words


@pytest.mark.parametrize("name", [row.name for row in policy_catalogue.list_profiles()])
def test_every_packaged_policy_can_be_shown_drawn_and_explained(name: str) -> None:
    for policy in files.profile(name).policies:
        address = f"{name}/{policy}"
        shown = Ran("policy", "show", address, "--json")
        assert shown.code == 0, shown.err
        found = files.policy(address)
        assert shown.json["worst"]["calls"] == found.max_attempts
        assert shown.json["worst"]["delay_s"] == pytest.approx(found.max_total_delay_s)
        assert shown.json["digest"] == found.digest
        assert Ran("policy", "show", address).code == 0
        assert Ran("policy", "plot", address, "--runs", "2").code == 0
        assert Ran("policy", "show", address, "--attempt", "1").code == 0


def test_lines_fit_on_eighty_columns() -> None:
    for words in (["list"], ["show", "kfm-loop"], ["show", "exoarmur/NATS_CONNECT"], ["show", "lit"],
                  ["plot", "kfm-rules", "--runs", "3"], ["diff", "kfm-loop", "kfm-rules"],
                  ["show", "kfm-loop", "--attempt", "2"], ["show", "--help"], ["--help"]):  # fmt: skip
        ran = Ran("policy", *words)
        assert ran.code == 0
        assert [line for line in ran.out.splitlines() if len(line) > 80] == []


def test_show_warns_of_what_is_unwise(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    path.write_text('version: "1"\nretry_policy: {max_attempts: 50, base_delay_s: 900, max_delay_s: 900}\n')
    ran = Ran("policy", "show", str(path))
    assert "warning: policy long: up to 50 calls and 44100 s of waiting" in ran.words
    assert ran.err == "", "a warning is part of the answer, and said once"
    assert "and 37 more" in ran.out


def test_show_gives_a_providers_numbers(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD + "providers: {eso: {retry_policy: {max_attempts: 2}}}\n")
    assert "4 attempts" in Ran("policy", "show", str(path)).out
    assert "eso (--provider NAME shows them)" in Ran("policy", "show", str(path)).out
    for words in ([str(path), "--provider", "eso"], [f"{path}@eso"]):
        text = Ran("policy", "show", *words).out
        assert text.startswith("mine for provider eso, version 1")
        assert "2 attempts, 1 s of delays" in text
    stranger = Ran("policy", "show", str(path), "--provider", "esso").words
    assert "the profile does not mention provider esso (did you mean eso?)" in stranger


# What would it do?


def test_an_attempt_is_decided_and_explained() -> None:
    ran = Ran("policy", "show", "p0-storm-nowcast", "--attempt", "1", "--intensity", "620", "--price", "0.31")
    assert ran.out.startswith("retry in 5.303 s\n"), "section 5.2, example B"
    assert "4.24273 s x 1.25 x 1 (grid intensity 620 g/kWh" in ran.words
    ended = Ran("policy", "show", "kfm-loop", "--attempt", "6")
    assert ended.out.startswith("stop (max_attempts_exceeded)\n")
    assert (ran.code, ended.code) == (0, 0)


def test_a_proof_is_printed_as_its_canonical_bytes() -> None:
    asked = (
        "policy",
        "show",
        "kfm-rules",
        "--attempt",
        "2",
        "--run-id",
        "0193a000-0000-7000-8000-000000000001",
    )
    ran = Ran(*asked, "--proof")
    proof = json.loads(ran.out)
    assert proof["delay_s"] == pytest.approx(1.916976, abs=1e-6)
    assert proof["policy"]["digest"] == files.policy("kfm-rules").digest
    assert ran.out == json.dumps(proof, separators=(",", ":"), sort_keys=True).replace(".0,", ",") + "\n"
    assert Ran(*asked, "--json").json["canonical"] + "\n" == ran.out


def test_a_proof_needs_an_attempt_and_numbers_must_be_finite() -> None:
    ran = Ran("policy", "show", "kfm-loop", "--proof")
    assert (ran.code, ran.out) == (2, "")
    assert "--proof needs --attempt" in ran.err
    for value in ("inf", "nan", "-1", "x"):
        refused = Ran("policy", "show", "kfm-loop", "--attempt", "1", "--retry-after", value)
        assert refused.code == 2
        assert f"{value!r} is not a number >= 0" in refused.err
    assert Ran("policy", "show", "kfm-loop", "--attempt", "1", "--price", "-inf").code == 2
    assert Ran("policy", "show", "kfm-loop", "--attempt", "1", "--deadline-in", "-5").code == 0


# check


@pytest.mark.req("POL-9")
def test_check_refuses_a_misspelt_field_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(MISSPELT)
    ran = Ran("policy", "check", str(path))
    assert ran.code == 1
    assert f"{path}:4:3: retry_policy.max_attempt is not a field; did you mean max_attempts?\n" in ran.out


def test_check_tells_every_fault_of_every_file_and_of_standard_input(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(GOOD)
    bad.write_text("version: 1\nretry_policy:\n  timeout_s: x\n  base_delay_s: -1\n")
    ran = Ran("policy", "check", str(good), str(bad), "-", given=MISSPELT)
    assert ran.code == 1
    places = re.findall(r"(?m)^\S*?([\w<>.]+):(\d+):\d+: ", ran.out)
    assert places == [("bad.yaml", "1"), ("bad.yaml", "3"), ("bad.yaml", "4"), ("<stdin>", "4")]
    assert f"{good}: valid: good version 1, 1 policy\n" in ran.out
    assert ran.out.endswith("3 files, 2 not valid\n")


def test_check_in_json_has_a_row_for_each_file(tmp_path: Path) -> None:
    ran = Ran("policy", "check", "-", "--json", given=MISSPELT)
    assert ran.code == 1
    (row,) = ran.json
    assert not row["good"]
    assert row["faults"][0] == {
        "file": "<stdin>", "line": 4, "column": 3, "field": "retry_policy.max_attempt",
        "message": "is not a field; did you mean max_attempts?",
    }  # fmt: skip
    good = Ran("policy", "check", "-", "--json", given=GOOD)
    assert (good.code, good.json[0]["good"], good.json[0]["policies"]) == (0, True, ["default"])


def test_check_says_what_is_unwise_and_lets_it_pass() -> None:
    ran = Ran("policy", "check", "-", given=GOOD.replace("4", "11"))
    assert ran.code == 0
    assert "<stdin>: warning: policy stdin: up to 11 calls" in ran.out


def test_check_knows_packaged_files_by_any_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(policy_catalogue.PACKAGE_FOLDER / "profiles")
    ran = Ran("policy", "check", "kfm-loop.yaml", "retry-loop/policies/default.yaml")
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "2 files, all valid")


# diff


def test_diff_compares_by_field_schedule_and_decision() -> None:
    ran = Ran("policy", "diff", "kfm-loop", "p0-storm-nowcast")
    assert ran.code == 0
    text = ran.words
    assert "max_attempts 6 4 " in text
    assert "3 80, 80, 90 16, 16, 18 " in text
    assert "4 160, 160, 170 no further attempt" in text
    assert "worst 11 min 10 s for 6 calls 34 s for 4 calls" in text
    assert "p0-storm-nowcast waits 5.303, 12.396, 20.536 s, then stop (max_attempts_exceeded)" in text


def test_diff_shows_of_two_lists_what_only_one_has() -> None:
    text = Ran("policy", "diff", "kfm-loop", "kfm-rules").words
    assert "non_retryable (8 in both) kfm-loop: PermanentError kfm-rules: nothing more" in text
    assert "HTTP 501 kfm-loop stop (not_retryable) kfm-rules waits 0.121" in text


def test_diff_of_policies_that_decide_alike_says_so() -> None:
    ran = Ran("policy", "diff", "kfm-loop", "kfm-loop-default", "--exit-code")
    assert (ran.code, ran.out.splitlines()[0]) == (
        0,
        "kfm-loop and kfm-loop-default make the same decisions.",
    )
    assert Ran("policy", "diff", "kfm-loop", "kfm-rules", "--exit-code").code == 1


def test_diff_of_classes_alone_says_that_the_delays_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "strict.yaml"
    path.write_text("version: retry-loop-v11.3\nextends: kfm-loop\nclassify: {retryable: [THROTTLED]}\n")
    text = Ran("policy", "diff", "kfm-loop", str(path)).words
    assert "Delays: no difference" in text
    assert "different in" in text
    retrying = tmp_path / "cost.yaml"
    retrying.write_text("version: retry-loop-v11.3\nextends: kfm-loop\nretry_policy: {retry_cost: 2}\n")
    assert "Decisions: the same in all 12 example" in Ran("policy", "diff", "kfm-loop", str(retrying)).words


def test_diff_in_json_holds_the_proofs_of_both() -> None:
    found = Ran("policy", "diff", "kfm-loop", "kfm-rules", "--json").json
    steps = next(course for course in found["courses"] if course["example"] == "HTTP 503")
    assert steps["a"][0]["proof"]["policy"]["version"] == "retry-loop-v11.2"
    assert steps["b"][0]["proof"]["delay_s"] == steps["b"][0]["delay_s"]
    assert steps["parts_at"] == 1


# plot


def test_plot_draws_with_blocks_and_says_what_they_mean() -> None:
    ran = Ran("policy", "plot", "kfm-rules", "--seed", "release-7", "--runs", "2")
    assert "█ shortest   ░ jitter   │ planned   • sample runs" in ran.out
    assert re.search(r"(?m)^seed release-7: [\d., ]+\nseed release-7-2: [\d., ]+$", ran.out)
    assert "1 attempt: no retry" in Ran("policy", "plot", "exoarmur/REPLAY_PROCESSING").out


def test_plot_writes_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "p.svg"
    ran = Ran("policy", "plot", "kfm-loop", "--svg", str(path))
    assert (ran.code, ran.out) == (0, f"wrote {path}\n")
    runs = [e for e in ElementTree.parse(path).iter() if e.get("class") == "run" and "points" in e.attrib]  # noqa: S314
    assert len(runs) == 5
    assert Ran("policy", "plot", "kfm-loop", "--svg", "-").out == path.read_text(encoding="utf-8")
    told = Ran("policy", "plot", "kfm-loop", "--svg", str(path), "--json").json
    assert (told["svg"], len(told["graph"]["samples"])) == (str(path), 5)


def test_plot_of_a_literal_seed_has_one_run_to_show(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text('version: "1"\nretry_policy: {jitter: full, jitter_seed: always}\n')
    assert [s["seed"] for s in Ran("policy", "plot", str(path), "--runs", "3", "--json").json["samples"]] == [
        "always"
    ]
    given = Ran("policy", "plot", str(path), "--runs", "2", "--seed", "s", "--json").json
    assert [s["seed"] for s in given["samples"]] == ["s", "s-2"]


def test_plot_refuses_two_things_on_one_stream_and_a_place_that_is_not_there(tmp_path: Path) -> None:
    assert Ran("policy", "plot", "kfm-loop", "--svg", "-", "--json").code == 2
    ran = Ran("policy", "plot", "kfm-loop", "--svg", str(tmp_path / "no" / "x.svg"))
    assert (ran.code, ran.out) == (2, "")
    assert "No such file or directory. Check the path" in " ".join(ran.err.split())


# list, schema


@pytest.mark.req("POL-8")
def test_list_has_packaged_profiles_and_all_files_below_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "retry-loop" / "policies"
    folder.mkdir(parents=True)
    folder.joinpath("mine.yaml").write_text(GOOD)
    folder.joinpath("broken.yaml").write_text("version: 7\n")
    monkeypatch.setenv("ONCEMORE_POLICY_ROOT", str(tmp_path))
    ran = Ran("policy", "list", "--json")
    rows = {row["name"]: row for row in ran.json}
    assert rows.keys() >= {
        "standard",
        "kfm-rules",
        "kfm-loop",
        "lit",
        "nova-cat",
        "exoarmur",
        "mine",
        "broken",
    }
    mine = rows["mine"]
    assert (mine["version"], mine["signature"], mine["attempts"], mine["timeout_s"]) == (
        "1",
        "unsigned",
        [4, 4],
        [5, 5],
    )
    assert not mine["packaged"]
    assert "version" in rows["broken"]["fault"]
    text = Ran("policy", "list").words
    assert "mine 1 no 4 5 s no " in text
    assert "broken cannot be used:" in text
    assert "kfm-loop retry-loop-v11.2 yes 6 3600 s by digest package" in text


def test_the_kept_list_is_in_step_with_the_files() -> None:
    assert (
        policy_catalogue.PACKAGED_ROWS_FILE.read_text(encoding="utf-8") == policy_catalogue.packaged_json()
    ), "python tools/profiles.py --write"
    assert policy_catalogue.list_profiles() == policy_catalogue.read_profiles()


@pytest.mark.parametrize("fault", ["", "[]", "[{}]", "{", '[{"name": "x"}]'])
def test_a_kept_list_that_is_not_about_these_files_is_not_used(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = policy_catalogue.list_profiles()
    kept = policy_catalogue.PACKAGED_ROWS_FILE.read_text(encoding="utf-8")
    stale = tmp_path / "packaged.json"
    stale.write_text(fault or kept.replace(wanted[0].digest, "0" * 64))
    monkeypatch.setattr(policy_catalogue, "PACKAGED_ROWS_FILE", stale)
    assert policy_catalogue.list_profiles() == wanted


def test_schema_is_the_published_one() -> None:
    assert Ran("policy", "schema").json == json.loads(json.dumps(files.schema()))


# Names that nobody knows.


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("policy", "show", "kfm-lop"), "there is no policy 'kfm-lop' (did you mean kfm-loop?)"),
        (("policy", "show", "exoarmur/KV_GETT"), "exoarmur has no policy 'KV_GETT' (did you mean KV_GET"),
        (("policy", "show", "nope.yaml"), "there is no file nope.yaml"),
        (("policy", "check", "nope.yaml"), "there is no file nope.yaml"),
        (("policy", "show", "a/b/c"), "'a/b/c' is not the address of a policy"),
        (("policy", "shw"), "No such command 'shw'. Did you mean 'show'?"),
        (("polcy",), "No such command 'polcy'. Did you mean 'policy'?"),
        (("policy", "list", "--jsn"), "No such option '--jsn'. Did you mean '--json'?"),
        (("policy", "check"), "Missing argument 'FILE...'"),
    ],
)
def test_an_unknown_name_gets_a_suggestion_and_exit_code_2(words: tuple[str, ...], told: str) -> None:
    ran = Ran(*words)
    assert (ran.code, ran.out) == (2, "")
    assert told in " ".join(ran.err.split())
    in_json = Ran(*words, "--json")
    assert (in_json.code, in_json.out) == (2, "")
    assert told in json.loads(in_json.err)["error"]["message"]


def test_a_file_that_cannot_be_used_is_an_answer_and_exit_code_1(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(MISSPELT)
    for words in (("show", str(path)), ("plot", str(path)), ("diff", str(path), "kfm-loop")):
        ran = Ran("policy", *words)
        assert (ran.code, ran.out) == (1, "")
        assert "max_attempt is not a field; did you mean max_attempts?" in " ".join(ran.err.split())
    path.write_text('version: "1"\npolicies: {one: {max_attempts: 2}, two: {max_attempts: 3}}\n')
    ran = Ran("policy", "show", str(path))
    assert ran.code == 2
    assert "mine has no default policy; name mine/one or mine/two." in " ".join(ran.err.split())
