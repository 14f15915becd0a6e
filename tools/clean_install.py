"""Build the wheel and install it where nothing else is: what a user gets on the first day.

Checked: the wheel holds the package with its `py.typed` and nothing that is not the package;
without extras it brings no other distribution; it imports, says its version, and `pip check` finds
nothing missing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent

IMPORT = """
import importlib.metadata as metadata, oncemore, oncemore.testing
print("oncemore", metadata.version("oncemore"), "from", oncemore.__file__)
others = sorted(found.name for found in metadata.distributions() if found.name != "oncemore")
raise SystemExit(f"a plain install brought {others}" if others else 0)
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


def main() -> int:
    """Build, look inside, install, import."""
    with TemporaryDirectory() as folder:
        here = Path(folder)
        wheel = build(here / "dist")
        with ZipFile(wheel) as archive:
            names = archive.namelist()
        if faults := faults_in(names):
            raise SystemExit("\n".join(faults))
        # Without pip in it, the environment is empty and works where ensurepip is missing.
        venv.create(here / "venv", with_pip=False)
        python = here / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
        pip = (sys.executable, "-m", "pip", "--quiet", "--python", python)
        call(*pip, "install", "--no-index", wheel)
        call(python, "-I", "-W", "error", "-c", IMPORT, cwd=here)
        call(*pip, "check")
        print(f"{wheel.name}: {len(names)} files, py.typed among them, no other distribution needed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
