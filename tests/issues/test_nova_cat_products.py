"""Issue 15, 1.8: malformed input leaves the record of a product alone, and the product is the key."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from threading import Barrier
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

import oncemore
from oncemore.demo.archive_server import ArchiveServer, image
from oncemore.profiles.nova_cat import NovaCat
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def archive() -> Iterator[ArchiveServer]:
    with ArchiveServer() as archive:
        yield archive


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[oncemore.Engine]:
    with oncemore.open(tmp_path / "log.db") as engine:
        yield engine


def make_product(locator: str, **changes: Any) -> dict[str, Any]:
    product = {
        "schema_version": "1", "data_product_id": str(uuid4()), "nova_id": str(uuid4()), "provider": "A",
        "locator": locator, "provenance": "test archive",
    }  # fmt: skip
    return {**product, **changes}


MALFORMED = [
    {"schema_version": "9"},
    {"schema_version": None},
    {"nova_id": "V1369 Cen"},
    {"locator": None},
    {"locator": "ftp://archive/x.fits"},
    {"provider": ""},
    {"provenance": None},
    {"sha256": "abc"},
]


@pytest.mark.parametrize("change", MALFORMED, ids=str)
def test_a_malformed_input_leaves_the_record_of_the_product_alone(
    engine: oncemore.Engine, archive: ArchiveServer, change: dict[str, Any]
) -> None:
    cat, good = NovaCat(), make_product(archive.put("/x.fits", image()))
    product_id = good["data_product_id"]
    refused = cat.acquire({**good, **change})
    assert (refused.outcome, refused.error_class) == ("TERMINAL_FAILURE", "TERMINAL")
    assert refused.product is None
    assert engine.cooldowns.get(product_id) is None, "nobody was asked, so nothing is counted (G-7)"
    assert cat.acquire({**good, **change}).outcome == "TERMINAL_FAILURE", "it is refused each time"
    done = cat.acquire(good)
    assert (done.outcome, archive.count("/x.fits")) == ("SUCCESS", 1)
    record = engine.cooldowns.get(product_id)
    assert record is not None
    assert record.attempt_count_total == 1
    assert cat.acquire({**good, **change}).outcome == "TERMINAL_FAILURE", "also of a product that is there"
    assert engine.cooldowns.get(product_id) == record


def test_a_malformed_input_does_not_end_the_cooldown_of_the_product(
    engine: oncemore.Engine, archive: ArchiveServer
) -> None:
    with FakeClock():
        cat, good = NovaCat(), make_product(archive.put("/x.fits", image(), *["503"] * 4))
        first = cat.acquire(good)
        assert first.outcome == "RETRYABLE_FAILURE"
        assert cat.acquire({**good, "schema_version": "9"}).outcome == "TERMINAL_FAILURE"
        again = cat.acquire(good)
        assert (again.outcome, again.product) == ("SKIPPED_BACKOFF", first.product)


def test_one_product_through_two_locators_at_once_is_fetched_once(
    engine: oncemore.Engine, archive: ArchiveServer
) -> None:
    product_id, calls, both = str(uuid4()), [], Barrier(2)

    def fetch(locator: str) -> bytes:
        calls.append(locator)
        return image()

    def acquire(locator: str, product_id: str) -> str:
        both.wait(10)
        return cat.acquire(make_product(locator, data_product_id=product_id)).outcome

    cat = NovaCat(fetch=fetch)
    with ThreadPoolExecutor(2) as pool:
        asked = [
            pool.submit(copy_context().run, acquire, "http://a/1", product_id),
            pool.submit(copy_context().run, acquire, "https://mirror/1", product_id.upper()),
        ]
        outcomes = {one.result(60) for one in asked}
    assert len(calls) == 1
    assert outcomes <= {"SUCCESS", "SKIPPED_DUPLICATE"}
    other = cat.acquire(make_product("http://b/1", data_product_id=product_id))
    assert (other.outcome, len(calls)) == ("SKIPPED_DUPLICATE", 1)


def test_a_failed_product_is_fetched_through_another_locator_after_its_cooldown(
    engine: oncemore.Engine, archive: ArchiveServer
) -> None:
    with FakeClock() as clock:
        cat, product_id = NovaCat(), str(uuid4())
        down = archive.put("/down.fits", image(), *["503"] * 4)
        up = archive.put("/up.fits", image())
        assert cat.acquire(make_product(down, data_product_id=product_id)).outcome == "RETRYABLE_FAILURE"
        moved = make_product(up, data_product_id=product_id)
        assert cat.acquire(moved).outcome == "SKIPPED_BACKOFF"
        clock.advance(300)
        assert cat.acquire(moved).outcome == "SUCCESS"
        assert (archive.count("/down.fits"), archive.count("/up.fits")) == (4, 1)


def test_a_worker_fetches_a_product_that_waits_with_the_locator_it_was_asked_with(
    engine: oncemore.Engine, archive: ArchiveServer
) -> None:
    cat, where = NovaCat(), archive.put("/x.fits", image())
    product = make_product(where, sha256=None)
    cat.acquire_artifact.bind(engine).submit(
        *(product[name] for name in ("data_product_id", "nova_id", "provider", "locator", "provenance")),
        None, "1",
    )  # fmt: skip
    assert oncemore.Worker(engine, [*cat.steps]).run_until_idle().done == 1
    assert archive.count("/x.fits") == 1
    assert cat.acquire(product).outcome == "SKIPPED_DUPLICATE"


@pytest.mark.parametrize("workflow", ["discover", "reconcile"])
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "UNSUPPORTED_SCHEMA_VERSION"),
        ({"schema_version": "9", "nova_id": str(uuid4())}, "UNSUPPORTED_SCHEMA_VERSION"),
        ({"schema_version": "1", "nova_id": "V1369 Cen"}, "INVALID_UUID"),
    ],
)
def test_a_malformed_input_without_items_is_refused_too(
    engine: oncemore.Engine, workflow: str, given: dict[str, Any], reason: str
) -> None:
    cat = NovaCat()
    refused = getattr(cat, workflow)(given)
    assert (refused.outcome, refused.reason) == ("TERMINAL_FAILURE", reason)
    good = getattr(cat, workflow)({"schema_version": "1", "nova_id": str(uuid4())})
    assert (good.outcome, good.job.items) == ("SUCCESS", ())


@pytest.mark.parametrize("workflow", ["acquire", "discover", "reconcile"])
@pytest.mark.parametrize("given", [None, [], "x"])
def test_what_is_not_a_mapping_is_a_mistake_of_the_caller(
    engine: oncemore.Engine, workflow: str, given: Any
) -> None:
    with pytest.raises(oncemore.UsageError, match=r"request is .*; it takes a mapping"):
        getattr(NovaCat(), workflow)(given)
