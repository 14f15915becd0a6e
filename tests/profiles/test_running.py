"""The profiles at work: calls, delays and classes, through `oncemore.retry` on the test clock."""

from __future__ import annotations

import errno
import io
import socket
import sqlite3
import urllib.error
from email.message import Message
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore import PermanentError, PolicyViolation, TransientError
from oncemore.classifiers.classify import classify
from oncemore.errors import VIOLATIONS
from oncemore.policy import files
from oncemore.policy.files.file_reader import PACKAGED_FILES
from oncemore.policy.model import Failure
from oncemore.policy.verdict import decide_verdict

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.testing import FakeClock

EVERY = [f"{name}/{policy}" for name in PACKAGED_FILES for policy in files.profile(name).policies]
PROFILES = ["standard", "kfm-rules", "kfm-loop", "lit", "nova-cat", "exoarmur"]


def calls(error: Exception, on: object = "transient", **options: object) -> int:
    """How often work that always fails in this way is called."""
    made = 0

    def work() -> None:
        nonlocal made
        made += 1
        raise error

    with pytest.raises(type(error)):
        oncemore.retrying(work, on=on, **options)()  # type: ignore[arg-type]
    return made


@pytest.mark.req("BACKOFF-1", "BACKOFF-2", "BACKOFF-14")
@pytest.mark.parametrize("address", EVERY)
def test_work_that_always_fails_is_called_as_often_as_the_policy_says(
    address: str, instant_retries: FakeClock
) -> None:
    most = files.policy(address).max_attempts
    assert calls(OSError("always"), on=OSError, policy=address) == most
    assert len(instant_retries.delays) == most - 1


@pytest.mark.req("BACKOFF-10")
@pytest.mark.parametrize(
    ("address", "delays"), [("nova-cat", [2.0, 10.0, 30.0]), ("nova-cat/acquisition", [10.0, 60.0, 180.0])]
)
def test_nova_cat_calls_four_times_with_its_delays(
    address: str, delays: list[float], instant_retries: FakeClock
) -> None:
    assert calls(http(429), policy=address) == 4
    assert instant_retries.delays == delays


@pytest.mark.req("BACKOFF-21")
def test_values_below_lits_minimums_are_raised_with_one_warning_each(
    tmp_path: Path, instant_retries: FakeClock
) -> None:
    file = tmp_path / "core.yaml"
    file.write_text("version: '1'\nextends: lit\nretry_policy: {retry_attempts: 0}\n")
    with pytest.warns(
        oncemore.PolicyWarning, match="retry_attempts is 0; raised to its minimum, 1"
    ) as caught:
        assert calls(http(500), policy=file) == 1
    assert len(caught) == 1
    file.write_text("version: '1'\nextends: lit\nretry_policy: {retry_backoff_seconds: -1}\n")
    with pytest.warns(oncemore.PolicyWarning, match="raised to its minimum, 0") as caught:
        assert calls(http(500), policy=file) == 2
    assert len(caught) == 1
    assert instant_retries.delays == []  # a wait of 0 s is none


def http(status: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://host/", status, "", Message(), io.BytesIO())


def locked(tmp_path: Path) -> sqlite3.OperationalError:
    """The error of a database that another connection writes to."""
    with sqlite3.connect(tmp_path / "x.db") as holder, pytest.raises(sqlite3.OperationalError) as caught:
        holder.execute("create table if not exists t (x)")
        holder.execute("insert into t values (1)")
        other = sqlite3.connect(tmp_path / "x.db", timeout=0)
        try:
            other.execute("insert into t values (2)")
        finally:
            other.close()
    holder.close()
    return caught.value


def timed_out() -> TimeoutError:
    """The error of a server that does not answer."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as line,
    ):
        line.settimeout(0.01)
        with pytest.raises(TimeoutError) as caught:
            line.recv(1)
    return caught.value


def slow_down() -> Exception:
    from botocore.exceptions import ClientError

    return ClientError(
        {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503}}, "GetObject"
    )


@pytest.mark.req("CLASS-1")
def test_errors_that_kfm_rules_lists_as_retryable_are_retried(
    tmp_path: Path, instant_retries: FakeClock
) -> None:
    for error, error_class in (
        (timed_out(), "TIMEOUT"),
        (TimeoutError(), "TIMEOUT"),
        *((http(status), f"HTTP_{status}") for status in (408, 429, 500, 501, 502, 503, 504)),
        (slow_down(), "AWS_SlowDown"),
        (locked(tmp_path), "SQLITE_BUSY"),
        (OSError(errno.EBUSY, "busy"), "ERRNO_EBUSY"),
        (BlockingIOError(errno.EAGAIN, "again"), "ERRNO_EAGAIN"),
    ):
        assert classify(error, 0.0).code == error_class
        assert calls(error, policy="kfm-rules") == 5, error_class
    kfm = files.policy("kfm-rules")
    for code in ("NEO4J:TransientError.Transaction.DeadlockDetected", "STAC_SLOWDOWN"):
        assert decide_verdict(Failure("transient", "no", None, code, "test"), kfm, "pure") == "RETRYABLE"
    for unlisted in (http(404), http(505), http(507), KeyError("x")):
        assert calls(unlisted, policy="kfm-rules") == 1


@pytest.mark.req("CLASS-2")
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("code", VIOLATIONS)
def test_a_violation_is_called_once_under_every_profile(
    profile: str, code: str, instant_retries: FakeClock
) -> None:
    for on in ("transient", Exception):
        assert calls(PolicyViolation(code), on=on, policy=profile) == 1


@pytest.mark.req("CLASS-2")
@pytest.mark.parametrize("profile", ["standard", "lit", "nova-cat", "exoarmur"])
@pytest.mark.parametrize("code", VIOLATIONS)
def test_no_file_makes_a_violation_retryable(profile: str, code: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    for name in (code, code[:4] + "*", "*"):
        file.write_text(
            f"version: '1'\nextends: {profile}\nretry_policy: {{classify: {{retryable: ['{name}']}}}}\n"
        )
        with pytest.raises(oncemore.PolicyError, match="may never be retried"):
            files.load(file)


@pytest.mark.req("CLASS-12")
@pytest.mark.parametrize("profile", PROFILES)
def test_an_unclassified_exception_is_retried_under_exoarmur_only(
    profile: str, instant_retries: FakeClock
) -> None:
    class UnheardError(Exception):
        """Not in any table."""

    expected = files.policy(profile).max_attempts if profile == "exoarmur" else 1
    assert calls(UnheardError(), policy=profile) == expected
    assert calls(ValueError(), policy=profile) == expected


def test_cancellation_and_final_errors_are_not_retried_even_under_a_catch_all(
    instant_retries: FakeClock,
) -> None:
    from concurrent.futures import CancelledError

    for error in (CancelledError(), MemoryError(), oncemore.UsageError("wrong")):
        assert calls(error, policy="exoarmur") == 1


def test_the_non_retryable_list_comes_before_the_retryable_one_and_the_default(
    tmp_path: Path, instant_retries: FakeClock
) -> None:
    file = tmp_path / "strict.yaml"
    file.write_text(
        "version: '1'\nextends: exoarmur\n"
        "classify: {non_retryable_exceptions: [EXC_ValueError, EXC_TypeError, EXC_KeyError]}\n"
    )
    for error in (ValueError(), TypeError(), KeyError()):
        assert calls(error, policy=file) == 1
    assert calls(OSError("anything"), policy=file) == 3


@pytest.mark.req("CLASS-11")
def test_a_class_in_both_lists_is_retried_only_where_the_file_says_so(
    tmp_path: Path, instant_retries: FakeClock
) -> None:
    lists = "retryable: [EXC_ValueError], non_retryable: [EXC_ValueError]"
    for precedence, expected in (("", 1), (", precedence: retryable_first", 3)):
        file = tmp_path / f"lenient{expected}.yaml"
        file.write_text(f"version: '1'\nextends: exoarmur\nclassify: {{{lists}{precedence}}}\n")
        with pytest.warns(oncemore.PolicyWarning, match="EXC_ValueError is in both lists"):
            assert calls(ValueError(), policy=file) == expected


def test_kfm_loop_retries_errors_that_the_node_or_the_classifiers_call_transient(
    instant_retries: FakeClock,
) -> None:
    for error in (TransientError(), TimeoutError(), ConnectionResetError(), http(503)):
        assert calls(error, policy="kfm-loop") == 6
    for error in (PermanentError(), http(404), http(501), KeyError("x")):
        assert calls(error, policy="kfm-loop") == 1


def test_lit_retries_5xx_and_transport_errors_and_no_4xx(tmp_path: Path, instant_retries: FakeClock) -> None:
    for again in (http(500), http(503), http(507), TimeoutError(), ConnectionResetError(),
                  urllib.error.URLError(ConnectionRefusedError())):  # fmt: skip
        assert calls(again, policy="lit") == 2
    for once in (http(400), http(404), http(408), http(422), http(429), ValueError("not JSON")):
        assert calls(once, policy="lit") == 1
    assert set(instant_retries.delays) == {0.25}
    instant_retries.delays.clear()
    assert calls(locked(tmp_path), policy="lit/persistence") == 3
    assert instant_retries.delays == [0.02, 0.04]
    assert calls(sqlite3.OperationalError("no such table: t"), policy="lit/persistence") == 1


def test_nova_cat_retries_throttling_timeouts_and_5xx(instant_retries: FakeClock) -> None:
    for again in (
        http(429),
        http(500),
        http(505),
        http(408),
        TimeoutError(),
        ConnectionResetError(),
        slow_down(),
    ):
        assert calls(again, policy="nova-cat/acquisition") == 4
    for once in (http(404), PermanentError(), PolicyViolation("CHECKSUM_MISMATCH"), ValueError()):
        assert calls(once, policy="nova-cat/acquisition") == 1


@pytest.mark.req("POL-1")
def test_the_product_runs_with_the_printed_default(instant_retries: FakeClock) -> None:
    assert calls(TransientError(), policy="kfm-loop-default", seed="x") == 6
    for n, delay in enumerate(instant_retries.delays, 1):
        assert 10 * 2**n <= delay <= 10 * 2**n + 10


@pytest.mark.parametrize("profile", PROFILES)
def test_timeouts_may_pass_under_every_profile_and_deadlines_under_none(
    profile: str, instant_retries: FakeClock
) -> None:
    assert calls(oncemore.AttemptTimeout("slow"), policy=profile) > 1
    assert calls(oncemore.DeadlineExceeded("late"), policy=profile) == 1
