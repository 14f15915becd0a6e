# ruff: noqa: E501 - samples of files
"""`oncemore check supply-chain`: one good and one bad sample of each kind, through the function and the command."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

import oncemore
from oncemore.supply_chain.check import check_supply_chain
from tests.shell import run

if TYPE_CHECKING:
    from pathlib import Path

DIGEST = "sha256:" + "a1" * 32
COMMIT = "0123456789abcdef0123456789abcdef01234567"
HASH, OTHER = "b2" * 32, "c3" * 32


def check(folder: Path, files: dict[str, str], **options: Any) -> list[tuple[str, str, int]]:
    """Write files, check the folder, and return rule, name and line of each finding."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    report = check_supply_chain([str(folder)], **options)
    return [(one.rule, one.path.removeprefix(f"{folder}/"), one.line) for one in report.findings]


#: Files with an image in many places, each without and with a digest; %s is the digest.
IMAGES = {
    "Dockerfile": ("FROM python:3.12%s AS build\nFROM build\nFROM scratch\n", 1),
    "api.Dockerfile": ("ARG BASE=python:3.12%s\nFROM --platform=linux/amd64 ${BASE}\n", 2),
    "Containerfile": ("FROM scratch\nCOPY --from=tools:1%s /a /b\nCOPY --from=0 /a /b\n", 2),
    "Dockerfile.job": ("FROM scratch\nRUN --mount=type=bind,from=tools%s,target=/x \\\n  # why\n  make\n", 2),
    "Dockerfile.syntax": ("# syntax=docker/dockerfile:1%s\nFROM scratch\n", 1),
    "compose.yaml": (
        "services:\n  db:\n    image: postgres:17%s\n  own:\n    build: .\n    image: own:1\n",
        3,
    ),
    "deploy/pod.yml": (
        "apiVersion: v1\nkind: Pod\nspec:\n  initContainers:\n  - {name: a, image: 'a@" + DIGEST + "'}\n"
        "  containers:\n  - name: b\n    image: b:2%s\n",
        8,
    ),
    "deploy/cron.yml": (
        "apiVersion: batch/v1\nkind: CronJob\nspec:\n  jobTemplate:\n    spec:\n      template:\n        spec:\n"
        "          containers:\n          - image: job%s\n---\napiVersion: v1\nkind: ConfigMap\n",
        9,
    ),
    "deploy/volume.yml": (
        "apiVersion: v1\nkind: Pod\nspec:\n  volumes:\n  - name: v\n    image:\n      reference: data:1%s\n",
        7,
    ),
    ".github/workflows/a.yml": ("jobs:\n  a:\n    container: node:22%s\n    steps: []\n", 3),
    ".github/workflows/b.yml": ("jobs:\n  a:\n    container:\n      image: node:22%s\n", 4),
    ".github/workflows/c.yml": ("jobs:\n  a:\n    services:\n      db:\n        image: postgres%s\n", 5),
    ".github/workflows/d.yml": ("jobs:\n  a:\n    steps:\n    - uses: docker://tool:1%s\n", 4),
    "tool/action.yml": ("runs:\n  using: docker\n  image: docker://tool:1%s\n", 3),
}


@pytest.mark.req("CI-8")
@pytest.mark.parametrize("name", IMAGES)
def test_an_image_needs_a_digest(tmp_path: Path, name: str) -> None:
    text, line = IMAGES[name]
    assert check(tmp_path, {name: text % ""}) == [("image-not-pinned", name, line)]
    assert check(tmp_path, {name: text % f"@{DIGEST}"}) == []
    # A digest that is too short pins nothing.
    assert check(tmp_path, {name: text % "@sha256:a1a1"}) == [("image-not-pinned", name, line)]


@pytest.mark.parametrize("name", [".github/workflows/ci.yml", "action.yml"])
def test_an_action_needs_a_commit(tmp_path: Path, name: str) -> None:
    steps = "    steps:\n    - uses: ./local\n    - run: make\n    - uses: owner/action@{}\n"
    text = f"jobs:\n  a:\n{steps}" if "workflows" in name else "runs:\n" + steps.replace("    ", "  ")
    line = text.splitlines().index(next(one for one in text.splitlines() if "owner" in one)) + 1
    assert check(tmp_path, {name: text.format("v4")}) == [("action-not-pinned", name, line)]
    assert check(tmp_path, {name: text.format(COMMIT)}) == []


def test_a_reusable_workflow_needs_a_commit(tmp_path: Path) -> None:
    name = ".github/workflows/ci.yml"
    text = "jobs:\n  a:\n    uses: owner/repo/.github/workflows/x.yml@main\n"
    assert check(tmp_path, {name: text}) == [("action-not-pinned", name, 3)]


def test_a_name_from_outside_is_not_a_digest(tmp_path: Path) -> None:
    files = {"Dockerfile": "ARG BASE\nFROM $BASE\n", "compose.yml": "services:\n  a:\n    image: ${IMAGE}\n"}
    assert check(tmp_path, files) == [
        ("image-not-pinned", "Dockerfile", 2),
        ("image-not-pinned", "compose.yml", 3),
    ]


REQUIREMENTS = """# made by a tool
--index-url example
-e .
attrs==25.1.0 \\
    --hash=sha256:{hash} \\
    --hash=sha256:{hash}
Typing_Extensions[x] == 4.1 ; python_version < "3.13" --hash=sha256:{hash}  # a comment
tool @ https://example.test/tool.zip#sha256={hash}
"""


@pytest.mark.req("CI-9")
def test_a_dependency_needs_a_hash_that_is_in_the_sbom(tmp_path: Path) -> None:
    good = "attrs==25.1.0 \\\n    --hash=sha256:" + HASH + "\n"
    cyclonedx = {
        "bomFormat": "CycloneDX",
        "components": [
            {"name": "outer", "version": "1", "components": [
                {"name": "Attrs", "version": "25.1.0", "hashes": [{"alg": "SHA-256", "content": HASH.upper()}]}
            ]},
        ],
    }  # fmt: skip
    distribution = {
        "bomFormat": "CycloneDX",
        "components": [{
            "name": "attrs", "version": "25.1.0",
            "externalReferences": [{"type": "distribution", "hashes": [{"alg": "SHA-256", "content": HASH}]}],
        }],
    }  # fmt: skip
    spdx = {
        "spdxVersion": "SPDX-2.3",
        "packages": [{
            "name": "attrs", "versionInfo": "25.1.0",
            "checksums": [{"algorithm": "SHA256", "checksumValue": HASH}, {"algorithm": "MD5", "checksumValue": "0"}],
        }],
    }  # fmt: skip
    for document in (cyclonedx, distribution, spdx):
        sbom = tmp_path / "sbom.json"
        sbom.write_text(json.dumps(document))
        found = [
            check(tmp_path / "p", {"requirements.txt": text}, sboms=[str(sbom)])
            for text in (
                good,
                good.replace(HASH, OTHER),
                good.replace("attrs", "other"),
                good.replace("25.1.0", "25.2.0"),
                "attrs==25.1.0\n",
            )
        ]
        assert [[one[0] for one in each] for each in found] == [
            [], ["hash-not-in-sbom"], ["dependency-not-in-sbom"], ["dependency-not-in-sbom"], ["dependency-without-hash"],
        ]  # fmt: skip


def test_requirements_files_are_read_as_pip_reads_them(tmp_path: Path) -> None:
    name = "requirements/dev.txt"
    assert check(tmp_path, {name: REQUIREMENTS.format(hash=HASH)}) == []
    bare = REQUIREMENTS.replace("--hash=sha256:{hash}", "").replace("#sha256={hash}", "")
    assert check(tmp_path, {name: bare}) == [
        ("dependency-without-hash", name, 4),
        ("dependency-without-hash", name, 7),
        ("dependency-not-pinned", name, 8),
        ("dependency-without-hash", name, 8),
    ]
    ranges = f"attrs>=25 --hash=sha256:{HASH}\nrequests --hash=sha256:{HASH}\nx==1.* --hash=sha256:{HASH}\n"
    assert [one[0] for one in check(tmp_path, {name: ranges})] == ["dependency-not-pinned"] * 3


def test_a_line_that_is_not_a_requirement_is_a_finding(tmp_path: Path) -> None:
    found = check(tmp_path, {"requirements.txt": "!!!\n"})
    assert [one[0] for one in found] == ["dependency-not-pinned", "dependency-without-hash"]


def test_a_file_is_checked_once_and_a_named_file_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "deps.list").write_text("attrs==1\n")
    report = check_supply_chain([str(tmp_path / "deps.list"), str(tmp_path / "deps.list")])
    assert (report.files, len(report.findings)) == (1, 1)


def test_included_files_are_checked_too(tmp_path: Path) -> None:
    files = {"requirements.txt": "-r more/base.list\n-r gone.txt\n", "more/base.list": "attrs==1\n"}
    # base.list is a requirements file because another one includes it.
    assert check(tmp_path, files) == [("dependency-without-hash", "more/base.list", 1)]


OSV = {
    "id": "OSV-1",
    "summary": "Runs code\nof others",
    "affected": [
        {"package": {"ecosystem": "npm", "name": "attrs"}, "versions": ["25.1.0"]},
        {
            "package": {"ecosystem": "PyPI", "name": "Attrs"},
            "ranges": [
                {"type": "GIT", "events": [{"introduced": "0"}]},
                {"type": "ECOSYSTEM", "events": []},
                {
                    "type": "ECOSYSTEM",
                    "events": [
                        {"fixed": "9"}, {"introduced": "0"}, {"fixed": "20.1"}, {"introduced": "24"},
                        {"last_affected": "25.1.0"}, {"introduced": "30"}, {"introduced": "40"},
                    ],
                },
            ],
        },
    ],
}  # fmt: skip
PIP_AUDIT = {
    "dependencies": [
        {"name": "attrs", "version": "25.1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["25.2"]}]},
        {"name": "fine", "version": "1", "vulns": []},
        {"name": "skipped", "skip_reason": "not found"},
    ]
}


@pytest.mark.req("CI-10", "SEC-6")
@pytest.mark.parametrize(
    "document", [OSV, [OSV], {"vulns": [OSV]}, PIP_AUDIT], ids=["osv", "list", "vulns", "pip-audit"]
)
def test_a_dependency_with_an_advisory_fails(tmp_path: Path, document: Any) -> None:
    (tmp_path / "advisories").mkdir()
    (tmp_path / "advisories" / "one.json").write_text(json.dumps(document))
    line = f"attrs==25.1.0 --hash=sha256:{HASH}\n"
    options = {"advisories": [str(tmp_path / "advisories")]}
    assert check(tmp_path, {"requirements.txt": line}, **options) == [("advisory", "requirements.txt", 1)]
    assert check(tmp_path, {"requirements.txt": line.replace("25.1.0", "25.3.0")}, **options) == []


@pytest.mark.parametrize(
    ("version", "affected"),
    [("20.0", True), ("20.1", False), ("23", False), ("24.0", True), ("25.1.0", True), ("25.1.1", False),
     ("31", True), ("not a version", True)],
)  # fmt: skip
def test_ranges_of_versions_have_their_bounds(version: str, affected: bool) -> None:
    from oncemore.supply_chain.advisories import find_affected, read_advisories

    found = list(find_affected(read_advisories(json.dumps(OSV), "osv.json"), "attrs", version))
    assert bool(found) is affected
    if affected:
        assert found == [f"attrs {version} is affected by OSV-1: Runs code; fixed in 20.1"]


def test_components_of_the_sbom_are_compared_with_advisories(tmp_path: Path) -> None:
    sbom, advisories = tmp_path / "sbom.json", tmp_path / "advisories.json"
    component = {"name": "attrs", "version": "25.1.0"}
    sbom.write_text(json.dumps({"bomFormat": "CycloneDX", "components": [component]}))
    advisories.write_text(json.dumps(PIP_AUDIT))
    report = check_supply_chain([str(tmp_path)], [str(sbom)], [str(advisories)])
    assert [(one.rule, one.path) for one in report.findings] == [("advisory", str(sbom))]
    assert (report.sbom_components, report.advisories) == (1, 1)
    withdrawn = {**OSV, "withdrawn": "2026-01-01T00:00:00Z"}
    advisories.write_text(json.dumps([withdrawn]))
    assert check_supply_chain([str(tmp_path)], [str(sbom)], [str(advisories)]).findings == ()


def test_missing_packaging_names_the_extra() -> None:
    from oncemore.supply_chain.advisories import find_affected, read_advisories

    advisories = read_advisories(json.dumps(OSV), "osv.json")
    with (
        patch.dict(sys.modules, {"packaging.version": None}),
        pytest.raises(oncemore.MissingExtra, match=r"oncemore\[supply-chain\]"),
    ):
        list(find_affected(advisories, "attrs", "1"))


@pytest.mark.parametrize(
    ("files", "option", "message"),
    [
        ({"x.json": "{"}, "sbom", "x.json is not JSON"),
        ({"x.json": "[]"}, "sbom", "x.json is not an SBOM in JSON"),
        ({"x.json": "{}"}, "advisories", "x.json has no advisories"),
        ({"x.json": "[1]"}, "advisories", "x.json has no advisories"),
        ({}, "sbom", "x.json cannot be read"),
    ],
)
def test_an_input_that_cannot_be_read_is_a_usage_error(
    tmp_path: Path, files: dict[str, str], option: str, message: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    shown = run("check", "supply-chain", str(tmp_path), f"--{option}", str(tmp_path / "x.json"))
    assert shown.returncode == 2
    assert message in " ".join(shown.stderr.split())


def test_files_that_are_not_what_they_seem_are_reported_or_passed_over(tmp_path: Path) -> None:
    files = {
        "chart.yaml": "{{- if .Values }}\nspec:\n  image: x\n",
        "other.yaml": "{{- if .Values }}\n",
        "list.yaml": "- 1\n- 2\n",
        "scalar.yml": "hello\n",
        ".github/workflows/odd.yml": "jobs: [1]\nruns: text\n",
        ".github/workflows/odd2.yml": "jobs:\n  a:\n    steps: text\n    container: [1]\n  b: {steps: [text]}\n",
        "deploy.yml": "apiVersion: v1\nkind: List\nitems: [1, {containers: [text, {image: 3}], image: 4}]\n",
        "Dockerfile": "FROM\nRUN make\n",
        "node_modules/Dockerfile": "FROM python\n",
        "env/pyvenv.cfg": "",
        "env/Dockerfile": "FROM python\n",
    }
    assert check(tmp_path, files) == [
        ("image-not-pinned", "Dockerfile", 1),
        ("unreadable-file", "chart.yaml", 1),
    ]
    (tmp_path / "requirements.txt").write_bytes(b"\xff\xfe")
    assert ("unreadable-file", "requirements.txt", 1) in check(tmp_path, {})
    with pytest.raises(oncemore.UsageError, match="does not exist"):
        check_supply_chain([str(tmp_path / "gone")])


def test_the_command_prints_places_and_has_exit_codes(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python:3.12\n")
    shown = run("check", "supply-chain", str(tmp_path))
    assert shown.returncode == 1
    assert f"{tmp_path}/Dockerfile:1: image-not-pinned: image python:3.12 has no digest" in shown.stdout
    assert shown.stdout.endswith("1 files, 0 dependencies: 1 findings\n")
    report = json.loads(run("check", "supply-chain", str(tmp_path), "--json").stdout)
    assert report["findings"][0]["rule"] == "image-not-pinned"
    (tmp_path / "Dockerfile").write_text(f"FROM python:3.12@{DIGEST}\n")
    shown = run("check", "supply-chain", str(tmp_path))
    assert (shown.returncode, shown.stdout) == (0, "1 files, 0 dependencies: no findings\n")
