"""CARE escalation: a nowcast over a protected site fails permanently and waits for a named person.

Two tiles are processed under `p0-storm-nowcast`. One of them shows a site with rights of an indigenous
community; its radar file is broken. It is not retried, and not run again before a reviewer has decided. The
other tile goes on.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import oncemore

#: The tiles whose radar file is broken.
BROKEN = {"tile-12"}


@oncemore.step(
    effect="pure", name="storm.nowcast", policy="p0-storm-nowcast", dataset=lambda tile, site: site
)
def nowcast(tile: str, site: str) -> str:
    """Make the nowcast of a tile."""
    if tile in BROKEN:
        raise oncemore.PermanentError("the radar file has no header")
    return f"nowcast of {tile}"


class Review(NamedTuple):
    """What happened to the protected tile, and to the public one."""

    failed: oncemore.Run[Any]
    escalation: Any
    refusal: str
    public: oncemore.Run[Any]
    after: oncemore.Run[Any]


def play(folder: Path) -> Review:
    """Play the escalation from the failure to the decision."""
    BROKEN.add("tile-12")
    with oncemore.open(folder / "log.db") as engine:
        register_sites(engine)
        failed = nowcast.run("tile-12", "burial-site")
        (escalation,) = engine.escalations.list()
        print(f"tile-12: {failed.status} after {len(failed.attempts)} attempt, {escalation.kind}")
        print(f"         for the {escalation.role}: {', '.join(escalation.error_classes)}")
        public = nowcast.run("tile-13", "open-plain")
        print(f"tile-13: {public.status}, public tiles go on")
        # The file is repaired, but nobody has decided yet.
        BROKEN.clear()
        refusal = ""
        try:
            nowcast.rerun("tile-12", "burial-site", reason="the file is repaired")
        except oncemore.Error as error:
            refusal = str(error)
        print(f"tile-12: a rerun is refused while the review is open: {bool(refusal)}")
        decided = engine.escalations.acknowledge(
            escalation, reason="the council permits this nowcast", by="the council's reviewer"
        )
        nowcast.rerun("tile-12", "burial-site", reason="permitted by the council")
        after = nowcast.last_run("tile-12", "burial-site")
        assert after is not None
        print(f"tile-12: {after.status} after the decision of {decided.by}")
        return Review(failed, escalation, refusal, public, after)


def register_sites(engine: oncemore.Engine) -> None:
    """Register both datasets: what is not registered is refused under this policy."""
    engine.datasets.register(
        "burial-site",
        care_label="Sensitive · Council review",
        indigenous_rights_flag=True,
        reason="agreement with the community",
        by="steward",
    )
    engine.datasets.register("open-plain", care_label="Public · Low-Risk", reason="open data", by="steward")


def main() -> Review:
    """Play the escalation and print it."""
    # The story below says what the log messages would.
    logging.getLogger("oncemore").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        return play(Path(folder))


if __name__ == "__main__":
    main()
