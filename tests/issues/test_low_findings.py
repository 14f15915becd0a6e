"""Digests that are paths, ids that are joined, and integers that have no text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw
import pytest

import oncemore
from oncemore.artifacts.backends import FolderBackend
from oncemore.artifacts.object_store import BucketBackend
from oncemore.control.nats_switches import bucket_key
from oncemore.http.endpoint import request_fingerprint
from oncemore.http.exchange import RequestExchange
from oncemore.messaging.inbox_message import find_message_id
from oncemore.profiles.exoarmur.bus_calls import subject_of

if TYPE_CHECKING:
    from pathlib import Path

NO_DIGESTS = ["../../secret", "/etc/passwd", "", "A" * 64, "a" * 63, "a" * 65, "a" * 64 + "\n", 7]


@pytest.mark.parametrize("digest", NO_DIGESTS)
def test_what_is_not_a_digest_never_becomes_a_path(tmp_path: Path, digest: Any) -> None:
    (tmp_path / "secret").write_text("private")
    folder = FolderBackend(tmp_path / "artifacts")
    for use in (
        folder.open_object,
        folder.object_path,
        lambda one: folder.remove_object(one, 1e12),
        BucketBackend("memory:///").open_object,
    ):
        with pytest.raises(oncemore.StoreError, match="is not a digest: it takes 64 hex digits"):
            use(digest)
    assert (tmp_path / "secret").read_text() == "private"


def test_a_log_entry_that_names_a_file_as_its_result_reads_no_other_file(tmp_path: Path) -> None:
    @oncemore.step(effect="pure", name="low.large")
    def large() -> str:
        return "x" * 1_000_000

    (tmp_path / "secret").write_text("private")
    with oncemore.open(tmp_path / "log.db"):
        large()
    database = apsw.Connection(str(tmp_path / "log.db"))
    sql = "SELECT body FROM log WHERE instr(body, CAST('spilled' AS BLOB))"
    ((body,),) = database.execute(sql).fetchall()
    digest = bytes(body).partition(b'"digest":"')[2][:64]
    database.execute(
        "UPDATE log SET body=? WHERE body=?", (bytes(body).replace(digest, b"../../secret"), body)
    )
    database.close()
    with oncemore.open(tmp_path / "log.db"):
        run = large.last_run()
        assert run is not None
        with pytest.raises(oncemore.ResultUnavailable, match="is not a digest"):
            _ = run.value


def test_messages_of_different_sources_have_different_ids() -> None:
    one = find_message_id({"ce-source": "/shop orders", "ce-id": "1"})
    other = find_message_id({"ce-source": "/shop", "ce-id": "orders 1"})
    assert one != other


def test_requests_that_differ_have_different_fingerprints() -> None:
    def of(path: str, query: bytes, body: bytes) -> str:
        exchange = RequestExchange(None, "POST", path, query, [])
        exchange.body = body
        return request_fingerprint(exchange)

    assert of("/pay\nq", b"", b"{}") != of("/pay", b"q", b"\n{}")
    assert of("/pay", b"q", b"{}") == of("/pay", b"q", b"{}")


def test_a_bucket_whose_name_has_a_dot_cannot_reach_into_another() -> None:
    assert subject_of("a", "b.c") == "$KV.a.b.c"
    for bucket in ("a.b", "", "a b", "*"):
        with pytest.raises(oncemore.UsageError, match=r"bucket is .* it takes letters, digits, _ and -"):
            subject_of(bucket, "c")


def test_names_of_switches_have_different_keys() -> None:
    names = ["a b", "a=20b", "a=3D20b", "a..b", "a=2E.b", ".a", "=2Ea"]
    assert len({bucket_key("step", name) for name in names}) == len(names)


HUGE = {"alone": 10**5000, "negative": -(10**5000), "inside": [1, {"n": 10**5000}], "a key": {10**5000: 1}}


@pytest.mark.parametrize("where", HUGE)
def test_an_integer_that_python_does_not_write_is_refused_by_its_name(where: str) -> None:
    @oncemore.step(effect="once", name="low.count")
    def count(number: Any) -> int:
        raise AssertionError

    says = r"argument 'number'.* is an integer of more than \d+ digits"
    with oncemore.open("memory:"), pytest.raises(oncemore.UsageError, match=says):
        count(HUGE[where])


def test_a_result_that_python_does_not_write_is_unavailable_and_not_computed_twice() -> None:
    ran = []

    @oncemore.step(effect="once", name="low.huge")
    def huge() -> int:
        ran.append(1)
        return 10**5000

    with oncemore.open("memory:"):
        for _ in range(2):
            with pytest.raises(oncemore.ResultUnavailable, match="is an integer of more than"):
                huge()
    assert ran == [1]
