"""Workers are killed (SIGKILL, real) at every named moment and at random; nothing is lost or done twice.

At random: 80 in `make test`, 200 here in `make torture` (and 2,000 in `tests/torture`), or ONCEMORE_KILLS.
"""

from __future__ import annotations

import os
import random
import signal
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.storm import storm
from tests.storm.points import Point
from tests.storm.work import STEPS

if TYPE_CHECKING:
    from tests.storm.crew import Crew

KILLS = int(os.environ.get("ONCEMORE_KILLS", "200" if os.environ.get("ONCEMORE_TORTURE") else "80"))
WHENS = ("before", "commit", "synced", "after")
DURABLE = {"before": False, "commit": False, "synced": True, "after": True}


class Moment(NamedTuple):
    """When the first worker dies, and when the one that takes over does, if it does."""

    point: Point
    again: Point | None = None
    fails: int = 0
    lease_s: float = 60.0

    @property
    def order(self) -> str:
        return "-".join(map(str, self))


def moments(step: str) -> list[Moment]:
    """Return every moment at which a worker of this step is killed."""
    around = [Moment(Point(mark, when)) for mark in ("INTENT", "COMMIT") for when in WHENS]
    inside = [Moment(Point(mark)) for mark in ("work:begin", "effect:before", "effect:after")]
    lease = [Moment(Point("LEASE", when)) for when in ("before", "after")]
    beat = [Moment(Point("LEASE", when, 2), lease_s=0.15) for when in WHENS]
    retry = [Moment(Point("SOFT_FAIL", when), fails=1) for when in WHENS]
    second = [Moment(Point("INTENT", when, 2), fails=1) for when in WHENS]
    # Whoever finds a lost attempt closes it: with SOFT_FAIL, or with the COMMIT of what reconcile found.
    closing = "COMMIT" if step == "wire" else "SOFT_FAIL"
    rescue = [Moment(Point("effect:after"), Point(closing, when)) for when in WHENS]
    more: list[Moment] = []
    if step == "batch":
        more = [Moment(Point("CHECKPOINT", when, nth)) for nth in (1, 2) for when in WHENS]
    if step == "wire":
        more = [
            Moment(Point("effect:after"), Point("reconcile")),
            Moment(Point("work:begin"), Point("reconcile")),
        ]
    return around + inside + lease + beat + retry + second + rescue + more


def unknown(moment: Moment) -> bool:
    """Whether a `once` attempt was lost between its INTENT and its COMMIT: then nobody can know."""
    mark, when = moment.point.mark, moment.point.when
    if mark in ("INTENT", "SOFT_FAIL", "COMMIT"):
        return DURABLE[when] if mark == "INTENT" else not DURABLE[when]
    return mark != "LEASE" or moment.point.nth == 2


@pytest.mark.timeout(240)
@pytest.mark.req("STATE-10", "WAL-2", "WAL-8", "IDEM-9")
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_every_named_moment_is_followed_by_an_end_without_help(crew: Crew, step: str) -> None:
    todo, kills = moments(step), 0
    for some in (todo[n : n + 4] for n in range(0, len(todo), 4)):
        for which in ("point", "again"):
            first = [
                (
                    moment,
                    crew.call(
                        step,
                        moment.order,
                        point=getattr(moment, which),
                        fails=moment.fails,
                        lease_s=moment.lease_s,
                    ),
                )
                for moment in some
                if getattr(moment, which) is not None
            ]
            for moment, child in first:
                assert child.wait() == -signal.SIGKILL, f"{moment} was not reached\n{crew.complaints()}"
                kills += 1
        rescuers = [crew.call(step, moment.order, fails=moment.fails) for moment in some for _ in range(2)]
        for child in rescuers:
            assert child.wait() == 0, crew.complaints()
    _check_told(crew, step, todo)
    orders: list[list[Any]] = [[step, moment.order, moment.fails] for moment in todo]
    settled = storm.settle(crew, orders)
    storm.finish(crew, orders)
    report = storm.report(crew)
    print(f"{step}: {kills} kills at {len(todo)} moments, {settled} settled by hand; {report}")
    assert not report.violations
    assert report.complete == len(todo)
    assert not crew.complaints()


def _check_told(crew: Crew, step: str, todo: list[Moment]) -> None:
    """Both rescuers were told the same; only what must not be repeated was held, and only if it had to be."""
    told: dict[str, list[Any]] = {}
    for ack in crew.acks():
        told.setdefault(ack["order"], []).append(ack.get("value") or ack["error"])
    for moment in todo:
        one, other = told[moment.order]
        assert one == other, moment
        assert (one == "OutcomeUnknown") == (step == "pay" and unknown(moment)), (moment, one)


@pytest.mark.timeout(300)
@pytest.mark.req("STATE-10", "WAL-8", "IDEM-9")
def test_workers_that_are_killed_at_random_lose_nothing_and_do_nothing_twice(crew: Crew) -> None:
    seed = os.environ.get("ONCEMORE_STORM_SEED", f"{random.SystemRandom().getrandbits(32):08x}")
    print(f"ONCEMORE_STORM_SEED={seed}")
    orders = storm.rage(crew, KILLS, seed)
    storm.finish(crew, orders)
    settled = storm.settle(crew, orders)
    storm.finish(crew, orders)
    report = storm.report(crew)
    print(f"{KILLS} kills at random; {settled} settled by hand; {report}")
    assert not report.violations
    assert report.runs == len(orders)
    assert report.lost > KILLS // 20, "hardly any kill hit an attempt"
    assert not crew.complaints()
