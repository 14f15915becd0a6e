"""Make the files of a release beside the wheel: two SBOMs, a licence report and a manifest with digests.

    releases/VERSION/sbom.cdx.json     CycloneDX 1.6
    releases/VERSION/sbom.spdx.json    SPDX 2.3
    releases/VERSION/licences.txt      the licence of each dependency
    releases/VERSION/manifest.zip      manifest.json: the SHA-256 and size of all of these and of the wheel

Other files that are in the folder already, such as those of `oncemore export telemetry`, are in the manifest
too.

The SBOMs have the dependencies of `requirements/runtime.txt` with all their hashes, so that
`oncemore check supply-chain requirements/runtime.txt --sbom ...` can compare them. Both are validated before
they are written, and the same source gives the same bytes: the time is SOURCE_DATE_EPOCH, or that of the
last commit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import uuid
import zipfile
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from license_expression import get_spdx_licensing
from packageurl import PackageURL
from spdx_tools.spdx.model import (
    Actor,
    ActorType,
    Checksum,
    ChecksumAlgorithm,
    CreationInfo,
    Document,
    ExternalPackageRef,
    ExternalPackageRefCategory,
    Package,
    Relationship,
    RelationshipType,
    SpdxNoAssertion,
)
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document
from spdx_tools.spdx.writer.json.json_writer import write_document_to_file

from oncemore._version import __version__
from oncemore.supply_chain.dependencies import read_requirements
from tools.clean_install import build

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "oncemore"
#: Licences of dependencies whose metadata has only a text or a classifier.
CLASSIFIERS = {
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: BSD License": "BSD-3-Clause",
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
}


class Part(NamedTuple):
    """A package of the release: the project itself or a dependency."""

    name: str
    version: str
    hashes: tuple[str, ...]
    licence: str

    @property
    def purl(self) -> str:
        """The package as an address that both SBOMs use."""
        return PackageURL("pypi", name=self.name, version=self.version).to_string()


def read_licence(name: str) -> str:
    """Return the SPDX expression of an installed package's licence; NOASSERTION if it has none."""
    try:
        fields = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return "NOASSERTION"
    for text in (fields.get("License-Expression"), fields.get("License")):
        if text and not get_spdx_licensing().validate(text).errors:
            return text
    known = [CLASSIFIERS[one] for one in fields.get_all("Classifier") or [] if one in CLASSIFIERS]
    return known[0] if known else "NOASSERTION"


def read_parts(requirements: Path) -> list[Part]:
    """Return the dependencies of a requirements file, each with the digests of its files."""
    dependencies, _ = read_requirements(requirements.read_text(encoding="utf-8"))
    return [
        Part(
            one.name,
            one.version,
            tuple(text.partition(":")[2] for text in one.hashes),
            read_licence(one.name),
        )
        for one in dependencies
    ]


def make_cyclonedx(project: Part, parts: list[Part], created: datetime) -> str:
    """Return the CycloneDX document; raise if it breaks the schema."""
    root = _make_component(project, ComponentType.APPLICATION)
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{project.purl}#{project.hashes[0]}"),
        metadata=BomMetaData(component=root, timestamp=created),
        components=[_make_component(part, ComponentType.LIBRARY) for part in parts],
    )
    bom.register_dependency(root, bom.components)
    text = JsonV1Dot6(bom).output_as_string(indent=2)
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error is not None:
        raise SystemExit(f"release: the CycloneDX document is not valid: {error}")
    return text + "\n"


def _make_component(part: Part, kind: ComponentType) -> Component:
    # One reference per file: a component has one hash of each kind, and a release has many files.
    files = [
        ExternalReference(
            type=ExternalReferenceType.DISTRIBUTION,
            url=XsUri(part.purl),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        )
        for digest in part.hashes
    ]
    return Component(
        name=part.name,
        version=part.version,
        type=kind,
        bom_ref=part.purl,
        purl=PackageURL.from_string(part.purl),
        licenses=[] if part.licence == "NOASSERTION" else [LicenseExpression(part.licence)],
        external_references=files,
    )


def make_spdx(project: Part, parts: list[Part], created: datetime) -> Document:
    """Return the SPDX document; raise if it is not valid."""
    document = Document(
        CreationInfo(
            spdx_version="SPDX-2.3",
            spdx_id="SPDXRef-DOCUMENT",
            name=f"{PROJECT}-{project.version}",
            document_namespace=f"https://spdx.org/spdxdocs/{PROJECT}-{project.version}-{project.hashes[0]}",
            creators=[Actor(ActorType.TOOL, PROJECT)],
            created=created.replace(tzinfo=None),
        ),
        packages=[_make_package(part) for part in (project, *parts)],
        relationships=[
            Relationship("SPDXRef-DOCUMENT", RelationshipType.DESCRIBES, _spdx_id(project)),
            *(Relationship(_spdx_id(project), RelationshipType.DEPENDS_ON, _spdx_id(part)) for part in parts),
        ],
    )
    messages = validate_full_spdx_document(document)
    if messages:
        raise SystemExit(f"release: the SPDX document is not valid: {messages[0].validation_message}")
    return document


def _spdx_id(part: Part) -> str:
    return f"SPDXRef-{part.name.replace('_', '-')}"


def _make_package(part: Part) -> Package:
    licence = SpdxNoAssertion() if part.licence == "NOASSERTION" else get_spdx_licensing().parse(part.licence)
    return Package(
        spdx_id=_spdx_id(part),
        name=part.name,
        download_location=SpdxNoAssertion(),
        version=part.version,
        files_analyzed=False,
        checksums=[Checksum(ChecksumAlgorithm.SHA256, digest) for digest in part.hashes],
        license_concluded=SpdxNoAssertion(),
        license_declared=licence,
        copyright_text=SpdxNoAssertion(),
        external_references=[
            ExternalPackageRef(ExternalPackageRefCategory.PACKAGE_MANAGER, "purl", part.purl)
        ],
    )


def make_manifest(folder: Path, files: list[Path], version: str) -> Path:
    """Write manifest.zip: the digests of the files, the same bytes for the same files."""
    entries = [
        {"path": file.name, "sha256": hash_file(file), "size": file.stat().st_size} for file in sorted(files)
    ]
    manifest = json.dumps({"version": version, "files": entries}, indent=2) + "\n"
    target = folder / "manifest.zip"
    with zipfile.ZipFile(target, "w") as archive:
        # The fixed time is the first that a zip file can hold.
        archive.writestr(zipfile.ZipInfo("manifest.json", (1980, 1, 1, 0, 0, 0)), manifest)
    return target


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_release_time() -> datetime:
    """Return SOURCE_DATE_EPOCH, or the time of the last commit."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    if seconds is None:
        command = ["git", "log", "-1", "--format=%ct"]
        seconds = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return datetime.fromtimestamp(int(seconds), UTC)


def make_release(folder: Path, wheel: Path) -> list[Path]:
    """Write the files of a release for a wheel; return all files of its folder, the manifest last."""
    folder.mkdir(parents=True, exist_ok=True)
    created = read_release_time()
    project = Part(PROJECT, __version__, (hash_file(wheel),), read_licence(PROJECT))
    parts = read_parts(ROOT / "requirements" / "runtime.txt")
    files = [folder / "sbom.cdx.json", folder / "sbom.spdx.json", folder / "licences.txt"]
    files[0].write_text(make_cyclonedx(project, parts, created), encoding="utf-8")
    write_document_to_file(make_spdx(project, parts, created), str(files[1]), validate=False)
    lines = [f"{part.name} {part.version}: {part.licence}\n" for part in (project, *parts)]
    files[2].write_text("".join(lines), encoding="utf-8")
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.name != "manifest.zip")
    return [*files, make_manifest(folder, [*files, wheel], __version__)]


def main(arguments: list[str] | None = None) -> int:
    """Build the wheel unless it is given, and write the files of the release."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wheel", type=Path, help="the built wheel; by default it is built into dist/")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "releases" / __version__, help="the folder to write to"
    )
    given = parser.parse_args(arguments)
    wheel = given.wheel
    if wheel is None:
        (ROOT / "dist").mkdir(exist_ok=True)
        wheel = build(ROOT / "dist")
    for file in make_release(given.out, wheel):
        print(file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
