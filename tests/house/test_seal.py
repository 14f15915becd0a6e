"""Bodies that only who has the key can read; hashes are over what is stored: verifying needs no key."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.fernet import Fernet

import oncemore
from oncemore.log.encryption import Seal, opened
from oncemore.outbox import Relay
from oncemore.testing import FakeClock, instant
from tests.house.test_retention import DAY

if TYPE_CHECKING:
    from pathlib import Path

CANARY = "canary-51c0"


class Key:
    """A codec as a user would write it."""

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


def test_nothing_that_a_step_was_given_or_gave_is_in_any_file_and_all_of_it_can_be_read(
    tmp_path: Path,
) -> None:
    key, arrived = Key("k1"), []
    with instant(), oncemore.open(tmp_path / "log.db", codec=key) as engine:
        value = sealed(CANARY)
        assert CANARY in value
        assert sealed(CANARY) == value
        run = sealed.last(CANARY)
        assert run is not None
        assert run.value == value
        assert CANARY in str([attempt.error for attempt in run.attempts])
        assert CANARY in run.explain()
        assert len(run.wal()) > 4
        Relay(engine, {"*": lambda message: arrived.append(message.payload["who"])}).run_once()
        assert arrived == [CANARY]
        engine.verify()
    with oncemore.open(tmp_path / "log.db", codec=key) as engine:
        assert sealed(CANARY) == value
    data = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert CANARY.encode() not in data
    assert b"\x01\x02k1gAAAA" in data


def test_the_log_verifies_without_the_key_and_says_what_was_removed(tmp_path: Path) -> None:
    key = Key("k1")
    with FakeClock() as clock, oncemore.open(tmp_path / "log.db", codec=key) as engine:
        sealed(CANARY)
        Relay(engine, {"*": lambda message: None}).run_once()
        clock.advance(DAY)
        engine.prune(older_than=3600)
    with oncemore.open(tmp_path / "log.db") as engine:
        (found,) = engine.verify().forgotten
        assert (found.how, found.actor) == ("pruned", ""), "who did it is sealed too"


@pytest.mark.parametrize(
    ("codec", "says"),
    [
        (None, r"sealed with the key 'k1'; open the store with it: oncemore.open\(url, codec=…\)"),
        (Key("k2"), r"sealed with the key 'k1', which is not here; .* \(there is k2\)"),
        ([Key("k2"), Key("k3")], r"which is not here; .* \(there are k2, k3\)"),
        (
            Key("k1"),
            "the key 'k1' does not open a body that was sealed under that id: InvalidToken; is it the",
        ),
    ],
    ids=["none", "another", "others", "wrong"],
)
def test_a_key_that_is_missing_or_wrong_is_named_and_nothing_is_done(
    tmp_path: Path, codec: Any, says: str
) -> None:
    with instant(), oncemore.open(tmp_path / "log.db", codec=Key("k1")):
        sealed(CANARY)
    with oncemore.open(tmp_path / "log.db", codec=codec) as engine:
        before = list(engine.store.entries())
        with pytest.raises(oncemore.UsageError, match=says):
            sealed(CANARY)
        with pytest.raises(oncemore.UsageError, match="the key 'k1'"):
            Relay(engine, {"*": lambda message: None}).run_once()
        with pytest.raises(oncemore.UsageError, match="the key 'k1'"):
            engine.artifacts.collect()
        kinds = {entry.entity.partition("/")[0] for entry in list(engine.store.entries())[len(before) :]}
        assert kinds <= {"worker"}, "an event whose key is missing is not given up"


def test_keys_can_be_changed_and_the_old_ones_still_read(tmp_path: Path) -> None:
    old, new = Key("2025"), Key("2026")
    path = tmp_path / "log.db"
    with instant():
        with oncemore.open(path):
            sealed("plain")
        with oncemore.open(path, codec=old):
            first = sealed("a")
        with oncemore.open(path, codec=[new, old, oncemore.EarlierBodies()]) as engine:
            assert sealed("a") == first
            assert "plain" in sealed("plain")
            sealed("b")
            last = [entry for entry in engine.store.entries() if entry.entity.startswith("run/")][-1]
            assert (last.body or b"").startswith(b"\x01\x042026")
            engine.verify()


def test_sealed_results_that_are_large_are_sealed_beside_the_log_too(tmp_path: Path) -> None:
    @oncemore.step(effect="pure", name="house.sealed-large")
    def large() -> str:
        return CANARY * 50_000

    with oncemore.open(tmp_path / "log.db", codec=Key("k1")) as engine:
        assert large() == large() == CANARY * 50_000
        assert engine.sizes().artifacts == 1
    files = [file.read_bytes() for file in (tmp_path / "artifacts").rglob("*") if file.is_file()]
    assert CANARY.encode() not in b"".join(files)


def test_a_dead_event_and_a_quarantined_file_can_be_read_with_the_key(tmp_path: Path) -> None:
    def sink(message: Any) -> None:
        raise oncemore.PermanentError(f"not {message.payload['who']}")

    with instant(), oncemore.open(tmp_path / "log.db", codec=Key("k1")) as engine:
        sealed(CANARY)
        relay = Relay(engine, {"*": sink})
        relay.run_once()
        (letter,) = relay.dead()
        assert CANARY in letter.error["message"]


def test_what_waits_for_a_person_can_be_read_and_decided_with_the_key(tmp_path: Path) -> None:
    @oncemore.step(effect="once", name="house.sealed-once")
    def once(name: str) -> str:
        raise TimeoutError(f"no answer from {name}")

    with instant(), oncemore.open(tmp_path / "log.db", codec=Key("k1")) as engine:
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
def test_what_is_no_codec_is_refused(codec: Any, says: str) -> None:
    with pytest.raises(oncemore.UsageError, match=says):
        oncemore.open("memory:", codec=codec)


def test_what_is_not_sealed_is_left_as_it_is() -> None:
    assert opened(b'{"a":1}', None, "run/a", 1) == b'{"a":1}'
    seal = Seal((Key("a"), Key("b")))
    assert opened(seal.close(b"{}", "run/a", 1), seal, "run/a", 1) == opened(b"{}", seal, "run/a", 2) == b"{}"
    assert [codec.id for codec in seal.codecs] == ["a", "b"]


def test_the_settings_can_name_a_codec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = type(sys)("mykeys")
    module.key, module.made, module.nothing = Key("k9"), lambda: [Key("k8")], 7
    monkeypatch.setitem(sys.modules, "mykeys", module)
    monkeypatch.setenv("ONCEMORE_STORE", str(tmp_path / "log.db"))
    from oncemore.config import settings
    from oncemore.open_engine import engine_of

    for name, ids in (("mykeys:key", ["k9"]), ("mykeys:made", ["k8"])):
        monkeypatch.setenv("ONCEMORE_CODEC", name)
        engine = engine_of(settings())
        assert engine.seal is not None
        assert [codec.id for codec in engine.seal.codecs] == ids
    for name, says in (
        ("mykeys:gone", "which cannot be had"), ("nowhere:key", "No module named 'nowhere'"),
        ("mykeys", "it takes package.module:name"), ("mykeys:nothing", "codec is int; it takes an object"),
    ):  # fmt: skip
        monkeypatch.setenv("ONCEMORE_CODEC", name)
        with pytest.raises(oncemore.UsageError, match=says):
            engine_of(settings())
