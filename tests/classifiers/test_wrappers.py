"""Wrapped, grouped and already retried exceptions."""

from __future__ import annotations

import google.api_core.exceptions
import google.api_core.retry
import httpx
import pytest
import requests
import tenacity
import urllib3

import oncemore.errors as ours
from oncemore.classifiers import classify as module
from oncemore.classifiers.classify import classify, register_table
from oncemore.policy.model import Failure
from oncemore.policy.verdict import STOPPED
from tests.classifiers.clients import caught
from tests.servers import faults


class ApiDown(Exception):
    """An exception of a user's own client, without a rule."""


def facts(error: BaseException) -> tuple[str, str, str, str]:
    found = classify(error, 0.0)
    return found.kind, found.sent, found.code, found.rule


def raised(error: BaseException, *, while_handling: BaseException, explicitly: bool) -> BaseException:
    """Raise for real, so that Python itself links the two."""
    try:
        try:
            raise while_handling
        except BaseException as first:
            if explicitly:
                raise error from first
            raise error  # noqa: B904 - the implicit link is the point
    except BaseException as second:
        return second


def test_an_unknown_exception_is_understood_through_its_explicit_cause() -> None:
    error = raised(ApiDown(), while_handling=ConnectionRefusedError(), explicitly=True)
    assert facts(error) == ("transient", "no", "CONNECTION_REFUSED", "cause:builtins:ConnectionRefusedError")


def test_a_runtime_error_is_only_a_wrapper() -> None:
    error = raised(RuntimeError("fetch failed"), while_handling=TimeoutError(), explicitly=True)
    assert facts(error)[:3] == ("transient", "maybe", "TIMEOUT")


def test_a_chain_of_unknown_wrappers_is_followed_to_its_end() -> None:
    error: BaseException = ConnectionResetError()
    for _ in range(10):
        error = raised(ApiDown(), while_handling=error, explicitly=True)
    assert facts(error) == ("transient", "maybe", "CONNECTION_RESET", "cause:builtins:ConnectionResetError")


@pytest.mark.parametrize("explicitly", [True, False])
@pytest.mark.parametrize(
    "bug",
    [KeyError("x"), TypeError("x"), AssertionError("x"), ValueError("x"), AttributeError("x")],
    ids=repr,
)
def test_a_bug_raised_while_handling_a_lost_connection_stays_a_bug(bug: Exception, explicitly: bool) -> None:
    error = raised(bug, while_handling=ConnectionResetError(), explicitly=explicitly)
    assert facts(error)[0] == "permanent"
    assert facts(error)[3] == f"builtins:{'LookupError' if isinstance(bug, KeyError) else type(bug).__name__}"


@pytest.mark.parametrize("error", [ApiDown(), RuntimeError(), OSError("no number")], ids=repr)
def test_the_implicit_context_does_not_explain_an_unknown_exception(error: Exception) -> None:
    error = raised(error, while_handling=ConnectionRefusedError(), explicitly=False)  # type: ignore[assignment]
    assert error.__context__ is not None
    assert facts(error)[0] == "permanent"
    assert facts(error)[3] == "default:unmatched"


@pytest.mark.parametrize(
    "error",
    [requests.ConnectionError("x"), httpx.ReadError("x"), urllib3.exceptions.ProtocolError("x")],
    ids=lambda error: type(error).__module__,
)
def test_the_implicit_context_does_not_explain_a_wrapper(error: Exception) -> None:
    found = facts(raised(error, while_handling=ConnectionRefusedError(), explicitly=False))
    assert found[:2] == ("transient", "maybe")
    assert found[2] != "CONNECTION_REFUSED"


def test_the_wrapper_gives_sent_and_the_wrapped_error_gives_the_code() -> None:
    refused, reset = ConnectionRefusedError(), ConnectionResetError()
    error = raised(httpx.ConnectError("x"), while_handling=reset, explicitly=True)
    assert facts(error)[:3] == ("transient", "no", "CONNECTION_RESET")
    error = raised(httpx.ReadError("x"), while_handling=refused, explicitly=True)
    assert facts(error)[:3] == ("transient", "maybe", "CONNECTION_REFUSED")


def test_a_base_exception_is_not_classified_by_its_cause() -> None:
    class Stop(BaseException):
        pass

    error = raised(Stop(), while_handling=ConnectionRefusedError(), explicitly=True)
    assert facts(error) == ("permanent", "maybe", "EXC_Stop", "default:unmatched")


def test_a_clients_rule_wins_over_the_rule_of_its_builtin_base() -> None:
    class Invalid(ValueError, requests.ConnectTimeout):
        """A `ValueError` by its first base, and a connection error of requests by its second."""

    assert facts(Invalid()) == ("transient", "no", "TIMEOUT_CONNECT", "requests:ConnectTimeout")


def test_a_suppressed_cause_explains_nothing() -> None:
    error = ApiDown()
    error.__context__ = ConnectionRefusedError()
    error.__suppress_context__ = True
    assert facts(error)[3] == "default:unmatched"


def test_a_known_exception_is_not_explained_by_its_cause() -> None:
    error = raised(ConnectionResetError(), while_handling=ValueError(), explicitly=True)
    assert facts(error)[:3] == ("transient", "maybe", "CONNECTION_RESET")


def test_an_operating_system_error_without_a_number_is_a_wrapper() -> None:
    error = raised(OSError("all attempts failed"), while_handling=ConnectionRefusedError(), explicitly=True)
    assert facts(error)[:3] == ("transient", "no", "CONNECTION_REFUSED")


def test_a_cause_that_no_rule_knows_leaves_the_wrapper_unmatched() -> None:
    error = raised(ApiDown(), while_handling=RuntimeError(), explicitly=True)
    assert facts(error) == ("permanent", "maybe", "EXC_ApiDown", "default:unmatched")


GROUPS = {
    "all pass": ([ConnectionRefusedError(), TimeoutError()], ("transient", "maybe")),
    "all not sent": ([ConnectionRefusedError(), ConnectionRefusedError()], ("transient", "no")),
    "one does not pass": ([ConnectionRefusedError(), ValueError()], ("permanent", "maybe")),
    "one is unknown": ([ConnectionRefusedError(), ApiDown()], ("permanent", "maybe")),
    "one is a conflict": ([ConnectionRefusedError(), FileExistsError()], ("conflict", "no")),
    "nested": (
        [ExceptionGroup("", [ConnectionRefusedError(), ExceptionGroup("", [BrokenPipeError()])])],
        ("transient", "maybe"),
    ),
    "nested, one does not pass": (
        [ConnectionRefusedError(), ExceptionGroup("", [ExceptionGroup("", [KeyError()])])],
        ("permanent", "maybe"),
    ),
}


@pytest.mark.parametrize("case", GROUPS)
def test_a_group_passes_only_if_every_leaf_passes(case: str) -> None:
    leaves, meaning = GROUPS[case]
    for ordered in (leaves, leaves[::-1]):
        assert facts(ExceptionGroup("several", ordered))[:2] == meaning


def test_a_group_with_a_cancellation_never_passes() -> None:
    group = BaseExceptionGroup("several", [ConnectionRefusedError(), KeyboardInterrupt()])
    assert facts(group)[0] == "permanent"


def test_a_leaf_that_no_policy_can_retry_decides() -> None:
    violation = ours.PolicyViolation("CHECKSUM_MISMATCH")
    leaves: list[BaseException] = [
        ConnectionError(), ApiDown(), FileExistsError(), ValueError(), violation, KeyboardInterrupt(),
    ]  # fmt: skip
    codes = [
        "CONNECTION_ERROR",
        "EXC_ApiDown",
        "ERRNO_EEXIST",
        "EXC_ValueError",
        "CHECKSUM_MISMATCH",
        "INTERRUPTED",
    ]
    for last in range(len(leaves)):
        for ordered in (leaves[: last + 1], leaves[last::-1]):
            assert facts(BaseExceptionGroup("", ordered))[2] == codes[last]
    assert facts(ExceptionGroup("", [ConnectionError(), ApiDown()]))[3] == "default:unmatched"


def test_every_code_that_is_never_retried_is_the_worst_of_a_group() -> None:
    codes = {code for table in module._NEVER_RETRIED.values() for _, _, code in table.values()}  # type: ignore[misc]
    assert codes == set(STOPPED)


def answered(status: int, wait: str) -> httpx.HTTPStatusError:
    response = httpx.Response(status, headers={"Retry-After": wait})
    return httpx.HTTPStatusError("x", request=httpx.Request("GET", "http://x/"), response=response)


def test_the_longest_wait_of_a_group_wins_and_the_code_is_the_deciding_leafs() -> None:
    group = ExceptionGroup("", [ConnectionRefusedError(), answered(429, "5"), answered(503, "9")])
    assert classify(group, 0.0) == Failure("throttled", "maybe", 9.0, "HTTP_429", "group:http:status")


def test_a_group_in_the_chain_is_read_as_a_group() -> None:
    group = ExceptionGroup("", [ConnectionRefusedError(), ConnectionRefusedError()])
    error = raised(ApiDown(), while_handling=group, explicitly=True)
    assert facts(error)[:3] == ("transient", "no", "CONNECTION_REFUSED")


def test_a_group_with_too_many_leaves_is_unmatched() -> None:
    most = module.MAX_ERRORS
    fits = ExceptionGroup("", [ConnectionRefusedError()] * (most - 1))
    assert facts(fits)[:2] == ("transient", "no")
    too_big = ExceptionGroup("", [ConnectionRefusedError()] * (most + 1))
    assert facts(too_big)[::3] == ("permanent", "default:unmatched")


def test_a_chain_that_is_too_deep_is_unmatched() -> None:
    def chain(length: int) -> BaseException:
        error: BaseException = ConnectionRefusedError()
        for _ in range(length):
            outer = ApiDown()
            outer.__cause__ = error
            error = outer
        return error

    assert facts(chain(module.MAX_DEPTH))[0] == "transient"
    assert facts(chain(module.MAX_DEPTH + 1))[::3] == ("permanent", "default:unmatched")
    assert facts(chain(100_000))[::3] == ("permanent", "default:unmatched")


def test_tenacitys_wrapper_means_what_its_last_attempt_meant() -> None:
    @tenacity.retry(stop=tenacity.stop_after_attempt(2))
    def refused() -> None:
        raise ConnectionRefusedError

    assert facts(caught(refused))[:3] == ("transient", "no", "CONNECTION_REFUSED")

    @tenacity.retry(stop=tenacity.stop_after_attempt(2), retry=tenacity.retry_if_result(bool))
    def never_good() -> int:
        return 7

    assert facts(caught(never_good))[:3] == ("permanent", "maybe", "RETRIES_EXHAUSTED")
    unfinished = tenacity.RetryError(tenacity.Future(1))
    assert facts(unfinished)[:3] == ("permanent", "maybe", "RETRIES_EXHAUSTED")


def test_googles_wrapper_means_what_its_cause_meant() -> None:
    @google.api_core.retry.Retry(predicate=lambda _: True, initial=0.01, maximum=0.01, timeout=0.03)
    def refused() -> None:
        raise ConnectionRefusedError

    error = caught(refused)
    assert isinstance(error, google.api_core.exceptions.RetryError)
    assert facts(error)[:3] == ("transient", "no", "CONNECTION_REFUSED")


def test_requests_that_retried_by_itself_is_understood_by_its_last_answer() -> None:
    adapter = requests.adapters.HTTPAdapter(
        max_retries=urllib3.Retry(1, status_forcelist=[503], backoff_factor=0)
    )
    with faults.serve(faults.answers(503)) as server, requests.Session() as session:
        session.trust_env = False
        session.mount("http://", adapter)
        error = caught(session.get, server.url)
    assert isinstance(error, requests.exceptions.RetryError)
    assert facts(error)[:3] == ("transient", "maybe", "HTTP_503")


def test_a_registered_table_decides_for_its_module_at_once() -> None:
    error = ApiDown()
    assert facts(error)[3] == "default:unmatched"
    home = ApiDown.__module__.partition(".")[0]
    register_table(home, {"ApiDown": ("throttled", "no", "API_DOWN")})
    try:
        assert facts(error) == ("throttled", "no", "API_DOWN", f"{home}:ApiDown")
    finally:
        del module._tables[home]
        module._rule_cache.clear()


def test_the_cache_of_rules_is_bounded() -> None:
    for number in range(module.MAX_CACHED_TYPES + 100):
        assert classify(type(f"Lost{number}", (ConnectionError,), {})(), 0.0).may_pass
        assert not classify(type(f"Unknown{number}", (Exception,), {})(), 0.0).may_pass
    assert len(module._rule_cache) <= module.MAX_CACHED_TYPES
    assert len(module._unmatched_cache) <= module.MAX_CACHED_TYPES


def test_without_custom_rules_the_builtin_rules_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_custom_lookup", None)
    monkeypatch.setattr(module, "_rule_cache", {})
    assert facts(ConnectionRefusedError())[:3] == ("transient", "no", "CONNECTION_REFUSED")


def test_a_failed_search_for_plugins_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched = []

    def load() -> bool:
        searched.append(1)
        if len(searched) == 1:
            raise OSError(24, "Too many open files")
        return False

    monkeypatch.setattr("oncemore.classifiers.plugins.load_plugins", load)
    monkeypatch.setattr(module, "_plugins_pending", True)
    for expected in (1, 2, 2):
        module.ensure_plugins_loaded()
        assert len(searched) == expected
    assert not module._plugins_pending


def test_classifying_again_gives_the_same_answer() -> None:
    error = raised(ApiDown(), while_handling=answered(503, "9"), explicitly=True)
    first = classify(error, 0.0)
    module._rule_cache.clear()
    assert (
        classify(error, 0.0) == first == Failure("throttled", "maybe", 9.0, "HTTP_503", "cause:http:status")
    )
