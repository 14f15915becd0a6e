"""The source stays plain: names, sizes, positional values and words are held to limits, folder by folder.

The targets of docs/style.md are at most 40 % one-word function names, at least 4 comments per 100 lines of
code, at most 1 vague word and 8 question words per 1,000 words; where all folders are better than that, the
target here is lower. A folder that is not there yet has an entry in `EXCEPTIONS`.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tools import plain_words
from tools.plain_words import Finding, Measures, Module

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SOURCE = "src/oncemore/"
#: Only names here: parsing takes seconds, and every test process collects this file.
FOLDER_NAMES = sorted({Module.name_folder(path) for path in plain_words.SOURCE.rglob("*.py")})
TARGET = Measures(one_word_names=30.0, comments=4.0, vague_words=0.5, question_words=6.0)
#: What to do about each measure that is over its limit.
ADVICE = {
    "one_word_names": "name functions by verb and noun: load_head, claim_run, release_lease",
    "comments": "add comments that give reasons",
    "vague_words": "name the actor or the thing",
    "question_words": 'name the thing: "a read-only store" instead of "what refuses to write"',
}


class Exceptions(NamedTuple):
    """What one folder may exceed until it is changed; an exception that is no longer needed must go.

    measures    limits instead of the targets, for the measures that do not meet them yet
    too_long    modules, classes and functions over the size limit
    positional  calls that pass more than six values by position, by module; on the path of every attempt
                keywords cost too much, all others are to be changed
    """

    measures: Mapping[str, float] = MappingProxyType({})
    too_long: tuple[str, ...] = ()
    positional: Mapping[str, int] = MappingProxyType({})


#: One entry per folder, so that changes of several folders do not meet. Lower the numbers, never raise them.
EXCEPTIONS: dict[str, Exceptions] = {
    # Its functions are the public verbs of a test: run, open, advance.
    "testing": Exceptions(
        measures={"one_word_names": 36.0},
    ),
}
NO_EXCEPTIONS = Exceptions()

#: Step Functions reports errors by class name, and the names are those of the nova-cat document.
SHARED_NAMES = {"QuarantineError", "RetryableError", "TerminalError"}


def meets(measure: str, value: float, limit: float) -> bool:
    """Return whether a measure keeps its limit: comments are to be many, all others few."""
    return value >= limit if measure == "comments" else value <= limit


class MeasuredSource(NamedTuple):
    """The parsed package and what was counted in it."""

    modules: list[Module]
    folders: dict[str, Measures]
    long_parts: dict[str, str]
    positional_calls: list[Finding]


@pytest.fixture(scope="module")
def source() -> MeasuredSource:
    modules = plain_words.read_modules()
    return MeasuredSource(
        modules,
        plain_words.measure_folders(modules),
        {finding.place: finding.message for finding in plain_words.find_long_parts(modules)},
        plain_words.find_positional_calls(modules),
    )


@pytest.mark.parametrize("folder", FOLDER_NAMES)
def test_a_folder_is_written_in_plain_words(source: MeasuredSource, folder: str) -> None:
    limits = TARGET._asdict() | dict(EXCEPTIONS.get(folder, NO_EXCEPTIONS).measures)
    over = {
        measure: f"{folder} has {value:.1f}, the limit is {limits[measure]}: {ADVICE[measure]}"
        for measure, value in source.folders[folder]._asdict().items()
        if not meets(measure, value, limits[measure])
    }
    if "vague_words" in over:
        members = [module for module in source.modules if module.folder == folder]
        found = [finding for module in members for finding in plain_words.find_vague_words(module)]
        over["places"] = "\n".join(f"{finding.place}: {finding.message}" for finding in found)
    assert over == {}, "\n".join(over.values())


@pytest.mark.parametrize("folder", sorted(EXCEPTIONS))
def test_exceptions_that_are_no_longer_needed_are_off_the_list(source: MeasuredSource, folder: str) -> None:
    assert folder in source.folders, f"there is no folder {folder}: take it off the list"
    for measure in EXCEPTIONS[folder].measures:
        value, target = source.folders[folder]._asdict()[measure], TARGET._asdict()[measure]
        assert not meets(measure, value, target), f"{folder} meets the target: take {measure} off the list"
    short = {name for name in EXCEPTIONS[folder].too_long if SOURCE + name not in source.long_parts}
    assert short == set(), "no longer too long: take it off the list"
    counts = Counter(finding.place.split(":")[0] for finding in source.positional_calls)
    for name, allowed in EXCEPTIONS[folder].positional.items():
        assert counts[SOURCE + name] >= allowed, f"{name} has {counts[SOURCE + name]} such calls: lower it"


def test_class_names_are_unique(source: MeasuredSource) -> None:
    repeated = plain_words.find_repeated_classes(source.modules)
    assert [finding for finding in repeated if finding.place not in SHARED_NAMES] == []


def test_modules_classes_and_functions_stay_within_their_sizes(source: MeasuredSource) -> None:
    allowed = {SOURCE + name for one in EXCEPTIONS.values() for name in one.too_long}
    assert {place: message for place, message in source.long_parts.items() if place not in allowed} == {}


def test_calls_with_many_values_use_keywords(source: MeasuredSource) -> None:
    allowed = {SOURCE + name: n for one in EXCEPTIONS.values() for name, n in one.positional.items()}
    found: dict[str, list[str]] = {}
    for finding in source.positional_calls:
        found.setdefault(finding.place.partition(":")[0], []).append(f"{finding.place}: {finding.message}")
    for module, places in found.items():
        assert len(places) <= allowed.get(module, 0), "\n".join(places)


#: Test functions and helpers with a word of VAGUE_WORDS or a question word in their name. It only shrinks.
MOST_VAGUE_TEST_NAMES = 277


def test_names_of_tests_and_helpers_name_the_thing() -> None:
    vague = {*plain_words.VAGUE_WORDS, "who", "whose", "whom"}
    found = [
        f"{path.relative_to(plain_words.ROOT)}: {name}"
        for path in sorted((plain_words.ROOT / "tests").rglob("*.py"))
        for name in re.findall(r"(?m)^ *(?:async )?def (\w+)", path.read_text(encoding="utf-8"))
        if vague & set(name.split("_"))
    ]
    assert len(found) <= MOST_VAGUE_TEST_NAMES, "\n".join(found)


def test_the_counter_finds_what_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_words, "ROOT", tmp_path)
    monkeypatch.setattr(plain_words, "SOURCE", tmp_path)
    (tmp_path / "part").mkdir()
    file = tmp_path / "part" / "module.py"
    file.write_text(
        '"""What nobody told."""\n\n\nclass Twice:\n    """A class."""\n\n\ndef run():\n'
        "    # A reason.\n    return make(Pair, (1, 2, 3, 4, 5, 6, 7))\n\n\ndef load_head():\n    pass\n"
    )
    (tmp_path / "part" / "other.py").write_text("class Twice:\n    pass\n")
    modules = plain_words.read_modules()
    measures = plain_words.measure_folders(modules)["part"]
    assert measures.one_word_names == 50.0
    assert round(measures.vague_words) == round(1000 * 2 / 7)
    assert round(measures.question_words) == round(1000 / 7)
    assert measures.comments == pytest.approx(100 / 7)
    assert [finding.place for finding in plain_words.find_repeated_classes(modules)] == ["Twice"]
    assert [finding.message[:1] for finding in plain_words.find_positional_calls(modules)] == ["7"]
    assert [finding.message.split(":")[0] for finding in plain_words.find_vague_words(modules[0])] == [
        '"nobody"',
        '"told"',
    ]
    monkeypatch.setattr(plain_words, "LONGEST_MODULE", 5)
    monkeypatch.setattr(plain_words, "LONGEST_FUNCTION", 1)
    assert [finding.place for finding in plain_words.find_long_parts(modules)] == [
        "part/module.py",
        "part/module.py:run",
        "part/module.py:load_head",
    ]
    assert isinstance(modules[0].tree, ast.Module)
