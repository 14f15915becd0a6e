"""The same fault at two times has the same fingerprint; another fault has another one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemore.audit.fingerprint import compute_fingerprint, normalize_message
from oncemore.classifiers.classify import classify
from oncemore.policy.model import Failure
from tests.classifiers.clients import CLIENTS, caught
from tests.servers import faults

LOST = Failure("transient", code="CONNECTION_RESET")

SAME = {
    "times": (
        "gateway said 502 at 2026-11-15T09:00:01.123Z after 12.5 s",
        "gateway said 502 at 2026-11-16 23:59:59+01:00 after 7 s",
    ),
    "mail dates": (
        "locked until Sun, 06 Nov 1994 08:49:37 GMT by the archive",
        "locked until Monday, 07-Nov-94 18:00:00 GMT by the archive",
    ),
    "uuids": (
        "run 8e03978e-40d5-43e8-bc93-6894a57f9324 was cut",
        "run 0B29ACF1-11aa-4c58-9d8e-000000000001 was cut",
    ),
    "memory addresses": ("<Conn object at 0x7f87dc11ac80> is closed", "<Conn object at 0x7ffff> is closed"),
    "IPv4 and ports": ("no route to 10.0.0.7:5432", "no route to 192.168.12.250:49152"),
    "IPv6": ("no route to [2001:db8::1]:443", "no route to [fe80::1ff:fe23:4567:890a]:8443"),
    "ports": ("port=57409 refused", "port=80 refused"),
    "numbers": ("got 10 of 100 bytes", "got 2048 of 1000000 bytes"),
    "request ids": ("request req_01HZY3K9 failed", "request req_77abcDEF12 failed"),
    "digests": (
        "object deadbeefdeadbeef12 missing",
        "object 0123456789abcdef0123456789abcdef0123456789abcdef missing",
    ),
    "spaces and case": ("Connection  reset\nby peer", "connection reset by PEER"),
}


@pytest.mark.parametrize("case", SAME)
def test_changing_parts_of_a_message_do_not_change_the_fingerprint(case: str) -> None:
    one, other = SAME[case]
    assert one != other
    assert normalize_message(one) == normalize_message(other)
    assert compute_fingerprint(LOST, one, "archive", "fetch") == compute_fingerprint(
        LOST, other, "archive", "fetch"
    )


def test_all_other_parts_change_the_fingerprint() -> None:
    prints = {
        compute_fingerprint(LOST, "connection reset by peer", "archive", "fetch"),
        compute_fingerprint(LOST, "connection reset by proxy", "archive", "fetch"),
        compute_fingerprint(LOST, "connection reset by peer", "mirror", "fetch"),
        compute_fingerprint(LOST, "connection reset by peer", "archive", "index"),
        compute_fingerprint(LOST._replace(code="HTTP_503"), "connection reset by peer", "archive", "fetch"),
        compute_fingerprint(LOST, "connection reset by peer", "archivefetch", ""),
        compute_fingerprint(LOST, "connection reset by peer"),
    }
    assert len(prints) == 7
    assert all(len(print_) == 32 for print_ in prints)


@pytest.mark.req("CLASS-16")
def test_a_real_fault_at_two_times_has_one_fingerprint_and_another_fault_another() -> None:
    def happen(behaviour: faults.Behaviour) -> str:
        with faults.serve(behaviour) as server:
            error = caught(CLIENTS["requests"], server.url)
        return compute_fingerprint(classify(error, 0.0), str(error), "archive", "fetch")

    def refuse() -> str:
        with faults.refusing() as server:
            error = caught(CLIENTS["requests"], server.url)
        return compute_fingerprint(classify(error, 0.0), str(error), "archive", "fetch")

    assert refuse() == refuse(), "the port and the object's address differ"
    assert happen(faults.answers(503)) == happen(faults.answers(503))
    assert len({refuse(), happen(faults.answers(503)), happen(faults.resets), happen(faults.closes)}) == 4


def test_a_message_of_any_length_takes_a_bounded_part() -> None:
    assert normalize_message("word " * 10_000) == normalize_message("word " * 400)


@given(st.text())
def test_no_message_makes_it_raise(message: str) -> None:
    assert len(compute_fingerprint(LOST, message)) == 32
    assert normalize_message(normalize_message(message)) == normalize_message(message)
