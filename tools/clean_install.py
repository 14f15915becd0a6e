"""Build the wheel and install it where nothing else is: what a user gets on the first day.

Checked: the wheel holds the package with its `py.typed` and nothing that is not the package; it
imports alone, without what it depends on, because the light door needs none of it; with what it
declares, and nothing else, the program starts, and `pip check` finds nothing missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent

IMPORT = """
import importlib.metadata as metadata, oncemore, oncemore.testing
print("oncemore", metadata.version("oncemore"), "from", oncemore.__file__)
others = sorted(found.name for found in metadata.distributions() if found.name != "oncemore")
raise SystemExit(f"beside it stands {others}" if others else 0)
"""


def call(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command without what the caller's environment would lend it; stop when it fails."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COVERAGE"))}
    code = subprocess.run([str(word) for word in command], cwd=cwd, env=clean, check=False).returncode
    if code:
        raise SystemExit(f"clean install: exit code {code} from {' '.join(map(str, command[1:]))[:200]}")


def build(target: Path) -> Path:
    """Build the wheel into a folder and return its path."""
    pip = (sys.executable, "-m", "pip", "--quiet", "wheel")
    call(*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", target, ROOT)
    (wheel,) = target.glob("oncemore-*.whl")
    return wheel


def faults_in(names: list[str]) -> list[str]:
    """Return what is wrong with the list of files in a wheel."""
    faults = [] if "oncemore/py.typed" in names else ["py.typed is missing: type checkers would see nothing"]
    strangers = [name for name in names if not name.startswith(("oncemore/", "oncemore-"))]
    return faults + [f"{name} does not belong into the wheel" for name in strangers]


def declared(name: str) -> set[str]:
    """Return the distributions that a plain install of one brings, itself left out."""
    needs = [Requirement(line) for line in metadata.requires(name) or []]
    wanted = {need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})}
    return wanted.union(*map(declared, wanted))


def lend(name: str, site: Path) -> None:
    """Copy a distribution from the environment that runs this, so that no index is needed here."""
    for file in metadata.files(name) or []:
        if file.parts[0] != ".." and file.suffix != ".pyc":
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(file.locate()), target)


def main() -> int:
    """Build, look inside, install, import, start."""
    with TemporaryDirectory() as folder:
        here = Path(folder)
        wheel = build(here / "dist")
        with ZipFile(wheel) as archive:
            names = archive.namelist()
        if faults := faults_in(names):
            raise SystemExit("\n".join(faults))
        # Without pip in it, the environment is empty and works where ensurepip is missing.
        venv.create(here / "venv", with_pip=False)
        programs = here / "venv" / ("Scripts" if os.name == "nt" else "bin")
        python = programs / "python"
        pip = (sys.executable, "-m", "pip", "--quiet", "--python", python)
        call(*pip, "install", "--no-index", "--no-deps", wheel)
        call(python, "-I", "-W", "error", "-c", IMPORT, cwd=here)
        (site,) = here.glob("venv/**/site-packages")
        needed = sorted(declared("oncemore"))
        for name in needed:
            lend(name, site)
        call(programs / "oncemore", "--version", cwd=here)
        call(programs / "oncemore", "policy", "show", "kfm-loop", "--attempt", "1", cwd=here)
        call(*pip, "check")
        print(f"{wheel.name}: {len(names)} files, py.typed among them; brings {', '.join(needed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
