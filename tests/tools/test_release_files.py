"""The files of a release are valid and reproducible, and our own supply chain is pinned."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
import zipfile
from typing import TYPE_CHECKING

import pytest
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from oncemore.supply_chain.check import check_supply_chain
from oncemore.supply_chain.dependencies import read_requirements
from tools.release_files import ROOT, main, read_licence

if TYPE_CHECKING:
    from pathlib import Path

REQUIREMENTS = ROOT / "requirements"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a release, with a telemetry file that was exported before."""
    folder = tmp_path_factory.mktemp("release")
    (folder / "oncemore-0.whl").write_bytes(b"a wheel")
    out = folder / "releases"
    out.mkdir()
    (out / "focus-telemetry.json").write_text("{}")
    assert main(["--wheel", str(folder / "oncemore-0.whl"), "--out", str(out)]) == 0
    return out


def test_the_sbom_is_valid_and_has_the_hash_of_each_pinned_file(release: Path) -> None:
    document = parse_file(str(release / "sbom.spdx.json"))
    assert validate_full_spdx_document(document) == []
    names = {package.name for package in document.packages}
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.split(r"[^\w.-]", one)[0].replace(".", "-") for one in declared} <= names
    for sbom in ("sbom.spdx.json", "sbom.cdx.json"):
        runtime = str(REQUIREMENTS / "runtime.txt")
        report = check_supply_chain([runtime], [str(release / sbom)])
        assert (report.findings, report.dependencies) == ((), 4)


def test_each_digest_of_the_manifest_matches(release: Path) -> None:
    with zipfile.ZipFile(release / "manifest.zip") as archive:
        manifest = json.loads(archive.read("manifest.json"))
    paths = {one["path"] for one in manifest["files"]}
    assert paths == {
        "focus-telemetry.json",
        "licences.txt",
        "oncemore-0.whl",
        "sbom.cdx.json",
        "sbom.spdx.json",
    }
    for one in manifest["files"]:
        folder = release.parent if one["path"].endswith(".whl") else release
        content = (folder / one["path"]).read_bytes()
        assert (one["sha256"], one["size"]) == (hashlib.sha256(content).hexdigest(), len(content))


def test_the_same_source_gives_the_same_files(release: Path, tmp_path: Path) -> None:
    out = tmp_path / "again"
    assert main(["--wheel", str(release.parent / "oncemore-0.whl"), "--out", str(out)]) == 0
    for name in ("sbom.cdx.json", "sbom.spdx.json", "licences.txt"):
        assert (out / name).read_bytes() == (release / name).read_bytes()


def test_every_dependency_of_the_wheel_has_a_known_licence(release: Path) -> None:
    assert "NOASSERTION" not in (release / "licences.txt").read_text()
    assert read_licence("a-package-that-is-not-there") == "NOASSERTION"


@pytest.mark.req("SEC-2")
def test_our_own_images_actions_and_dependencies_are_pinned(release: Path) -> None:
    report = check_supply_chain([str(ROOT)])
    # Only a registry knows the digests of the images in deploy/: `make pin-images` asks for them.
    deploy = f"{ROOT}/deploy/"
    images = [
        one for one in report.findings if one.rule == "image-not-pinned" and one.path.startswith(deploy)
    ]
    assert list(report.findings) == images
    # The check looked at the workflows and at all three requirements files.
    assert report.files >= 8
    assert report.dependencies > 200
    sboms = [str(release / "sbom.spdx.json")]
    assert check_supply_chain([str(REQUIREMENTS / "runtime.txt")], sboms).findings == ()


def read_pins(path: Path) -> dict[str, str]:
    dependencies, _ = read_requirements(path.read_text(encoding="utf-8"))
    return {one.name: one.version for one in dependencies}


def test_the_pins_with_hashes_are_those_of_the_constraints() -> None:
    constraints = read_pins(ROOT / "constraints.txt")
    for name in ("runtime.txt", "dev.txt"):
        pins = read_pins(REQUIREMENTS / name)
        assert {one: version for one, version in pins.items() if constraints.get(one) != version} == {}
    # A new dependency that was not locked: run `make lock`.
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {
        re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", one)[0]).lower()
        for one in extras["dev"]
        if "sys_platform" not in one
    }
    assert wanted - {"oncemore"} - set(read_pins(REQUIREMENTS / "dev.txt")) == set()


def test_the_build_backend_is_pinned_as_in_the_release_tools() -> None:
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert requires == [f"hatchling=={read_pins(REQUIREMENTS / 'release.txt')['hatchling']}"]
