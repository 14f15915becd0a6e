"""The store in NATS JetStream keeps the contract that ships with the package, on a real server."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from oncemore.log.nats.store import NatsStore
from oncemore.testing import store_contract
from tests.servers import nats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncemore.log.store import Store

names = itertools.count()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        with nats.running(jetstream=True) as (address, _):
            yield address
    except nats.NatsUnavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("check", store_contract.CHECKS, ids=store_contract.check_name)
def test_the_store_in_nats_keeps_the_contract(check: Callable[[Callable[[], Store]], None], url: str) -> None:
    opened: list[NatsStore] = []
    namespace = f"contract_{next(names)}"

    def open_store() -> Store:
        opened.append(NatsStore(f"{url}/{namespace}"))
        return opened[-1]

    try:
        check(open_store)
    finally:
        for store in opened:
            store.close()
