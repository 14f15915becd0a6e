"""The secret of a store is created once and stays: through races, deaths and copies (issue 15, 1.1)."""

from __future__ import annotations

import threading
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import NotPermitted, StoreError, UsageError
from oncemore.programs.store_secret import ENTITY, load_store_secret
from tests.fixtures import _isolated, engine

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore import Engine

__all__ = ["_isolated", "engine"]


def test_it_is_created_once_and_every_engine_reads_the_same(engine: Engine) -> None:
    secret = load_store_secret(engine)
    assert len(secret) == 32
    assert load_store_secret(engine) == secret
    if engine.url != "memory:":
        with oncemore.open(engine.url) as another:
            assert load_store_secret(another) == secret
    assert [entry.version for entry in engine.store.read_entries(ENTITY)] == [1]
    assert engine.verify().entries >= 1


def test_of_engines_that_create_it_at_once_one_wins(tmp_path: Path) -> None:
    start, found = threading.Barrier(4), []

    def load() -> None:
        with oncemore.open(tmp_path / "log.db") as one:
            one.store.load_head(ENTITY)
            start.wait(30)
            found.append(load_store_secret(one))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (len(found), len(set(found))) == (4, 1)


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_process_that_dies_while_it_creates_it_leaves_it_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    class Death(BaseException):
        pass

    with oncemore.open(tmp_path / "log.db") as dying:
        append = dying.store.append

        def die(batch: Any) -> Any:
            if is_stored:
                append(batch).wait()
            raise Death

        monkeypatch.setattr(dying.store, "append", die)
        with pytest.raises(Death):
            load_store_secret(dying)
    with oncemore.open(tmp_path / "log.db") as later:
        entries = list(later.store.read_entries(ENTITY))
        assert len(entries) == is_stored
        secret = load_store_secret(later)
        assert load_store_secret(later) == secret
        if is_stored:
            assert secret.hex().encode() in (entries[0].body or b"")


class Reversed:
    """A codec that anybody could break, and that is enough to tell plain from sealed bytes."""

    id = "reversed"

    def encode(self, data: bytes, /) -> bytes:
        """Return other bytes."""
        return b64encode(data)[::-1]

    def decode(self, data: bytes, /) -> bytes:
        """Return what they were."""
        return b64decode(data[::-1])


def test_a_codec_seals_it_and_without_the_codec_it_cannot_be_read(tmp_path: Path) -> None:
    with oncemore.open(tmp_path / "log.db", codec=Reversed()) as sealed:
        secret = load_store_secret(sealed)
        assert load_store_secret(sealed) == secret
    assert secret.hex().encode() not in (tmp_path / "log.db").read_bytes()
    with oncemore.open(tmp_path / "log.db") as plain, pytest.raises(UsageError, match="codec"):
        load_store_secret(plain)


def test_a_log_that_has_moved_does_not_get_one(tmp_path: Path) -> None:
    from oncemore.maintenance.copy import move_log

    with oncemore.open(tmp_path / "a.db") as source, oncemore.open(tmp_path / "b.db") as target:
        source.switches.on(reason="there is something to copy")
        move_log(source, target, reason="moved")
        with pytest.raises(NotPermitted, match="has moved to"):
            load_store_secret(source)
        assert list(source.store.read_entries(ENTITY)) == []


def test_a_secret_whose_bytes_are_gone_is_not_replaced(engine: Engine) -> None:
    """Another one would give every command line another key, and all of them would run again."""
    load_store_secret(engine)
    engine.store.open_maintenance().prune_bodies({ENTITY: 2})
    with pytest.raises(StoreError, match="restore a backup"):
        load_store_secret(engine)
