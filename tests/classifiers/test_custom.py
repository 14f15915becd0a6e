"""Custom classifiers: they win over the built-in rules, and cannot make a violation retryable."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.classifiers import custom
from oncemore.classifiers.classify import classify
from oncemore.policy.verdict import matches_class

if TYPE_CHECKING:
    from collections.abc import Iterator


class QueueBusy(Exception):
    """An error that only the test's classifier knows."""


class VeryBusy(QueueBusy):
    """A special case of it."""


BUSY = oncemore.Failure("throttled", "no", 2.5, "QUEUE_BUSY")


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Remove the classifiers of a test after it."""
    before = custom._program_rules, custom._plugin_rules
    yield
    custom._program_rules, custom._plugin_rules = before
    custom.set_custom_lookup(custom._find_custom_rule)


def teach(*of: Any, answer: object = BUSY, name: str = "busy") -> list[BaseException]:
    """Register a classifier with a fixed answer; return the list of errors it was called with."""
    asked: list[BaseException] = []

    @oncemore.classifier(*of, name=name)
    def rule(error: Exception) -> Any:
        asked.append(error)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return asked


def test_a_classifier_covers_a_type_and_its_subclasses_and_is_named() -> None:
    assert classify(QueueBusy(), 0.0).rule == "default:unmatched"
    teach(QueueBusy)
    for error in (QueueBusy(), VeryBusy()):
        assert classify(error, 0.0) == ("throttled", "no", 2.5, "QUEUE_BUSY", "user:busy")
    assert classify(LookupError(), 0.0).rule == "builtins:LookupError"


def test_the_functions_own_name_is_the_rules_name() -> None:
    @oncemore.classifier(QueueBusy)
    def queue_is_busy(_error: QueueBusy) -> oncemore.Failure:
        return oncemore.Failure("transient")

    assert classify(VeryBusy(), 0.0) == ("transient", "maybe", None, "EXC_VeryBusy", "user:queue_is_busy")
    assert queue_is_busy(QueueBusy()).kind == "transient", "the function stays what it was"


def test_a_module_may_be_named_without_importing_it() -> None:
    made = type("Odd", (Exception,), {"__module__": "their.errors.deep"})
    beside = type("Odd", (Exception,), {"__module__": "their.errors_too"})
    child = type("Child", (made,), {"__module__": "elsewhere"})
    teach("their.errors")
    assert classify(made(), 0.0).rule == "user:busy"
    assert classify(child(), 0.0).rule == "user:busy"
    assert classify(beside(), 0.0).rule == "default:unmatched"


def test_a_classifier_wins_over_the_builtin_rules() -> None:
    assert classify(ConnectionRefusedError(), 0.0).code == "CONNECTION_REFUSED"
    teach(ConnectionError, answer=oncemore.Failure("permanent", "no", None, "DOWN_FOR_GOOD"))
    assert classify(ConnectionRefusedError(), 0.0)[:4] == ("permanent", "no", None, "DOWN_FOR_GOOD")


def test_a_classifier_that_returns_none_leaves_it_to_the_builtin_rules() -> None:
    asked = teach(Exception, answer=None)
    assert classify(ConnectionRefusedError(), 0.0).rule == "builtins:ConnectionRefusedError"
    assert classify(TimeoutError(), 0.0).code == "TIMEOUT"
    error = QueueBusy()
    assert classify(error, 0.0).rule == "default:unmatched"
    error.__cause__ = ConnectionResetError()
    assert classify(error, 0.0).rule == "cause:builtins:ConnectionResetError"
    assert [type(one) for one in asked] == [
        ConnectionRefusedError, TimeoutError, QueueBusy, QueueBusy, ConnectionResetError,
    ]  # fmt: skip


def test_the_classifier_registered_last_is_called_first() -> None:
    first = teach(QueueBusy, name="first")
    second = teach(QueueBusy, name="second", answer=None)
    third = teach(VeryBusy, name="third", answer=None)
    assert classify(VeryBusy(), 0.0).rule == "user:first"
    assert [len(asked) for asked in (first, second, third)] == [1, 1, 1]
    teach(QueueBusy, name="fourth")
    assert classify(VeryBusy(), 0.0).rule == "user:fourth"
    assert len(first) == 1


def test_the_same_rule_written_again_replaces_the_one_before() -> None:
    def again() -> None:
        @oncemore.classifier(QueueBusy)
        def rule(_error: Exception) -> None:
            calls.append(1)

    calls: list[int] = []
    for _ in range(3):
        again()
    classify(QueueBusy(), 0.0)
    assert calls == [1]


def test_rules_made_by_one_function_for_several_types_all_stay() -> None:
    def make(cls: type[Exception]) -> None:
        @oncemore.classifier(cls)
        def rule(_error: Exception) -> oncemore.Failure:
            return oncemore.Failure("transient", code=cls.__name__)

    make(KeyError)
    make(QueueBusy)
    assert [classify(error, 0.0).code for error in (KeyError(), QueueBusy())] == ["KeyError", "QueueBusy"]


def test_a_rule_that_raises_is_ignored_with_one_warning_that_names_it() -> None:
    teach(ConnectionError, answer=ZeroDivisionError("a secret"), name="broken")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = [classify(ConnectionRefusedError(), 0.0).code for _ in range(3)]
    assert found == ["CONNECTION_REFUSED"] * 3
    message = "the classifier broken is ignored: it raised ZeroDivisionError"
    assert [str(one.message) for one in warned] == [message]


def test_a_broken_rule_breaks_nothing_where_warnings_are_errors() -> None:
    teach(ConnectionError, answer=ZeroDivisionError())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert classify(ConnectionRefusedError(), 0.0).code == "CONNECTION_REFUSED"


ODD = {
    "a word": "transient",
    "a kind that is none": oncemore.Failure("sometimes"),  # type: ignore[arg-type]
    "sent that is none": oncemore.Failure("transient", "perhaps"),  # type: ignore[arg-type]
    "a negative wait": oncemore.Failure("transient", retry_after=-1.0),
    "not a number": oncemore.Failure("transient", retry_after=float("nan")),
    "a wait in words": oncemore.Failure("transient", retry_after="soon"),  # type: ignore[arg-type]
    "a long code": oncemore.Failure("transient", code="x" * 1000),
    "a code of two lines": oncemore.Failure("transient", code="a\nb"),
    "a code that is no text": oncemore.Failure("transient", code=5),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", ODD)
def test_an_invalid_answer_is_ignored_with_one_warning(case: str) -> None:
    teach(QueueBusy, answer=ODD[case])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = [classify(QueueBusy(), 0.0).rule for _ in range(2)]
    assert found == ["default:unmatched"] * 2
    assert [str(one.message)[:31] for one in warned] == ["the classifier busy is ignored:"]


def test_an_endless_wait_is_a_very_long_one() -> None:
    teach(QueueBusy, answer=oncemore.Failure("throttled", retry_after=float("inf")))
    assert classify(QueueBusy(), 0.0).retry_after == 1e9


NEVER = [
    asyncio.CancelledError(),
    concurrent.futures.CancelledError(),
    KeyboardInterrupt(),
    SystemExit(),
    MemoryError(),
    RecursionError(),
    oncemore.PolicyViolation("GOVERNANCE_BLOCKED"),
    oncemore.RetriesExhausted("x"),
    oncemore.UsageError("x"),
]


@pytest.mark.parametrize("error", NEVER, ids=lambda error: type(error).__name__)
def test_no_classifier_is_called_for_errors_that_are_never_retried(error: BaseException) -> None:
    before = classify(error, 0.0)
    asked = teach(Exception, "asyncio", "concurrent.futures")
    assert classify(error, 0.0) == before
    assert asked == []


def test_no_rule_can_hide_a_violation_in_a_group_or_beneath_an_error() -> None:
    asked = teach(Exception)
    violation = oncemore.PolicyViolation("RIGHTS_VIOLATION")
    found = classify(ExceptionGroup("x", [QueueBusy(), violation]), 0.0)
    assert (found.kind, found.code) == ("permanent", "RIGHTS_VIOLATION")
    assert [type(one) for one in asked] == [QueueBusy]
    wrapper = QueueBusy()
    wrapper.__cause__ = violation
    assert classify(wrapper, 0.0).code == "RIGHTS_VIOLATION"
    outer = VeryBusy()
    outer.__cause__ = wrapper
    assert classify(outer, 0.0).code == "RIGHTS_VIOLATION"


def test_a_classifier_may_declare_a_violation_which_is_never_retried() -> None:
    teach(QueueBusy, answer=oncemore.Failure("transient", "no", None, "SCHEMA_INVALID"))
    assert classify(QueueBusy(), 0.0)[:4] == ("permanent", "no", None, "SCHEMA_INVALID")


def test_a_violation_raises_after_one_attempt_under_every_classifier() -> None:
    teach(Exception)
    calls = []

    @oncemore.retry(on="transient")
    def work() -> None:
        calls.append(1)
        raise oncemore.PolicyViolation("LINEAGE_MISMATCH")

    with pytest.raises(oncemore.PolicyViolation):
        work()
    assert len(calls) == 1


def test_classifiers_are_called_for_the_leaves_of_a_group() -> None:
    teach(QueueBusy)
    found = classify(ExceptionGroup("x", [QueueBusy(), ConnectionRefusedError()]), 0.0)
    assert found == ("throttled", "no", 2.5, "QUEUE_BUSY", "group:user:busy")


def test_an_unknown_error_raised_from_a_known_one_is_classified_by_it() -> None:
    teach(QueueBusy)
    error = RuntimeError()
    error.__cause__ = QueueBusy()
    assert classify(error, 0.0).rule == "cause:user:busy"


def test_inside_a_rule_classify_gives_the_answer_without_it() -> None:
    @oncemore.classifier(ConnectionError)
    def only_the_code(error: ConnectionError) -> oncemore.Failure:
        ours = oncemore.classify(error, 0.0)
        return oncemore.Failure(ours.kind, ours.sent, ours.retry_after, f"MY_{ours.code}")

    for _ in range(2):
        found = classify(ConnectionRefusedError(), 0.0)
        assert found[:4] == ("transient", "no", None, "MY_CONNECTION_REFUSED")


def test_many_threads_call_one_classifier_at_once() -> None:
    both = threading.Barrier(2, timeout=10)

    @oncemore.classifier(QueueBusy)
    def slow(_error: QueueBusy) -> oncemore.Failure:
        both.wait()
        return BUSY

    error = QueueBusy()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: classify(error, 0.0).code, range(2)))
    assert answers == ["QUEUE_BUSY", "QUEUE_BUSY"]


def test_a_classified_error_is_not_kept_alive() -> None:
    @oncemore.classifier(QueueBusy)
    def rule(_error: QueueBusy) -> None:
        pass

    error = QueueBusy()
    there = weakref.ref(error)
    classify(error, 0.0)
    del error
    gc.collect()
    assert there() is None


def test_a_classifiers_answer_is_retried_with_its_wait() -> None:
    teach(QueueBusy)
    calls = []

    @oncemore.retry(on="not-sent", wait=[0.1, 0.2])
    def work() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise QueueBusy
        return "done"

    with oncemore.testing.instant_waits() as clock:
        assert work() == "done"
    assert clock.delays == [2.5, 2.5]


def test_a_policys_class_matches_a_classifiers_code() -> None:
    teach(QueueBusy)
    assert matches_class(classify(QueueBusy(), 0.0), ["QUEUE_*"])
    assert matches_class(classify(QueueBusy(), 0.0), ["THROTTLED"])


async def coroutine(_error: Exception) -> None: ...


WRONG = {
    "nothing": (lambda: oncemore.classifier(), "write @oncemore.classifier"),
    "bare": (lambda: oncemore.classifier(len), "is neither an exception type nor"),  # type: ignore[arg-type]
    "no exception": (lambda: oncemore.classifier(int), "int cannot have a classifier"),  # type: ignore[arg-type]
    "an interrupt": (
        lambda: oncemore.classifier(KeyboardInterrupt),  # type: ignore[arg-type]
        "KeyboardInterrupt cannot have a classifier: name a type of Exception that may be retried",
    ),
    "a violation": (
        lambda: oncemore.classifier(oncemore.PolicyViolation),
        "Violation cannot have a classifier",
    ),
    "a group": (lambda: oncemore.classifier(ExceptionGroup), "ExceptionGroup cannot have a classifier"),
    "our own": (lambda: oncemore.classifier(oncemore.StepFailed), "Failed cannot have a classifier"),
    "not a name": (lambda: oncemore.classifier("their errors"), "'their errors' is neither"),
    "everything": (lambda: oncemore.classifier("builtins"), "'builtins' is too general"),
    "our module": (lambda: oncemore.classifier("oncemore.errors"), "is too general: name the exception"),
    "async": (lambda: oncemore.classifier(OSError)(coroutine), "coroutine is an async function"),  # type: ignore[type-var]
    "no function": (lambda: oncemore.classifier(OSError)(5), "5 is not a function"),  # type: ignore[type-var]
    "a class": (lambda: oncemore.classifier(OSError)(QueueBusy), "is not a function"),  # type: ignore[type-var]
    "a long name": (lambda: oncemore.classifier(OSError, name="x" * 200)(len), "needs a name"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_use_shows_at_its_own_line(case: str) -> None:
    use, message = WRONG[case]
    with pytest.raises(oncemore.UsageError) as caught:
        use()  # type: ignore[no-untyped-call]
    assert message in str(caught.value)


def test_the_number_of_classifiers_is_limited() -> None:
    with pytest.raises(oncemore.UsageError, match="256 classifiers are registered already"):
        for _ in range(300):
            oncemore.classifier(type("New", (Exception,), {}))(lambda _error: None)


def test_a_function_may_be_forgotten() -> None:
    @oncemore.classifier(QueueBusy)
    def rule(_error: QueueBusy) -> oncemore.Failure:
        return BUSY

    assert custom.is_classifier(rule)
    custom.forget_classifier(rule)
    assert not custom.is_classifier(rule)
    assert classify(QueueBusy(), 0.0).rule == "default:unmatched"


def test_a_type_whose_metaclass_misbehaves_is_still_answered() -> None:
    class NoName(type):
        __module__ = property(lambda _: 1 / 0)  # type: ignore[assignment]

    teach("their.errors", QueueBusy)
    assert classify(NoName("A", (Exception,), {})(), 0.0).kind == "permanent"
