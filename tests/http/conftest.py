"""Fixtures of the HTTP tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.classifiers.conftest import no_proxy
from tests.fixtures import _isolated, clock, engine
from tests.http.world import CLIENTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.http.world import Answered

__all__ = ["_isolated", "clock", "engine", "no_proxy"]


@pytest.fixture(params=CLIENTS)
def call(request: pytest.FixtureRequest) -> Callable[..., Answered]:
    """Send a request with each of the clients in turn."""
    return CLIENTS[request.param]
