"""Artifacts as values: checked at birth, equal by content, data only when they are stored."""

from __future__ import annotations

import pickle
from datetime import date, datetime
from typing import Any

import msgspec
import pytest

import oncemore
from oncemore import Artifact, UsageError
from oncemore.artifacts.artifact import (
    PENTAGONS,
    check_cell,
    check_media_type,
    check_name,
    format_date,
    make_label,
)
from oncemore.log import result_codec
from oncemore.log.tagged_json import TaggedEncoder, untag_value

DIGEST = "ab" * 32
CELL = "8928308280fffff"


def bits(resolution: int, base: int, *digits: int, top: int = 0b1000) -> str:
    """An index from its parts; what is not said of its digits is 7, as beyond the resolution."""
    filled = (*digits, *[7] * (15 - len(digits)))
    number = top << 56 | resolution << 52 | base << 45
    for at, digit in enumerate(filled, 1):
        number |= digit << 3 * (15 - at)
    return f"{number:015x}"


@pytest.mark.parametrize(
    "cell",
    [
        CELL,
        CELL.upper(),
        "85283473fffffff",
        "8001fffffffffff",
        bits(0, 121),
        bits(15, 20, *[6] * 15),
        bits(2, 4, 0, 2),
    ],
)
def test_a_cell_of_h3_is_taken_in_small_letters(cell: str) -> None:
    assert check_cell(cell) == cell.lower()


@pytest.mark.req("ART-2")
@pytest.mark.parametrize(
    "cell",
    [
        "", "8928308280ffff", "8928308280fffff0", "8928308280ffffg", " 8928308280ffff", "٨٩28308280fffff",
        None, 0x8928308280FFFFF,
        bits(0, 122), bits(0, 127), bits(0, 0, 0), bits(1, 0), bits(2, 0, 7, 0), bits(3, 0, 0, 0, 0, 0),
        bits(1, 0, 0, top=0b1001), bits(1, 0, 0, top=0b0000), bits(1, 0, 0, top=0b0001),
        *(bits(3, base, 0, 1, 0) for base in PENTAGONS),
    ],
)  # fmt: skip
def test_what_is_no_cell_of_h3_is_refused(cell: Any) -> None:
    with pytest.raises(UsageError, match="not an H3 cell"):
        check_cell(cell)


def test_a_hexagon_has_the_child_that_a_pentagon_lacks() -> None:
    assert check_cell(bits(3, 5, 0, 1, 0)) == bits(3, 5, 0, 1, 0)


@pytest.mark.parametrize("name", ["report", "a/b/c.parquet", "Größe=1", "…", "a.b", ".hidden", "x" * 200])
def test_names_are_texts_and_segments(name: str) -> None:
    assert check_name(name) == name


def test_a_name_is_the_same_however_it_is_composed() -> None:
    assert check_name("Gro\u0308ße") == check_name("Größe")


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "../x", "a/../b", "a/..", "/etc/passwd", "a//b", "a/", "\\\\host\\x", "..\\x", "C:/x",
        "a\x00b", "a\nb", "\x1b[31m", "x" * 201, "$result", "a/$x", " a", "a ", "\u202etxt", "\ud800",
        None, 7, b"a",
    ],
)  # fmt: skip
def test_a_name_that_leads_elsewhere_or_cannot_be_shown_is_refused(name: Any) -> None:
    with pytest.raises(UsageError, match="name is"):
        check_name(name)


@pytest.mark.parametrize("site", ["../x", "a/b", "", "\x00", 5, "a" * 201])
def test_a_site_is_one_segment(site: Any) -> None:
    with pytest.raises(UsageError, match="site is"):
        make_label("x", site=site)


@pytest.mark.parametrize(
    ("told", "date_"),
    [
        (date(2026, 11, 15), "2026-11-15"),
        ("2026-11-15", "2026-11-15"),
        ("2026-11", "2026-11"),
        ("2026", "2026"),
    ],
)
def test_a_date_is_a_day_a_month_or_a_year(told: Any, date_: str) -> None:
    assert format_date(told) == date_


@pytest.mark.parametrize(
    "told", ["2026-02-30", "2026-13", "0000", "26-1-1", "2026-11-15T00", "", datetime(2026, 1, 1), 2026]
)
def test_what_is_no_date_is_refused(told: Any) -> None:
    with pytest.raises(UsageError, match="date is"):
        format_date(told)


def test_media_types_are_checked() -> None:
    assert check_media_type("text/csv; charset=utf-8") == "text/csv; charset=utf-8"
    for wrong in ("csv", "text/csv\r\nX: 1", "", 5, "a" * 300 + "/b"):
        with pytest.raises(UsageError, match="media_type is"):
            check_media_type(wrong)


@pytest.mark.parametrize("digest", ["", "AB" * 32, "ab" * 31, "../" + "a" * 61, None])
def test_a_digest_is_64_hex_digits(digest: Any) -> None:
    with pytest.raises(UsageError, match="digest is"):
        Artifact(digest, 1)


@pytest.mark.parametrize("size", [-1, 1.5, True, "3"])
def test_a_size_is_a_number_of_bytes(size: Any) -> None:
    with pytest.raises(UsageError, match="size is"):
        Artifact(DIGEST, size)


def whole() -> Artifact:
    return Artifact(DIGEST, 3, "a/b.csv", media_type="text/csv", date="2026-11", site="KS", h3=CELL)


def test_an_artifact_in_a_result_reads_back_equal_and_is_data_only() -> None:
    value = {"files": [whole(), Artifact(DIGEST, 0)], "of": (whole(),)}
    encoded = result_codec.encode_result(value)
    assert result_codec.result_value(encoded) == value
    assert msgspec.json.decode(encoded)["files"][1] == {
        "$artifact": {"digest": DIGEST, "size": 0, "name": "artifact"}
    }
    assert whole().partition == {"date": "2026-11", "site": "KS", "h3": CELL}


def test_an_artifact_can_be_an_argument_and_counts_in_the_key() -> None:
    keyed = TaggedEncoder(keyed=True)
    assert keyed.tag_value(whole(), "x") == keyed.tag_value(whole(), "x")
    assert keyed.tag_value(whole(), "x") != keyed.tag_value(Artifact(DIGEST, 3), "x")


@pytest.mark.parametrize(
    "fields",
    [{}, {"digest": "../../x", "size": 1}, {"digest": DIGEST, "size": 1, "name": "../x"}, {"shelf": 1}, []],
)
def test_a_stored_form_that_is_no_artifact_is_refused(fields: Any) -> None:
    with pytest.raises((UsageError, TypeError)):
        untag_value({"$artifact": fields})


def test_an_artifact_travels_between_processes_as_data() -> None:
    again = pickle.loads(pickle.dumps(whole()))  # noqa: S301 - our own
    assert again == whole()
    with pytest.raises(UsageError, match="does not know where its bytes are"):
        again.read()
    with pytest.raises(AttributeError, match="frozen"):
        again.size = 4


def test_an_artifact_is_at_the_front_door() -> None:
    assert oncemore.Artifact is Artifact
