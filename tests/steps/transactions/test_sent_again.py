"""A write beside ours that fails when the whole is sent again: it is told as that, and nothing is stored."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import StoreError
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path


def refuses(tx: Any) -> None:
    raise ValueError("no")


@pytest.mark.parametrize("awaits", [False, True], ids=["blocking", "awaiting"])
def test_what_fails_beside_a_write_whose_answer_was_lost_is_told(
    tmp_path: Path, awaits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with oncemore.open(tmp_path / "log.db") as engine, FakeClock():
        append, lost = engine.store.append, iter([True])

        def losing(batch: Any) -> Any:
            if batch.joined_write is not None and next(lost, False):
                raise StoreError("the answer is lost")
            return append(batch)

        def order(n: int) -> None:
            oncemore.current().on_commit(refuses)

        async def order_awaited(n: int) -> None:
            oncemore.current().on_commit(refuses)

        step = oncemore.step(effect="transactional", name="order")(order_awaited if awaits else order)
        monkeypatch.setattr(engine.store, "append", losing)
        with pytest.raises(oncemore.Error) as caught:
            asyncio.run(step(1)) if awaits else step(1)
        assert "no" in repr(caught.value.__cause__)
        assert next(lost, None) is None
        assert step.last_run(1).status == "HARD_FAIL"
