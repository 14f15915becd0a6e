"""Build the site of every released version beside each other, with the file that the switcher reads.

    python -m tools.site_versions

These are the newest release of each minor version, and the working tree under the name "dev". Each is built
from its own tag by its own `make docs`, so that nothing has to be stored between two deployments.
`build/versions/versions.json` lists them, newest first. The switcher in every page reads it from its host,
and shows nothing where it is missing. The first page leads to the newest release.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tools.site import find_faults

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "build" / "versions"
DEV = "dev"


class SiteVersion(NamedTuple):
    """A version of the site: its folder, and the tag it is built from ("" for the working tree)."""

    folder: str
    tag: str


def select_versions(tags: list[str]) -> list[SiteVersion]:
    """Return the newest release of each minor version, newest first, and the working tree last."""
    newest: dict[tuple[int, int], int] = {}
    for tag in tags:
        # Previews such as v1.0.0rc1 get no site of their own.
        if match := re.fullmatch(r"v(\d+)\.(\d+)\.(\d+)", tag):
            major, minor, patch = map(int, match.groups())
            newest[major, minor] = max(patch, newest.get((major, minor), 0))
    releases = [
        SiteVersion(f"{major}.{minor}", f"v{major}.{minor}.{patch}")
        for (major, minor), patch in sorted(newest.items(), reverse=True)
    ]
    return [*releases, SiteVersion(DEV, "")]


def make_switcher(versions: list[SiteVersion]) -> str:
    """Return the text of versions.json."""
    rows = [{"folder": one.folder, "title": one.tag.removeprefix("v") or "development"} for one in versions]
    return json.dumps(rows, indent=1) + "\n"


def make_first_page(versions: list[SiteVersion]) -> str:
    """Return the page at the root, which leads to the newest release."""
    folder = html.escape(versions[0].folder)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>oncemore</title>\n'
        f'<meta http-equiv="refresh" content="0; url={folder}/index.html">\n'
        f'<p><a href="{folder}/index.html">The documentation of oncemore</a></p></html>\n'
    )


def build_version(version: SiteVersion) -> Path:
    """Build the site of a version, and return the folder that it was moved to."""
    place = TARGET / version.folder
    if not version.tag:
        subprocess.run(["make", "docs"], cwd=ROOT, check=True)
        shutil.copytree(ROOT / "build" / "site", place)
        return place
    with TemporaryDirectory() as folder:
        clone = Path(folder, "oncemore")
        clone_command = ["git", "clone", "--quiet", "--branch", version.tag, str(ROOT), str(clone)]
        subprocess.run(clone_command, check=True)
        subprocess.run(["make", "docs"], cwd=clone, check=True)
        shutil.move(clone / "build" / "site", place)
    return place


def write_root(versions: list[SiteVersion], target: Path = TARGET) -> None:
    """Write the first page and the list of versions beside the built ones."""
    target.joinpath("versions.json").write_text(make_switcher(versions), encoding="utf-8")
    target.joinpath("index.html").write_text(make_first_page(versions), encoding="utf-8")


def main() -> int:
    """Build all versions and check the links over all of them."""
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    tags = subprocess.run(["git", "tag"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    versions = select_versions(tags)
    for version in versions:
        print(f"== {version.folder}", flush=True)
        build_version(version)
    write_root(versions)
    faults = find_faults(TARGET)
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"{TARGET.relative_to(ROOT)}/index.html: {len(versions)} versions, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
