"""The programs of examples/compare do the same with each library, against services that fail and kill -9.

`make test` runs all eight of ours and the payment with every library; `make torture` runs all 32. A program
of another library changes only with its file or with a pin.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.examples.programs import (
    PATIENCE_S,
    find_free_port,
    finish,
    is_listening,
    kill_program,
    kill_while_held,
    read_until,
    wait_until,
)
from tools import compare

if TYPE_CHECKING:
    from examples.compare.service import Service
    from tests.examples.programs import Starter

every_library = pytest.mark.parametrize("library", compare.LIBRARIES)
sampled_library = pytest.mark.parametrize(
    "library", compare.LIBRARIES if os.environ.get("ONCEMORE_TORTURE") else ("oncemore",)
)
pytestmark = pytest.mark.torture


@sampled_library
def test_a_flaky_get_waits_as_long_as_the_service_asks(
    library: str, service: Service, start: Starter
) -> None:
    assert finish(start("flaky_get", library)) == ["clear", "404"]
    assert service.requests == {"GET /forecast/harbour": 3, "GET /forecast/atlantis": 1}
    first, second, _ = service.times["/forecast/harbour"]
    assert second - first >= 1.0


@sampled_library
def test_a_poll_ends_when_the_export_is_ready(library: str, service: Service, start: Starter) -> None:
    assert finish(start("poll_until_ready", library)) == ["42"]
    assert service.requests == {"GET /exports/1": 4}


@every_library
def test_a_payment_is_made_once_through_a_kill(library: str, service: Service, start: Starter) -> None:
    service.hold.add("/payments")
    kill_while_held(start("pay_once", library, "o-1"), service)
    assert finish(start("pay_once", library, "o-1")) == ["payments-1"]
    requests = service.requests["POST /payments"]
    assert finish(start("pay_once", library, "o-1")) == ["payments-1"]
    # The third start asked nothing, and the requests of the first two were one payment.
    assert service.requests["POST /payments"] == requests == 2
    assert list(service.applied.values()) == [{"order": "o-1", "cents": 1250}]
    assert finish(start("pay_once", library, "o-2")) == ["payments-2"]


@sampled_library
def test_a_killed_pipeline_goes_on_where_it_ended(library: str, service: Service, start: Starter) -> None:
    service.hold.add("/reports")
    printed = kill_while_held(start("pipeline", library, "monday"), service)
    assert printed == ["fetch", "drop", "add", "write", "publish"]
    assert finish(start("pipeline", library, "monday")) == ["publish", "reports-1"]
    assert service.requests == {"GET /orders/monday": 1, "POST /reports": 2}
    assert list(service.applied.values()) == [{"text": "north 30, south 20"}]


@sampled_library
def test_a_hundred_items_are_made_ten_at_a_time(library: str, service: Service, start: Starter) -> None:
    assert finish(start("fan_out", library)) == ["10000"]
    # Each is asked for once, and one in ten once more.
    assert sum(service.requests.values()) == 110
    assert 2 <= service.most_at_once <= 10


@sampled_library
def test_an_order_is_shipped_when_a_person_has_approved_it(
    library: str, service: Service, start: Starter
) -> None:
    killed = start("approval", library, "o-1")
    read_until(killed, "waiting")
    kill_program(killed)
    waiting = start("approval", library, "o-1")
    read_until(waiting, "waiting")
    assert finish(start("approval", library, "approve", "o-1", "manager")) == []
    assert finish(waiting) == ["shipments-1"]
    assert list(service.applied.values()) == [{"order": "o-1", "approved_by": "manager"}]


@sampled_library
def test_each_tick_of_a_schedule_is_run_once_by_two_processes(
    library: str, service: Service, start: Starter
) -> None:
    for _ in range(2):
        start("hourly_report", library, EVERY_S="1", SCHEDULE="* * * * * *")
    wait_until(lambda: len(service.applied) >= 3, "three ticks")
    # A request is counted before it is applied; two requests for one tick would never be equal again.
    wait_until(lambda: service.requests["POST /reports"] == len(service.applied), "one request per tick")


@sampled_library
def test_a_webhook_is_booked_once_however_often_it_comes(
    library: str, service: Service, start: Starter
) -> None:
    port = find_free_port()

    def deliver(delivery: str) -> dict[str, str]:
        response = httpx.post(
            f"http://127.0.0.1:{port}/hooks",
            json={"order": 7},
            headers={"Delivery-Id": delivery},
            timeout=PATIENCE_S,
        )
        return dict(response.raise_for_status().json())

    receiver = start("webhook", library, PORT=str(port))
    wait_until(lambda: is_listening(port), "the receiver")
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(deliver, ["d-1"] * 3)) == [{"booking": "bookings-1"}] * 3
        service.hold.add("/bookings")
        lost = pool.submit(deliver, "d-2")
        kill_while_held(receiver, service)
        with pytest.raises(httpx.TransportError):
            lost.result(PATIENCE_S)
    start("webhook", library, PORT=str(port))
    wait_until(lambda: is_listening(port), "the receiver")
    assert [deliver("d-2"), deliver("d-1")] == [{"booking": "bookings-2"}, {"booking": "bookings-1"}]
    assert list(service.applied.values()) == [{"order": 7}] * 2
