"""Encrypted bodies need the key to be read, but not to be verified."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.fernet import Fernet

import oncemore
from oncemore.log.encryption import BodyCipher, decrypt_bytes
from oncemore.outbox import OutboxRelay
from oncemore.testing import FakeClock, instant_waits
from tests.maintenance.test_prune import DAY

if TYPE_CHECKING:
    from pathlib import Path

CANARY = "canary-51c0"


class Key:
    """A codec as a user writes it."""

    def __init__(self, id: str) -> None:  # noqa: A002
        self.id = id
        self._fernet = Fernet(Fernet.generate_key())

    def encode(self, data: bytes) -> bytes:
        return self._fernet.encrypt(data)

    def decode(self, data: bytes) -> bytes:
        return self._fernet.decrypt(data)


@oncemore.step(effect="outbox", name="house.sealed")
def sealed(name: str) -> str:
    oncemore.current().checkpoint(f"checkpoint {name}")
    if oncemore.current().number == 1:
        raise ConnectionError(f"no line to {name}")
    oncemore.current().emit("sealed", {"who": name})
    return f"{oncemore.current().resume('')} {name}" * 10_000


def test_no_file_holds_plain_data_and_all_of_it_can_be_decrypted(
    tmp_path: Path,
) -> None:
    key, arrived = Key("k1"), []
    with instant_waits(), oncemore.open(tmp_path / "log.db", codec=key) as engine:
        value = sealed(CANARY)
        assert CANARY in value
        assert sealed(CANARY) == value
        run = sealed.last_run(CANARY)
        assert run is not None
        assert run.value == value
        assert CANARY in str([attempt.error for attempt in run.attempts])
        assert CANARY in run.explain()
        assert len(run.records()) > 4
        OutboxRelay(engine, {"*": lambda message: arrived.append(message.payload["who"])}).run_once()
        assert arrived == [CANARY]
        engine.verify()
    with oncemore.open(tmp_path / "log.db", codec=key) as engine:
        assert sealed(CANARY) == value
    data = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert CANARY.encode() not in data
    assert b"\x01\x02k1gAAAA" in data


def test_the_log_verifies_without_the_key_and_lists_removed_runs(tmp_path: Path) -> None:
    key = Key("k1")
    with FakeClock() as clock, oncemore.open(tmp_path / "log.db", codec=key) as engine:
        sealed(CANARY)
        OutboxRelay(engine, {"*": lambda message: None}).run_once()
        clock.advance(DAY)
        engine.prune(older_than=3600)
    with oncemore.open(tmp_path / "log.db") as engine:
        (found,) = engine.verify().forgotten
        assert (found.how, found.actor) == ("pruned", ""), "who did it is sealed too"


@pytest.mark.parametrize(
    ("codec", "says"),
    [
        (None, r"encrypted with the key 'k1'; open the store with it: oncemore.open\(url, codec=…\)"),
        (Key("k2"), r"encrypted with the key 'k1', but no codec has that id; .* \(there is k2\)"),
        ([Key("k2"), Key("k3")], r"but no codec has that id; .* \(there are k2, k3\)"),
        (
            Key("k1"),
            "the key 'k1' cannot decrypt a body that was encrypted under that id: InvalidToken; is it the",
        ),
    ],
    ids=["none", "another", "others", "wrong"],
)
def test_a_missing_or_wrong_key_is_named_and_nothing_runs(tmp_path: Path, codec: Any, says: str) -> None:
    with instant_waits(), oncemore.open(tmp_path / "log.db", codec=Key("k1")):
        sealed(CANARY)
    with oncemore.open(tmp_path / "log.db", codec=codec) as engine:
        before = list(engine.store.read_entries())
        with pytest.raises(oncemore.UsageError, match=says):
            sealed(CANARY)
        with pytest.raises(oncemore.UsageError, match="the key 'k1'"):
            OutboxRelay(engine, {"*": lambda message: None}).run_once()
        with pytest.raises(oncemore.UsageError, match="the key 'k1'"):
            engine.artifacts.collect_garbage()
        kinds = {entry.entity.partition("/")[0] for entry in list(engine.store.read_entries())[len(before) :]}
        assert kinds <= {"worker"}, "an event whose key is missing is not given up"


def test_keys_can_be_rotated_and_old_ones_still_decrypt(tmp_path: Path) -> None:
    old, new = Key("2025"), Key("2026")
    path = tmp_path / "log.db"
    with instant_waits():
        with oncemore.open(path):
            sealed("plain")
        with oncemore.open(path, codec=old):
            first = sealed("a")
        with oncemore.open(path, codec=[new, old, oncemore.EarlierBodies()]) as engine:
            assert sealed("a") == first
            assert "plain" in sealed("plain")
            sealed("b")
            last = [entry for entry in engine.store.read_entries() if entry.entity.startswith("run/")][-1]
            assert (last.body or b"").startswith(b"\x01\x042026")
            engine.verify()


def test_large_results_are_encrypted_in_the_artifact_store_too(tmp_path: Path) -> None:
    @oncemore.step(effect="pure", name="house.sealed-large")
    def large() -> str:
        return CANARY * 50_000

    with oncemore.open(tmp_path / "log.db", codec=Key("k1")) as engine:
        assert large() == large() == CANARY * 50_000
        assert engine.measure_sizes().artifacts == 1
    files = [file.read_bytes() for file in (tmp_path / "artifacts").rglob("*") if file.is_file()]
    assert CANARY.encode() not in b"".join(files)


def test_a_dead_event_and_a_quarantined_artifact_can_be_decrypted(tmp_path: Path) -> None:
    def sink(message: Any) -> None:
        raise oncemore.PermanentError(f"not {message.payload['who']}")

    with instant_waits(), oncemore.open(tmp_path / "log.db", codec=Key("k1")) as engine:
        sealed(CANARY)
        relay = OutboxRelay(engine, {"*": sink})
        relay.run_once()
        (letter,) = relay.dead_letters()
        assert CANARY in letter.error["message"]


def test_a_held_run_can_be_read_and_decided_with_the_key(tmp_path: Path) -> None:
    @oncemore.step(effect="once", name="house.sealed-once")
    def once(name: str) -> str:
        raise TimeoutError(f"no answer from {name}")

    with instant_waits(), oncemore.open(tmp_path / "log.db", codec=Key("k1")) as engine:
        once.run(CANARY)
        (item,) = engine.quarantine
        assert CANARY in str(engine.quarantine.show(item.id))
        once.settle(oncemore.applied("found"), CANARY, reason="it was there")
        assert once(CANARY) == "found"
    assert CANARY.encode() not in (tmp_path / "log.db").read_bytes()


@pytest.mark.parametrize(
    ("codec", "says"),
    [
        ([], "codec is empty"),
        (object(), "codec is object; it takes an object with id, encode and decode"),
        ([Key("a"), Key("a")], "codec names one id twice"),
        (Key(""), "the id of a codec is ''; it takes 1 to 100 ASCII"),
        (Key("ü"), "the id of a codec is 'ü'"),
        (Key("x" * 101), "the id of a codec is 'xxx"),
    ],
)
def test_an_invalid_codec_is_refused(codec: Any, says: str) -> None:
    with pytest.raises(oncemore.UsageError, match=says):
        oncemore.open("memory:", codec=codec)


def test_plain_bodies_stay_as_they_are() -> None:
    assert decrypt_bytes(b'{"a":1}', None, "run/a", 1) == b'{"a":1}'
    seal = BodyCipher((Key("a"), Key("b")))
    assert (
        decrypt_bytes(seal.encrypt_body(b"{}", "run/a", 1), seal, "run/a", 1)
        == decrypt_bytes(b"{}", seal, "run/a", 2)
        == b"{}"
    )
    assert [codec.id for codec in seal.all_codecs] == ["a", "b"]


def test_the_settings_can_name_a_codec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = type(sys)("mykeys")
    module.key, module.made, module.nothing = Key("k9"), lambda: [Key("k8")], 7
    monkeypatch.setitem(sys.modules, "mykeys", module)
    monkeypatch.setenv("ONCEMORE_STORE", str(tmp_path / "log.db"))
    from oncemore.config import load_settings
    from oncemore.open_engine import engine_from_settings

    for name, ids in (("mykeys:key", ["k9"]), ("mykeys:made", ["k8"])):
        monkeypatch.setenv("ONCEMORE_CODEC", name)
        engine = engine_from_settings(load_settings())
        assert engine.cipher is not None
        assert [codec.id for codec in engine.cipher.all_codecs] == ids
    for name, says in (
        ("mykeys:gone", "which cannot be imported"), ("nowhere:key", "No module named 'nowhere'"),
        ("mykeys", "it takes package.module:name"), ("mykeys:nothing", "codec is int; it takes an object"),
    ):  # fmt: skip
        monkeypatch.setenv("ONCEMORE_CODEC", name)
        with pytest.raises(oncemore.UsageError, match=says):
            engine_from_settings(load_settings())
