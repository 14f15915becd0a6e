"""Issue 15, 1.11: an approval of one version and config does not let another version or config run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import NotPermitted
from tests.steps.colours import do, each_colour

if TYPE_CHECKING:
    from collections.abc import Callable

ran: list[str] = []
CHANGES: list[dict[str, Any]] = [{"version": "2"}, {"config": {"limit": 9}}]
each_change = pytest.mark.parametrize("change", CHANGES, ids=["version", "config"])
FIRST: dict[str, Any] = {"version": "1", "config": {"limit": 1}}


@pytest.fixture(autouse=True)
def _no_runs() -> None:
    ran.clear()


def make_step(colour: str = "plain", effect: Any = "once", **told: Any) -> Any:
    version = f"{told['version']} {told['config']}"
    decorate: Callable[..., Any] = oncemore.step(effect=effect, name="delete", requires_approval=True, **told)
    if colour == "plain":

        @decorate
        def delete(table: str) -> str:
            ran.append(version)
            return version

        return delete

    @decorate
    async def delete_async(table: str) -> str:
        ran.append(version)
        return version

    return delete_async


def hold_and_approve(engine: oncemore.Engine, colour: str = "plain", **told: Any) -> Any:
    """Approve a held call of the first version, and return its step."""
    first = make_step(colour, **FIRST, **told)
    with pytest.raises(NotPermitted):
        do(colour, first, "orders")
    engine.approvals.approve(first.last_run("orders"), reason="seen", by="reviewer")
    return first


@each_colour
@each_change
def test_a_call_of_another_version_or_config_is_held(
    colour: str, change: dict[str, Any], engine: oncemore.Engine
) -> None:
    first = hold_and_approve(engine, colour)
    second = make_step(colour, **{**FIRST, **change})
    with pytest.raises(NotPermitted, match="with another version or config"):
        do(colour, second, "orders")
    assert ran == []
    assert second.last_run("orders").held_for == "approval_needed"
    with pytest.raises(NotPermitted, match="with another version or config"):
        do(colour, second, "orders")
    (waiting,) = engine.approvals.list_waiting()
    assert waiting.reason.endswith("with another version or config")
    engine.approvals.approve(waiting.run_id, reason="seen too", by="reviewer")
    with pytest.raises(NotPermitted, match="with another version or config"):
        do(colour, first, "orders")
    engine.approvals.approve(waiting.run_id, reason="the first one after all", by="reviewer")
    do(colour, first, "orders")
    assert ran == [f"{FIRST['version']} {FIRST['config']}"]


@each_change
def test_a_worker_of_another_version_or_config_holds_the_run(
    change: dict[str, Any], engine: oncemore.Engine
) -> None:
    first = hold_and_approve(engine)
    second = make_step(**{**FIRST, **change})
    assert oncemore.Worker(engine, [second]).run_until_idle().held == 1
    assert ran == []
    (waiting,) = engine.approvals.list_waiting()
    assert waiting.reason.endswith("with another version or config")
    engine.approvals.approve(waiting.run_id, reason="seen too")
    assert oncemore.Worker(engine, [first]).run_until_idle().held == 1
    engine.approvals.approve(waiting.run_id, reason="seen")
    assert oncemore.Worker(engine, [first]).run_until_idle().done == 1
    assert len(ran) == 1


@each_change
def test_a_held_run_says_which_version_waits_last(change: dict[str, Any], engine: oncemore.Engine) -> None:
    """The next approval is for the version that was refused last, not for the one that was held first."""
    first, second = make_step(**FIRST), make_step(**{**FIRST, **change})
    for step in (first, second, second):
        with pytest.raises(NotPermitted):
            step("orders")
    version = second.last_run("orders").version
    assert version == 2, "the second call of the same version holds nothing again"
    engine.approvals.approve(second.last_run("orders"), reason="seen")
    with pytest.raises(NotPermitted, match="with another version or config"):
        first("orders")
    with pytest.raises(NotPermitted, match="with another version or config"):
        first("orders")
    assert ran == []
    engine.approvals.approve(first.last_run("orders"), reason="seen")
    first("orders")
    assert len(ran) == 1


def test_an_approval_in_advance_is_for_the_version_that_asked(engine: oncemore.Engine) -> None:
    first, second = make_step(**FIRST), make_step(**{**FIRST, "version": "2"})
    first.approve("orders", reason="planned")
    with pytest.raises(NotPermitted, match="with another version or config"):
        second("orders")
    assert ran == []
