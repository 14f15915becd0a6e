"""`on=`, `attempts=`, `wait=` and `until=` of `step`: as in `retry`, over the policy."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.log.store import HeadQuery
from tests.steps import isolated
from tests.steps.colours import Turns, do, each_colour, made

if TYPE_CHECKING:
    from oncemore.testing import FakeClock


class NotReady(Exception):
    """A custom error that no classifier knows."""


class Gone(NotReady):
    """A kind of it."""


@pytest.mark.usefixtures("clock")
@each_colour
@pytest.mark.parametrize(
    "on", [NotReady, (ConnectionError, NotReady), lambda error: isinstance(error, NotReady)]
)
def test_a_custom_exception_is_made_retryable_where_the_step_is_defined(
    engine: oncemore.Engine, colour: str, on: Any
) -> None:
    turns = Turns(NotReady("not yet"), Gone("nor now"), "done")
    step = made(colour, turns, on=on, policy="standard")
    assert do(colour, step) == "done"
    assert [attempt.outcome for attempt in step.last_run().attempts] == ["SOFT_FAIL", "SOFT_FAIL", "COMPLETE"]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("on", "error", "calls"),
    [
        (NotReady, ConnectionError("reset"), 1),
        ("transient", ConnectionError("reset"), 3),
        ("transient", NotReady("?"), 1),
        ("not-sent", ConnectionRefusedError(), 3),
        ("not-sent", ConnectionResetError(), 1),
        (Exception, oncemore.PolicyViolation("SCHEMA_INVALID"), 1),
        (Exception, oncemore.UsageError("a mistake"), 1),
    ],
)
def test_on_says_what_is_retried_and_nothing_overrides_what_never_is(
    engine: oncemore.Engine, on: Any, error: Exception, calls: int
) -> None:
    turns = Turns(error)
    made("plain", turns, on=on, policy="standard").run()
    assert turns.calls == calls


@each_colour
@pytest.mark.usefixtures("clock")
def test_attempts_and_wait_change_the_policy_and_the_log_has_the_changed_one(
    engine: oncemore.Engine, colour: str
) -> None:
    turns = Turns(ConnectionError("down"))
    step = made(colour, turns, policy="standard", attempts=4, wait=[1, timedelta(seconds=2)])
    with pytest.raises(oncemore.RetriesExhausted, match="after 4 attempts"):
        do(colour, step)
    run = step.last_run()
    assert [proof["delay_s"] for proof in run.proofs] == [1, 2, 2, 0]
    assert run.state.policy.startswith("standard (changed)@1:")
    recorded = engine.store.load_head(f"policy/{run.state.policy.rpartition(':')[2]}")
    assert recorded is not None, "a worker without this code goes on by the same numbers"
    assert run.state.max_crashes == 20


def test_a_schedule_is_a_wait_too(engine: oncemore.Engine, clock: FakeClock) -> None:
    turns = Turns(ConnectionError("down"))
    step = made("plain", turns, policy="standard", wait=oncemore.backoff.linear(2))
    step.run()
    assert step._options.policy.schedule.shape == "linear"
    assert all(0 <= delay <= 4 for delay in clock.delays)


def test_a_worker_goes_on_by_the_options_of_the_step(engine: oncemore.Engine, clock: FakeClock) -> None:
    turns = Turns(NotReady("not yet"), "done")
    step = made("plain", turns, policy="standard", on=NotReady, wait=[0, 0.01])
    step.submit()
    oncemore.Worker(engine, [step]).run_until_idle(wait_s=1)
    assert step() == "done"


# Policies and effects ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"attempts": 11}, {"wait": 5}, {"wait": [1, 1, 1, 1]}])
def test_a_governed_policy_refuses_what_loosens_it(options: Any) -> None:
    with pytest.raises(oncemore.PolicyError):
        made("plain", Turns(1), policy="kfm-rules", **options)
    assert made("plain", Turns(1), policy="kfm-rules", attempts=2)._options.policy.max_attempts == 2


@pytest.mark.usefixtures("clock")
def test_what_a_governed_profile_quarantines_stays_quarantined_if_on_does_not_cover_it(
    engine: oncemore.Engine,
) -> None:
    covered = Turns(NotReady("not yet"), "done")
    assert made("plain", covered, name="a", policy="kfm-rules", on=NotReady)() == "done"
    for name, error, on in (
        ("b", KeyError("a bug"), NotReady),
        ("c", oncemore.NeedsReview("ODD"), Exception),
    ):
        with pytest.raises(oncemore.Quarantined):
            made("plain", Turns(error), name=name, policy="kfm-rules", on=on, pipeline=name)()


@pytest.mark.usefixtures("clock")
def test_once_is_retried_only_if_nothing_happened_and_on_covers_it(engine: oncemore.Engine) -> None:
    options: dict[str, Any] = {"effect": "once", "policy": "standard", "not_applied": NotReady}
    turns = Turns(NotReady("refused"), "paid")
    assert made("plain", turns, name="a", on=NotReady, **options)() == "paid"
    with pytest.raises(oncemore.OutcomeUnknown):
        made("plain", Turns(TimeoutError(), "paid"), name="b", on=Exception, **options)()
    rules = Turns(NotReady("refused"), "paid")
    with pytest.raises(oncemore.Quarantined):
        made("plain", rules, name="c", on=NotReady, **{**options, "policy": "kfm-rules"})()
    assert rules.calls == 1, "kfm-rules repeats no once effect (IDEM-3)"


# until ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("clock")
@each_colour
@pytest.mark.parametrize("effect", ["pure", "idempotent", "outbox"])
def test_until_retries_a_value_that_is_not_the_result(
    engine: oncemore.Engine, colour: str, effect: str
) -> None:
    turns = Turns("queued", "running", "done")
    step = made(colour, turns, effect=effect, policy="standard", until=lambda value: value == "done")
    assert do(colour, step) == "done"
    first, *_ = step.last_run().attempts
    assert (first.outcome, first.error["code"]) == ("SOFT_FAIL", "UNTIL_NOT_MET")
    assert do(colour, step) == "done"
    assert turns.calls == 3


@pytest.mark.usefixtures("clock")
@each_colour
@pytest.mark.parametrize("policy", ["standard", "kfm-loop"])
def test_a_value_that_never_satisfies_until_ends_in_retries_exhausted_with_that_value(
    engine: oncemore.Engine, colour: str, policy: str
) -> None:
    turns = Turns("queued")
    step = made(colour, turns, policy=policy, attempts=2, on=NotReady, until=lambda value: value == "done")
    with pytest.raises(oncemore.RetriesExhausted, match="a value that until= does not accept") as caught:
        do(colour, step)
    assert (caught.value.value, turns.calls) == ("queued", 2)


def test_a_value_that_until_refuses_leaves_no_events(engine: oncemore.Engine, clock: FakeClock) -> None:
    def announce(x: int) -> int:
        oncemore.current().emit("asked", {"n": oncemore.current().number})
        return oncemore.current().number

    step = made("plain", announce, effect="outbox", policy="standard", until=lambda n: n == 2)
    assert step() == 2
    assert len(list(engine.store.list_heads(HeadQuery("event")))) == 1


def test_an_error_of_until_is_a_failed_attempt(engine: oncemore.Engine) -> None:
    step = made("plain", Turns("text"), policy="standard", until=lambda value: value > 1)
    with pytest.raises(oncemore.PermanentFailure, match="TypeError"):
        step()


def test_until_is_asked_about_the_value_of_an_isolated_process(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    options = isolated.where._options
    step = oncemore.step(
        effect="pure", name="isolated until", isolate="process", until=lambda value: value[1] == 2
    )(options.function)
    assert step(5)[1] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"effect": "once", "until": bool},
            "until= does not go with effect='once': a value that was returned",
        ),
        ({"until": 5}, "until is 5; it takes a function"),
        ({"on": "anything"}, "on is 'anything'; the names are 'transient', 'not-sent'"),
        ({"on": KeyboardInterrupt}, "on has KeyboardInterrupt"),
        ({"attempts": 0}, "max_attempts is 0"),
        ({"wait": "long"}, "wait is 'long'"),
    ],
)
def test_a_wrong_option_is_refused_where_the_step_is_defined(options: Any, message: str) -> None:
    with pytest.raises(oncemore.UsageError, match=message):
        made("plain", Turns(1), policy="standard", **options)


def test_an_async_until_is_refused() -> None:
    async def until(value: Any) -> bool:
        return True

    with pytest.raises(oncemore.UsageError, match="until is an async function"):
        made("asyncio", Turns(1), until=until)


def test_retries_that_are_switched_off_stay_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMORE_RETRY", "off")
    assert made("plain", Turns(1), attempts=5)._options.policy.max_attempts == 1
