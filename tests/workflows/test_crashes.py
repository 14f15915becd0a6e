"""A workflow whose process crashes before or after any of its writes sleeps once and takes a signal once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import oncemore
from oncemore.steps.history import verify_chain
from oncemore.testing import FakeClock
from tests.crash.harness import (
    AFTER_EACH,
    EVERYWHERE,
    CrashingStore,
    CrashPoint,
    crash_at_every_write,
    crash_everywhere,
    open_engine_on,
)

#: Longer than a call waits, so that every wait leaves the process.
SLEEP_S = 3600.0


def _pipeline(effects: Counter[str], seen: list[Any]) -> Any:
    @oncemore.step(effect="idempotent", name="effect")
    def effect(name: str) -> str:
        effects[name] += 1
        return name

    @oncemore.workflow(name="pipeline")
    def pipeline() -> Any:
        effect("begin")
        oncemore.sleep(SLEEP_S)
        effect("after sleep")
        first = oncemore.wait_for("word")
        seen.append(first)
        oncemore.set_value("first", first)
        second = oncemore.wait_for("word", timeout=SLEEP_S, default="none")
        effect("end")
        return first, second

    return pipeline


def _run_process(store: CrashingStore, pipeline: Any, clock: FakeClock) -> None:
    """Run the pipeline to its end in one process: a caller that waits, and sends the signals."""
    engine = open_engine_on(store)
    bound = pipeline.bind(engine)
    run = bound.submit()
    for _ in range(12):
        try:
            bound()
        except oncemore.Deferred:
            run = bound.last_run()
            if run.reason == "sleeping":
                clock.advance(SLEEP_S + 1)
            else:
                # Sent with an id: a process that crashed after the signal was stored sends it again.
                run.signal("word", "one", signal_id="first")
                run.signal("word", "two", signal_id="second")
            continue
        return
    raise AssertionError("the pipeline does not end")


def _check_end(store: CrashingStore, pipeline: Any, effects: Counter[str], seen: list[Any]) -> None:
    with open_engine_on(store) as engine:
        assert pipeline.bind(engine)() == ("one", "two")
        run = pipeline.bind(engine).last_run()
        text = run.explain()
    assert set(seen) == {"one"}, "every execution sees the same signal"
    assert text.count("took signal 'word'") == 2
    assert text.count("received signal 'word'") == 2
    assert text.count("sleeps until") == 1, "the sleep has one end, however often it is reached"
    assert text.count("published 'first'") == 1
    assert max(effects.values()) <= 2, "a step is repeated only if its own attempt was cut off"
    verify_chain(store.read_entries())


def test_a_workflow_that_crashes_at_any_write_ends_as_if_it_had_not() -> None:
    effects, seen = Counter[str](), list[Any]()
    pipeline, clock = _pipeline(effects, seen), FakeClock()

    def start() -> CrashingStore:
        effects.clear()
        seen.clear()
        return CrashingStore()

    crashes = 0
    with clock:
        for store in crash_at_every_write(start, lambda store: _run_process(store, pipeline, clock)):
            crashes += 1
            _run_process(store, pipeline, clock)
            _check_end(store, pipeline, effects, seen)
    assert crashes > 40


def test_a_workflow_that_crashes_twice_ends_as_if_it_had_not() -> None:
    effects, seen = Counter[str](), list[Any]()
    pipeline, clock = _pipeline(effects, seen), FakeClock()

    def start() -> CrashingStore:
        effects.clear()
        seen.clear()
        return CrashingStore()

    def run(store: CrashingStore, crash: CrashPoint | None) -> None:
        store.run(lambda store: _run_process(store, pipeline, clock), crash)

    crashes = 0
    with clock:
        for store in crash_everywhere(start, run, (AFTER_EACH, AFTER_EACH)):
            crashes += 1
            _run_process(store, pipeline, clock)
            _check_end(store, pipeline, effects, seen)
    assert crashes > 200


def test_a_crash_while_a_signal_is_sent_records_it_once_or_not_at_all() -> None:
    @oncemore.workflow(name="waits")
    def waits() -> Any:
        return oncemore.wait_for("go"), oncemore.wait_for("go", timeout=0, default="none")

    def start() -> CrashingStore:
        store = CrashingStore()
        waits.bind(open_engine_on(store)).submit()
        return store

    def run(store: CrashingStore, crash: CrashPoint | None) -> None:
        def send(store: Any) -> None:
            run = waits.bind(open_engine_on(store)).last_run()
            run.signal("go", 1, signal_id="once")

        store.run(send, crash)

    for store in crash_everywhere(start, run, (EVERYWHERE,)):
        run(store, None)
        with open_engine_on(store) as engine:
            assert waits.bind(engine)() == (1, "none")
