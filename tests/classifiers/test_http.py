"""HTTP statuses and headers, without a client."""

from __future__ import annotations

from datetime import UTC, datetime
from email.message import Message
from email.utils import format_datetime, parsedate_to_datetime

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from requests.structures import CaseInsensitiveDict

from oncemore.classifiers.classify import classify_status, parse_retry_after
from oncemore.classifiers.http_date import parse_http_date
from oncemore.classifiers.http_status import MAX_WAIT_S, classify_failed_status

#: Sun, 06 Nov 1994 08:49:37 GMT, the example of RFC 9110.
EPOCH = 784111777.0

STATUSES = {
    **dict.fromkeys((408, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529), ("transient", "maybe")),
    425: ("transient", "no"),
    429: ("throttled", "no"),
    **dict.fromkeys((409, 412, 423), ("conflict", "no")),
    **dict.fromkeys((501, 505), ("permanent", "no")),
    **dict.fromkeys((400, 401, 403, 404, 410, 413, 418, 422, 451), ("permanent", "no")),
    **dict.fromkeys((506, 507, 511, 525, 530, 599), ("permanent", "maybe")),
}


@pytest.mark.parametrize("status", STATUSES)
def test_a_status_has_one_meaning(status: int) -> None:
    found = classify_status(status, None, EPOCH)
    assert found is not None
    assert (found.kind, found.sent) == STATUSES[status]
    assert (found.code, found.rule, found.retry_after) == (f"HTTP_{status}", "http:status", None)


@pytest.mark.parametrize("status", [100, 200, 204, 301, 304, 399])
def test_an_answer_below_400_is_not_a_failure(status: int) -> None:
    assert classify_status(status, {"Retry-After": "5"}, EPOCH) is None


def test_a_redirect_that_a_client_raised_is_permanent_and_may_have_taken_effect() -> None:
    assert classify_failed_status(303, {"Retry-After": "5"}, EPOCH)[:4] == (
        "permanent",
        "maybe",
        None,
        "HTTP_303",
    )


RETRY_AFTER = {
    "0": 0.0,
    "120": 120.0,
    " 120 ": 120.0,
    "1.5": 1.5,
    "-5": 0.0,
    "Sun, 06 Nov 1994 08:49:37 GMT": 0.0,
    "Sun, 06 Nov 1994 08:50:37 GMT": 60.0,
    "Sun, 6 Nov 1994 08:50:37 UTC": 60.0,
    "Sun, 06 Nov 1994 09:50:37 +0100": 60.0,
    "Sun, 06 Nov 1994 03:50:37 -0500": 60.0,
    "Sunday, 06-Nov-94 08:50:37 GMT": 60.0,
    "Sun Nov  6 08:50:37 1994": 60.0,
    "Sun, 06 Nov 1994 08:49:60 GMT": 23.0,
    "Tue, 06 Nov 1984 08:50:37 GMT": 0.0,
    "99999999999999": MAX_WAIT_S,
    "9" * 400: MAX_WAIT_S,
    "Mon, 01 Jan 9999 00:00:00 GMT": MAX_WAIT_S,
}


@pytest.mark.parametrize("text", RETRY_AFTER, ids=lambda text: text[:32])
def test_every_form_of_retry_after_is_read(text: str) -> None:
    assert parse_retry_after(text, EPOCH) == RETRY_AFTER[text]


MALFORMED = [
    *("", " ", "soon", "1e3", "nan", "inf", "0x10", "1_000", "٣", "²", "--5", "1.2.3", "5, 10", "+5"),
    "Sun, 06 Nov 1994",
    "Sun, 31 Feb 1994 08:49:37 GMT",
    "Sun, 29 Feb 2023 08:49:37 GMT",
    "Sun, 00 Nov 1994 08:49:37 GMT",
    "Sun, 06 Nov 1994 24:49:37 GMT",
    "Sun, 06 Nov 1994 08:60:37 GMT",
    "Sun, 06 Nov 1994 08:49:61 GMT",
    "Sun, 06 Nov 1994 08:49 GMT",
    "Sun, 06 Nux 1994 08:49:37 GMT",
    "Sun, 06 Nov 1994 08:49:37 PST",
    "Sun, 06 Nov 1994 08:49:37 +1",
    "Sun, 06 Nov 19944 08:49:37 GMT",
    "1994, 06 Nov 1994 08:49:37 GMT",
    "1994-11-06T08:49:37Z",
    "9" * 501,
    None,
    5,
    b"5",
]


@pytest.mark.parametrize("text", MALFORMED, ids=lambda text: repr(text)[:32])
def test_a_malformed_retry_after_is_ignored(text: object) -> None:
    assert parse_retry_after(text, EPOCH) is None


@given(st.datetimes(datetime(1900, 1, 1), datetime(2999, 12, 31), timezones=st.just(UTC)))
@example(datetime(2000, 2, 29, 23, 59, 59, tzinfo=UTC))
@example(datetime(1900, 3, 1, tzinfo=UTC))
def test_the_dates_read_are_those_that_the_standard_library_reads(when: datetime) -> None:
    when = when.replace(microsecond=0)
    text = format_datetime(when, usegmt=True)
    assert parse_http_date(text, EPOCH) == when.timestamp() == parsedate_to_datetime(text).timestamp()
    assert (
        parse_http_date(when.strftime("%a %b %e %H:%M:%S ") + f"{when.year:04d}", EPOCH) == when.timestamp()
    )


@given(st.datetimes(datetime(1977, 1, 1), datetime(2075, 12, 31), timezones=st.just(UTC)))
def test_a_two_digit_year_is_within_fifty_years_ahead(when: datetime) -> None:
    when = when.replace(microsecond=0)
    now = datetime(2026, 11, 15, tzinfo=UTC).timestamp()
    assert parse_http_date(when.strftime("%A, %d-%b-%y %H:%M:%S GMT"), now) == when.timestamp()


@given(st.text())
def test_no_text_makes_parsing_raise_or_give_a_negative_wait(text: str) -> None:
    found = parse_retry_after(text, EPOCH)
    assert found is None or 0 <= found <= MAX_WAIT_S


HEADERS = {
    "a plain dict": lambda name: {name: "7"},
    "bytes": lambda name: {name: b"7"},
    "httpx": lambda name: httpx.Headers({name: "7"}),
    "requests": lambda name: CaseInsensitiveDict({name: "7"}),
}


@pytest.mark.parametrize("kind", HEADERS)
@pytest.mark.parametrize("name", ["Retry-After", "retry-after", "RETRY-AFTER"])
def test_a_header_is_found_in_every_clients_headers_in_any_case(kind: str, name: str) -> None:
    found = classify_status(429, HEADERS[kind](name), EPOCH)
    assert found is not None
    assert found.retry_after == 7.0


def test_a_header_is_found_in_a_mail_message() -> None:
    headers = Message()
    headers["RETRY-after"] = "7"
    assert classify_failed_status(429, headers, EPOCH).retry_after == 7.0


NO_HEADERS = [None, {}, [], 7, "text", {"Retry-After": None}, {"Retry-After": 7}, {7: "x"}]


@pytest.mark.parametrize("headers", NO_HEADERS, ids=repr)
def test_missing_headers_give_no_wait(headers: object) -> None:
    assert classify_failed_status(429, headers, EPOCH).retry_after is None


LIMITS = {
    "the draft's field": ({"RateLimit": '"permin";r=0;t=30'}, 30.0),
    "the longest of those used up": ({"RateLimit": '"a";r=0;t=30,"b";r=0;t=90, "c";r=5;t=500'}, 90.0),
    "a name with separators in it": ({"RateLimit": '"a;r=1,t=\\"9";r=0;t=30'}, 30.0),
    "a name that looks like a quota": ({"RateLimit": '"x,y;r=0;t=99,z";r=5;t=30'}, None),
    "something left": ({"RateLimit": '"permin";r=3;t=30'}, None),
    "no time": ({"RateLimit": '"permin";r=0'}, None),
    "no time, and a window": (
        {"RateLimit": '"m";r=0', "RateLimit-Policy": '"h";q=9;w=3600, "m";q=5;w=60'},
        60.0,
    ),
    "no time, and the window of another": (
        {"RateLimit": '"m";r=0', "RateLimit-Policy": '"h";q=9;w=3600'},
        None,
    ),
    "something left of a window": ({"RateLimit": '"m";r=1', "RateLimit-Policy": '"m";q=5;w=60'}, None),
    "a time is better than a window": ({"RateLimit": '"m";r=0;t=7', "RateLimit-Policy": '"m";q=5;w=60'}, 7.0),
    "malformed": ({"RateLimit": 'r=0;t=x,,;="'}, None),
    "the older trio": ({"RateLimit-Remaining": "0", "RateLimit-Reset": "40"}, 40.0),
    "the older trio, something left": ({"RateLimit-Remaining": "2", "RateLimit-Reset": "40"}, None),
    "no word about the rest": ({"RateLimit-Reset": "40"}, 40.0),
    "X, seconds from now": ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "50"}, 50.0),
    "X, seconds since 1970": ({"X-RateLimit-Reset": "1700000060"}, 60.0),
    "X, milliseconds since 1970": ({"X-RateLimit-Reset": "1700000060000"}, 60.0),
    "X, in the past": ({"X-RateLimit-Reset": "1699999999"}, 0.0),
    "X, malformed": ({"X-RateLimit-Reset": "2023-11-14"}, None),
    "absurd": ({"RateLimit": '"a";r=0;t=999999999999'}, MAX_WAIT_S),
    "Retry-After first": ({"Retry-After": "5", "RateLimit": '"a";r=0;t=30'}, 5.0),
    "after a malformed Retry-After": ({"Retry-After": "x", "RateLimit": '"a";r=0;t=30'}, 30.0),
}


@pytest.mark.parametrize("case", LIMITS)
def test_rate_limit_headers_give_the_wait(case: str) -> None:
    headers, wait = LIMITS[case]
    assert classify_failed_status(429, headers, 1_700_000_000.0).retry_after == wait
    quiet = classify_failed_status(500, {"X": "Y", **headers}, 1_700_000_000.0).retry_after
    assert quiet == (wait if case == "Retry-After first" else None), "only a throttled answer is about limits"


@pytest.mark.parametrize("status", [503, 529])
def test_an_overloaded_server_with_a_wait_is_throttling(status: int) -> None:
    assert classify_failed_status(status, {"Retry-After": "5"}, EPOCH).kind == "throttled"
    assert classify_failed_status(status, {"Retry-After": "whenever"}, EPOCH).kind == "transient"
    assert classify_failed_status(500, {"Retry-After": "5"}, EPOCH)[:3] == ("transient", "maybe", 5.0)
    used_up = classify_failed_status(status, {"RateLimit": '"m";r=0;t=3', "X-RateLimit-Reset": "99"}, EPOCH)
    assert used_up[:3] == ("throttled", "maybe", 3.0)
    assert classify_failed_status(status, {"X-RateLimit-Reset": "99"}, EPOCH)[:3] == (
        "transient",
        "maybe",
        None,
    )


@pytest.mark.parametrize("skew", [-7200.0, -1.0, 0.0, 1.0, 7200.0])
def test_a_date_is_read_by_the_clock_of_the_server_that_wrote_it(skew: float) -> None:
    headers = {"Date": "Tue, 14 Nov 2023 22:13:20 GMT", "Retry-After": "Tue, 14 Nov 2023 22:13:50 GMT"}
    assert classify_failed_status(503, headers, 1_700_000_000.0 + skew).retry_after == 30.0
    cached = {**headers, "Age": "3600"}
    assert classify_failed_status(503, cached, 1_700_000_000.0 + skew).retry_after == max(0.0, 30.0 - skew)
    senseless = {**headers, "Date": "yesterday"}
    assert classify_failed_status(503, senseless, 1_700_000_000.0 + skew).retry_after == max(0.0, 30.0 - skew)
    assert (
        classify_failed_status(503, {**headers, "Retry-After": "7"}, 1_700_000_000.0 + skew).retry_after
        == 7.0
    )
