"""Every test starts in its own folder, without settings and without loaded policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oncemore.policy import files
from tests.fixtures import _isolated

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["_isolated"]


@pytest.fixture(autouse=True)
def _no_loaded_policies() -> Iterator[None]:
    files.forget()
    yield
    files.forget()
