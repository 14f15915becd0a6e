"""Fixtures that write policy files; the caches are cleared between tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncemore.policy import files

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("ONCEMORE_POLICY_ROOT", raising=False)
    files.forget()
    yield
    files.forget()


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a policy file and return its path."""

    def write(text: str | bytes, name: str = "mine.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write
