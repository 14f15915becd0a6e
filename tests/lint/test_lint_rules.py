"""The rules judge their samples: every marked line is found, and nothing else.

`samples/om101_bad.py` and `samples/om101_good.py` belong to OM101. A line that is to be found ends with
`# finds OM101`. The samples are read and never imported.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oncemore import cli
from oncemore.lint.check import check_source
from oncemore.lint.rules import DEFAULT_RULES, RULES
from tools import lint_corpus, lint_pages

SAMPLES = Path(__file__).parent / "samples"
MARK = re.compile(r"# finds (OM\d{3})")


def read_sample(rule: str, kind: str) -> str:
    return SAMPLES.joinpath(f"{rule.lower()}_{kind}.py").read_text(encoding="utf-8")


def marked_lines(source: str, rule: str) -> list[int]:
    return [n for n, line in enumerate(source.splitlines(), 1) if (m := MARK.search(line)) and m[1] == rule]


@pytest.mark.parametrize("rule", RULES)
def test_every_marked_line_of_the_bad_sample_is_found_and_no_other(rule: str) -> None:
    source = read_sample(rule, "bad")
    found = [finding.line for finding in check_source(source, "bad.py", [rule])]
    assert found == marked_lines(source, rule)
    assert found, "a sample without a marked line shows nothing"


@pytest.mark.parametrize("rule", RULES)
def test_the_good_sample_has_no_finding(rule: str) -> None:
    assert check_source(read_sample(rule, "good"), "good.py", [rule]) == []


@pytest.mark.req("CI-1")
def test_each_forbidden_pattern_is_reported_as_critical_with_file_line_and_rule(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for number in range(101, 112):
        rule = f"OM{number}"
        bad, good = (str(SAMPLES / f"{rule.lower()}_{kind}.py") for kind in ("bad", "good"))
        assert cli.run_command(["lint", bad, "--select", rule]) == 1
        shown = capsys.readouterr().out
        for line in marked_lines(read_sample(rule, "bad"), rule):
            assert re.search(rf"{rule.lower()}_bad\.py:{line}:\d+: {rule} critical: ", shown), (rule, line)
        assert cli.run_command(["lint", good, "--select", rule]) == 0, capsys.readouterr().out
        capsys.readouterr()


@pytest.mark.req("CI-2")
def test_a_bare_except_pass_around_a_provider_call_is_found() -> None:
    source = "import requests\ntry:\n    requests.get('u', timeout=1)\nexcept:\n    pass\n"
    assert [(one.rule, one.line) for one in check_source(source, "a.py")] == [("OM107", 4)]


@pytest.mark.req("CI-11")
def test_eval_in_a_registered_backoff_function_is_found() -> None:
    source = (
        "import oncemore\n\ndef delays(number):\n    return eval('2 ** number')\n\n"
        "@oncemore.retry(on=OSError, wait=delays)\ndef work(): ...\n"
    )
    assert [(one.rule, one.line) for one in check_source(source, "a.py")] == [("OM110", 4)]


def test_rules_for_governed_work_and_services_are_off_by_default() -> None:
    assert set(RULES) - set(DEFAULT_RULES) == {"OM109", "OM111"}


def bad_and_good_blocks(rule: str) -> tuple[str, str]:
    found = re.search(
        r"Bad:\n\n```python\n(.*?)```\n\nGood:\n\n```python\n(.*?)```", RULES[rule].page, re.DOTALL
    )
    assert found, f"the page of {rule} has a bad and a good example"
    return found[1], found[2]


@pytest.mark.parametrize("rule", RULES)
def test_the_examples_of_a_page_are_judged_as_the_page_says(rule: str) -> None:
    bad, good = bad_and_good_blocks(rule)
    assert {one.rule for one in check_source(bad, "bad.py", [*DEFAULT_RULES, rule])} >= {rule}
    assert check_source(good, "good.py", [*dict.fromkeys([*DEFAULT_RULES, rule])]) == []


@pytest.mark.parametrize("rule", RULES)
def test_the_good_example_of_a_page_runs(rule: str) -> None:
    exec(compile(bad_and_good_blocks(rule)[1], f"{rule}.md", "exec"), {"__name__": "page"})  # noqa: S102


def test_the_pages_in_the_docs_are_those_of_the_rules() -> None:
    assert lint_pages.find_differences() == [], "run python tools/lint_pages.py --write"


def test_the_table_of_precision_is_that_of_the_judged_findings() -> None:
    page = (lint_pages.ROOT / "docs/explanation/lint-precision.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| (OM\d{3}) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", page)
    judged = lint_corpus.count_judged()
    assert [row[0] for row in rows] == list(RULES)
    for rule, findings, read, true, false in rows:
        counts = judged.get(rule, {})
        assert (int(true), int(false)) == (counts.get("true", 0), counts.get("false", 0)), rule
        assert int(read) == int(true) + int(false) <= int(findings)
        # One false finding of ten is the limit for each rule.
        assert int(false) * 10 < max(1, int(read)), rule
    assert sum(int(row[2]) for row in rows) >= 200
