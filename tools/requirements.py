"""Say which requirements the last test run showed, and which are still open.

    python tools/requirements.py                 counts per group, and the open ids
    python tools/requirements.py --id BACKOFF-5  one requirement and the tests that show it
    python tools/requirements.py --json          the same facts for a program

The ids come from `docs/requirements.md`; the tests from `.requirements-run.json`, which
`tests/requirements_plugin.py` writes at the end of every run. A requirement is covered when at
least one test marked `@pytest.mark.req("ID")` passed, from set-up to teardown; skipped, failed and
expected-to-fail tests show nothing. The exit code is 1 when a test names an id that is not on the
page (a typo would otherwise look like work not done).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/requirements.md")
RUN = Path(".requirements-run.json")

#: The two tables of choices: worth a mark on a test, but nothing that could be "open".
CHOICES = {"X": "Where the documents disagree (choices)", "G": "What the documents leave open (choices)"}

_GROUP = re.compile(r"^### [\d.]+ (?P<title>.+) \((?P<group>[A-Z]+)\)$")
_LINE = re.compile(
    r"^- \*\*(?P<id>[A-Z]+-\d+)\*\* · (?P<strength>[^·]+) · (?P<source>.*?) — (?P<statement>.*)$"
)
_BULLET = re.compile(r"^\s*[-*] +\**[A-Z]+-\d+\*\*")
_ACCEPTED = re.compile(r"^  - \*Accepted when\* (?P<accepted>.*)$")
_CHOICE = re.compile(r"^\| (?P<id>[XG]-\d+) \| (?P<question>.*?) \| (?P<choice>.*) \|$")
_NOT_PLANNED = "*(not planned)*"


class Requirement(NamedTuple):
    """One line of the page."""

    id: str
    strength: str
    source: str
    statement: str
    accepted: str

    @property
    def group(self) -> str:
        """The letters before the number."""
        return self.id.partition("-")[0]

    @property
    def planned(self) -> bool:
        """Whether the page leaves it open to be done at all."""
        return _NOT_PLANNED not in self.statement


class Page(NamedTuple):
    """All requirements by id, in the order of the page, and the titles of their groups."""

    requirements: dict[str, Requirement]
    titles: dict[str, str]


def read_page(path: Path) -> Page:
    """Read the page; a requirement that is there twice or has no check is an error."""
    found: dict[str, Requirement] = {}
    titles: dict[str, str] = {}
    waiting = ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if match := _GROUP.match(line):
            titles[match["group"]] = match["title"]
        elif match := _LINE.match(line):
            _add(found, Requirement(**match.groupdict(), accepted=""), f"{path.name}:{number}")
            waiting = match["id"]
        elif match := _CHOICE.match(line):
            _add(
                found,
                Requirement(match["id"], "CHOICE", "ours", match["question"], match["choice"]),
                path.name,
            )
        elif _BULLET.match(line):
            raise SystemExit(
                f"{path.name}:{number}: not in the form '- **ID** · strength · source — statement'"
            )
        elif waiting and (match := _ACCEPTED.match(line)):
            found[waiting] = found[waiting]._replace(accepted=match["accepted"])
            waiting = ""
    if unchecked := [one.id for one in found.values() if not one.accepted]:
        raise SystemExit(f"{path.name}: no *Accepted when* under {', '.join(unchecked)}")
    if homeless := {one.group for one in found.values()} - titles.keys() - CHOICES.keys():
        raise SystemExit(f"{path.name}: no heading '### n.n Title (GROUP)' for {', '.join(sorted(homeless))}")
    return Page(found, {**titles, **CHOICES})


def _add(found: dict[str, Requirement], one: Requirement, where: str) -> None:
    if one.id in found:
        raise SystemExit(f"{where}: {one.id} is there twice")
    found[one.id] = one


def read_run(path: Path) -> dict[str, Any]:
    """Read what the last run left, or the shape of it when there was none."""
    if not path.exists():
        return {"last_run": None, "last_whole_run": None, "tests": {}}
    run: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return run


def tests_of(run: dict[str, Any], *, passed: bool) -> dict[str, list[str]]:
    """Return the marked tests by id: those that passed, or those that did not."""
    shown: dict[str, list[str]] = {}
    for test, facts in sorted(run["tests"].items()):
        if (facts["outcome"] == "passed") is passed:
            for one in facts["req"]:
                shown.setdefault(one, []).append(test)
    return shown


class Standing(NamedTuple):
    """The page joined with the run."""

    page: Page
    run: dict[str, Any]
    shown: dict[str, list[str]]
    not_shown: dict[str, list[str]]

    @property
    def unknown(self) -> dict[str, list[str]]:
        """The ids that tests name and the page does not have, with those tests."""
        named = {**self.not_shown, **self.shown}
        return {one: tests for one, tests in sorted(named.items()) if one not in self.page.requirements}

    def rows(self) -> list[dict[str, Any]]:
        """One row per group: covered, open and unplanned ids."""
        rows = []
        for group, title in self.page.titles.items():
            members = [one for one in self.page.requirements.values() if one.group == group]
            covered = [one.id for one in members if one.id in self.shown]
            rest = [one for one in members if one.id not in self.shown]
            rows.append(
                {
                    "group": group,
                    "title": title,
                    "covered": covered,
                    "open": [one.id for one in rest if one.planned],
                    "not_planned": [one.id for one in rest if not one.planned],
                }
            )
        return rows


def stand(root: Path) -> Standing:
    """Join the page and the run that lie under a folder."""
    run = read_run(root / RUN)
    return Standing(read_page(root / PAGE), run, tests_of(run, passed=True), tests_of(run, passed=False))


def as_text(standing: Standing) -> str:
    """The report for a person."""
    run = standing.run
    lines = [
        f"last run: {run['last_run'] or 'never; make test'}, whole: {run['last_whole_run'] or 'never'}",
        "",
        f"{'group':<10}{'covered':>8}{'open':>6}  ",
    ]
    counted = [row for row in standing.rows() if row["group"] not in CHOICES]
    lines += [
        f"{row['group']:<10}{len(row['covered']):>8}{len(row['open']):>6}  {row['title']}" for row in counted
    ]
    covered, still_open, not_planned = (
        sum(len(row[field]) for row in counted) for field in ("covered", "open", "not_planned")
    )
    lines += [f"{'all':<10}{covered:>8}{still_open:>6}  and {not_planned} not planned", "", "open:"]
    lines += [
        textwrap.fill(
            " ".join(row["open"]), 110, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
        )
        for row in counted
        if row["open"]
    ]
    choices = [one for row in standing.rows() if row["group"] in CHOICES for one in row["covered"]]
    lines += ["", f"choices shown by tests: {' '.join(choices) or 'none'}"]
    lines += [f"unknown id {one}, named by {', '.join(tests)}" for one, tests in standing.unknown.items()]
    return "\n".join(lines)


def as_json(standing: Standing) -> str:
    """The report for a program."""
    return json.dumps(
        {
            "last_run": standing.run["last_run"],
            "last_whole_run": standing.run["last_whole_run"],
            "groups": standing.rows(),
            "tests": standing.shown,
            "unknown": standing.unknown,
        },
        indent=2,
        ensure_ascii=False,
    )


def one_as_text(standing: Standing, name: str) -> str:
    """One requirement, what it takes, and the tests that show it."""
    one = standing.page.requirements[name]
    lines = [
        f"{one.id} · {one.strength} · {one.source}",
        textwrap.fill(one.statement, 110),
        textwrap.fill(f"{'Choice:' if one.group in CHOICES else 'Accepted when'} {one.accepted}", 110),
        "",
    ]
    lines += [f"shown by {test}" for test in standing.shown.get(name, [])] or [
        "open: no test that passed shows it"
    ]
    lines += [f"not counted, did not pass: {test}" for test in standing.not_shown.get(name, [])]
    return "\n".join(lines)


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Print the report that was asked for."""
    parser = argparse.ArgumentParser(description="Which requirements the last test run showed.")
    parser.add_argument("--id", help="show one requirement and its tests")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    standing = stand(root)
    if options.id:
        if options.id not in standing.page.requirements:
            print(f"{PAGE} has no {options.id}", file=sys.stderr)
            return 1
        print(one_as_text(standing, options.id))
        return 0
    print(as_json(standing) if options.json else as_text(standing))
    return 1 if standing.unknown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
