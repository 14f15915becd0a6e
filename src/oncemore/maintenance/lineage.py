"""LINEAGE: what came of what, under ids that follow from keys and digests alone (LIN-6, X-18).

    entity      bytes, by their digest
    activity    work, by its step, key and configuration: not by run, time or machine
    derivation  that these bytes came of those by that work

So the same work done again, elsewhere or after a crash, has the same ids, if it leaves the same bytes.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.policy.canonical_json import digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

URN = "urn:oncemore"


class Lineage(Value):
    """The ids of one piece of work: what it used, what it generated, and what is derived from what."""

    activity: str
    used: tuple[str, ...]
    generated: tuple[str, ...]
    derived: tuple[str, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """All of them."""
        return (self.activity, *self.used, *self.generated, *self.derived)


def entity_id(sha256: str) -> str:
    """Return the id of bytes by their SHA-256 in hexadecimal digits."""
    return f"{URN}:entity:sha256:{sha256}"


def lineage(step: str, key: str, cfg_hash: str, used: Iterable[str], generated: Iterable[str]) -> Lineage:
    """Return the ids of work that used bytes with these digests and left bytes with those."""
    work = digest({"step": step, "key": key, "cfg": cfg_hash})[:32]
    before, after = sorted({*map(entity_id, used)}), sorted({*map(entity_id, generated)})
    derived = tuple(
        f"{URN}:derivation:{digest({'of': one, 'from': other, 'by': work})[:32]}"
        for one in after
        for other in before
    )
    return Lineage(f"{URN}:activity:{work}", tuple(before), tuple(after), derived)
