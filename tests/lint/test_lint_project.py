"""A project is checked: settings, files, baseline, formats, mending; as the command does it."""

from __future__ import annotations

import gc
import io
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from oncemore import cli
from oncemore.lint import project
from oncemore.lint.project import SKIPPED_FOLDERS, check_files, mend_source, read_files, replace_source
from oncemore.lint.reports import build_sarif
from oncemore.lint.rules import RULES
from oncemore.lint.settings import LintSettings

NO_TIMEOUT = "import requests\n\ndef fetch(url):\n    return requests.get(url)\n"


@pytest.fixture
def lint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """A function that runs `oncemore lint` in an empty folder and returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run_lint(*words: str) -> tuple[int, str, str]:
        code = cli.run_command(["lint", *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run_lint


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


# Exit codes and files.


def test_exit_codes_are_0_clean_1_findings_2_usage(lint: Any) -> None:
    assert lint() == (0, "0 files checked: no findings\n", "")
    write("good.py", "x = 1\n")
    assert lint()[0] == 0
    write("bad.py", NO_TIMEOUT)
    code, out, _ = lint()
    assert code == 1
    assert (
        out.splitlines()[0]
        == "bad.py:4:12: OM108 critical: `requests.get` would wait for ever: give a timeout"
    )
    for wrong in (
        ["gone"],
        ["--explain", "OM999"],
        ["--select", "OM999"],
        ["--format", "xml"],
        ["--write-baseline"],
    ):
        code, out, err = lint(*wrong)
        assert (code, out) == (2, ""), wrong
        assert err.startswith("oncemore: "), wrong


def test_folders_that_hold_no_code_of_the_project_are_skipped(lint: Any) -> None:
    for folder in (*sorted(SKIPPED_FOLDERS), "shop.egg-info", "my-environment"):
        write(f"{folder}/bad.py", NO_TIMEOUT)
    write("my-environment/pyvenv.cfg", "")
    write("notes.txt", NO_TIMEOUT)
    assert lint()[0] == 0
    # A file that is named is always checked.
    assert lint("build/bad.py")[0] == 1
    assert lint("build")[0] == 1


def test_standard_input_is_checked(lint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(NO_TIMEOUT.encode())))
    code, out, _ = lint("-", "--stdin-filename", "job.py")
    assert (code, out.splitlines()[0].split(":")[0]) == (1, "job.py")


def test_a_file_that_cannot_be_parsed_does_not_stop_the_run(lint: Any) -> None:
    write("a.py", "def broken(:\n")
    write("b.py", NO_TIMEOUT)
    code, out, _ = lint("--json")
    assert code == 1
    assert [one["rule"] for one in json.loads(out)["findings"]] == ["OM000", "OM108"]


# Settings.


def test_settings_select_ignore_exclude_and_grade(lint: Any) -> None:
    write("bad.py", NO_TIMEOUT)
    write("vendor/bad.py", NO_TIMEOUT)
    write("tests/test_bad.py", NO_TIMEOUT)
    write(
        "pyproject.toml",
        "[tool.oncemore.lint]\nexclude = ['vendor']\nseverity = { OM108 = 'warning' }\n"
        "[tool.oncemore.lint.per-file-ignores]\n'tests/*' = ['OM108 because the server is in the process']\n",
    )
    code, out, _ = lint("--json")
    report = json.loads(out)
    assert code == 1
    assert [(one["path"], one["severity"]) for one in report["findings"]] == [("bad.py", "warning")]
    assert [(one["path"], one["reason"]) for one in report["suppressed"]] == [
        ("tests/test_bad.py", "the server is in the process")
    ]
    # From another folder the same settings are found.
    assert len(json.loads(lint("tests", "--json")[1])["suppressed"]) == 1
    assert lint("--select", "OM101")[0] == 0
    assert lint("--select", "all")[0] == 1


def test_a_rule_is_ignored_only_with_a_reason_and_never_in_silence(lint: Any) -> None:
    write("bad.py", NO_TIMEOUT)
    write("pyproject.toml", "[tool.oncemore.lint]\nignore = ['OM108 because the proxy ends every request']\n")
    code, out, _ = lint()
    assert code == 0
    assert "OM108 is off (pyproject.toml): the proxy ends every request" in out
    write("pyproject.toml", "[tool.oncemore.lint]\nignore = ['OM108']\n")
    code, out, _ = lint()
    assert code == 1
    assert re.search(r"pyproject.toml:1:1: OM100 critical: .*it has no reason", out)
    assert "bad.py:4:12: OM108" in out
    write("pyproject.toml", "[tool.oncemore.lint.per-file-ignores]\n'bad.py' = ['OM108']\n")
    assert [line.split()[1] for line in lint()[1].splitlines() if ": OM" in line] == ["OM100", "OM108"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("selct = ['OM101']", "selct is not a setting"),
        ("select = ['OM1']", "'OM1' is not a rule"),
        ("select = 'OM101'", "select must be a list of strings"),
        ("severity = { OM101 = 'fatal' }", "use the id of a rule and one of critical, warning, note"),
        ("severity = 'low'", "severity must be a table"),
        ("[tool]\noncemore = 3", "oncemore must be a table"),
        ("select = [", "pyproject.toml"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_with_their_key(lint: Any, table: str, message: str) -> None:
    write("pyproject.toml", table if "[tool]" in table else f"[tool.oncemore.lint]\n{table}\n")
    code, _, err = lint()
    assert code == 2
    assert message in " ".join(err.split())


# Baseline.


def test_a_baseline_reports_only_new_findings_and_survives_moved_lines(lint: Any) -> None:
    write("bad.py", NO_TIMEOUT)
    assert lint("--baseline", "known.json")[0] == 2
    assert lint("--baseline", "known.json", "--write-baseline")[0] == 0
    code, out, _ = lint("--baseline", "known.json")
    assert (code, out) == (0, "1 file checked: no findings (1 in the baseline)\n")
    write("bad.py", "# A new line.\n\nimport os\n" + NO_TIMEOUT.replace("(url)\n", "(url)  \n"))
    assert lint("--baseline", "known.json")[0] == 0
    # A second call that looks the same is a new finding.
    write("bad.py", NO_TIMEOUT + "    return requests.get(url)\n")
    assert len(json.loads(lint("--baseline", "known.json", "--json")[1])["findings"]) == 1
    write("bad.py", "x = 1\n")
    assert "1 of the baseline are gone, write it again" in lint("--baseline", "known.json")[1]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 9, "findings": []}', '{"version": 1, "findings": [1]}']
)
def test_a_baseline_that_cannot_be_used_is_refused_with_its_name(lint: Any, text: str) -> None:
    write("known.json", text)
    code, _, err = lint("--baseline", "known.json")
    assert code == 2
    assert "known.json: " in err


# Formats.


def test_github_annotations_are_escaped(lint: Any) -> None:
    write("a,b.py", NO_TIMEOUT)
    assert lint("--format", "github")[1] == (
        "::error file=a%2Cb.py,line=4,endLine=4,col=12,title=OM108 external call without a timeout::"
        "`requests.get` would wait for ever: give a timeout\n"
    )


#: The parts of the SARIF 2.1.0 schema that a code scanning service reads, closed against misspelt names.
SARIF = json.loads((Path(__file__).parent / "sarif-subset.schema.json").read_text(encoding="utf-8"))


def test_sarif_is_valid_and_holds_rules_fingerprints_and_reasons(lint: Any) -> None:
    write("bad file.py", NO_TIMEOUT + "requests.get('u')  # oncemore: allow OM108 because it is local\n")
    code, out, _ = lint("--format", "sarif")
    log = json.loads(out)
    jsonschema_rs.validator_for(SARIF, validate_formats=True).validate(log)
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["OM000", "OM100", *RULES]
    assert [rules[result["ruleIndex"]]["id"] for result in run["results"]] == ["OM108", "OM108"]
    assert code == 1
    first, second = run["results"]
    assert first["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "bad%20file.py"
    assert "suppressions" not in first
    assert second["suppressions"] == [{"kind": "inSource", "justification": "it is local"}]


def test_sarif_holds_files_that_cannot_be_parsed_by_their_first_line(lint: Any) -> None:
    write("broken.py", "def broken(:\n")
    log = json.loads(lint("--format", "sarif")[1])
    jsonschema_rs.validator_for(SARIF, validate_formats=True).validate(log)
    (result,) = log["runs"][0]["results"]
    assert result["ruleId"] == "OM000"
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 1


def test_sarif_without_findings_has_an_empty_list() -> None:
    log = build_sarif(check_files(iter(()), LintSettings()), "1.0")
    jsonschema_rs.validator_for(SARIF).validate(log)
    assert log["runs"][0]["results"] == []


def test_the_strict_schema_refuses_a_misspelt_name() -> None:
    log = build_sarif(check_files(iter(()), LintSettings()), "1.0")
    log["runs"][0]["result"] = []
    assert not jsonschema_rs.validator_for(SARIF).is_valid(log)


def test_statistics_explanations_and_the_list_of_rules_are_printed(lint: Any) -> None:
    write("bad.py", NO_TIMEOUT)
    code, out, _ = lint("--statistics")
    assert code == 1
    assert re.search(r"(?m)^OM108 +1  external call without a timeout$", out)
    code, out, _ = lint("--explain", "om108")
    assert code == 0
    assert out.startswith("# OM108: ")
    assert "    return requests.get(url, timeout=10)\n" in out
    assert all(rule in lint("--explain", "list")[1] for rule in RULES)


# Mending.


IMPORTS = "import backoff, celery, requests, tenacity, urllib3"
MENDED = [
    ("requests.get(u)", "requests.get(u, timeout=10)"),
    ("requests.get(u,)", "requests.get(u, timeout=10)"),
    ("requests.get((u))", "requests.get((u), timeout=10)"),
    ("requests.get(u, timeout=None)", "requests.get(u, timeout=10)"),
    ("é = requests.get('ü')", "é = requests.get('ü', timeout=10)"),
    (
        "requests.get(\n    u,\n    headers={},\n)",
        "requests.get(\n    u,\n    headers={},\n    timeout=10,\n)",
    ),
    ("requests.get(\n    u\n)", "requests.get(\n    u, timeout=10\n)"),
    ("requests.post(requests.get(u))", "requests.post(requests.get(u, timeout=10), timeout=10)"),
    (
        "@tenacity.retry\ndef f(): ...",
        "@tenacity.retry(stop=tenacity.stop_after_attempt(5), "
        "wait=tenacity.wait_random_exponential(max=60))\n"
        "def f(): ...",
    ),
    (
        "from tenacity import retry\n@retry()\ndef f(): ...",
        "from tenacity import retry, stop_after_attempt, wait_random_exponential\n"
        "@retry(stop=stop_after_attempt(5), wait=wait_random_exponential(max=60))\ndef f(): ...",
    ),
    (
        "@backoff.on_exception(backoff.expo, OSError)\ndef f(): ...",
        "@backoff.on_exception(backoff.expo, OSError, max_tries=5)\ndef f(): ...",
    ),
    (
        "from os import path\nfrom tenacity import stop_after_attempt\nfrom tenacity import retry as again\n"
        "@again(wait=path)\ndef f(): ...",
        "from os import path\nfrom tenacity import stop_after_attempt\nfrom tenacity import retry as again\n"
        "@again(wait=path, stop=stop_after_attempt(5))\ndef f(): ...",
    ),
    ("urllib3.Retry(total=None, backoff_factor=0)", "urllib3.Retry(total=5, backoff_factor=0.5)"),
    (
        "urllib3.Retry(3, respect_retry_after_header=False, backoff_factor=1)",
        "urllib3.Retry(3, respect_retry_after_header=True, backoff_factor=1)",
    ),
    (
        "@celery.shared_task(autoretry_for=(OSError,), max_retries=None)\ndef f(): ...",
        "@celery.shared_task(autoretry_for=(OSError,), max_retries=5, retry_backoff=True)\ndef f(): ...",
    ),
]
#: A layout with a comment between the arguments is left to a person, and a suppression is obeyed.
LEFT_ALONE = [
    "requests.get(\n    u  # the page\n)",
    "requests.get(\n    u,\n\n)",
    "requests.get(u for u in x)",
    "from tenacity.asyncio import AsyncRetrying\nAsyncRetrying()",
    "requests.get(u)  # oncemore: allow OM108 because it is local",
]


@pytest.mark.parametrize(("before", "after"), [*MENDED, *((one, one) for one in LEFT_ALONE)])
def test_mechanical_findings_are_mended_in_place_and_once(before: str, after: str) -> None:
    for newline in ("\n", "\r\n"):
        for encoding in ("utf-8", "utf-8-sig"):
            data, wanted = (
                f"{IMPORTS}\n{text}\n".replace("\n", newline).encode(encoding) for text in (before, after)
            )
            mended = mend_source(data, "a.py", LintSettings())
            assert mended == wanted
            assert mend_source(mended, "a.py", LintSettings()) == mended


def test_mending_ends_after_a_number_of_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "_MAX_PASSES", 1)
    once = mend_source(b"import tenacity\n@tenacity.retry\ndef f(): ...\n", "a.py", LintSettings())
    assert b"stop=" in once
    assert b"wait=" not in once


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with project.paused_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    with project.paused_collector():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_mending_changes_only_lines_with_a_finding_and_is_stable() -> None:
    for sample in sorted(Path(__file__).parent.glob("samples/om1*_bad.py")):
        before = sample.read_bytes()
        after = mend_source(before, "a.py", LintSettings())
        compile(after, "a.py", "exec")
        assert mend_source(after, "a.py", LintSettings()) == after
        old, new = before.decode().splitlines(), after.decode().splitlines()
        assert len(old) == len(new)
        for one, other in zip(old, new, strict=True):
            assert one == other or "# finds" in one or " import " in one, one


def test_fix_writes_the_files_and_diff_only_shows_them(lint: Any) -> None:
    path = write("bad.py", NO_TIMEOUT)
    path.chmod(0o755)
    code, out, err = lint("--diff")
    assert (code, err) == (1, "1 file would be changed.\n")
    assert "-    return requests.get(url)\n+    return requests.get(url, timeout=10)\n" in out
    assert path.read_text() == NO_TIMEOUT
    code, out, err = lint("--fix")
    assert (code, out) == (0, "1 file checked: no findings\n")
    assert "1 file changed" in err
    assert path.read_text() == NO_TIMEOUT.replace("(url)\n", "(url, timeout=10)\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert lint("--fix")[2] == ""
    assert [path.name for path in Path().iterdir()] == ["bad.py"]


def test_a_failed_replacement_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.py"
    path.write_text("old")
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            target: Any = os if name == "fsync" else Path
            patch.setattr(target, name, _fail)
            with pytest.raises(OSError, match="no space"):
                replace_source(path, b"new")
        assert [one.name for one in tmp_path.iterdir()] == ["a.py"]
        assert path.read_text() == "old"


def _fail(*_: object) -> None:
    raise OSError("no space")


def test_a_link_is_followed_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "real.py"
    path.write_text("old")
    (tmp_path / "link.py").symlink_to(path)
    replace_source(tmp_path / "link.py", b"new")
    assert (tmp_path / "link.py").is_symlink()
    assert path.read_text() == "new"


def test_paths_are_shown_relative_to_the_folder_in_which_the_command_runs(tmp_path: Path) -> None:
    write(str(tmp_path / "src/a.py"), "")
    (file,) = read_files([tmp_path / "src/a.py"], tmp_path)
    assert file.path == "src/a.py"
    (file,) = read_files([tmp_path / "src/a.py"], tmp_path / "other")
    assert file.path == str(tmp_path / "src/a.py")
