"""The packaged profiles, regardless of the settings of the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oncemore.policy import files
from tests.fixtures import clock

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["clock"]


@pytest.fixture(autouse=True)
def _as_shipped(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("ONCEMORE_POLICY_ROOT", raising=False)
    files.forget()
    yield
    files.forget()
