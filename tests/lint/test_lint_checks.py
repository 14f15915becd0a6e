"""One source is checked: names, suppressions, files that cannot be read, and independence of the package."""

from __future__ import annotations

import ast
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oncemore.lint.check import check_bytes, check_source
from oncemore.lint.facts import ModuleFacts
from oncemore.lint.rules import RULES
from oncemore.lint.suppressions import find_suppressions

ROOT = Path(__file__).resolve().parents[2]
LOOP = """import time
import requests

def fetch(url):
    {above}
    for attempt in range(5):{beside}
        try:
            return requests.get(url, timeout=5)
        except requests.ConnectionError:
            time.sleep(3)
"""


def found(source: str) -> list[tuple[str, int]]:
    return [(one.rule, one.line) for one in check_source(source, "a.py") if not one.reason]


# Names.


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import requests\nrequests.get", "requests.get"),
        ("import requests as r\nr.get", "requests.get"),
        ("import urllib.request\nurllib.request.urlopen", "urllib.request.urlopen"),
        ("import urllib.request as u\nu.urlopen", "urllib.request.urlopen"),
        ("from requests import get as g\ng", "requests.get"),
        ("import requests\ns = requests.Session()\ns.get", "requests.Session().get"),
        ("import requests\nrequests.Session().get", "requests.Session().get"),
        ("from .requests import get\nget", ""),
        ("import boto3\ns = boto3.client('s3')\ns = boto3.resource('s3')\ns.put", ""),
        ("unknown.get", ""),
        ("eval", "eval"),
        ("from safe import eval\neval", "safe.eval"),
    ],
)
def test_names_are_resolved_through_imports_and_variables(source: str, expected: str) -> None:
    tree = ast.parse(source)
    last = tree.body[-1]
    assert isinstance(last, ast.Expr)
    assert ModuleFacts(tree, source).resolve(last.value) == expected


def test_a_client_in_one_function_says_nothing_about_another_function() -> None:
    source = (
        "import requests\ndef one():\n    c = requests.Session()\n    c.get('u')\n"
        "def two(cache):\n    c = cache.open()\n    c.get('key')\n"
    )
    assert found(source) == [("OM108", 4)]


def test_a_chain_of_many_calls_is_read() -> None:
    chain = "query" + ".where(1)" * 900
    assert found(f"import requests\nrequests.get({chain}, timeout=1)\n") == []


# Suppressions.


@pytest.mark.parametrize(
    ("above", "beside"),
    [
        ("# oncemore: allow OM102 because the server runs on this machine", ""),
        ("pass", "  # oncemore: allow OM102 because the server runs on this machine"),
        ("# oncemore: allow OM101, OM102 because it is so\n    # and another comment", ""),
    ],
)
def test_a_suppression_with_a_reason_sets_the_finding_aside(above: str, beside: str) -> None:
    source = LOOP.format(above=above, beside=beside)
    findings = check_source(source, "a.py", ["OM102"])
    assert [one.rule for one in findings] == ["OM102"]
    assert findings[0].reason


@pytest.mark.req("CI-13")
@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ("# oncemore: allow OM102", "has no reason"),
        ("# oncemore: allow OM102 because", "has no reason"),
        ("# oncemore: allow OM102 because   ", "has no reason"),
        ("# oncemore: allow because it is fine", "names no rule"),
        ("# oncemore: allow OM999 because it is fine", "OM999 is not a rule"),
        ("# oncemore: ignore OM102", "not understood"),
    ],
)
def test_a_suppression_without_reason_has_no_effect_and_is_a_finding(comment: str, message: str) -> None:
    findings = check_source(LOOP.format(above=comment, beside=""), "a.py")
    assert [(one.rule, bool(one.reason)) for one in findings] == [("OM100", False), ("OM102", False)]
    assert message in findings[0].message


def test_a_suppression_that_sets_nothing_aside_is_a_finding() -> None:
    assert found("x = 1  # oncemore: allow OM102 because it was needed once\n") == [("OM100", 1)]
    # Only rules that ran can show that it is not needed.
    assert check_source("x = 1  # oncemore: allow OM109 because it is a script\n", "a.py") == []


def test_a_string_that_looks_like_a_suppression_is_not_one() -> None:
    assert found('text = "# oncemore: allow OM102"\n') == []


def test_comments_before_an_unfinished_line_are_read() -> None:
    found_comments = find_suppressions("x = (  # oncemore: allow OM102 because it is so\n", RULES)
    assert [one.rules for one in found_comments] == [("OM102",)]


def test_jitter_of_a_seeded_generator_is_accepted() -> None:
    source = "import random\n{}def retry_delay(n):\n    return random.random()\n"
    assert len(check_source(source.format(""), "a.py", ["OM111"])) == 1
    assert check_source(source.format("random.seed(7)\n"), "a.py", ["OM111"]) == []


def test_a_suppression_covers_its_own_statement_only() -> None:
    source = (
        "import requests\n"
        "requests.get('a')  # oncemore: allow OM108 because it is local\n"
        "requests.get('b')\n"
        "requests.get(\n    'c',\n)  # oncemore: allow OM108 because it is local\n"
    )
    assert found(source) == [("OM108", 3)]


# Files that cannot be read, and odd ones.


@pytest.mark.parametrize(
    "data",
    [
        b"def broken(:\n",
        b"print 'python 2'\n",
        b"x = '\xff\xfe'\n",
        b"# -*- coding: unknown-8 -*-\n",
        b"x = 1\0\n",
        b"x = " + b"(" * 5000 + b")" * 5000,
        b"x = " + b"-" * 100_000 + b"1",
    ],
    ids=["syntax", "python2", "not-utf8", "unknown-encoding", "null", "nested", "deep"],
)
def test_a_file_that_cannot_be_parsed_is_a_finding_and_not_a_crash(data: bytes) -> None:
    findings = check_bytes(data, "a.py")
    assert [one.rule for one in findings] == ["OM000"]
    assert re.match("the file cannot be (parsed|decoded): .", findings[0].message)


def test_other_encodings_and_line_ends_are_read() -> None:
    latin = "# -*- coding: latin-1 -*-\nimport requests\nname = 'é'; requests.get(name)\n".encode("latin-1")
    marked = "\ufeffimport requests\nrequests.get('é')\n".encode()
    old_mac = b"import requests\rrequests.get('u')\r"
    windows = b"import requests\r\nrequests.get('u')\r\n"
    places = [
        [(one.rule, one.line, one.column) for one in check_bytes(data, "a.py")]
        for data in (latin, marked, old_mac, windows)
    ]
    # Columns count characters: the é is two bytes of the parser's text.
    assert places == [[("OM108", 3, 13)], [("OM108", 2, 1)], [("OM108", 2, 1)], [("OM108", 2, 1)]]


def test_an_empty_file_is_clean() -> None:
    assert check_bytes(b"", "a.py") == []


def test_mutilated_sources_never_crash_the_linter() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    samples = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("samples/*.py")]
    for _ in range(150):
        lines = generator.choice(samples).splitlines()
        for _ in range(generator.randrange(1, 6)):
            # Lines are removed, repeated and moved; most results still parse.
            place = generator.randrange(len(lines))
            lines[place : place + generator.randrange(2)] = [generator.choice(lines)] * generator.randrange(3)
        for finding in check_source("\n".join(lines), "a.py", tuple(RULES)):
            assert finding.line >= 1


# Independence.


def test_the_linter_works_where_only_its_folder_can_be_imported(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src/oncemore/lint", tmp_path / "oncemore/lint")
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from oncemore.lint.project import check_files, find_files, read_files\n"
        "from oncemore.lint.settings import LintSettings\nfrom pathlib import Path\n"
        "r = check_files(read_files(find_files([sys.argv[2]]), Path.cwd()), LintSettings())\n"
        "ours = {m for m in sys.modules if m.startswith('oncemore.')}\n"
        "assert all(m.startswith('oncemore.lint') for m in ours), ours\n"
        "print(len(r.findings))\n"
    )  # fmt: skip
    target = tmp_path / "a.py"
    target.write_text("import requests\nrequests.get('u')\nraise SystemExit('executed')\n")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, str(tmp_path), str(target)],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_the_command_loads_neither_the_engine_nor_a_client() -> None:
    script = (
        "import sys\nfrom oncemore.cli import run_command\ncode = run_command(['lint', sys.argv[1]])\n"
        "heavy = {'apsw', 'msgspec', 'ruamel', 'asyncio', 'oncemore.steps', 'oncemore.log'}\n"
        "sys.exit(f'loaded {heavy & set(sys.modules)}' if heavy & set(sys.modules) else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, __file__], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_this_project_passes_its_own_linter() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "oncemore", "lint", "src", "tools", "bench", "examples"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
