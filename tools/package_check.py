"""Check the files of a release: their contents, that they can be built again, and every extra.

    python -m tools.package_check contents       list and check the wheel and the source archive in dist/
    python -m tools.package_check reproducible   build the last commit twice and compare the bytes
    python -m tools.package_check extras [NAME]  try each extra from the wheel, in an empty environment

An extra is tried twice with the same statement: without its packages the statement must raise `MissingExtra`
and name the extra; with them it must work, and `pip check` must find nothing missing.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import time
import venv
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from zipfile import ZipFile

from oncemore.queries.extras import OPTIONAL_PARTS

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
#: What must not be in a published file, and why.
UNWANTED = {
    r"(^|/)(tests|bench|examples|tools|docs|\.github)/": "only for development",
    r"(^|/)(\.venv|\.git|__pycache__|\.mypy_cache|build|dist)/|\.pyc$": "made on one machine",
    r"(^|/)(\.env|\.netrc|\.pypirc|id_\w+|[^/]*\.(pem|key|p12|db))$": "may be a secret or private data",
}
#: The folders for development that the source archive has on purpose: a packager runs the tests from it.
IN_SDIST = ("tests/", "docs/")
#: A statement that uses the part of each extra.
STATEMENTS = {
    "postgres": "import oncemore.log.postgres.store",
    "mysql": "import oncemore.log.mysql.store",
    "nats": "import oncemore.log.nats.connection",
    "aws": "from oncemore.messaging.queue_sinks import make_sqs_client as make; "
    "make('https://sqs.eu-west-1.amazonaws.com/1/queue')",
    "rabbitmq": "from oncemore.messaging.rabbitmq import make_parameters; "
    "make_parameters('amqp://localhost/', {})",
    "kafka": "from oncemore.messaging.kafka import HINT, import_library; "
    "import_library('confluent_kafka', HINT)",
    "django": "import oncemore.http\n"
    "from oncemore import MissingExtra\n"
    "try: oncemore.http.DjangoIdempotencyMiddleware(lambda request: None)\n"
    "except MissingExtra: raise\n"
    "except Exception as error:\n    if 'DJANGO_SETTINGS_MODULE' not in str(error): raise",
    "http": "import httpx2, oncemore.http; httpx2.Client(transport=oncemore.http.Transport()).close()",
    "cron": "from oncemore.schedules.ticks import load_cronsim; load_cronsim().CronSim",
    "otel": "import oncemore.telemetry; oncemore.telemetry.enable_opentelemetry()",
    "prometheus": "import oncemore.telemetry; oncemore.telemetry.enable_prometheus()",
    "sentry": "import oncemore.telemetry; oncemore.telemetry.enable_sentry()",
    "fits": "from oncemore.profiles.nova_cat.fits import import_readers; import_readers()",
    "sign": "from oncemore.governance.keys import require_cryptography; require_cryptography(); "
    "import bcrypt",
    "sigstore": "from oncemore.governance.sigstore_bundles import SigstoreTrust, verify_bundle\n"
    "from oncemore import UsageError\nfrom pathlib import Path\n"
    "try: verify_bundle(b'', b'', SigstoreTrust(Path('absent.json'), ()), 'bundle')\n"
    "except UsageError as error:\n    if type(error) is not UsageError: raise",
    "object-store": "from oncemore.artifacts.object_store import _import_obstore; _import_obstore()",
    "web": "import oncemore, oncemore.dashboard; oncemore.dashboard.create_app(oncemore.open('memory:'))",
    "migrate": "from oncemore.migrate.files import migrate_paths; migrate_paths('tenacity', ['.'])",
    "supply-chain": "from oncemore.supply_chain.advisories import VersionRange, _is_within; "
    "_is_within('1.0', VersionRange('0', '2.0'))",
}


class PackageFault(NamedTuple):
    """A fault of a published file: the file, the name inside it and the reason."""

    file: str
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.name}: {self.reason}"


def find_faults(file: str, names: list[str], wanted: set[str]) -> list[PackageFault]:
    """Return what is in a published file and should not be, and what is wanted and missing."""
    is_sdist = file.endswith(".tar.gz")
    faults = [PackageFault(file, name, "missing") for name in sorted(wanted - set(names))]
    for name in names:
        if is_sdist and name.startswith(IN_SDIST):
            continue
        # Inside of the package itself a folder may have such a name: src/oncemore/lint/…
        shown = re.sub(r"^(src/)?oncemore/", "", name)
        faults += [
            PackageFault(file, name, why) for pattern, why in UNWANTED.items() if re.search(pattern, shown)
        ]
    return faults


def list_package_files() -> set[str]:
    """Return the files of the package that git tracks: code, schemas, policies, templates and py.typed."""
    listed = _run("git", "ls-files", "-z", "src/oncemore").stdout
    return {name.removeprefix("src/") for name in listed.split("\0") if name}


def check_contents(folder: Path = DIST) -> list[PackageFault]:
    """Print what the wheel and the source archive hold, and return their faults."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with ZipFile(wheel) as archive:
        in_wheel = [name for name in archive.namelist() if not name.endswith("/")]
    with tarfile.open(sdist) as archive:
        # Every name in a source archive begins with a folder named after the version.
        in_sdist = [one.name.partition("/")[2] for one in archive.getmembers() if one.isfile()]
    package = list_package_files()
    project = {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "PKG-INFO"}
    for file, names in ((wheel, in_wheel), (sdist, in_sdist)):
        kinds: dict[str, int] = {}
        for name in names:
            kind = Path(name).suffix or Path(name).name
            kinds[kind] = kinds.get(kind, 0) + 1
        counts = ", ".join(
            f"{count} {kind}" for kind, count in sorted(kinds.items(), key=lambda one: -one[1])
        )
        print(f"{file.name}: {len(names)} files, {file.stat().st_size // 1024} KiB: {counts}")
    return [
        *find_faults(wheel.name, in_wheel, package),
        *find_faults(sdist.name, in_sdist, {f"src/{name}" for name in package} | project),
    ]


def build_commit(commit: str, folder: Path, umask: int) -> dict[str, str]:
    """Build a commit in a new clone, and return the digest of each file that was made."""
    clone, target = folder / "oncemore", folder / "dist"
    _run("git", "clone", "--quiet", str(ROOT), str(clone))
    _run("git", "checkout", "--quiet", "--detach", commit, cwd=clone)
    # The same moment as in `make build`, so that its files have these digests too.
    os.environ["SOURCE_DATE_EPOCH"] = _run("git", "log", "-1", "--format=%ct", cwd=clone).stdout.strip()
    before = os.umask(umask)
    try:
        _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), ".", cwd=clone)
    finally:
        os.umask(before)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(target.iterdir())}


def check_reproducible() -> bool:
    """Build twice with another folder, time, time zone and umask, and print whether the bytes are equal."""
    # Named once: a commit that is made meanwhile must not be compared with the one before it.
    commit = _run("git", "rev-parse", "HEAD").stdout.strip()
    with TemporaryDirectory() as first, TemporaryDirectory() as second:
        one = build_commit(commit, Path(first), 0o022)
        os.environ["TZ"] = "Pacific/Auckland"
        other = build_commit(commit, Path(second), 0o077)
    for name in one:
        print(f"{name}  sha256:{one[name]}  {'same bytes' if one[name] == other.get(name) else 'DIFFERENT'}")
    if _run("git", "status", "--porcelain").stdout:
        print("The working folder has changes that are not committed; they were not built.")
    return one == other and len(one) == 2


def _run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a command without the variables of this interpreter, and stop if it fails."""
    ran = _try(*command, cwd=cwd)
    if ran.returncode:
        raise SystemExit(f"{' '.join(command)[:200]}\n{ran.stdout}{ran.stderr}")
    return ran


def _try(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, check=False)


def install(wheel: Path, extra: str, folder: Path) -> Path:
    """Install the wheel with an extra, or none, into a new environment; return its interpreter."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(python))
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    _run(*pip, "install", "-c", str(ROOT / "constraints.txt"), wanted)
    _run(*pip, "check")
    return python


def check_extra(extra: str, wheel: Path, bare: Path, folder: Path) -> str:
    """Try an extra without and with its packages; return the fault, or ""."""
    statement = STATEMENTS[extra]
    without = _try(str(bare), "-I", "-c", statement, cwd=folder)
    # The HTTP client is imported by the caller, and its absence is the caller's own error.
    wanted = "httpx2" if extra == "http" else f"oncemore[{extra}]"
    if without.returncode == 0 or wanted not in without.stderr.strip().splitlines()[-1]:
        return f"without it, the error does not name {wanted}: {without.stderr[-300:]}"
    python = install(wheel, extra, folder / extra)
    ran = _try(str(python), "-I", "-W", "error", "-c", statement, cwd=folder)
    if ran.returncode:
        return f"with it: {ran.stderr[-500:]}"
    (part,) = [one for one in OPTIONAL_PARTS if one.extra == extra]
    shown = _run(str(python.with_name("oncemore")), "--version", cwd=folder).stdout
    return "" if re.search(rf"(?m)^  {extra} +{part.package} \d", shown) else f"not in --version:\n{shown}"


def check_extras(names: list[str]) -> bool:
    """Try the extras, print a line for each, and return whether all of them work."""
    (wheel,) = DIST.glob("*.whl")
    failed = False
    with TemporaryDirectory() as place:
        folder = Path(place)
        bare = install(wheel, "", folder / "bare")
        print(f"{'(none)':<14}{_run(str(bare.with_name('oncemore')), '--version').stdout.splitlines()[0]}")
        for extra in names or [part.extra for part in OPTIONAL_PARTS]:
            start = time.perf_counter()
            fault = check_extra(extra, wheel, bare, folder)
            failed |= bool(fault)
            print(f"{extra:<14}{fault or 'works'}  {time.perf_counter() - start:.1f} s", flush=True)
    return not failed


def main(words: list[str]) -> int:
    """Run one of the checks."""
    command, rest = (words or [""])[0], words[1:]
    if command == "contents":
        faults = check_contents()
        print(*faults, sep="\n", end="\n" if faults else "")
        return 1 if faults else 0
    if command == "reproducible":
        return 0 if check_reproducible() else 1
    if command == "extras":
        return 0 if check_extras(rest) else 1
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
