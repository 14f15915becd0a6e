"""The store in NATS under hard conditions: kills, forks, servers that go away, wrong servers, secrets."""

from __future__ import annotations

import asyncio
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
from oncemore.log.nats import batching, connection, messages, prune, queries, server_check
from oncemore.log.nats.address import address
from oncemore.log.nats.store import NatsStore
from oncemore.log.store import Batch, Conflict, Index, Query, Stored
from oncemore.testing.store_contract import put, stored, whole, write
from tests.servers import nats
from tests.servers.faults import refusing
from tests.servers.processes import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from oncemore.log.store import Entry

names = itertools.count()


@pytest.fixture(scope="module")
def node() -> Iterator[nats.Node]:
    try:
        with nats.node() as made:
            yield made
    except nats.NoNats as reason:
        pytest.skip(str(reason))


@pytest.fixture
def namespace() -> str:
    return f"store_{next(names)}"


@pytest.fixture
def url(node: nats.Node, namespace: str) -> str:
    return f"{node.url}/{namespace}"


@pytest.fixture
def store(url: str) -> Iterator[NatsStore]:
    made = NatsStore(url)
    yield made
    made.close()


def api(url: str, what: str, **asked: Any) -> dict[str, Any]:
    """Ask the server something behind the store's back."""

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
    from oncemore.testing.store_contract import put, write
    store = NatsStore(sys.argv[1])

    def work(mine):
        n = 0
        while True:
            entity = f"run/{mine}-{n % 5}"
            more = [write(f"once/{mine}-{n}", None)] if n % 2 else []
            answer = put(store, write(entity, store.head(entity)), *more)
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


def test_who_follows_writers_by_seq_misses_nothing_and_nothing_acknowledged_is_lost(
    store: NatsStore, url: str
) -> None:
    followed: list[Entry] = []

    def follow() -> None:
        last = followed[-1].seq if followed else 0
        store.changed(last, 0.05)
        followed.extend(store.entries(after=last))

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
    time.sleep(0.1)  # what a process sent before it was killed may still be stored
    follow()
    there = [entry.seq for entry in store.entries()]
    assert [entry.seq for entry in followed] == there == sorted(set(there))
    assert acknowledged <= set(there)
    assert len(acknowledged) > 100, len(acknowledged)
    for entity in {entry.entity for entry in followed if entry.entity.startswith("run/")}:
        whole(store, entity)


OPENER = """
    import sys
    from oncemore.log.nats.store import NatsStore
    from oncemore.testing.store_contract import put, write
    print("open", flush=True)
    sys.stdin.readline()
    store = NatsStore(sys.argv[1])
    print(type(put(store, write(f"run/{sys.argv[2]}", None))).__name__)
    store.close()
"""


def test_several_processes_may_make_the_stream_at_once(url: str) -> None:
    with processes(OPENER, *((url, n) for n in range(3))) as openers:
        for one in openers:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        assert [one.communicate(timeout=30)[0] for one in openers] == ["Stored\n"] * 3
    store = NatsStore(url)
    assert len(list(store.entries())) == 3
    store.close()


def test_a_forked_child_has_a_line_of_its_own_and_the_parent_keeps_its_own(store: NatsStore) -> None:
    stored(put(store, write("run/parent", store.head("run/parent"))))
    assert len(list(store.heads(Query("run")))) == 1
    child = os.fork()
    if child == 0:
        fine = False
        try:
            fine = isinstance(put(store, write("run/child", None)), Stored)
            fine = fine and store.head("run/parent") is not None
            fine = fine and len(list(store.heads(Query("run")))) == 2
            store.close()
        finally:
            os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    stored(put(store, write("run/parent", store.head("run/parent"))))
    assert store.head("run/child") is not None


def test_a_fork_while_others_write_hurts_neither_side(store: NatsStore) -> None:
    over, faults = threading.Event(), list[BaseException]()

    def work(mine: int) -> None:
        try:
            for n in itertools.count():
                stored(put(store, write(f"run/{mine}-{n}", None)))
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
                fine = isinstance(put(store, write(f"child/{n}", None)), Stored)
            finally:
                os._exit(0 if fine else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    over.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert not faults, faults
    assert codes == [0] * 5


def test_who_is_interrupted_while_waiting_leaves_the_store_as_it_was(
    store: NatsStore, node: nats.Node
) -> None:
    stored(put(store, write("run/a", None)))
    node.freeze()
    try:
        for wait in (
            lambda: put(store, write("run/b", None)),
            lambda: store.head("run/a"),
        ):
            bell = threading.Timer(0.2, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
            bell.start()
            with pytest.raises(KeyboardInterrupt):
                wait()
            bell.join()
    finally:
        node.thaw()
    stored(put(store, write("run/a", store.head("run/a"))))
    until = time.monotonic() + 10
    while store.head("run/b") is None:  # it was on its way, and nobody called it back
        assert time.monotonic() < until
        time.sleep(0.05)
    assert len(whole(store, "run/b")) == 1


# Closing


def test_a_closed_store_says_so(store: NatsStore) -> None:
    stored(put(store, write("run/a", None)))
    ticket = store.append(Batch((write("run/b", None),)))
    entries = store.entries()
    store.close()
    store.close()
    for use in (ticket.wait, lambda: store.append(Batch(())), lambda: store.head("run/a"), store.now):
        with pytest.raises(StoreError, match="closed"):
            use()
    with pytest.raises(StoreError, match="closed"):
        list(entries)
    with pytest.raises(StoreError, match="closed"):
        asyncio.run(_awaited(store, ticket))


async def _awaited(store: NatsStore, ticket: Any) -> Any:
    return await ticket


def test_what_was_begun_is_answered_when_the_store_is_closed(url: str) -> None:
    """Everybody who waits is told something, whatever moment the store is closed at."""
    for turn in range(5):
        store = NatsStore(url)
        answers: list[object] = []

        def work(mine: int, store: NatsStore = store, answers: list[object] = answers) -> None:
            try:
                for n in itertools.count():
                    answers.append(put(store, write(f"run/{mine}-{n}", None)))
                    store.head(f"run/{mine}-{n}")
                    list(store.heads(Query("run", limit=2)))
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
            assert not thread.is_alive(), "somebody waits for ever"
        assert sum("closed" in str(answer) for answer in answers) == 6


# Servers that go away, and wrong ones


def test_a_server_that_goes_away_and_comes_back_is_waited_for(node: nats.Node, store: NatsStore) -> None:
    stored(put(store, write("run/a", None)))
    listed = list(store.heads(Query("run")))
    answers: list[object] = []

    def work(mine: int) -> None:
        for n in range(10):
            answers.append(put(store, write(f"run/{mine}-{n}", store.head(f"run/{mine}-{n}"))))

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
    assert len(list(store.heads(Query("run")))) == 31
    assert len(listed) == 1
    assert len(list(store.entries())) == 31


def test_a_server_that_is_not_there_is_said_to_be_so_in_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "CONNECT_S", 0.5)
    began, threads = time.monotonic(), threading.active_count()
    with refusing() as nobody, pytest.raises(StoreError, match=r"no connection to the server.*is it running"):
        NatsStore(f"nats://127.0.0.1:{nobody.port}/x")
    assert time.monotonic() - began < 5
    assert threading.active_count() <= threads + 1  # the server that refuses may be on its way out


def test_a_server_without_jetstream_or_an_old_one_is_refused(
    node: nats.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with nats.running(jetstream=False) as (plain, _), pytest.raises(StoreError, match="has no JetStream"):
        NatsStore(plain)
    monkeypatch.setattr(server_check, "OLDEST", (99, 1))
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


def test_every_rule_for_a_stream_has_a_wrong_one_here() -> None:
    assert {*server_check.MUST, *server_check.NEVER} <= WRONG.keys()


@pytest.mark.parametrize("field", WRONG)
def test_a_stream_on_which_something_would_not_hold_is_refused(url: str, namespace: str, field: str) -> None:
    where = messages.subjects(namespace)
    config = {
        **server_check.MUST,
        "name": f"{namespace}_LOG",
        "subjects": server_check._subjects(where),
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
    said = api(url, f"STREAM.CREATE.{namespace}_LOG", **config)
    if sealed:
        said = api(url, f"STREAM.UPDATE.{namespace}_LOG", **config, sealed=True)
    assert "error" not in said, said
    with pytest.raises(StoreError, match=f"not safe for a log: .*{field} is"):
        NatsStore(url)


def test_a_stream_of_somebody_else_and_a_newer_format_are_refused(url: str, namespace: str) -> None:
    made = {"name": f"{namespace}_LOG", "subjects": ["theirs.*"]}
    api(url, f"STREAM.CREATE.{namespace}_LOG", **made)
    with pytest.raises(StoreError, match="that oncemore did not make"):
        NatsStore(url)
    for newer in ("2", "x"):
        api(url, f"STREAM.UPDATE.{namespace}_LOG", **made, metadata={"oncemore": newer})
        with pytest.raises(StoreError, match=f"format {newer}, which a newer oncemore wrote"):
            NatsStore(url)


def test_a_stream_with_fewer_replicas_than_asked_for_is_refused(store: NatsStore, url: str) -> None:
    with pytest.raises(StoreError, match="has 1 replicas and the address asks for 3"):
        NatsStore(f"{url}?replicas=3")
    with pytest.raises(StoreError, match="cannot be made"):
        NatsStore(f"{url}_more?replicas=3")


def test_what_the_server_really_gives_is_asked_and_said(node: nats.Node, url: str) -> None:
    store = NatsStore(f"{url}?monitor={node.monitor}/")
    assert "and power loss, if its disk honours flushes" in store.facts().durable
    assert any("one replica" in note for note in store.facts().notes)
    store.close()
    store = NatsStore(url)
    assert "is unverified: nobody has asked" in store.facts().durable
    assert any("?monitor=" in note for note in store.facts().notes)
    store.close()
    with pytest.raises(StoreError, match="does not tell how the server syncs"):
        NatsStore(f"{url}?monitor=http://127.0.0.1:1")
    with pytest.raises(UsageError, match="monitor is no address"):
        NatsStore(f"{url}?monitor=8222")
    with nats.node(sync="") as lazy:
        with pytest.raises(StoreError, match=r"acknowledges before it syncs.*sync_interval: always"):
            NatsStore(f"{lazy.url}/x?monitor={node.monitor},{lazy.monitor}")
        store = NatsStore(f"{lazy.url}/x?unsafe_ok=true&monitor={lazy.monitor}")
        assert "power loss can take away" in store.facts().durable
        store.close()


# Being let in, secrets, addresses


def test_a_user_a_token_and_certificates_are_let_in(tmp_path: Path) -> None:
    with nats.running(jetstream=True, config='authorization { user: ada, password: "p@ss/w:rd" }') as (
        url,
        _,
    ):
        where = url.removeprefix("nats://")
        store = NatsStore(f"nats://ada:p%40ss%2Fw%3Ard@{where}/x")
        stored(put(store, write("run/a", None)))
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
        stored(put(store, write("run/a", None)))
        store.close()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection, "CONNECT_S", 1.0)
            for bad in (f"ca={tmp_path}/other.pem&{files}", f"ca={tmp_path}/ca.pem"):
                with pytest.raises(StoreError, match="no connection to the server"):
                    NatsStore(f"tls://{where}/x?{bad}")
    with pytest.raises(UsageError, match="certificates of ca, cert or key cannot be read"):
        NatsStore(f"tls://{where}/x?ca={tmp_path}/none.pem")


def test_credentials_without_their_library_name_what_is_missing(
    node: nats.Node, monkeypatch: pytest.MonkeyPatch
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
def test_a_password_is_in_no_error(node: nats.Node, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_S", 0.3)
    with pytest.raises((StoreError, UsageError)) as caught:
        NatsStore(form.replace("{port}", str(node.port)))
    told = "".join(traceback.format_exception(caught.value, chain=True))
    assert "c4n4ry" not in str(caught.value)
    assert "c4n4ry" not in told


def test_a_password_is_not_in_what_the_store_says_of_itself(node: nats.Node, namespace: str) -> None:
    store = NatsStore(f"nats://ada:{CANARY}@127.0.0.1:{node.port}/{namespace}")
    facts = store.facts()
    assert facts.url == f"nats://ada@127.0.0.1:{node.port}/{namespace}"
    assert "NATS 2." in facts.engine
    assert "c4n4ry" not in repr((facts, store, store._where, store._line, store._line.where))
    store.close()
    assert address(f"nats://{CANARY}@h/x").shown == "nats://…@h/x", "a token is a secret"
    assert address("nats://a,b:1/x").servers == ("nats://a", "nats://b:1")


# Names, sizes


def test_names_and_states_that_nats_cannot_keep_are_the_callers_mistake(store: NatsStore) -> None:
    half, one = "run/\ud800", write("run/a", None)
    for wrong in (
        one._replace(entity=half),
        one._replace(by=Index("run", step="\ud800")),
        one._replace(head=b"." * 50_000),
        one._replace(body=b"." * (messages.LARGEST_BODY + 1)),
    ):
        with pytest.raises(UsageError):
            store.append(Batch((wrong,)))
    with pytest.raises(UsageError):
        store.append(Batch((), {half: 0}))
    with pytest.raises(UsageError):
        store.head(half)
    with pytest.raises(UsageError, match="on_commit"):
        store.append(Batch((), also=lambda joined: None))
    many = tuple(write(f"run/{n}", None) for n in range(1001))
    with pytest.raises(UsageError, match="1001 messages"):
        put(store, *many)
    stored(put(store, one._replace(head=b"." * 40_000)))


def subjects(url: str, namespace: str) -> dict[str, int]:
    """Return how many messages there are on each subject."""
    state = api(url, f"STREAM.INFO.{namespace}_LOG", subjects_filter=">")["state"]
    return dict(state.get("subjects") or {})


def test_a_body_that_is_too_large_for_a_message_is_kept_in_parts(
    store: NatsStore, url: str, namespace: str
) -> None:
    """Read, listed, pruned and dropped like any other; its parts go when it goes."""
    bodies = [os.urandom(3_000_000), b"small", os.urandom(1_048_576), os.urandom(1_044_480)]
    for body in bodies:
        stored(put(store, write("run/a", store.head("run/a"), body), write(f"run/{len(body)}", None, body)))
        head = store.head("run/a")
        assert head is not None
        assert head.body == body
    other = NatsStore(url)
    assert [entry.body for entry in whole(other, "run/a")] == bodies
    assert [entry.body for entry in other.entries() if entry.entity == "run/a"] == bodies
    parts = {name: many for name, many in subjects(url, namespace).items() if ".b." in name}
    assert sorted(parts.values()) == [1, 2, 3, 6]
    store.prune({"run/a": 3})
    assert [entry.body for entry in whole(other, "run/a", pruned=3)] == [None, None, *bodies[2:]]
    parts = {name: many for name, many in subjects(url, namespace).items() if ".b." in name}
    assert sorted(parts.values()) == [1, 2, 3, 3]
    store.prune({"run/a": 99})
    whole(other, "run/a", pruned=99)
    assert store.drop({"run/3000000": 1}) == 1
    parts = {name: many for name, many in subjects(url, namespace).items() if ".b." in name}
    assert sorted(parts.values()) == [1, 2]
    other.close()


# Forgetting while others read, and while it is interrupted


def test_who_reads_while_others_forget_meets_every_entry(store: NatsStore, url: str) -> None:
    for n in range(12):
        for _ in range(4):
            stored(put(store, write(f"run/{n}", store.head(f"run/{n}"), b"body" * 20)))
    there = [(entry.seq, entry.entity, entry.version, entry.hash) for entry in store.entries()]
    other = NatsStore(url)
    over = threading.Event()

    def forget() -> None:
        for version in range(2, 6):
            for n in range(12):
                other.prune({f"run/{n}": version})
        over.set()

    thread = threading.Thread(target=forget)
    thread.start()
    looks = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "PAGE", 5)
        while not over.is_set() or not looks:
            found = [(entry.seq, entry.entity, entry.version, entry.hash) for entry in store.entries()]
            assert found == there
            assert [entry.version for entry in store.entries("run/7")] == [1, 2, 3, 4]
            looks += 1
    thread.join()
    assert all(entry.body is None for entry in store.entries())
    assert looks > 1
    other.close()


class Killed(BaseException):
    """The process dies here."""


def dying(patch: pytest.MonkeyPatch, where: str, times: int) -> None:
    """Die at the so many-th call of something."""
    original: Callable[..., Any] = getattr(prune, where)
    left = [times]

    async def die(*args: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        return await original(*args, **named)

    patch.setattr(prune, where, die)


@pytest.mark.parametrize(("where", "times"), [("publish", 1), ("purge", 1), ("purge", 2), ("purge", 3)])
def test_a_prune_that_dies_is_finished_by_the_next(
    store: NatsStore, url: str, namespace: str, where: str, times: int
) -> None:
    for entity in ("run/a", "run/b"):
        for body in (b"x", b"." * 2_000_000):
            stored(put(store, write(entity, store.head(entity), body)))
    before = whole(store, "run/a")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        dying(patch, where, times)
        store.prune({"run/a": 99, "run/b": 99})
    other = NatsStore(url)
    pruned = 0 if where == "publish" else 99
    found = list(other.entries("run/a"))
    assert [(entry.version, entry.hash) for entry in found] == [
        (entry.version, entry.hash) for entry in before
    ]
    assert all((entry.body is None) == bool(pruned) for entry in found)
    other.prune({"run/a": 99, "run/b": 99})
    for entity in ("run/a", "run/b"):
        whole(other, entity, pruned=99)
    left = subjects(url, namespace)
    assert not any(".b." in name for name in left), left
    assert sorted(left.values()) == [1, 1, 1, 1], left
    stored(put(store, write("run/a", store.head("run/a"))))
    other.close()


@pytest.mark.parametrize(("where", "times"), [("publish", 1), ("clear", 1)])
def test_a_drop_that_dies_leaves_nothing_that_comes_back(
    store: NatsStore, url: str, namespace: str, where: str, times: int
) -> None:
    for body in (b"x", b"." * 2_000_000, b"y"):
        stored(put(store, write("run/a", store.head("run/a"), body)))
    store.prune({"run/a": 2})
    stored(put(store, write("run/b", None)))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        dying(patch, where, times)
        store.drop({"run/a": 3})
    other = NatsStore(url)
    gone = where == "clear"
    assert (other.head("run/a") is None) == gone
    assert {entry.entity for entry in other.entries()} == ({"run/b"} if gone else {"run/a", "run/b"})
    if gone:
        assert list(other.entries("run/a")) == []
        (seq,) = stored(put(other, write("run/a", None, b"anew"))).seqs
        assert [entry.body for entry in whole(other, "run/a")] == [b"anew"]
        assert [entry.seq for entry in NatsStore(url).entries() if entry.entity == "run/a"] == [seq]
        assert sum(subjects(url, namespace).values()) == 3  # run/b, the stone, run/a
    else:
        assert other.drop({"run/a": 3}) == 1
    other.close()


def test_what_others_only_forgot_or_put_right_refuses_nobody(store: NatsStore, url: str) -> None:
    """It moves no version, though the server has another sequence now than whoever wrote last remembers."""
    other = NatsStore(url)
    stored(put(store, write("run/a", None)))
    for n in range(1, 4):
        head = store.head("run/a")
        assert head is not None
        other.prune({"run/a": 99})
        stored(put(store, write("run/a", head)))
        head = other.head("run/a")
        assert head is not None
        assert other.mend([head], other.changed(0, 0.0)) == 1
        guarded = store.append(Batch((write(f"run/{n}", None),), {"run/a": head.version})).wait()
        assert isinstance(guarded, Stored)
    whole(store, "run/a", pruned=4)
    other.close()


def test_tidying_up_takes_old_stones_and_what_guards_left(store: NatsStore, url: str, namespace: str) -> None:
    for entity in ("run/a", "run/b"):
        stored(store.append(Batch((write(entity, None),), {"switch/off": 0})).wait())  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        dying(patch, "clear", 1)
        store.drop({"run/a": 1})
    store.tidy()
    left = subjects(url, namespace)
    assert sorted(left.values()) == [1, 1], left
    assert f"{namespace}.g" not in left
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prune, "STONES_S", -1.0)
        store.tidy()
    assert list(subjects(url, namespace).values()) == [1]
    assert store.house().tidy() == ""
    stored(put(store, write("run/a", None)))


def test_a_drop_whose_answer_was_lost_counts_and_one_of_another_does_not(
    store: NatsStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(put(store, write("run/a", None)))
    original = prune.publish
    lost: list[bool] = []

    async def lose(*args: Any) -> Any:
        answer = await original(*args)
        if not lost:
            lost.append(True)
            raise connection.Unanswered("lost")
        return answer

    monkeypatch.setattr(prune, "publish", lose)
    assert store.drop({"run/a": 1}) == 1
    assert store.drop({"run/a": 1}) == 0
    assert lost


# Lists, time


def test_a_list_goes_on_when_the_server_forgot_who_reads(store: NatsStore, url: str, namespace: str) -> None:
    stored(put(store, write("run/a", None)))
    assert len(list(store.heads(Query("run")))) == 1
    consumer = store._projection._consumer
    assert api(url, f"CONSUMER.DELETE.{namespace}_LOG.{consumer}")["success"]
    stored(put(store, write("run/b", None)))
    assert len(list(store.heads(Query("run")))) == 2
    assert store._projection._consumer != consumer
    store._projection._number += 5  # as if messages had been lost on the way
    stored(put(store, write("run/c", None)))
    assert len(list(store.heads(Query("run")))) == 3
    stored(put(store, write("run/d", None)))
    reader = f"{namespace}_LOG.{store._projection._consumer}"
    stolen = store._line.do(lambda: store._line.fetch(*reader.split(".")))
    assert [given.message.subject for given in stolen] == [store._log.where.entity("run/d")]
    began = time.monotonic()
    assert len(list(store.heads(Query("run")))) == 4, "what was given to nobody is had from another reader"
    assert time.monotonic() - began < 5


def test_a_list_that_nobody_asked_for_long_is_made_anew(
    store: NatsStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = NatsStore(url)
    for entity in ("run/a", "run/b"):
        stored(put(store, write(entity, None)))
    assert len(list(other.heads(Query("run")))) == 2
    store.drop({"run/a": 1})
    monkeypatch.setattr(prune, "STONES_S", -1.0)
    store.tidy()  # no trace is left
    monkeypatch.setattr(queries, "STALE_S", -1.0)
    assert [head.entity for head in other.heads(Query("run"))] == ["run/b"]
    other.close()


def test_the_time_is_the_servers_and_moves_on_when_that_goes_back(
    store: NatsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time()
    monkeypatch.setattr(time, "time", lambda: 12345.0)
    first = store.now()
    assert abs(first - real) < 10
    asked, then = store._log.clock
    store._log.clock = (asked, then - 1000.0)  # another leads now, whose clock is behind
    second = store.now()
    time.sleep(0.02)
    assert first <= second < store.now()


def test_a_message_that_is_not_ours_is_said_to_be_so(store: NatsStore, url: str, namespace: str) -> None:
    stored(put(store, write("run/a", None)))

    async def intrude() -> None:
        connection = await client.connect(url.rpartition("/")[0])
        await connection.jetstream().publish(store._log.where.entity("run/a"), b"hello")
        await connection.close()

    asyncio.run(intrude())
    with pytest.raises(StoreError, match="is not one of ours"):
        store.head("run/a")


@pytest.mark.parametrize(
    "reply", ["$JS.ACK.S.C.1.42.7.1500000000.3", "$JS.ACK.hub.HASH.S.C.1.42.7.1500000000.3.random"]
)
def test_what_a_consumer_says_is_read_in_both_of_its_forms(reply: str) -> None:
    found = connection.given("s", reply, {}, b"")
    assert (found.message.seq, found.number, found.stored, found.left) == (42, 7, 1.5, 3)


def test_those_who_rely_on_the_same_go_together_and_one_that_is_stale_hurts_nobody_else(
    store: NatsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    original = batching.Crowd._heard

    def heard(self: batching.Crowd, group: Any, message: Any, why: str) -> None:
        sizes.append(len(group))
        original(self, group, message, why)

    monkeypatch.setattr(batching.Crowd, "_heard", heard)
    stored(put(store, write("switch/s", None)))
    stored(put(store, write("run/7", None)))
    store._log.forget()
    assert store.head("switch/s") is not None

    async def all_of(first: int, version: int) -> list[Any]:
        batches = [
            Batch((write(f"run/{n}", None, b"%d" % n), write(f"event/{n}", None)), {"switch/s": version})
            for n in range(first, first + 20)
        ]
        return await asyncio.gather(*[_awaited(store, store.append(batch)) for batch in batches])

    answers = asyncio.run(all_of(0, 1))
    assert [n for n, answer in enumerate(answers) if not isinstance(answer, Stored)] == [7]
    assert answers[7] == Conflict("run/7", store.head("run/7"))
    assert store.head("event/7") is None
    assert max(sizes) > 10
    for n, answer in enumerate(answers):
        if n != 7:
            assert answer.seqs == (whole(store, f"run/{n}")[0].seq, whole(store, f"event/{n}")[0].seq)
    stored(put(store, write("switch/s", store.head("switch/s"))))
    refused = asyncio.run(all_of(100, 1))
    assert refused == [Conflict("switch/s", store.head("switch/s"))] * 20
    assert store.head("run/100") is None


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
def test_header_lines_are_read_as_the_client_reads_them(raw: bytes) -> None:
    assert connection.fields(raw) == client.NATS._parse_header_lines(raw)
    assert connection._headers(b"NATS/1.0\r\n" + raw) == connection.fields(raw)
