"""Misuse shows when a function is decorated, and the message says what to write instead."""

import functools
import inspect
import math
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime, timedelta

import pytest

import oncemore
from oncemore import errors
from oncemore.retries.options import OPTIONS, function_colour
from oncemore.testing import FakeClock


async def coroutine(value: object = None) -> None:
    """An async function."""


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on": BaseException}, "on has BaseException, which is not an Exception"),
        ({"on": (OSError, KeyboardInterrupt)}, "on has KeyboardInterrupt"),
        ({"on": "flaky"}, "on is 'flaky'; the names are 'transient', 'not-sent'"),
        ({"on": 5}, "on is 5; it takes exception types, a predicate"),
        ({"on": (OSError, "x")}, "it takes exception types, a predicate"),
        ({"on": coroutine}, "on is an async function; it takes a plain function"),
        ({"on": OSError, "attempts": 0}, "max_attempts is 0"),
        ({"on": OSError, "attempts": math.inf}, "max_attempts is inf"),
        ({"on": OSError, "timeout": 0}, "timeout_s is 0"),
        ({"on": OSError, "timeout": "5s"}, "timeout is '5s'; it takes seconds as a number, or a timedelta"),
        ({"on": OSError, "total_timeout": True}, "total_timeout is True; it takes seconds"),
        ({"on": OSError, "wait": "1"}, "wait is '1'; it takes seconds"),
        ({"on": OSError, "wait": -1}, "number 1, is -1.0"),
        ({"on": OSError, "wait": []}, "schedule.delays is empty"),
        ({"on": OSError, "wait": oncemore.Schedule("cubic")}, "schedule is 'cubic'"),
        ({"on": OSError, "jitter": "wild"}, "jitter is 'wild'; it must be one of none, full"),
        ({"on": OSError, "policy": "nope"}, "policy 'nope' is not known"),
        ({"on": OSError, "policy": 3}, "policy is 3; it takes the name of a policy or an oncemore.Policy"),
        ({"on": OSError, "deadline": datetime(2030, 1, 1)}, "it takes an aware datetime"),
        ({"on": OSError, "deadline": "noon"}, "deadline is 'noon'"),
        ({"on": OSError, "deadline": True}, "deadline is True"),
        ({"on": OSError, "seed": 1.5}, "seed is 1.5; it takes a string or a whole number"),
        ({"on": OSError, "seed": True}, "seed is True"),
        ({"on": OSError, "on_retry": "print"}, "on_retry is 'print'; it takes a function"),
        ({"on": OSError, "until": 5}, "until is 5; it takes a function"),
        ({"on": OSError, "until": coroutine}, "until is an async function, and nothing here can await it"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_option_is_refused_at_its_own_line(options: dict[str, object], message: str) -> None:
    for use in (
        lambda: oncemore.retry(**options),  # type: ignore[arg-type]
        lambda: oncemore.retrying(print, **options),  # type: ignore[arg-type]
    ):
        with pytest.raises(oncemore.UsageError) as caught:
            use()
        assert message in str(caught.value)


def test_on_has_no_default() -> None:
    with pytest.raises(TypeError, match="'on'"):
        oncemore.retry()  # type: ignore[call-arg]
    for use in (lambda: oncemore.retrying(print), lambda: oncemore.attempts()):
        with pytest.raises(oncemore.UsageError, match="needs on=: the errors to retry have no default"):
            use()


def test_a_bare_decorator_is_refused() -> None:
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'on'"):

        @oncemore.retry  # type: ignore[arg-type, call-arg]
        def work() -> None: ...

    with pytest.raises(oncemore.UsageError, match=r"write @oncemore.retry\(on=...\)"):
        oncemore.retry(print, on=OSError)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (generator, "generator is a generator function"),
        (async_generator, "async_generator is an async-generator function"),
        (functools.partial(generator), "generator function"),
        (classmethod(print), "put @oncemore.retry below @classmethod"),
        (staticmethod(print), "put @oncemore.retry below @staticmethod"),
        (int, "int is a class; retry a function that creates an instance"),
        (5, "5 is not callable"),
    ],
    ids=["generator", "async generator", "partial", "classmethod", "staticmethod", "class", "number"],
)
def test_what_cannot_be_retried_is_refused(work: Callable[..., object], message: str) -> None:
    with pytest.raises(oncemore.UsageError) as caught:
        oncemore.retry(on=OSError)(work)
    assert message in str(caught.value)


def test_an_option_that_does_not_exist_is_named() -> None:
    with pytest.raises(
        oncemore.UsageError, match=r"retrying\(\) has no retries=; it takes on, until, attempts"
    ):
        oncemore.retrying(print, on=OSError, retries=3)  # type: ignore[call-arg]
    work = oncemore.retrying(print, on=OSError)
    with pytest.raises(oncemore.UsageError, match=r"with_options\(\) has no retries="):
        work.with_options(retries=3)  # type: ignore[call-arg]
    with pytest.raises(oncemore.UsageError, match=r"attempts\(\) has no tries="):
        oncemore.attempts(on=OSError, tries=3)  # type: ignore[call-arg]


def test_every_argument_of_retry_is_an_option_everywhere() -> None:
    named = [name for name in inspect.signature(oncemore.retry).parameters if name != "_bare"]
    assert tuple(named) == OPTIONS


def test_a_plain_function_cannot_have_async_hooks() -> None:
    with pytest.raises(
        oncemore.UsageError, match="on_retry is an async function, and nothing here can await it"
    ):
        oncemore.retry(on=OSError, on_retry=coroutine)(print)
    with pytest.raises(oncemore.UsageError, match="fallback is an async function"):
        oncemore.retry(on=OSError, fallback=coroutine)(print)
    oncemore.retry(on=OSError, on_retry=coroutine)(coroutine)


def test_warnings_point_at_the_users_line() -> None:
    work = oncemore.retrying(print, on=OSError)
    for use in (
        lambda: oncemore.retry(on=OSError, wait=1),
        lambda: oncemore.retrying(print, on=OSError, wait=[2, 2]),
        lambda: oncemore.attempts(on=OSError, wait=0),
        lambda: work.with_options(wait=timedelta(seconds=3)),
    ):
        with pytest.warns(oncemore.PolicyWarning, match="never grows") as caught:
            use()
        assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize(
    ("schedule", "delays"),
    [
        (oncemore.backoff.exponential(), [1, 2, 4, 8, 16, 30]),
        (
            oncemore.backoff.exponential(timedelta(milliseconds=500), factor=3, cap=timedelta(seconds=10)),
            [0.5, 1.5, 4.5, 10],
        ),
        (oncemore.backoff.exponential(0.5, exponent="attempt"), [1, 2, 4]),
        (oncemore.backoff.linear(0.25), [0.25, 0.5, 0.75]),
        (oncemore.backoff.linear(5, cap=8), [5, 8, 8]),
        (oncemore.backoff.fixed(2, timedelta(seconds=10), 30), [2, 10, 30, 30]),
        ([2, 90], [2, 90, 90]),
        ((1, 2), [1, 2, 2]),
    ],
)
def test_waits_are_written_in_many_ways(
    schedule: oncemore.Schedule, delays: list[float], instant_retries: FakeClock
) -> None:
    def work() -> None:
        raise OSError

    with pytest.raises(OSError):
        oncemore.retrying(work, on=OSError, attempts=len(delays) + 1, wait=schedule, jitter="none")()
    assert instant_retries.delays == delays


@pytest.mark.parametrize(
    ("jitter", "low", "high"),
    [
        ("full", 0, 10),
        ("equal", 5, 10),
        (oncemore.jitter.additive(2), 10, 12),
        (oncemore.jitter.proportional(0.1), 9, 11),
    ],
)
def test_jitters_are_written_by_name_or_value(
    jitter: object, low: float, high: float, instant_retries: FakeClock
) -> None:
    def work() -> None:
        raise OSError

    for seed in range(50):
        with pytest.raises(OSError):
            oncemore.retrying(
                work, on=OSError, attempts=2, wait=oncemore.backoff.fixed(10), jitter=jitter, seed=seed
            )()  # type: ignore[arg-type]
    assert low <= min(instant_retries.delays) < max(instant_retries.delays) <= high


def test_seconds_that_a_person_wrote_are_exact_and_schedules_are_spread(instant_retries: FakeClock) -> None:
    def work() -> None:
        raise OSError

    for wait in ([3, 4], oncemore.backoff.fixed(3, 4)):
        with pytest.raises(OSError):
            oncemore.retrying(work, on=OSError, wait=wait)()
    assert instant_retries.delays == [3, 4, 3, 4]
    with pytest.raises(OSError):
        oncemore.retrying(work, on=OSError, wait=oncemore.backoff.exponential(3))()
    assert instant_retries.delays[4:] != [3, 6]


@pytest.mark.parametrize(
    "make",
    [lambda: oncemore.jitter.additive(-1), lambda: oncemore.jitter.proportional(2), oncemore.backoff.fixed],
)
def test_a_wrong_wait_or_jitter_is_refused_when_it_is_made(make: Callable[[], object]) -> None:
    with pytest.raises(oncemore.PolicyError):
        make()


def test_a_policy_is_taken_by_name_or_value_and_changed_beside(instant_retries: FakeClock) -> None:
    def work() -> None:
        raise OSError

    patient = oncemore.Policy(
        "patient", max_attempts=4, schedule=oncemore.backoff.linear(2), jitter=oncemore.Jitter("none")
    )
    for policy, more, name, delays in (
        (patient, {}, "patient", [2, 4, 6]),
        (patient, {"attempts": 2}, "patient (changed)", [2]),
        ("standard", {"attempts": 1}, "standard (changed)", []),
        (None, {"attempts": 1}, "custom", []),
        (patient, {"attempts": 4}, "patient", [2, 4, 6]),
    ):
        instant_retries.delays.clear()
        with pytest.raises(OSError) as caught:
            oncemore.retrying(work, on=OSError, policy=policy, **more)()  # type: ignore[arg-type]
        assert instant_retries.delays == delays
        decision = oncemore.get_decision(caught.value)
        assert decision is not None
        assert decision.policy.name == name


def test_a_policy_with_a_literal_seed_has_the_same_delays_in_every_call(instant_retries: FakeClock) -> None:
    def work() -> None:
        raise OSError

    def delays(**options: object) -> list[float]:
        instant_retries.delays.clear()
        with pytest.raises(OSError):
            oncemore.retrying(work, on=OSError, **options)()  # type: ignore[arg-type]
        return list(instant_retries.delays)

    literal = oncemore.Policy(jitter_seed="literal")
    assert delays(policy=literal) == delays(policy=literal) == delays(seed="literal")
    template = oncemore.Policy()
    assert delays(policy=template) != delays(policy=template)


@pytest.mark.req("PROD-2")
def test_one_function_follows_the_policy_it_is_given(instant_retries: FakeClock) -> None:
    def work() -> None:
        raise OSError

    for schedule, delays in (
        (oncemore.backoff.linear(1), [1, 2, 3]),
        (oncemore.backoff.exponential(2), [2, 4, 8]),
    ):
        policy = oncemore.Policy(max_attempts=4, schedule=schedule, jitter=oncemore.Jitter("none"))
        instant_retries.delays.clear()
        with pytest.raises(OSError):
            oncemore.retrying(work, on=OSError, policy=policy)()
        assert instant_retries.delays == delays


def test_colours_are_told_apart_without_calling() -> None:
    class Marked:
        _is_coroutine_mark = object()

        def __call__(self) -> None: ...

    class Wrapping:
        __call__ = staticmethod(coroutine)

    assert function_colour(print) == "plain"
    assert function_colour(int) == "plain"
    assert function_colour(lambda: 0) == "plain"
    assert function_colour(coroutine) == "coroutine"
    assert function_colour(functools.partial(functools.partial(coroutine), 1)) == "coroutine"
    assert function_colour(Wrapping()) in ("coroutine", "plain")
    assert function_colour(object()) == "plain"
    assert function_colour(Marked()) in ("coroutine", "plain")

    class Endless:
        @property
        def __func__(self) -> "Endless":
            return Endless()

    assert function_colour(Endless()) == "plain"


def test_transient_means_what_the_policys_classes_say(instant_retries: FakeClock) -> None:
    from oncemore.policy.verdict import ErrorClasses

    picky = oncemore.Policy(classes=ErrorClasses(retryable=("CONNECTION_REFUSED", "TIMEOUT")))
    for on, error, calls in (
        ("transient", ConnectionRefusedError, 3),
        ("transient", TimeoutError, 3),
        ("transient", ConnectionResetError, 1),
        ("not-sent", ConnectionRefusedError, 3),
        ("not-sent", TimeoutError, 1),
    ):
        seen = []

        def work(error: type[Exception] = error, seen: list[int] = seen) -> None:
            seen.append(1)
            raise error

        with pytest.raises(error):
            oncemore.retrying(work, on=on, policy=picky)()  # type: ignore[arg-type]
        assert len(seen) == calls


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "capacity is 0"),
        ((math.inf,), "capacity is inf"),
        ((5, -1), "per_success is -1"),
        ((5, 6), "from 0 to"),
    ],
)
def test_a_budget_is_checked_when_it_is_made(arguments: tuple[float, ...], message: str) -> None:
    with pytest.raises(oncemore.UsageError, match=message):
        oncemore.Budget(*arguments)


def test_a_budget_shows_itself() -> None:
    budget = oncemore.Budget(5, per_success=1)
    assert budget.take_tokens(2) is None
    assert repr(budget) == "Budget(3 of 5 tokens, 1 per success)"
    assert budget.take_tokens(4) == 3.0
    for _ in range(9):
        budget.earn_tokens()
    assert budget.tokens == 5


def test_unknown_names_are_attribute_errors_and_dir_lists_the_front_door() -> None:
    with pytest.raises(AttributeError, match="no attribute 'retrier'"):
        oncemore.retrier  # noqa: B018
    assert "retry" in dir(oncemore)
    assert set(oncemore.__all__) == set(dir(oncemore))


def test_errors_can_be_pickled() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(oncemore.RetriesExhausted("never", {"state": "pending"})))  # noqa: S301
    assert (str(error), error.value) == ("never", {"state": "pending"})
    broken = pickle.loads(pickle.dumps(oncemore.PolicyViolation("SCHEMA_INVALID", "no x")))  # noqa: S301
    assert (str(broken), broken.code) == ("no x", "SCHEMA_INVALID")
    done = pickle.loads(pickle.dumps(errors.ResultUnavailable("done, not kept", lambda: 5)))  # noqa: S301
    assert (str(done), done.value) == ("done, not kept", None)
