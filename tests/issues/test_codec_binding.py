"""With a codec, a body belongs to its entry: plain and swapped bodies are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw
import pytest

import oncemore
from oncemore.log.encryption import BodyCipher, decrypt_bytes
from oncemore.outbox import OutboxRelay
from oncemore.testing import instant_waits
from tests.maintenance.test_encryption import Key

if TYPE_CHECKING:
    from pathlib import Path


@oncemore.step(effect="outbox", name="binding.pay")
def pay(order: str) -> str:
    oncemore.current().emit("paid", {"order": order})
    return f"paid {order}"


def change_body(path: Path, order: str, body: bytes) -> None:
    """Write another body into the last entry of a run, as another program would, without its hash."""
    database = apsw.Connection(str(path))
    entity = f"run/{pay.key(order)}"
    database.execute("UPDATE log SET body=? WHERE seq=(SELECT seq FROM head WHERE entity=?)", (body, entity))
    database.close()


def read_body(path: Path, order: str) -> bytes:
    database = apsw.Connection(str(path))
    sql = "SELECT body FROM log WHERE seq=(SELECT seq FROM head WHERE entity=?)"
    ((body,),) = database.execute(sql, (f"run/{pay.key(order)}",)).fetchall()
    database.close()
    return bytes(body)


def test_a_sealed_body_that_was_put_into_another_entry_is_refused(tmp_path: Path) -> None:
    path, key = tmp_path / "log.db", Key("k1")
    with oncemore.open(path, codec=key):
        pay("a")
        pay("b")
    change_body(path, "a", read_body(path, "b"))
    says = r"the body of version 2 of run/.* was encrypted for another entry"
    with oncemore.open(path, codec=key):
        assert pay("b") == "paid b"
        with pytest.raises(oncemore.StoreError, match=says):
            pay("a")


def test_a_sealed_event_that_was_swapped_is_not_delivered(tmp_path: Path) -> None:
    path, key = tmp_path / "log.db", Key("k1")
    with oncemore.open(path, codec=key):
        pay("a")
        pay("b")
    database = apsw.Connection(str(path))
    database.execute(
        "UPDATE log SET body=(SELECT body FROM log WHERE entity LIKE 'event/%' ORDER BY seq DESC LIMIT 1) "
        "WHERE entity LIKE 'event/%'"
    )
    database.close()
    taken: list[str] = []
    with (
        oncemore.open(path, codec=key) as engine,
        pytest.raises(oncemore.StoreError, match="encrypted for another"),
    ):
        OutboxRelay(engine, {"*": lambda message: taken.append(message.payload["order"])}).run_once()
    assert taken in ([], ["b"])


def test_a_plain_body_is_refused_where_a_codec_is_set(tmp_path: Path) -> None:
    path, key = tmp_path / "log.db", Key("k1")
    with oncemore.open(path, codec=key):
        pay("a")
    change_body(path, "a", b'{"result":"forged"}')
    says = r"version 2 of run/.* is plain, though a codec is set.*EarlierBodies\(\)"
    with oncemore.open(path, codec=key), pytest.raises(oncemore.UsageError, match=says):
        pay("a")


def test_a_log_that_is_older_than_its_codec_is_read_when_that_is_said(tmp_path: Path) -> None:
    path, key = tmp_path / "log.db", Key("k1")
    with instant_waits():
        with oncemore.open(path):
            pay("a")
        with oncemore.open(path, codec=key), pytest.raises(oncemore.UsageError, match="is plain"):
            pay("a")
        with oncemore.open(path, codec=[key, oncemore.EarlierBodies()]) as engine:
            assert (pay("a"), pay("b")) == ("paid a", "paid b")
            engine.verify()
        assert read_body(path, "b").startswith(b"\x01\x02k1")


def test_a_body_that_an_earlier_version_has_sealed_is_read_when_that_is_said() -> None:
    key = Key("k1")
    earlier = b"\x00\x02k1" + key.encode(b'{"result":1}')
    with pytest.raises(oncemore.UsageError, match="is encrypted without its entry, though a codec is set"):
        decrypt_bytes(earlier, BodyCipher(key), "run/a", 1)
    assert decrypt_bytes(earlier, BodyCipher([key, oncemore.EarlierBodies()]), "run/a", 1) == b'{"result":1}'


def test_a_new_body_cannot_be_passed_off_as_an_earlier_one() -> None:
    seal = BodyCipher([Key("k1"), oncemore.EarlierBodies()])
    stored = seal.encrypt_body(b"{}", "run/a", 1)
    assert not decrypt_bytes(b"\x00" + stored[1:], seal, "run/b", 7).startswith(b"{")


@pytest.mark.parametrize("codec", [oncemore.EarlierBodies(), [oncemore.EarlierBodies(), Key("k1")]])
def test_earlier_bodies_are_only_read(codec: Any) -> None:
    with pytest.raises(oncemore.UsageError, match="codec begins with EarlierBodies, which only reads"):
        oncemore.open("memory:", codec=codec)
    with pytest.raises(oncemore.UsageError, match="EarlierBodies cannot write"):
        oncemore.EarlierBodies().encode(b"")
    assert oncemore.EarlierBodies().decode(b"a") == b"a"
