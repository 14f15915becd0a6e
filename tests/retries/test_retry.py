"""What `oncemore.retry` does with failures, in every colour."""

import concurrent.futures
import logging
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

import oncemore
from oncemore.testing import FakeClock, instant_waits
from tests.retries.colours import COLOURS, Script, run

each_colour = pytest.mark.parametrize("colour", COLOURS)


@pytest.fixture
def clock(instant_retries: FakeClock) -> Iterator[FakeClock]:
    return instant_retries  # type: ignore[return-value]


@each_colour
def test_a_success_is_returned_and_nothing_waits(colour: str, clock: FakeClock) -> None:
    script = Script("value")
    assert run(colour, script, on=OSError) == "value"
    assert (script.calls, clock.delays) == (1, [])


@pytest.mark.parametrize("value", [None, 0, "", False, ()], ids=repr)
@each_colour
def test_falsy_and_odd_values_are_values(colour: str, value: object) -> None:
    assert run(colour, Script(value), on=OSError) is value


@pytest.mark.req("PROD-4")
def test_the_same_failures_give_the_same_attempts_delays_and_reports_in_every_colour() -> None:
    seen = []
    for colour in COLOURS:
        reports: list[oncemore.RetryReport] = []
        script = Script(ConnectionError("a"), TimeoutError("b"), ConnectionError("c"), "done")
        with instant_waits() as clock:
            value = run(colour, script, on="transient", attempts=5, seed="fixed", on_retry=reports.append)
        told = [(r.number, r.attempts, type(r.error), r.delay_s, r.decision.proof_bytes()) for r in reports]
        seen.append((value, script.calls, clock.delays, told))
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0][2]) == 3


@pytest.mark.req("BACKOFF-14", "TEST-1")
@each_colour
def test_exhaustion_raises_the_callers_own_error_with_a_note(colour: str, clock: FakeClock) -> None:
    last = ConnectionResetError("the last one")
    script = Script(ConnectionError("first"), ConnectionError("second"), last)
    with pytest.raises(ConnectionResetError) as caught:
        run(colour, script, on=OSError, wait=oncemore.backoff.exponential(1), jitter="none")
    assert caught.value is last
    assert script.calls == 3
    assert clock.delays == [1.0, 2.0]
    (note,) = last.__notes__
    assert "attempt 3 failed with CONNECTION_RESET" in note
    assert "all 3 attempts are used" in note
    assert "Waited 3 s in all." in note


@each_colour
def test_an_error_that_is_not_covered_passes_untouched_at_once(colour: str, clock: FakeClock) -> None:
    bug = KeyError("bug")
    script = Script(bug)
    with pytest.raises(KeyError) as caught:
        run(colour, script, on=OSError, fallback="not for this")
    assert caught.value is bug
    assert script.calls == 1
    assert not hasattr(bug, "__notes__")
    decision = oncemore.get_decision(bug)
    assert decision is not None
    assert decision.reason == "not_retryable"


@each_colour
def test_a_bug_on_a_later_attempt_says_which_attempt_it_was(colour: str, clock: FakeClock) -> None:
    with pytest.raises(KeyError) as caught:
        run(colour, Script(OSError("once"), KeyError("then")), on=OSError)
    assert "attempt 2 failed with EXC_KeyError" in caught.value.__notes__[0]


class Refused(Exception):
    pass


@pytest.mark.parametrize(
    ("on", "error", "again"),
    [
        (OSError, ConnectionError(), True),
        ((KeyError, OSError), KeyError(), True),
        (lambda error: "again" in str(error), Refused("try again"), True),
        (lambda error: "again" in str(error), Refused("never"), False),
        ("transient", ConnectionResetError(), True),
        ("transient", TimeoutError(), True),
        ("transient", ValueError(), False),
        ("transient", FileNotFoundError(), False),
        ("not-sent", ConnectionRefusedError(), True),
        ("not-sent", ConnectionResetError(), False),
        (Exception, Refused(), True),
        (Exception, MemoryError(), False),
        (Exception, concurrent.futures.CancelledError(), False),
        (lambda error: True, MemoryError(), False),
        (lambda error: True, concurrent.futures.CancelledError(), False),
        (Exception, oncemore.UsageError("inner misuse"), False),
        (OSError, ExceptionGroup("both", [ConnectionError()]), False),
        ("transient", ExceptionGroup("both", [ConnectionResetError(), TimeoutError()]), True),
        ("transient", ExceptionGroup("both", [ConnectionResetError(), ValueError()]), False),
        (Exception, oncemore.PolicyViolation("SCHEMA_INVALID"), False),
        (lambda error: True, oncemore.PolicyViolation("CHECKSUM_MISMATCH"), False),
        ("transient", oncemore.TransientError("soon"), True),
        ("transient", oncemore.PermanentError("no"), False),
        ("transient", oncemore.PolicyViolation("RIGHTS_VIOLATION"), False),
    ],
    ids=lambda value: f"{value!r}".partition(" at ")[0],
)
@each_colour
def test_on_says_what_is_tried_again(
    colour: str, on: object, error: Exception, again: bool, clock: FakeClock
) -> None:
    script = Script(error, "good")
    if again:
        assert run(colour, script, on=on) == "good"
    else:
        with pytest.raises(type(error)):
            run(colour, script, on=on)
    assert script.calls == (2 if again else 1)


@pytest.mark.req("CLASS-18")
@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupts_always_pass_at_once(stop: type[BaseException], clock: FakeClock) -> None:
    script = Script(stop())

    @oncemore.retry(on=Exception, fallback="no")
    def work() -> object:
        return script.turn()

    with pytest.raises(stop):
        work()
    assert script.calls == 1


@each_colour
def test_until_tries_again_while_the_value_does_not_hold(colour: str, clock: FakeClock) -> None:
    script = Script("pending", "pending", "done")
    assert run(colour, script, on=OSError, until=lambda value: value == "done", attempts=5) == "done"
    assert script.calls == 3


@each_colour
def test_until_that_never_holds_raises_with_the_last_value(colour: str, clock: FakeClock) -> None:
    with pytest.raises(oncemore.RetriesExhausted) as caught:
        run(
            colour, Script("pending", "still pending"), on=(), until=lambda value: value == "done", attempts=2
        )
    assert caught.value.value == "still pending"
    assert "UNTIL_NOT_MET" in str(caught.value)
    assert oncemore.get_decision(caught.value) is not None


@each_colour
def test_an_error_in_until_is_not_hidden(colour: str, clock: FakeClock) -> None:
    with pytest.raises(ZeroDivisionError):
        run(colour, Script(1), on=OSError, until=lambda value: 1 / 0)


@each_colour
def test_a_fallback_is_returned_or_called_with_the_error(colour: str, clock: FakeClock) -> None:
    assert run(colour, Script(OSError("x")), on=OSError, fallback="plan B") == "plan B"
    assert run(colour, Script(OSError("x")), on=OSError, fallback=None) is None
    assert (
        run(colour, Script(OSError("x")), on=OSError, fallback=lambda error: f"because {error}")
        == "because x"
    )
    late = run(
        colour, Script("no"), on=OSError, until=lambda value: False, fallback=lambda error: error.value
    )
    assert late == "no"


@each_colour
def test_hooks_get_a_frozen_report_before_each_wait_and_at_the_end(colour: str, clock: FakeClock) -> None:
    told: list[tuple[str, oncemore.RetryReport]] = []
    with pytest.raises(OSError, match="y"):
        run(
            colour, Script(OSError("x"), OSError("y")), on=OSError, attempts=2, wait=[1.5],
            on_retry=lambda report: told.append(("retry", report)),
            on_give_up=lambda report: told.append(("give up", report)), name="fetch prices",
        )  # fmt: skip
    (kind, first), (other, last) = told
    assert (kind, other) == ("retry", "give up")
    assert (first.name, first.number, first.attempts, first.delay_s, first.waited_s) == (
        "fetch prices",
        1,
        2,
        1.5,
        0,
    )
    assert str(first.error) == "x"
    assert (last.number, last.delay_s, last.waited_s, last.decision.reason) == (
        2,
        0.0,
        1.5,
        "max_attempts_exceeded",
    )
    assert "attempt 2 of 2 follows in 1.5 s" in first.explain()
    with pytest.raises(AttributeError):
        first.number = 7  # type: ignore[misc]


def test_give_up_is_told_also_of_what_is_not_covered(clock: FakeClock) -> None:
    told: list[str] = []
    with pytest.raises(KeyError):
        run(
            "plain",
            Script(KeyError("x")),
            on=OSError,
            on_give_up=lambda report: told.append(report.decision.reason),
        )
    assert told == ["not_retryable"]


@pytest.mark.parametrize("colour", ["asyncio", "trio"])
def test_async_hooks_and_fallbacks_are_awaited(colour: str, clock: FakeClock) -> None:
    told: list[str] = []

    async def on_retry(report: oncemore.RetryReport) -> None:
        told.append(f"retry {report.number}")

    async def on_give_up(report: oncemore.RetryReport) -> None:
        told.append("give up")

    async def fallback(error: Exception) -> str:
        return f"instead of {error}"

    value = run(
        colour, Script(OSError("x")), on=OSError, attempts=2, on_retry=on_retry, on_give_up=on_give_up,
        fallback=fallback,
    )  # fmt: skip
    assert value == "instead of x"
    assert told == ["retry 1", "give up"]


@each_colour
def test_an_error_in_a_hook_ends_the_call_and_is_not_hidden(colour: str, clock: FakeClock) -> None:
    with pytest.raises(ZeroDivisionError):
        run(colour, Script(OSError("x")), on=OSError, on_retry=lambda report: 1 / 0)


@each_colour
def test_a_stop_iteration_from_the_work_or_a_hook_is_an_error_like_any_other(
    colour: str, clock: FakeClock
) -> None:
    expected = StopIteration if colour == "plain" else RuntimeError  # Python itself turns it in coroutines

    def hook(report: oncemore.RetryReport) -> None:
        raise StopIteration("from the hook")

    with pytest.raises(expected, match=r"from the hook|raised StopIteration"):
        run(colour, Script(OSError("x")), on=OSError, on_retry=hook)
    if colour == "plain":
        assert run(colour, Script(StopIteration("odd"), "fine"), on=StopIteration) == "fine"


class Asked(Exception):
    """Stands for an answer with Retry-After; classified by the real HTTP edge through its cause."""


def asks(seconds: float) -> Exception:
    from email.message import Message
    from urllib.error import HTTPError

    headers = Message()
    headers["Retry-After"] = str(int(seconds))
    return HTTPError("http://provider.example/", 503, "busy", headers, None)


@each_colour
def test_retry_after_is_a_floor(colour: str, clock: FakeClock) -> None:
    assert run(colour, Script(asks(7), "fine"), on="transient", wait=[1.0, 2.0]) == "fine"
    assert clock.delays == [7.0]


@each_colour
def test_retry_after_beyond_the_cap_ends_the_call_and_says_when_to_come_back(
    colour: str, clock: FakeClock
) -> None:
    script = Script(asks(120))
    with pytest.raises(OSError, match="503") as caught:
        run(colour, script, on="transient")
    assert (script.calls, clock.delays) == (1, [])
    (note,) = caught.value.__notes__
    assert "asked for a wait of 2 min 0 s" in note
    assert "Worth trying again from 2027-01-15T08:02:00Z" in note
    decision = oncemore.get_decision(caught.value)
    assert decision is not None
    assert (decision.action, decision.not_before) == ("defer", clock.wall() + 120)


@each_colour
def test_within_bounds_the_whole_call(colour: str, clock: FakeClock) -> None:
    script = Script(OSError("x"))
    with pytest.raises(OSError, match="x") as caught:
        run(
            colour,
            script,
            on=OSError,
            attempts=9,
            wait=[4.0],
            total_timeout=timedelta(seconds=10),
            jitter="equal",
            seed=1,
        )
    assert sum(clock.delays) < 10
    assert "only" in caught.value.__notes__[0]
    assert 2 < script.calls < 9


@each_colour
def test_a_deadline_is_a_point_in_time(colour: str, clock: FakeClock) -> None:
    at = datetime.fromtimestamp(clock.wall() + 9, UTC)
    for deadline in (at, at.timestamp()):
        clock.delays.clear()
        script = Script(OSError("x"))
        with pytest.raises(OSError, match="x"):
            run(
                colour,
                script,
                on=OSError,
                attempts=9,
                wait=oncemore.backoff.linear(4),
                jitter="none",
                deadline=deadline,
            )
        assert clock.delays == [4.0]
        clock.advance(-4.0)


@each_colour
def test_a_call_whose_time_is_up_is_not_begun(colour: str, clock: FakeClock) -> None:
    script = Script("never")
    with pytest.raises(oncemore.DeadlineExceeded) as caught:
        run(colour, script, on=OSError, deadline=clock.wall() - 1)
    assert script.calls == 0
    assert isinstance(caught.value, TimeoutError)


@each_colour
def test_a_budget_is_shared_and_an_empty_one_passes_failures_on(colour: str, clock: FakeClock) -> None:
    budget = oncemore.Budget(3, per_success=0.5)
    first = Script(OSError("a"))
    with pytest.raises(OSError, match="a"):
        run(colour, first, on=OSError, attempts=9, budget=budget)
    assert first.calls == 4  # three tokens, three retries
    second = Script(OSError("b"))
    with pytest.raises(OSError, match="b") as caught:
        run(colour, second, on=OSError, attempts=9, budget=budget)
    assert second.calls == 1
    assert "retry budget holds 0 tokens" in caught.value.__notes__[0]
    for _ in range(2):
        run(colour, Script("fine"), on=OSError, budget=budget)
    assert budget.tokens == 1.0
    assert run(colour, Script(OSError("c"), "fine"), on=OSError, budget=budget) == "fine"
    assert budget.tokens == 0.5


def test_a_token_that_another_caller_took_first_is_not_taken_twice(clock: FakeClock) -> None:
    class Greedy(oncemore.Budget):
        __slots__ = ()

        @property
        def tokens(self) -> float:
            seen = super().tokens
            self.take_tokens(1.0)  # somebody else, between the look and the taking
            return seen

    script = Script(OSError("x"))
    with pytest.raises(OSError, match="x") as caught:
        run("plain", script, on=OSError, budget=Greedy(1))
    assert script.calls == 1
    assert "retry budget holds 0 tokens" in caught.value.__notes__[0]


@each_colour
def test_a_seed_makes_the_delays_the_same_and_without_one_calls_do_not_fall_into_step(
    colour: str, clock: FakeClock
) -> None:
    def delays(**more: object) -> list[float]:
        clock.delays.clear()
        with pytest.raises(OSError, match="x"):
            run(colour, Script(OSError("x")), on=OSError, attempts=4, **more)
        return list(clock.delays)

    assert delays(seed="s") == delays(seed="s") != delays(seed="t")
    assert delays(seed=5) == delays(seed="5")
    assert delays() != delays()


def test_using_changes_a_copy_and_wrapped_is_the_bare_function(clock: FakeClock) -> None:
    script = Script(OSError("x"))

    @oncemore.retry(on=OSError, attempts=4)
    def work() -> object:
        """Do it."""
        return script.turn()

    with pytest.raises(OSError, match="x"):
        work.with_options(attempts=1)()
    assert script.calls == 1
    with pytest.raises(OSError, match="x"):
        work()
    assert script.calls == 5
    with pytest.raises(OSError, match="x"):
        work.__wrapped__()
    assert script.calls == 6
    assert (work.__name__, work.__doc__) == ("work", "Do it.")
    assert work.with_options(on=KeyError).with_options(attempts=2).__name__ == "work"


def test_methods_keep_their_self(clock: FakeClock) -> None:
    class Client:
        def __init__(self) -> None:
            self.calls = 0

        @oncemore.retry(on=OSError)
        def get(self, path: str) -> str:
            self.calls += 1
            if self.calls < 3:
                raise OSError
            return path + "!"

        @classmethod
        @oncemore.retry(on=OSError)
        def make(cls) -> "Client":
            return cls()

        @staticmethod
        @oncemore.retry(on=OSError)
        def double(x: int) -> int:
            return x * 2

    client = Client.make()
    assert client.get("/a") == "/a!"
    assert client.calls == 3
    assert Client.double(4) == 8


def test_retrying_takes_any_callable(clock: FakeClock) -> None:
    script = Script(OSError("x"), "fine")
    assert oncemore.retrying(script.turn, on=OSError)() == "fine"
    assert oncemore.retrying(int, on=ValueError)("7") == 7


def test_a_coroutine_from_a_plain_function_is_awaited_with_retries(clock: FakeClock) -> None:
    import asyncio

    script = Script(OSError("x"), OSError("y"), "fine")

    async def inner() -> object:
        return script.turn()

    pending = oncemore.retrying(lambda: inner(), on=OSError)()
    assert script.calls == 0
    assert asyncio.run(pending) == "fine"
    assert script.calls == 3


def test_a_coroutine_that_appears_only_on_a_later_attempt_is_awaited_too(clock: FakeClock) -> None:
    import asyncio

    turns = Script(OSError("not even called"), "go")
    script = Script(OSError("x"), "fine")

    async def inner() -> object:
        return script.turn()

    def work() -> object:
        turns.turn()
        return inner()

    for limits in ({}, {"total_timeout": 60}):
        turns.calls = script.calls = 0
        assert asyncio.run(oncemore.retrying(work, on=OSError, attempts=4, **limits)()) == "fine"  # type: ignore[arg-type]
        assert script.calls == 2


def test_an_async_callable_that_answers_with_a_plain_value_is_taken_as_it_is(clock: FakeClock) -> None:
    import asyncio

    script = Script(OSError("x"), 5)

    async def first() -> object:
        return script.turn()

    answers = [first, lambda: 6]
    assert asyncio.run(oncemore.retrying(lambda: answers.pop(0)(), on=OSError)()) == 6


class Odd:
    def __call__(self) -> str:
        return "plain"


class OddAsync:
    async def __call__(self) -> str:
        return "async"


def test_objects_with_call_are_told_apart(clock: FakeClock) -> None:
    import asyncio
    import functools

    assert oncemore.retrying(Odd(), on=OSError)() == "plain"
    assert asyncio.run(oncemore.retrying(OddAsync(), on=OSError)()) == "async"
    assert asyncio.run(oncemore.retrying(functools.partial(OddAsync()), on=OSError)()) == "async"
    assert asyncio.run(oncemore.retrying(OddAsync().__call__, on=OSError)()) == "async"


@each_colour
def test_a_frozen_exception_is_noted_all_the_same(colour: str, clock: FakeClock) -> None:
    @dataclass(frozen=True)
    class Frozen(Exception):
        text: str

    error = Frozen("x")
    with pytest.raises(Frozen):
        run(colour, Script(error), on=Frozen)
    assert len(error.__notes__) == 1
    assert oncemore.get_decision(error) is not None


def test_the_same_exception_object_raised_for_ever_does_not_grow(clock: FakeClock) -> None:
    error = OSError("shared")
    for _ in range(50):
        with pytest.raises(OSError, match="shared"):
            run("plain", Script(error), on=OSError, attempts=1)
    assert len(error.__notes__) == 8


def test_the_decision_is_found_through_what_an_error_was_wrapped_in(clock: FakeClock) -> None:
    try:
        try:
            run("plain", Script(OSError("x")), on=OSError, attempts=1)
        except OSError as error:
            raise RuntimeError("wrapped") from error
    except RuntimeError as wrapped:
        found = oncemore.get_decision(wrapped)
    assert found is not None
    assert found.reason == "max_attempts_exceeded"
    assert oncemore.get_decision(ValueError("never seen")) is None
    loop = ValueError("a")
    loop.__cause__ = loop
    assert oncemore.get_decision(loop) is None


def test_attempts_are_not_chained_to_each_other(clock: FakeClock) -> None:
    first, second = OSError("first"), OSError("second")
    with pytest.raises(OSError, match="second"):
        run("plain", Script(first, second), on=OSError, attempts=2)
    assert second.__context__ is None
    assert second.__cause__ is None


@each_colour
def test_every_failure_that_does_not_reach_the_caller_leaves_a_log_line(
    colour: str, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    run(
        colour,
        Script(ConnectionError("token=hunter2"), TimeoutError("b"), "fine"),
        on="transient",
        name="fetch",
    )
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    first, second = caplog.records
    assert first.name == "oncemore.retry"
    assert first.getMessage().startswith("fetch: attempt 1 failed with")
    assert "hunter2" not in caplog.text
    assert (first.oncemore_attempt, second.oncemore_attempt) == (1, 2)  # type: ignore[attr-defined]
    assert first.oncemore_exception == "ConnectionError"  # type: ignore[attr-defined]
    assert first.oncemore_delay_s == clock.delays[0]  # type: ignore[attr-defined]
    fields = (
        "name attempt max_attempts action reason delay_s waited_s error_class kind rule exception policy "
        "policy_version"
    )
    assert {key for key in vars(first) if key.startswith("oncemore_")} == {
        f"oncemore_{field}" for field in fields.split(" ")
    }


def test_giving_up_is_logged_once_and_a_bug_at_the_first_attempt_not_at_all(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(OSError, match="x"):
        run("plain", Script(OSError("x")), on=OSError, attempts=2)
    assert [record.oncemore_action for record in caplog.records] == ["retry", "stop"]  # type: ignore[attr-defined]
    caplog.clear()
    with pytest.raises(KeyError):
        run("plain", Script(KeyError("x")), on=OSError)
    assert caplog.records == []


def test_a_program_without_logging_or_without_handlers_writes_nothing() -> None:
    import subprocess

    code = """
import warnings; warnings.simplefilter("ignore")
import sys, oncemore
work = oncemore.retrying(int, on=ValueError, attempts=2, wait=0, fallback="none")
assert work("x") == "none"
assert "logging" not in sys.modules
import logging
assert work("x") == "none"
logging.basicConfig(level=logging.ERROR)
assert work("x") == "none"
print("quiet")
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("quiet\n", "")


def test_who_has_not_imported_logging_is_not_made_to(monkeypatch: pytest.MonkeyPatch) -> None:
    from oncemore.retries import report as loop

    monkeypatch.setattr(loop, "_logger", None)
    monkeypatch.delitem(sys.modules, "logging")
    assert not loop.is_logged()
    assert "logging" not in sys.modules


def test_a_logger_that_nobody_listens_to_is_not_asked_further(
    monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    from oncemore.retries import report as retry

    unheard = logging.Manager(logging.RootLogger(logging.WARNING)).getLogger("oncemore.retry")
    unheard.root = unheard.parent  # type: ignore[misc, assignment]
    monkeypatch.setattr(retry, "_logger", unheard)
    assert not retry.is_logged()
    assert run("plain", Script(OSError("x"), "fine"), on=OSError) == "fine"
    assert clock.delays, "and the retry was one all the same"
    unheard.addHandler(logging.NullHandler())
    assert retry.is_logged()


@pytest.mark.parametrize("value", ["off", " OFF "])
def test_retries_can_be_switched_off_from_outside(
    value: str, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    monkeypatch.setenv("ONCEMORE_RETRY", value)
    script = Script(OSError("x"))
    with pytest.raises(OSError, match="x") as caught:
        run("plain", script, on=OSError, attempts=5)
    assert script.calls == 1
    assert "the policy allows one attempt" in caught.value.__notes__[0]
    monkeypatch.setenv("ONCEMORE_RETRY", "on")
    assert run("plain", Script(OSError("x"), "fine"), on=OSError) == "fine"
    monkeypatch.setenv("ONCEMORE_RETRY", "sometimes")
    with pytest.raises(oncemore.UsageError, match="ONCEMORE_RETRY is 'sometimes'; it must be on or off"):
        oncemore.retry(on=OSError)


def test_the_test_clock_can_cap_attempts_everywhere() -> None:
    for most, calls in ((1, 1), (2, 2), (9, 4)):
        script = Script(OSError("x"))
        with instant_waits(attempts=most) as clock, pytest.raises(OSError, match="x"):
            run("plain", script, on=OSError, attempts=4)
        assert script.calls == calls
        assert len(clock.delays) == calls - 1
    with pytest.raises(oncemore.UsageError, match="attempts is 0"):
        instant_waits(attempts=0)


def test_the_test_clock_shows_a_date_in_stores_too() -> None:
    start = datetime(2026, 10, 31, 23, 59, tzinfo=UTC)
    with FakeClock(start=start) as clock, oncemore.open("memory:") as engine:
        assert clock.wall() == start.timestamp()
        assert 0 <= engine.now() - start.timestamp() < 30
        clock.advance(3600)
        assert 3600 <= engine.now() - start.timestamp() < 3630
        assert clock.monotonic() == 3600
    with pytest.raises(oncemore.UsageError, match="it needs a time zone"):
        FakeClock(start=datetime(2026, 10, 31))


@pytest.mark.parametrize("spread", ["full", "none", "equal", "decorrelated"])
def test_a_zero_delay_does_not_sleep(spread: str, clock: FakeClock) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", oncemore.PolicyWarning)
        run("plain", Script(OSError("x"), OSError("y"), 1), on=OSError, wait=0, jitter=spread)
    assert clock.delays == []


def test_a_time_that_no_calendar_holds_does_not_break_the_note(clock: FakeClock) -> None:
    from oncemore.retries.report import format_utc

    assert format_utc(0) == "1970-01-01T00:00:00Z"
    assert format_utc(1e300) == "1e+300"


@each_colour
def test_more_attempts_than_are_prepared_for_work_too(colour: str, clock: FakeClock) -> None:
    script = Script(*[OSError("x")] * 29, "fine")
    with pytest.warns(oncemore.PolicyWarning, match="up to 40 calls"):
        assert run(colour, script, on=OSError, attempts=40) == "fine"
    assert script.calls == 30
