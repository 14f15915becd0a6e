"""The store in NATS: kills, forks, lost servers, unsuitable servers, credentials, pruning and lists."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import signal
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

import nats as client
import pytest
import trustme

from oncemore.errors import MissingExtra, StoreError, UsageError
from oncemore.log.nats import connection, guards, maintenance, messages, queries, replies, server_check
from oncemore.log.nats.address import parse_address
from oncemore.log.nats.store import NatsStore
from oncemore.log.store import Batch, Conflict, HeadIndex, HeadQuery, Stored
from oncemore.testing.store_contract import append_writes, make_write, read_verified_entries, require_stored
from tests.servers import nats
from tests.servers.faults import refusing
from tests.servers.processes import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from oncemore.log.store import Entry

names = itertools.count()


@pytest.fixture(scope="module")
def node() -> Iterator[nats.NatsNode]:
    try:
        with nats.node() as made:
            yield made
    except nats.NatsUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def namespace() -> str:
    return f"store_{next(names)}"


@pytest.fixture
def url(node: nats.NatsNode, namespace: str) -> str:
    return f"{node.url}/{namespace}"


@pytest.fixture
def store(url: str) -> Iterator[NatsStore]:
    made = NatsStore(url)
    yield made
    made.close()


def call_api(url: str, what: str, **asked: Any) -> dict[str, Any]:
    """Call the JetStream API without the store."""

    async def ask() -> dict[str, Any]:
        connection = await client.connect(url.rpartition("/")[0])
        import json

        answer = await connection.request(f"$JS.API.{what}", json.dumps(asked).encode(), timeout=5)
        await connection.close()
        found: dict[str, Any] = json.loads(answer.data)
        return found

    return asyncio.run(ask())


# Processes


WRITER = """
    import sys, threading
    from oncemore.log.nats.store import NatsStore
    from oncemore.testing.store_contract import append_writes as put, make_write as write
    store = NatsStore(sys.argv[1])

    def work(mine):
        n = 0
        while True:
            entity = f"run/{mine}-{n % 5}"
            more = [write(f"once/{mine}-{n}", None)] if n % 2 else []
            answer = put(store, write(entity, store.load_head(entity)), *more)
            sys.stdout.write("".join(f"{seq} " for seq in answer.seqs) + "\\n")
            sys.stdout.flush()
            n += 1

    store.now()
    print("open", flush=True)
    sys.stdin.readline()
    for thread in range(2):
        threading.Thread(target=work, args=(f"{sys.argv[2]}-{thread}",), daemon=True).start()
    sys.stdin.read()
"""


def test_a_follower_gets_every_entry_and_no_acknowledged_entry_is_lost(store: NatsStore, url: str) -> None:
    followed: list[Entry] = []

    def follow() -> None:
        last = followed[-1].seq if followed else 0
        store.wait_for_change(last, 0.05)
        followed.extend(store.read_entries(after=last))

    acknowledged: set[int] = set()
    with processes(WRITER, *((url, n) for n in range(2))) as writers:
        for one in writers:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        until = time.monotonic() + 20
        while len(followed) < 200:
            assert time.monotonic() < until, len(followed)
            follow()
        for one in writers:
            one.send_signal(signal.SIGKILL)
        for one in writers:
            out = one.communicate(timeout=20)[0]
            acknowledged.update(
                int(seq) for line in out.splitlines(True) if line[-1] == "\n" for seq in line.split()
            )
    time.sleep(0.1)  # the server may still store a message that was sent before the kill
    follow()
    there = [entry.seq for entry in store.read_entries()]
    assert [entry.seq for entry in followed] == there == sorted(set(there))
    assert acknowledged <= set(there)
    assert len(acknowledged) > 100, len(acknowledged)
    for entity in {entry.entity for entry in followed if entry.entity.startswith("run/")}:
        read_verified_entries(store, entity)


OPENER = """
    import sys
    from oncemore.log.nats.store import NatsStore
    from oncemore.testing.store_contract import append_writes as put, make_write as write
    print("open", flush=True)
    sys.stdin.readline()
    store = NatsStore(sys.argv[1])
    print(type(put(store, write(f"run/{sys.argv[2]}", None))).__name__)
    store.close()
"""


def test_several_processes_may_create_the_stream_at_once(url: str) -> None:
    with processes(OPENER, *((url, n) for n in range(3))) as openers:
        for one in openers:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        assert [one.communicate(timeout=30)[0] for one in openers] == ["Stored\n"] * 3
    store = NatsStore(url)
    assert len(list(store.read_entries())) == 3
    store.close()


def test_a_forked_child_connects_again_and_the_parent_keeps_its_connection(store: NatsStore) -> None:
    require_stored(append_writes(store, make_write("run/parent", store.load_head("run/parent"))))
    assert len(list(store.list_heads(HeadQuery("run")))) == 1
    child = os.fork()
    if child == 0:
        fine = False
        try:
            fine = isinstance(append_writes(store, make_write("run/child", None)), Stored)
            fine = fine and store.load_head("run/parent") is not None
            fine = fine and len(list(store.list_heads(HeadQuery("run")))) == 2
            store.close()
        finally:
            os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    require_stored(append_writes(store, make_write("run/parent", store.load_head("run/parent"))))
    assert store.load_head("run/child") is not None


def test_a_fork_during_writes_disturbs_neither_process(store: NatsStore) -> None:
    over, faults = threading.Event(), list[BaseException]()

    def work(mine: int) -> None:
        try:
            for n in itertools.count():
                require_stored(append_writes(store, make_write(f"run/{mine}-{n}", None)))
                if over.is_set():
                    return
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in range(3)]
    for thread in threads:
        thread.start()
    codes: list[int] = []
    for n in range(5):
        child = os.fork()
        if child == 0:
            fine = False
            try:
                signal.alarm(20)
                fine = isinstance(append_writes(store, make_write(f"child/{n}", None)), Stored)
            finally:
                os._exit(0 if fine else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    over.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert not faults, faults
    assert codes == [0] * 5


def test_an_interrupted_wait_leaves_the_store_usable(store: NatsStore, node: nats.NatsNode) -> None:
    require_stored(append_writes(store, make_write("run/a", None)))
    node.freeze()
    try:
        for wait in (
            lambda: append_writes(store, make_write("run/b", None)),
            lambda: store.load_head("run/a"),
        ):
            bell = threading.Timer(0.2, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
            bell.start()
            with pytest.raises(KeyboardInterrupt):
                wait()
            bell.join()
    finally:
        node.thaw()
    require_stored(append_writes(store, make_write("run/a", store.load_head("run/a"))))
    until = time.monotonic() + 10
    while store.load_head("run/b") is None:  # it had been sent, and is stored later
        assert time.monotonic() < until
        time.sleep(0.05)
    assert len(read_verified_entries(store, "run/b")) == 1


# Closing


def test_a_closed_store_raises_store_error(store: NatsStore) -> None:
    require_stored(append_writes(store, make_write("run/a", None)))
    ticket = store.append(Batch((make_write("run/b", None),)))
    entries = store.read_entries()
    store.close()
    store.close()
    for use in (ticket.wait, lambda: store.append(Batch(())), lambda: store.load_head("run/a"), store.now):
        with pytest.raises(StoreError, match="closed"):
            use()
    with pytest.raises(StoreError, match="closed"):
        list(entries)
    with pytest.raises(StoreError, match="closed"):
        asyncio.run(_await_ticket(store, ticket))


async def _await_ticket(store: NatsStore, ticket: Any) -> Any:
    return await ticket


def test_closing_the_store_answers_every_waiting_call(url: str) -> None:
    """A waiting call gets its result or an error, also in the middle of a request."""
    for turn in range(5):
        store = NatsStore(url)
        answers: list[object] = []

        def work(mine: int, store: NatsStore = store, answers: list[object] = answers) -> None:
            try:
                for n in itertools.count():
                    answers.append(append_writes(store, make_write(f"run/{mine}-{n}", None)))
                    store.load_head(f"run/{mine}-{n}")
                    list(store.list_heads(HeadQuery("run", limit=2)))
            except StoreError as error:
                answers.append(error)

        threads = [threading.Thread(target=work, args=(f"{turn}-{n}",)) for n in range(6)]
        for thread in threads:
            thread.start()
        while len(answers) < 20:
            time.sleep(0.001)
        store.close()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive(), "a call waits for ever"
        assert sum("closed" in str(answer) for answer in answers) == 6


# Lost and unsuitable servers


def test_appends_wait_for_a_server_that_restarts(node: nats.NatsNode, store: NatsStore) -> None:
    require_stored(append_writes(store, make_write("run/a", None)))
    listed = list(store.list_heads(HeadQuery("run")))
    answers: list[object] = []

    def work(mine: int) -> None:
        for n in range(10):
            answers.append(
                append_writes(store, make_write(f"run/{mine}-{n}", store.load_head(f"run/{mine}-{n}")))
            )

    threads = [threading.Thread(target=work, args=(mine,)) for mine in range(3)]
    for thread in threads:
        thread.start()
    while len(answers) < 3:
        time.sleep(0.001)
    node.kill()
    time.sleep(0.5)
    node.start()
    for thread in threads:
        thread.join(25)
    assert [type(answer).__name__ for answer in answers] == ["Stored"] * 30
    assert len(list(store.list_heads(HeadQuery("run")))) == 31
    assert len(listed) == 1
    assert len(list(store.read_entries())) == 31


def test_an_unreachable_server_is_reported_in_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 0.5)
    began, threads = time.monotonic(), threading.active_count()
    with refusing() as nobody, pytest.raises(StoreError, match=r"no connection to the server.*is it running"):
        NatsStore(f"nats://127.0.0.1:{nobody.port}/x")
    assert time.monotonic() - began < 5
    assert threading.active_count() <= threads + 1  # the server that refuses may be on its way out


def test_a_server_without_jetstream_or_an_old_one_is_refused(
    node: nats.NatsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with nats.running(jetstream=False) as (plain, _), pytest.raises(StoreError, match="has no JetStream"):
        NatsStore(plain)
    monkeypatch.setattr(server_check, "MIN_VERSION", (99, 1))
    with pytest.raises(StoreError, match=r"99\.1 is needed"):
        NatsStore(node.url)


WRONG: dict[str, Any] = {
    "storage": "memory",
    "retention": "interest",
    "discard": "old",
    "max_msgs": 10**6,
    "max_bytes": 10**9,
    "max_age": 10**15,
    "max_msgs_per_subject": 10**6,
    "max_msg_size": 10**6,
    "allow_direct": False,
    "allow_atomic": False,
    "deny_delete": False,
    "allow_rollup_hdrs": True,
    "allow_msg_ttl": True,
    "allow_msg_schedules": True,
    "persist_mode": "async",
    "subjects": ["elsewhere.*"],
    "sources": [{"name": "other"}],
    "mirror": {"name": "other"},
    "sealed": True,
    "subject_transform": {"src": "x.*", "dest": "y.{{wildcard(1)}}"},
}


def test_every_required_setting_has_a_wrong_value_here() -> None:
    assert {*server_check.REQUIRED, *server_check.FORBIDDEN} <= WRONG.keys()


@pytest.mark.parametrize("field", WRONG)
def test_a_stream_with_an_unsafe_setting_is_refused(url: str, namespace: str, field: str) -> None:
    where = messages.log_subjects(namespace)
    config = {
        **server_check.REQUIRED,
        "name": f"{namespace}_LOG",
        "subjects": server_check._stream_subjects(where),
        "num_replicas": 1,
        "metadata": {"oncemore": "1"},
        field: WRONG[field],
    }
    if field == "allow_msg_schedules":
        config |= {"discard": "old", "allow_rollup_hdrs": True}
    if field == "mirror":
        del config["subjects"]
    if field in ("persist_mode", "mirror"):
        config["allow_atomic"] = False
    sealed = config.pop("sealed", False)
    said = call_api(url, f"STREAM.CREATE.{namespace}_LOG", **config)
    if sealed:
        said = call_api(url, f"STREAM.UPDATE.{namespace}_LOG", **config, sealed=True)
    assert "error" not in said, said
    with pytest.raises(StoreError, match=f"not safe for a log: .*{field} is"):
        NatsStore(url)


def test_a_stream_of_another_program_or_a_newer_format_is_refused(url: str, namespace: str) -> None:
    made = {"name": f"{namespace}_LOG", "subjects": ["theirs.*"]}
    call_api(url, f"STREAM.CREATE.{namespace}_LOG", **made)
    with pytest.raises(StoreError, match="that oncemore did not make"):
        NatsStore(url)
    for newer in ("2", "x"):
        call_api(url, f"STREAM.UPDATE.{namespace}_LOG", **made, metadata={"oncemore": newer})
        with pytest.raises(StoreError, match=f"format {newer}, which a newer oncemore wrote"):
            NatsStore(url)


def test_a_stream_with_fewer_replicas_than_asked_for_is_refused(store: NatsStore, url: str) -> None:
    with pytest.raises(StoreError, match="has 1 replicas and the address asks for 3"):
        NatsStore(f"{url}?replicas=3")
    with pytest.raises(StoreError, match="cannot be made"):
        NatsStore(f"{url}_more?replicas=3")


def test_the_durability_is_read_from_the_monitoring_port(node: nats.NatsNode, url: str) -> None:
    store = NatsStore(f"{url}?monitor={node.monitor}/")
    assert "and power loss, if its disk honours flushes" in store.open_maintenance().describe_store().durable
    assert any("one replica" in note for note in store.open_maintenance().describe_store().notes)
    store.close()
    store = NatsStore(url)
    assert "is unverified: no monitoring port was named" in store.open_maintenance().describe_store().durable
    assert any("?monitor=" in note for note in store.open_maintenance().describe_store().notes)
    store.close()
    with pytest.raises(StoreError, match="does not tell how the server syncs"):
        NatsStore(f"{url}?monitor=http://127.0.0.1:1")
    with pytest.raises(UsageError, match="monitor is not the URL"):
        NatsStore(f"{url}?monitor=8222")
    with nats.node(sync="") as lazy:
        with pytest.raises(StoreError, match=r"acknowledges before it syncs.*sync_interval: always"):
            NatsStore(f"{lazy.url}/x?monitor={node.monitor},{lazy.monitor}")
        store = NatsStore(f"{lazy.url}/x?unsafe_ok=true&monitor={lazy.monitor}")
        assert "power loss can take away" in store.open_maintenance().describe_store().durable
        store.close()


# Logins, secrets, addresses


def test_users_tokens_and_certificates_are_accepted(tmp_path: Path) -> None:
    with nats.running(jetstream=True, config='authorization { user: ada, password: "p@ss/w:rd" }') as (
        url,
        _,
    ):
        where = url.removeprefix("nats://")
        store = NatsStore(f"nats://ada:p%40ss%2Fw%3Ard@{where}/x")
        require_stored(append_writes(store, make_write("run/a", None)))
        store.close()
        with pytest.raises(StoreError, match="are name and password right"):
            NatsStore(f"nats://ada:wrong@{where}/x")
    with nats.running(jetstream=True, config='authorization { token: "t0ken?" }') as (url, _):
        NatsStore(f"nats://t0ken%3F@{url.removeprefix('nats://')}/x").close()
    ours, theirs = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    theirs.cert_pem.write_to_path(str(tmp_path / "other.pem"))
    server, mine = ours.issue_cert("127.0.0.1"), ours.issue_cert("client.test")
    for name, cert in (("server", server), ("client", mine)):
        cert.cert_chain_pems[0].write_to_path(str(tmp_path / f"{name}.pem"))
        cert.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))
    tls = (
        f'tls {{ cert_file: "{tmp_path}/server.pem", key_file: "{tmp_path}/server.key", '
        f'ca_file: "{tmp_path}/ca.pem", verify: true }}'
    )
    with nats.running(jetstream=True, config=tls) as (url, _):
        where = f"127.0.0.1:{url.rpartition(':')[2]}"
        files = f"cert={tmp_path}/client.pem&key={tmp_path}/client.key"
        store = NatsStore(f"tls://{where}/x?ca={tmp_path}/ca.pem&{files}")
        require_stored(append_writes(store, make_write("run/a", None)))
        store.close()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection, "CONNECT_TIMEOUT_S", 1.0)
            for bad in (f"ca={tmp_path}/other.pem&{files}", f"ca={tmp_path}/ca.pem"):
                with pytest.raises(StoreError, match="no connection to the server"):
                    NatsStore(f"tls://{where}/x?{bad}")
    with pytest.raises(UsageError, match="certificates of ca, cert or key cannot be read"):
        NatsStore(f"tls://{where}/x?ca={tmp_path}/none.pem")


def test_credentials_without_nkeys_name_the_missing_package(
    node: nats.NatsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="nkeys"):
        NatsStore(f"{node.url}/x?creds=a.creds")


CANARY = "c4n4ry%40pass"


@pytest.mark.parametrize(
    "form",
    [
        f"nats://user:{CANARY}@127.0.0.1:{{port}}/x?nonsense=1",
        f"nats://user:{CANARY}@127.0.0.1:1/x",
        f"nats://{CANARY}@127.0.0.1:1/x",
        f"nats://user:{CANARY}@127.0.0.1:1/No-Name",
        f"nats://user:{CANARY}@:1,/x",
        f"nats://user:{CANARY}@[::1/x",
        f"nats://user:{CANARY}@host:port/x",
        f"nats://user:{CANARY}@127.0.0.1:{{port}}/x?replicas=2",
        f"nats://user:{CANARY}@127.0.0.1:{{port}}/x?unsafe_ok=yes",
        f"nats://user:{CANARY}@127.0.0.1:{{port}}/x?key=a",
        f"nats://user:{CANARY}@127.0.0.1:{{port}}/x?monitor=http://u:{CANARY}@127.0.0.1:1",
        f"nats+tls://user:{CANARY}@host/x",
    ],
)
def test_an_error_contains_no_password(
    node: nats.NatsNode, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 0.3)
    with pytest.raises((StoreError, UsageError)) as caught:
        NatsStore(form.replace("{port}", str(node.port)))
    told = "".join(traceback.format_exception(caught.value, chain=True))
    assert "c4n4ry" not in str(caught.value)
    assert "c4n4ry" not in told


def test_the_facts_and_the_repr_of_a_store_contain_no_password(node: nats.NatsNode, namespace: str) -> None:
    store = NatsStore(f"nats://ada:{CANARY}@127.0.0.1:{node.port}/{namespace}")
    facts = store.open_maintenance().describe_store()
    assert facts.url == f"nats://ada@127.0.0.1:{node.port}/{namespace}"
    assert "NATS 2." in facts.engine
    assert "c4n4ry" not in repr((facts, store, store._address, store._connection, store._connection.address))
    store.close()
    assert parse_address(f"nats://{CANARY}@h/x").shown == "nats://…@h/x", "a token is a secret"
    assert parse_address("nats://a,b:1/x").servers == ("nats://a", "nats://b:1")


# Names, sizes


def test_names_and_states_that_nats_cannot_store_raise_usage_error(store: NatsStore) -> None:
    half, one = "run/\ud800", make_write("run/a", None)
    for wrong in (
        one._replace(entity=half),
        one._replace(by=HeadIndex("run", step="\ud800")),
        one._replace(head=b"." * 50_000),
        one._replace(body=b"." * (messages.MAX_BODY_BYTES + 1)),
    ):
        with pytest.raises(UsageError):
            store.append(Batch((wrong,)))
    with pytest.raises(UsageError):
        store.append(Batch((), {half: 0}))
    with pytest.raises(UsageError):
        store.load_head(half)
    with pytest.raises(UsageError, match="on_commit"):
        store.append(Batch((), joined_write=lambda joined: None))
    many = tuple(make_write(f"run/{n}", None) for n in range(1001))
    with pytest.raises(UsageError, match="1001 messages"):
        append_writes(store, *many)
    require_stored(append_writes(store, one._replace(head=b"." * 40_000)))


def count_by_subject(url: str, namespace: str) -> dict[str, int]:
    """Return the number of messages by subject."""
    state = call_api(url, f"STREAM.INFO.{namespace}_LOG", subjects_filter=">")["state"]
    return dict(state.get("subjects") or {})


def test_a_body_that_is_too_large_for_a_message_is_stored_in_parts(
    store: NatsStore, url: str, namespace: str
) -> None:
    """It is read, listed, pruned and dropped like any other body, and its parts are purged with it."""
    bodies = [os.urandom(3_000_000), b"small", os.urandom(1_048_576), os.urandom(1_044_480)]
    for body in bodies:
        require_stored(
            append_writes(
                store,
                make_write("run/a", store.load_head("run/a"), body),
                make_write(f"run/{len(body)}", None, body),
            )
        )
        head = store.load_head("run/a")
        assert head is not None
        assert head.body == body
    other = NatsStore(url)
    assert [entry.body for entry in read_verified_entries(other, "run/a")] == bodies
    assert [entry.body for entry in other.read_entries() if entry.entity == "run/a"] == bodies
    parts = {name: many for name, many in count_by_subject(url, namespace).items() if ".b." in name}
    assert sorted(parts.values()) == [1, 2, 3, 6]
    store.open_maintenance().prune_bodies({"run/a": 3})
    assert [entry.body for entry in read_verified_entries(other, "run/a", pruned=3)] == [
        None,
        None,
        *bodies[2:],
    ]
    parts = {name: many for name, many in count_by_subject(url, namespace).items() if ".b." in name}
    assert sorted(parts.values()) == [1, 2, 3, 3]
    store.open_maintenance().prune_bodies({"run/a": 99})
    read_verified_entries(other, "run/a", pruned=99)
    assert store.open_maintenance().drop_entities({"run/3000000": 1}) == 1
    parts = {name: many for name, many in count_by_subject(url, namespace).items() if ".b." in name}
    assert sorted(parts.values()) == [1, 2]
    other.close()


# Pruning during reads, and interrupted pruning


def test_a_reader_gets_every_entry_while_bodies_are_pruned(store: NatsStore, url: str) -> None:
    for n in range(12):
        for _ in range(4):
            require_stored(
                append_writes(store, make_write(f"run/{n}", store.load_head(f"run/{n}"), b"body" * 20))
            )
    there = [(entry.seq, entry.entity, entry.version, entry.hash) for entry in store.read_entries()]
    other = NatsStore(url)
    over = threading.Event()

    def forget() -> None:
        for version in range(2, 6):
            for n in range(12):
                other.open_maintenance().prune_bodies({f"run/{n}": version})
        over.set()

    thread = threading.Thread(target=forget)
    thread.start()
    looks = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "PAGE_MESSAGES", 5)
        while not over.is_set() or not looks:
            found = [(entry.seq, entry.entity, entry.version, entry.hash) for entry in store.read_entries()]
            assert found == there
            assert [entry.version for entry in store.read_entries("run/7")] == [1, 2, 3, 4]
            looks += 1
    thread.join()
    assert all(entry.body is None for entry in store.read_entries())
    assert looks > 1
    other.close()


class Killed(BaseException):
    """Stands for the death of the process."""


def die_at(patch: pytest.MonkeyPatch, where: str, times: int) -> None:
    """Raise `Killed` at the given call of a function of `maintenance`."""
    original: Callable[..., Any] = getattr(maintenance, where)
    left = [times]

    async def die(*args: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        return await original(*args, **named)

    patch.setattr(maintenance, where, die)


@pytest.mark.parametrize(
    ("where", "times"),
    [("publish_batch", 1), ("purge_subject", 1), ("purge_subject", 2), ("purge_subject", 3)],
)
def test_an_interrupted_prune_is_completed_by_the_next_one(
    store: NatsStore, url: str, namespace: str, where: str, times: int
) -> None:
    for entity in ("run/a", "run/b"):
        for body in (b"x", b"." * 2_000_000):
            require_stored(append_writes(store, make_write(entity, store.load_head(entity), body)))
    before = read_verified_entries(store, "run/a")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        die_at(patch, where, times)
        store.open_maintenance().prune_bodies({"run/a": 99, "run/b": 99})
    other = NatsStore(url)
    pruned = 0 if where == "publish_batch" else 99
    found = list(other.read_entries("run/a"))
    assert [(entry.version, entry.hash) for entry in found] == [
        (entry.version, entry.hash) for entry in before
    ]
    assert all((entry.body is None) == bool(pruned) for entry in found)
    other.open_maintenance().prune_bodies({"run/a": 99, "run/b": 99})
    for entity in ("run/a", "run/b"):
        read_verified_entries(other, entity, pruned=99)
    left = count_by_subject(url, namespace)
    assert not any(".b." in name for name in left), left
    assert sorted(left.values()) == [1, 1, 1, 1], left
    require_stored(append_writes(store, make_write("run/a", store.load_head("run/a"))))
    other.close()


@pytest.mark.parametrize(("where", "times"), [("publish_batch", 1), ("clear_entity", 1)])
def test_entries_of_an_interrupted_drop_do_not_reappear(
    store: NatsStore, url: str, namespace: str, where: str, times: int
) -> None:
    for body in (b"x", b"." * 2_000_000, b"y"):
        require_stored(append_writes(store, make_write("run/a", store.load_head("run/a"), body)))
    store.open_maintenance().prune_bodies({"run/a": 2})
    require_stored(append_writes(store, make_write("run/b", None)))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        die_at(patch, where, times)
        store.open_maintenance().drop_entities({"run/a": 3})
    other = NatsStore(url)
    gone = where == "clear_entity"
    assert (other.load_head("run/a") is None) == gone
    assert {entry.entity for entry in other.read_entries()} == ({"run/b"} if gone else {"run/a", "run/b"})
    if gone:
        assert list(other.read_entries("run/a")) == []
        (seq,) = require_stored(append_writes(other, make_write("run/a", None, b"anew"))).seqs
        assert [entry.body for entry in read_verified_entries(other, "run/a")] == [b"anew"]
        assert [entry.seq for entry in NatsStore(url).read_entries() if entry.entity == "run/a"] == [seq]
        assert sum(count_by_subject(url, namespace).values()) == 3  # run/b, the tombstone, run/a
    else:
        assert other.open_maintenance().drop_entities({"run/a": 3}) == 1
    other.close()


def test_a_prune_or_a_replaced_head_conflicts_with_no_append(store: NatsStore, url: str) -> None:
    """The version stays, although the last sequence is not the one that the writer remembers."""
    other = NatsStore(url)
    require_stored(append_writes(store, make_write("run/a", None)))
    for n in range(1, 4):
        head = store.load_head("run/a")
        assert head is not None
        other.open_maintenance().prune_bodies({"run/a": 99})
        require_stored(append_writes(store, make_write("run/a", head)))
        head = other.load_head("run/a")
        assert head is not None
        assert other.open_maintenance().replace_heads([head], other.wait_for_change(0, 0.0)) == 1
        guarded = store.append(Batch((make_write(f"run/{n}", None),), {"run/a": head.version})).wait()
        assert isinstance(guarded, Stored)
    read_verified_entries(store, "run/a", pruned=4)
    other.close()


def test_purging_removes_old_tombstones_and_guard_messages(
    store: NatsStore, url: str, namespace: str
) -> None:
    for entity in ("run/a", "run/b"):
        require_stored(store.append(Batch((make_write(entity, None),), {"switch/off": 0})).wait())  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        die_at(patch, "clear_entity", 1)
        store.open_maintenance().drop_entities({"run/a": 1})
    store.open_maintenance().checkpoint_wal()
    left = count_by_subject(url, namespace)
    assert sorted(left.values()) == [1, 1], left
    assert f"{namespace}.g" not in left
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance, "TOMBSTONE_S", -1.0)
        store.open_maintenance().checkpoint_wal()
    assert list(count_by_subject(url, namespace).values()) == [1]
    assert store.open_maintenance().checkpoint_wal() == ""
    require_stored(append_writes(store, make_write("run/a", None)))


def test_a_drop_counts_if_its_acknowledgement_was_lost_but_not_if_another_call_did_it(
    store: NatsStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_stored(append_writes(store, make_write("run/a", None)))
    original = maintenance.publish_batch
    lost: list[bool] = []

    async def lose(*args: Any) -> Any:
        answer = await original(*args)
        if not lost:
            lost.append(True)
            raise replies.NoServerReply("lost")
        return answer

    monkeypatch.setattr(maintenance, "publish_batch", lose)
    assert store.open_maintenance().drop_entities({"run/a": 1}) == 1
    assert store.open_maintenance().drop_entities({"run/a": 1}) == 0
    assert lost


# Lists, time


def test_a_list_is_complete_after_the_server_deleted_its_consumer(
    store: NatsStore, url: str, namespace: str
) -> None:
    require_stored(append_writes(store, make_write("run/a", None)))
    assert len(list(store.list_heads(HeadQuery("run")))) == 1
    consumer = store.projection._consumer
    assert call_api(url, f"CONSUMER.DELETE.{namespace}_LOG.{consumer}")["success"]
    require_stored(append_writes(store, make_write("run/b", None)))
    assert len(list(store.list_heads(HeadQuery("run")))) == 2
    assert store.projection._consumer != consumer
    store.projection._number += 5  # as if messages had been lost in delivery
    require_stored(append_writes(store, make_write("run/c", None)))
    assert len(list(store.list_heads(HeadQuery("run")))) == 3
    require_stored(append_writes(store, make_write("run/d", None)))
    reader = f"{namespace}_LOG.{store.projection._consumer}"
    stolen = store._connection.run_in_loop(lambda: store._connection.fetch_messages(*reader.split(".")))
    assert [given.message.subject for given in stolen] == [store.log.subjects.entity_subject("run/d")]
    began = time.monotonic()
    assert len(list(store.list_heads(HeadQuery("run")))) == 4, (
        "a message that was lost in delivery is read by another consumer"
    )
    assert time.monotonic() - began < 5


def test_a_projection_that_was_not_used_for_long_is_filled_again(
    store: NatsStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = NatsStore(url)
    for entity in ("run/a", "run/b"):
        require_stored(append_writes(store, make_write(entity, None)))
    assert len(list(other.list_heads(HeadQuery("run")))) == 2
    store.open_maintenance().drop_entities({"run/a": 1})
    monkeypatch.setattr(maintenance, "TOMBSTONE_S", -1.0)
    store.open_maintenance().checkpoint_wal()  # the tombstone is gone as well
    monkeypatch.setattr(queries, "STALE_S", -1.0)
    assert [head.entity for head in other.list_heads(HeadQuery("run"))] == ["run/b"]
    other.close()


def test_the_time_is_the_servers_and_never_goes_back(
    store: NatsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time()
    monkeypatch.setattr(time, "time", lambda: 12345.0)
    first = store.now()
    assert abs(first - real) < 10
    asked, then = store.log.clock
    store.log.clock = (asked, then - 1000.0)  # another server leads now, whose clock is behind
    second = store.now()
    time.sleep(0.02)
    assert first <= second < store.now()


def test_a_message_of_another_program_is_reported(store: NatsStore, url: str, namespace: str) -> None:
    require_stored(append_writes(store, make_write("run/a", None)))

    async def intrude() -> None:
        connection = await client.connect(url.rpartition("/")[0])
        await connection.jetstream().publish(store.log.subjects.entity_subject("run/a"), b"hello")
        await connection.close()

    asyncio.run(intrude())
    with pytest.raises(StoreError, match="was not written by oncemore"):
        store.load_head("run/a")


@pytest.mark.parametrize(
    "reply", ["$JS.ACK.S.C.1.42.7.1500000000.3", "$JS.ACK.hub.HASH.S.C.1.42.7.1500000000.3.random"]
)
def test_both_forms_of_a_consumers_reply_subject_are_parsed(reply: str) -> None:
    found = replies.parse_consumed("s", reply, {}, b"")
    assert (found.message.seq, found.number, found.stored, found.left) == (42, 7, 1.5, 3)


def test_appends_with_the_same_guards_are_grouped_and_a_stale_one_fails_alone(
    store: NatsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    original = guards.BatchQueue._on_group_reply

    def heard(self: guards.BatchQueue, group: Any, message: Any, why: str) -> None:
        sizes.append(len(group))
        original(self, group, message, why)

    monkeypatch.setattr(guards.BatchQueue, "_on_group_reply", heard)
    require_stored(append_writes(store, make_write("switch/s", None)))
    require_stored(append_writes(store, make_write("run/7", None)))
    store.log.clear_cache()
    assert store.load_head("switch/s") is not None

    async def append_all(first: int, version: int) -> list[Any]:
        batches = [
            Batch(
                (make_write(f"run/{n}", None, b"%d" % n), make_write(f"event/{n}", None)),
                {"switch/s": version},
            )
            for n in range(first, first + 20)
        ]
        return await asyncio.gather(*[_await_ticket(store, store.append(batch)) for batch in batches])

    answers = asyncio.run(append_all(0, 1))
    assert [n for n, answer in enumerate(answers) if not isinstance(answer, Stored)] == [7]
    assert answers[7] == Conflict("run/7", store.load_head("run/7"))
    assert store.load_head("event/7") is None
    assert max(sizes) > 10
    for n, answer in enumerate(answers):
        if n != 7:
            assert answer.seqs == (
                read_verified_entries(store, f"run/{n}")[0].seq,
                read_verified_entries(store, f"event/{n}")[0].seq,
            )
    require_stored(append_writes(store, make_write("switch/s", store.load_head("switch/s"))))
    refused = asyncio.run(append_all(100, 1))
    assert refused == [Conflict("switch/s", store.load_head("switch/s"))] * 20
    assert store.load_head("run/100") is None


# Headers


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\r\n",
        b"Nats-Sequence: 7\r\nOncemore-Head: a:b==\r\n\r\n",
        b"Name:no room\r\nOther:\t a tab and \xc3\xa9 \r\nno colon here\r\nBroken: \xff\r\n\r\n",
    ],
)
def test_header_lines_are_parsed_as_nats_py_parses_them(raw: bytes) -> None:
    parsed = client.NATS._parse_header_lines(raw)
    assert replies.parse_header_lines(raw) == parsed
    encoded = base64.b64encode(b"NATS/1.0\r\n" + raw).decode()
    message = replies.parse_stored_message({"subject": "s", "seq": 7, "hdrs": encoded, "data": "eA=="})
    assert message == replies.StreamMessage("s", 7, parsed, b"x")
