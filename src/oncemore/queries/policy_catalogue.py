"""List the profiles that exist: the packaged ones, and those below the policy root.

Reading all packaged files takes longer than the rest of the list command, so `packaged.json` holds their rows
with the digests of the files. It is used only if the released digests name the same files and every file
still has its digest. `python tools/profiles.py --write` generates it; a test keeps it up to date.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from oncemore import clock as clocks
from oncemore._values import Value
from oncemore.config import policy_root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from oncemore.policy.files import PolicyListing

#: The folder of this package; the sources of profiles are stored relative to it.
PACKAGE_FOLDER: Final = Path(__file__).resolve().parents[1]
DIGESTS_FILE: Final = PACKAGE_FOLDER / "profiles" / "digests.txt"
PACKAGED_ROWS_FILE: Final = Path(__file__).with_name("packaged.json")


class ProfileRow(Value):
    """One profile in the list; `fault` is the reason why a file cannot be used.

    Attempts and timeouts are the smallest and the largest of its policies; None means no timeout. `overdue`
    says what is late about it: its review, its time to live, its expiry (GOV-18, VER-5).
    """

    name: str
    version: str = ""
    governed: bool = False
    policies: int = 0
    attempts: tuple[int, int] = (0, 0)
    timeout_s: tuple[float | None, float | None] = (None, None)
    packaged: bool = False
    source: str = ""
    signature: str = ""
    digest: str = ""
    fault: str = ""
    overdue: str = ""


def list_profiles() -> tuple[ProfileRow, ...]:
    """Return all profiles, from `packaged.json` if it is up to date."""
    # A policy root adds profiles of its own, which packaged.json does not know.
    if policy_root() is None:
        rows = _load_packaged_rows()
        if rows is not None:
            return rows
    return read_profiles()


def read_profiles() -> tuple[ProfileRow, ...]:
    """Return all profiles, read from their files."""
    from oncemore.policy.files import listing
    from oncemore.queries.policies import ignore_warnings

    with ignore_warnings():
        return tuple(_make_row(entry) for entry in listing())


def _make_row(entry: PolicyListing) -> ProfileRow:
    from oncemore.governance.policy_content import describe_dates
    from oncemore.policy.files import inspect_file

    row = ProfileRow(
        name=entry.name,
        packaged=Path(entry.source).is_relative_to(PACKAGE_FOLDER),
        source=entry.source,
        signature=entry.signature,
        fault=entry.fault,
    )
    if entry.fault:
        return row
    profile = inspect_file(entry.source)
    attempts = [policy.max_attempts for policy in profile.policies.values()]
    timeouts = [policy.timeout_s for policy in profile.policies.values()]
    limited = [timeout for timeout in timeouts if timeout is not None]
    # A single policy without a timeout means that the profile has no largest one.
    longest = max(limited) if len(limited) == len(timeouts) else None
    return row._replace(
        version=profile.version,
        governed=profile.governed,
        policies=len(profile.policies),
        attempts=(min(attempts), max(attempts)),
        timeout_s=(min(limited) if limited else None, longest),
        digest=profile.digest,
        overdue="; ".join(describe_dates(profile.metadata, clocks.current.wall())),
    )


def _load_packaged_rows() -> tuple[ProfileRow, ...] | None:
    """Return the rows in `packaged.json`; None if one of the files has changed since."""
    from json import loads

    try:
        rows = [_decode_row(fields) for fields in loads(PACKAGED_ROWS_FILE.read_bytes())]
        lines = DIGESTS_FILE.read_text(encoding="ascii").splitlines()
        actual = [[sha256(Path(row.source).read_bytes()).hexdigest(), row.source] for row in rows]
    except (OSError, ValueError, TypeError):
        return None
    released = [
        [digest, str(DIGESTS_FILE.parent / name)]
        for digest, name in (line.split(maxsplit=1) for line in lines)
    ]
    recorded = [[row.digest, row.source] for row in rows]
    return tuple(rows) if actual == recorded and sorted(actual) == sorted(released) else None


def _decode_row(fields: dict[str, Any]) -> ProfileRow:
    row = ProfileRow(**fields)
    # JSON has no tuples, and the type checker wants pairs.
    return row._replace(
        source=str(PACKAGE_FOLDER / row.source),
        attempts=(row.attempts[0], row.attempts[1]),
        timeout_s=(row.timeout_s[0], row.timeout_s[1]),
    )


def packaged_json() -> str:
    """Return the text of an up-to-date `packaged.json`."""
    from json import dumps

    packaged = [row for row in read_profiles() if row.packaged]
    relative = [
        row._replace(source=Path(row.source).relative_to(PACKAGE_FOLDER).as_posix()) for row in packaged
    ]
    lines = (dumps(row._asdict()) for row in relative)
    return "[\n" + ",\n".join(lines) + "\n]\n"
