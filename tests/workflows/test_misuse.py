"""Waits in the wrong place are refused with the place and the way out; wrong options with their names."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import oncemore
from tests.workflows import killed


def test_waits_outside_of_a_workflow_are_refused(engine: oncemore.Engine) -> None:
    for function, call in (
        ("sleep", lambda: oncemore.sleep(1)),
        ("wait_for", lambda: oncemore.wait_for("x")),
        ("set_value", lambda: oncemore.set_value("x", 1)),
    ):
        with pytest.raises(oncemore.UsageError, match=rf"oncemore.{function}\(\) is for the inside"):
            call()


@pytest.mark.parametrize("wait", [lambda: oncemore.sleep(1), lambda: oncemore.wait_for("x")])
def test_a_step_cannot_wait_inside_of_a_workflow_either(engine: oncemore.Engine, wait: Any) -> None:
    @oncemore.step(effect="pure")
    def inner() -> None:
        wait()

    @oncemore.workflow
    def outer() -> None:
        inner()

    with pytest.raises(oncemore.StepFailed, match="a step cannot wait, only a workflow"):
        outer()


def test_a_wait_in_another_thread_of_the_workflow_is_refused(engine: oncemore.Engine) -> None:
    @oncemore.workflow
    async def threads() -> None:
        await asyncio.to_thread(oncemore.sleep, 1)

    @oncemore.workflow
    def plain_threads() -> Any:
        errors: list[Exception] = []

        def wait() -> None:
            try:
                oncemore.sleep(1)
            except oncemore.UsageError as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
        raise errors[0]

    with pytest.raises(oncemore.StepFailed, match=r"oncemore.sleep\(\) in another thread of"):
        asyncio.run(threads())
    with pytest.raises(oncemore.StepFailed, match="is for the inside of a function with"):
        plain_threads()


def test_a_wait_in_a_child_task_is_refused(engine: oncemore.Engine) -> None:
    async def nap() -> None:
        await oncemore.sleep(1)

    async def publish() -> None:
        await oncemore.set_value("x", 1)

    @oncemore.workflow
    async def gathers(what: str) -> None:
        works = {"sleep": nap, "wait": lambda: oncemore.wait_for("x"), "value": publish}
        await asyncio.gather(works[what]())

    for what in ("sleep", "wait", "value"):
        with pytest.raises(oncemore.StepFailed, match=r"in a child task .* a workflow of its own"):
            asyncio.run(gathers(what))


def test_wrong_values_are_named(engine: oncemore.Engine) -> None:
    @oncemore.workflow
    def wrong(what: str) -> None:
        if what == "duration":
            oncemore.sleep(float("inf"))
        elif what == "text":
            oncemore.sleep("1h")  # type: ignore[arg-type]
        elif what == "signal":
            oncemore.wait_for("")
        elif what == "timeout":
            oncemore.wait_for("x", timeout="1h")  # type: ignore[arg-type]
        elif what == "value":
            oncemore.set_value("x", object())
        else:
            oncemore.sleep(1, name="n" * 201)

    for what, text in (
        ("duration", "duration is inf"),
        ("text", "duration is '1h'"),
        ("signal", "signal is ''"),
        ("timeout", "timeout is '1h'"),
        ("value", "which has no form in JSON"),
        ("name", "name is 'nnn"),
    ):
        with pytest.raises(oncemore.StepFailed, match=text):
            wrong(what)


def test_unknown_options_are_refused_and_the_effect_is_not_one() -> None:
    with pytest.raises(oncemore.UsageError, match="has no option effect; the options are name"):
        oncemore.workflow(effect="pure")  # type: ignore[call-overload]


def test_a_policy_that_counts_crashes_as_attempts_gives_its_own_number() -> None:
    governed = oncemore.workflow(name="governed", policy="kfm-loop")(lambda: None)
    assert governed._options.policy.max_attempts > 1
    assert governed._options.policy.max_crashes is None
    counted = oncemore.workflow(name="counted", max_crashes=7)(lambda: None)
    assert (counted._options.policy.max_attempts, counted._options.policy.max_crashes) == (1, 7)


def test_a_workflow_needs_a_policy_where_the_settings_ask_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMORE_POLICY", "required")
    with pytest.raises(oncemore.UsageError, match="does not name a policy"):
        oncemore.workflow(name="unnamed")(lambda: None)


def test_an_execution_that_is_over_cannot_go_on(engine: oncemore.Engine) -> None:
    leaked: list[Any] = []

    @oncemore.step(effect="pure")
    async def inner(x: int) -> int:
        return x

    @oncemore.workflow
    async def leaves_a_task() -> str:
        async def later() -> None:
            await asyncio.sleep(0.05)
            leaked.append("called")
            await inner(1)

        leaked.append(asyncio.create_task(later()))
        return "done"

    async def use() -> Any:
        value = await leaves_a_task()
        return value, await asyncio.gather(leaked[0], return_exceptions=True)

    value, (error,) = asyncio.run(use())
    assert value == "done"
    assert type(error).__name__ == "WorkflowParked"
    assert inner.last_run(1) is None


def test_a_workflow_in_trio(engine: oncemore.Engine) -> None:
    trio = pytest.importorskip("trio")

    @oncemore.step(effect="pure")
    async def inner(x: int) -> int:
        return x + 1

    @oncemore.workflow
    async def waits(x: int) -> Any:
        await oncemore.sleep(0.05)
        return await inner(x), await oncemore.wait_for("go", timeout=0.05, default=None)

    assert trio.run(waits, 1) == (2, None)


def test_a_step_in_a_process_of_its_own_publishes_no_values(engine: oncemore.Engine) -> None:
    if engine.url.startswith("memory"):
        pytest.skip("one store is enough")
    with pytest.raises(oncemore.StepFailed, match="runs in a process of its own, and publishes no values"):
        killed.publish_in_process(1)
