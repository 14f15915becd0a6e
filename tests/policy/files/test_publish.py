"""The JSON Schema and the reference page follow from the field table and are up to date."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest
from ruamel.yaml import YAML

from oncemore.policy import files
from oncemore.policy.files.file_reader import PACKAGED_FILES, PROFILES_FOLDER, compute_digests
from oncemore.policy.files.json_schema import reference_tables
from oncemore.policy.files.sections import FILE_FIELDS
from tools import profiles

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.policy.files.fields import FieldSpec

SCHEMA = jsonschema_rs.validator_for(files.schema())


def read(text: str | Path) -> Any:
    return json.loads(json.dumps(YAML(typ="safe", pure=True).load(text), default=str))


def test_the_generated_files_are_up_to_date() -> None:
    assert {str(path) for path in profiles.stale()} == set(), "run python tools/profiles.py --write"


def test_the_schema_is_valid_by_its_meta_schema() -> None:
    jsonschema_rs.meta.validate(files.schema())
    assert json.loads((PROFILES_FOLDER / "policy.schema.json").read_text(encoding="utf-8")) == files.schema()


@pytest.mark.req("POL-3")
@pytest.mark.parametrize("file", PACKAGED_FILES.values())
def test_every_packaged_file_follows_the_schema(file: str) -> None:
    assert [error.message for error in SCHEMA.iter_errors(read(PROFILES_FOLDER / file))] == []


@pytest.mark.parametrize(
    "text",
    [
        "version: '1'\nretries: 3",
        "version: '1'\nretry_policy: {max_attempts: 0}",
        "version: '1'\nretry_policy: {max_attempts: 2.5}",
        "version: '1'\nretry_policy: {max_retries: 1000}",
        "version: '1'\nretry_policy: {max_attempts: 3, max_retries: 3}",
        "version: '1'\nretry_policy: {interval: 1, base_delay: 1}",
        "version: '1'\nretry_policy: {timeout_s: 0}",
        "version: '1'\nretry_policy: {jitter: wild}",
        "version: '1'\nretry_policy: {respect_retry_after: false}",
        "version: '1'\nretry_policy: {delays_s: []}",
        "version: '1'\npolicies: {'a b': {}}",
        "version: '1'\nproviders: {x: {retries: 3}}",
        "version: '1'\nbounds: {jitter: [1, 2]}",
        "version: '1'\nbounds: {base_delay: [1]}",
        "version: '1'\nminimums: {attempts: x}",
        "version: '1'\nclassify: {retryable: ['a b']}",
        "version: '1'\nconcurrency: {DiscoverSpectraProducts: [1]}",
        "version: 1.0",
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(text: str, tmp_path: Path) -> None:
    assert not SCHEMA.is_valid(read(text))
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(files.PolicyFileError):
        files.load(file)


def test_the_schema_takes_every_spelling() -> None:
    for text in (
        "version: '1'\nretry_policy: {timeout_s: null, max_retries: 0, base_delay_sec: 1, rate: 2, cap: 5}",
        "version: '1'\ncategories: {A: {code: X}}\nbounds: {base_delay: [0, 1]}\nminimums: {attempts: 1}",
        "version: '1'\nretry: {A: {classify: {never: [X]}}}\nreview_by: 2026-01-01",
        "version: '1'\nconcurrency: {DiscoverSpectraProducts: 1}",
        "version: '1'\nproviders: {x: {retry_policy: {}, policies: {a: {}}, cooldown: {base_s: 1}}}",
    ):
        assert SCHEMA.is_valid(read(text)), text


def rows(table: tuple[FieldSpec, ...]) -> list[FieldSpec]:
    return [row for one in table for row in (one, *rows(one.rows))]


def test_every_field_and_spelling_is_on_the_reference_page() -> None:
    page = reference_tables()
    for row in rows(FILE_FIELDS):
        assert f"`{row.name}`" in page or f".{row.name}`" in page
        assert row.meaning.replace("<", "&lt;") in page
        for spelling in row.spellings[1:]:
            assert f"`{spelling}`" in page


def test_no_two_fields_of_a_group_share_a_spelling() -> None:
    for table in (FILE_FIELDS, *{row.rows for row in rows(FILE_FIELDS)}):
        spellings = [spelling for row in table for spelling in row.spellings]
        assert len(spellings) == len(set(spellings))


def test_the_digests_are_those_that_sha256sum_would_write() -> None:
    lines = compute_digests().splitlines()
    assert [line.split("  ")[1] for line in lines] == sorted(PACKAGED_FILES.values())
    assert all(len(line.split("  ")[0]) == 64 for line in lines)
