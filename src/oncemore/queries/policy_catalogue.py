"""Which policies there are.

Reading all packaged files takes longer than everything else that a list costs, so `packaged.json` holds
their rows together with the digests of the files they were made from. It is used only when the released
digests name the same files, and every file still has its digest. `python tools/profiles.py --write` makes
it; a test keeps it in step.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from oncemore._values import Value
from oncemore.settings import policy_root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from oncemore.policy.files import Listed

#: Where this package is; profiles are named relative to it.
PACKAGE: Final = Path(__file__).resolve().parents[1]
RELEASED: Final = PACKAGE / "profiles" / "digests.txt"
KEPT: Final = Path(__file__).with_name("packaged.json")


class Row(Value):
    """One profile in the list; `fault` says why a file cannot be used.

    Attempts and limits are the least and the most among its policies; a limit of None is none.
    """

    name: str
    version: str
    governed: bool
    policies: int
    attempts: tuple[int, int]
    timeout_s: tuple[float | None, float | None]
    packaged: bool
    source: str
    signature: str
    digest: str
    fault: str


def rows() -> tuple[Row, ...]:
    """Return every profile there is: the packaged ones, and those below the policy root."""
    if policy_root() is None:
        known = _remembered()
        if known is not None:
            return known
    return read()


def read() -> tuple[Row, ...]:
    """Return every profile there is, read from the files themselves."""
    from oncemore.policy.files import listing
    from oncemore.queries.policies import quiet

    with quiet():
        return tuple(_row(one) for one in listing())


def _row(one: Listed) -> Row:
    from oncemore.policy.files import load

    packaged = Path(one.source).is_relative_to(PACKAGE)
    if one.fault:
        return Row(
            one.name, "", False, 0, (0, 0), (None, None), packaged, one.source, one.signature, "", one.fault
        )
    made = load(one.source)
    attempts = [policy.max_attempts for policy in made.policies.values()]
    limits = [policy.timeout_s for policy in made.policies.values()]
    known = [limit for limit in limits if limit is not None]
    return Row(
        one.name,
        made.version,
        made.governed,
        len(made.policies),
        (min(attempts), max(attempts)),
        (min(known) if known else None, max(known) if len(known) == len(limits) else None),
        packaged,
        one.source,
        one.signature,
        made.digest,
        "",
    )


def _remembered() -> tuple[Row, ...] | None:
    """Return the kept rows if they are about the files as they are."""
    from json import loads

    try:
        kept = [_unpacked(fields) for fields in loads(KEPT.read_bytes())]
        released = [line.split(maxsplit=1) for line in RELEASED.read_text(encoding="ascii").splitlines()]
        now = [[sha256(Path(row.source).read_bytes()).hexdigest(), row.source] for row in kept]
    except (OSError, ValueError, TypeError):
        return None
    wanted = [[digest, str(RELEASED.parent / name)] for digest, name in released]
    then = [[row.digest, row.source] for row in kept]
    return tuple(kept) if now == then and sorted(now) == sorted(wanted) else None


def _unpacked(fields: dict[str, Any]) -> Row:
    row = Row(**fields)
    return row._replace(
        source=str(PACKAGE / row.source),
        attempts=(row.attempts[0], row.attempts[1]),
        timeout_s=(row.timeout_s[0], row.timeout_s[1]),
    )


def kept_now() -> str:
    """Return what `packaged.json` should hold."""
    from json import dumps

    packaged = [row for row in read() if row.packaged]
    relative = [row._replace(source=Path(row.source).relative_to(PACKAGE).as_posix()) for row in packaged]
    lines = (dumps(row._asdict()) for row in relative)
    return "[\n" + ",\n".join(lines) + "\n]\n"
