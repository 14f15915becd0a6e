"""Both halves of an attempt in a process of its own, part by part.

The half that is the child ends by being killed. To see it at work it is run here in a thread, over a real
pipe, with only what would end or move this process replaced; a few tests start real processes.
"""

from __future__ import annotations

import contextvars
import multiprocessing
import os
import pickle
import selectors
import signal
import subprocess
import threading
import time
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.artifacts.artifact import CURRENT_READER
from oncemore.artifacts.backends import FolderBackend
from oncemore.artifacts.store import ArtifactStore, ChildArtifactWriter
from oncemore.log.record import ArtifactRecord, EventRecord, LoadedHead, RunRecord
from oncemore.retries.loop import ENDS, CallFunction
from oncemore.steps import isolation
from oncemore.steps.attempt import RunningAttempt
from oncemore.steps.entered_engine import current_engine
from oncemore.steps.isolation import ProcessDied, RemoteError, UnsentValue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

STATE = RunRecord(
    state="RUNNING",
    step="work",
    run_id="r-1",
    run_number=1,
    fence=4,
    attempt=3,
    tenant="t",
    correlation_id="c",
)
NO_FILES = ChildArtifactWriter(None, "")
SOON_S = 20.0


# What the other process is told to run, and what it raises -------------------------------------------


class Picky(Exception):
    """Can be written, and not read again."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


class Locked(Exception):
    """Cannot be written."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


class Mute(Exception):
    """Can neither be written nor shown."""

    def __reduce__(self) -> Any:
        raise TypeError("no")

    def __str__(self) -> str:
        raise TypeError("no")


class Other(Exception):
    """Is something else when it was read again."""

    def __reduce__(self) -> Any:
        return ValueError, ("less",)


def explode() -> None:
    raise LookupError("not to be made anew " + "x" * 9999)


class Bomb:
    """Can be written, and raises when it is read."""

    def __reduce__(self) -> Any:
        return explode, ()


class Wide:
    """Cannot be written, and says so at length."""

    def __reduce__(self) -> Any:
        raise TypeError("y" * 9999)


def add(one: int, two: int = 0) -> int:
    return one + two


def told() -> dict[str, Any]:
    me = oncemore.current()
    return {"number": me.number, "fence": me.fence, "key": me.key, "step": me.step, "left": me.remaining()}


def raises(error: BaseException | Callable[[], BaseException]) -> None:
    raise error if isinstance(error, BaseException) else error()


def returns(make: Callable[[], Any]) -> Any:
    return make()


def keeps(*values: Any) -> list[Any]:
    """Checkpoint each value; return what could be resumed before, and after each."""
    me = oncemore.current()
    found = [me.resume("nothing")]
    for value in values:
        me.checkpoint(value)
        found.append(me.resume("nothing"))
    return found


def goes_on_when_refused() -> str:
    try:
        oncemore.current().checkpoint(1)
    except oncemore.LeaseLost as refused:
        return f"{refused}; {oncemore.current().resume('nothing')}"
    return "kept"


def gives(content: bytes) -> str:
    me = oncemore.current()
    me.emit("seen", {"tuple": (1, 2)})
    artifact = me.put(content, name="left")
    assert CURRENT_READER.get() is not None
    assert artifact.read() == content
    return artifact.digest


@oncemore.step(effect="idempotent", name="test-isolate-decorated")
def decorated(x: int) -> int:
    return x * 10


class Around:
    @staticmethod
    def inner(x: int) -> int:
        return -x


def starts_a_program(fifo: str) -> int:
    """Start a program that holds a pipe open as long as it runs."""
    with open(fifo, "wb") as out:  # noqa: PTH123
        subprocess.Popen(["sleep", "600"], stdout=out)  # returned from at once: it is left running
    return os.getpid()


def starts_a_program_and_waits(fifo: str) -> None:
    starts_a_program(fifo)
    oncemore.current().checkpoint("begun")
    time.sleep(600)


def sleeps() -> None:
    time.sleep(600)


def touches(folder: Path) -> None:
    (folder / "begun").touch()


def publishes() -> None:
    oncemore.set_value("stage", 1)


# Tools -----------------------------------------------------------------------------------------------


def seen(checkpoint: int = 0) -> LoadedHead:
    return LoadedHead("run/" + "ab" * 32, 7, b"", STATE._replace(checkpoint_version=checkpoint))


def parent(keep: Callable[[RunningAttempt, Any], Any] | None = None, **more: Any) -> RunningAttempt:
    """Return the attempt as the process that called has it."""
    backend: Any = SimpleNamespace(
        now=lambda: 5.0,
        save_checkpoint=keep,
        find_recorded_artifact=lambda record: None,
        artifact_name="",
        load_recorded_inputs=lambda head: {},
    )
    return RunningAttempt(seen(), backend, **more)


def where(work: Any) -> tuple[str, str]:
    return isolation.address_of("work", work)


def letter(**more: Any) -> dict[str, Any]:
    return {
        "head": seen(),
        "limit_s": None,
        "checkpoint": None,
        "writer": NO_FILES,
        "engine": b"",
        "inputs": {},
        **more,
    }


def uses_and_reports(content: bytes) -> int:
    attempt = oncemore.current()
    attempt.use(content, name="in")
    attempt.add_usage(energy_kwh=0.5)
    return len(content)


def job(work: Any, *args: Any, **kwargs: Any) -> Any:
    engine = SimpleNamespace(artifact_store=ArtifactStore(None))
    plan = SimpleNamespace(name="work", function=work, artifact="")
    return SimpleNamespace(plan=plan, args=args, kwargs=kwargs, engine=engine)


def no_process() -> Any:
    return SimpleNamespace(join=lambda within: None, exitcode=None)


class Ended(BaseException):
    """Where the process would have ended."""


class Child:
    """The child's half in a thread; its pipe's other end is `ours`."""

    def __init__(self) -> None:
        self.ours, self.theirs = multiprocessing.Pipe()
        self.sessions = 0
        self.exits: list[int] = []
        self.killed: list[tuple[int, int]] = []

    def setsid(self) -> None:
        self.sessions += 1

    def exit(self, code: int) -> None:
        self.exits.append(code)
        raise Ended

    def killpg(self, group: int, sent: int) -> None:
        self.killed.append((group, sent))

    def be(self, work: Any, *args: Any, **more: Any) -> None:
        try:
            isolation._run_child(self.theirs, where(work), args, {}, letter(**more))
        except Ended:
            self.theirs.close()

    def serve(self, attempt: RunningAttempt, work: Any, *args: Any, **more: Any) -> Any:
        """Run both halves to their end."""
        half = threading.Thread(target=partial(self.be, work, *args, **more), daemon=True)
        half.start()
        try:
            return isolation._serve_child(self.ours, attempt, CallFunction(3, SOON_S), no_process())
        finally:
            half.join(SOON_S)


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    """A child in a thread. Its listener must have ended before a closed pipe is again what kills."""
    before, it = set(threading.enumerate()), Child()
    monkeypatch.setattr(os, "setsid", it.setsid)
    monkeypatch.setattr(os, "_exit", it.exit)
    monkeypatch.setattr(os, "killpg", it.killpg)
    yield it
    it.ours.close()
    started = [thread for thread in threading.enumerate() if thread not in before]
    for thread in started:
        thread.join(SOON_S)
    assert not any(thread.is_alive() for thread in started)
    it.theirs.close()


@pytest.fixture
def pipe() -> Iterator[tuple[Connection, Connection]]:
    ours, theirs = multiprocessing.Pipe()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def limit() -> Iterator[Callable[[float], None]]:
    """Set the time that is left to the attempt around this test."""
    before = ENDS.set(None)
    yield lambda seconds: ENDS.set(time.monotonic() + seconds) and None
    ENDS.reset(before)


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A named pipe and its reading end: that is at its end when nobody holds the other one any more."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield str(path), reading
    os.close(reading)


def at_its_end(reading: int) -> bool:
    # Not select(), which refuses a descriptor above 1023: the process of many tests may have that many.
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        return bool(selector.select(SOON_S)) and os.read(reading, 1) == b""


# Where the work is found -----------------------------------------------------------------------------


def test_work_is_found_by_module_and_name_without_what_was_put_around_it() -> None:
    assert where(add) == (__name__, "add")
    assert where(Around.inner) == (__name__, "Around.inner")
    assert isolation._import_function(*where(add)) is add
    assert isolation._import_function(*where(Around.inner))(5) == -5
    assert isolation._import_function(__name__, "decorated") is not decorated
    assert (
        isolation._import_function(__name__, "decorated")(4) == 40
    )  # outside of any engine: it is the work itself


@pytest.mark.parametrize("work", [lambda: 1, SimpleNamespace(__module__=None)], ids=["lambda", "no module"])
def test_work_that_another_process_cannot_find_is_refused_before_anything_is_started(work: Any) -> None:
    with pytest.raises(oncemore.UsageError, match="work cannot be found from another process"):
        isolation.run_in_process(job(work), parent(), CallFunction(3, SOON_S))


def test_work_that_is_not_where_it_was_said_to_be_is_an_error_of_the_attempt(child: Child) -> None:
    moved = SimpleNamespace(__module__=__name__, __qualname__="was_here_yesterday")
    with pytest.raises(AttributeError, match="was_here_yesterday"):
        child.serve(parent(), moved)


# The child's half, over a pipe -----------------------------------------------------------------------


def test_a_value_comes_over_and_the_child_leads_a_session_and_ends_by_itself(child: Child) -> None:
    assert child.serve(parent(), add, 3) == 3
    assert (child.sessions, child.exits) == (1, [0])


def test_the_work_sees_its_attempt_as_the_log_has_it_and_the_time_it_has_left(child: Child) -> None:
    found = child.serve(parent(), told, limit_s=50.0)
    assert 0 < found.pop("left") <= 50
    assert found == {"number": 3, "fence": 4, "key": "ab" * 32, "step": "work"}


def test_without_a_limit_the_work_has_all_the_time(child: Child) -> None:
    assert child.serve(parent(), told)["left"] is None


def test_work_in_a_process_of_its_own_publishes_no_values(child: Child) -> None:
    with pytest.raises(oncemore.UsageError, match="publishes no values"):
        child.serve(parent(), publishes)


def test_a_child_whose_caller_is_gone_before_it_began_does_not_begin(child: Child, tmp_path: Path) -> None:
    child.ours.close()
    child.be(touches, tmp_path)
    assert child.exits == [1]
    assert not (tmp_path / "begun").exists()


def test_checkpoints_are_kept_by_the_caller_in_their_tagged_form_and_can_be_resumed(child: Child) -> None:
    kept: list[Any] = []
    attempt = parent(lambda me, plain: kept.append(plain))
    assert child.serve(attempt, keeps, 1, (2, 3)) == ["nothing", 1, (2, 3)]
    assert kept[0] == 1
    assert kept[1] != (2, 3)  # a tuple has no form of its own in the log: it is tagged


def test_the_checkpoint_of_an_earlier_attempt_is_resumed_from(child: Child) -> None:
    assert child.serve(parent(), keeps, head=seen(checkpoint=5), checkpoint={"half": 1}) == [{"half": 1}]


def test_a_checkpoint_that_the_caller_refuses_raises_where_the_work_is(child: Child) -> None:
    def refuse(me: RunningAttempt, plain: Any) -> None:
        raise oncemore.LeaseLost("somebody else has it")

    assert child.serve(parent(refuse), goes_on_when_refused) == "somebody else has it; nothing"


def test_a_checkpoint_of_an_attempt_that_is_over_ends_the_work(child: Child) -> None:
    kept: list[Any] = []
    attempt = parent(lambda me, plain: kept.append(plain))
    attempt.over = True
    with pytest.raises(oncemore.LeaseLost, match="attempt 3 is over, it cannot checkpoint"):
        child.serve(attempt, keeps, 1)
    assert kept == []


@pytest.mark.parametrize(
    ("error", "text"),
    [(Picky("one", "two"), "Picky: one and two"), (Locked(), "Locked: locked")],
    ids=["picky", "locked"],
)
def test_a_refusal_that_cannot_be_brought_over_is_said_in_words(
    child: Child, error: Exception, text: str, limit: Callable[[float], None]
) -> None:
    """Else the child would wait for an answer that never comes."""
    limit(SOON_S / 4)
    with pytest.raises(RemoteError, match=text):
        child.serve(parent(partial(_refuse, error)), keeps, 1)


def _refuse(error: Exception, me: RunningAttempt, plain: Any) -> None:
    raise error


def test_events_and_artifacts_come_over_with_the_value(child: Child, tmp_path: Path) -> None:
    attempt = parent()
    digest = child.serve(
        attempt, gives, b"content", writer=ChildArtifactWriter(FolderBackend(tmp_path / "place"), "")
    )
    (event, payload), (kept, nothing) = attempt.collect_outputs()
    assert type(event) is EventRecord
    assert (event.topic, event.run_entity, event.ordinal) == ("seen", seen().entity, 0)
    assert payload["tuple"] != (1, 2)
    assert type(kept) is ArtifactRecord
    assert (kept.name, kept.digest, kept.size, nothing) == ("left", digest, 7, None)


def test_what_a_failed_attempt_gave_away_does_not_come_over(child: Child) -> None:
    attempt = parent()
    with pytest.raises(oncemore.UsageError, match="no folder for artifacts"):
        child.serve(attempt, gives, b"content")
    assert attempt.collect_outputs() == ()


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("as it is"), ValueError, "as it is"),
        (SystemExit(3), SystemExit, "3"),
        (Picky("one", "two"), RemoteError, "Picky: one and two"),
        (Locked(), RemoteError, "Locked: locked"),
        (Mute(), RemoteError, "Mute: it cannot be shown"),
        (Other("more"), RemoteError, "Other: more"),
        (Picky("z" * 9999, ""), RemoteError, ("Picky: " + "z" * 9999)[: isolation.MOST_TEXT]),
    ],
    ids=["plain", "exit", "picky", "locked", "mute", "other", "long"],
)
def test_errors_come_over_as_they_are_or_say_what_they_were(
    child: Child, error: BaseException, kind: type[BaseException], text: str
) -> None:
    with pytest.raises(kind) as caught:
        child.serve(parent(), raises, error)
    assert (type(caught.value), str(caught.value)) == (kind, text)
    assert child.exits == [0]


def test_a_value_that_cannot_be_written_is_said_in_words_and_not_an_error(child: Child) -> None:
    value = child.serve(parent(), returns, threading.Lock)
    assert type(value) is UnsentValue
    assert repr(value) == f"<a value that could not leave its process: {value.text}>"
    assert value.text.startswith("a lock: cannot pickle")


def test_a_value_that_cannot_be_read_again_is_said_in_words_and_not_an_error(child: Child) -> None:
    value = child.serve(parent(), returns, Bomb)
    assert type(value) is UnsentValue
    assert value.text.startswith("LookupError: not to be made anew")
    assert len(value.text) == isolation.MOST_TEXT


def test_what_is_said_of_a_value_is_bounded(pipe: tuple[Connection, Connection]) -> None:
    ours, theirs = pipe
    isolation._send_message(theirs, "value", Wide())
    assert ours.recv() == "value"
    assert ours.recv().text == ("a Wide: " + "y" * 9999)[: isolation.MOST_TEXT]


def test_answers_arrive_in_order_and_the_end_of_the_pipe_is_the_end_of_the_group(child: Child) -> None:
    answers = isolation._ParentReplies(child.theirs)
    child.ours.send(None)
    child.ours.send("second")
    child.ours.close()
    answers.read_replies()
    assert [answers.queue.get_nowait() for _ in range(2)] == [None, "second"]
    assert answers.queue.empty()
    assert child.killed == [(0, signal.SIGKILL)]


def test_a_pipe_that_breaks_is_the_end_of_the_group_too(child: Child) -> None:
    child.theirs.close()
    isolation._ParentReplies(child.theirs).read_replies()  # OSError: handle is closed
    assert child.killed == [(0, signal.SIGKILL)]


# The caller's half -----------------------------------------------------------------------------------


@pytest.mark.parametrize("unread", [False, True], ids=["closed", "reset"])
def test_a_pipe_that_ends_without_an_answer_tells_how_the_process_ended(
    pipe: tuple[Connection, Connection], unread: bool
) -> None:
    ours, theirs = pipe
    joined: list[float] = []
    process = SimpleNamespace(join=joined.append, exitcode=-11)
    if unread:
        ours.send("never read")
    theirs.close()
    text = r"work: the process of attempt 3 ended without an answer \(exit code -11\)"
    with pytest.raises(ProcessDied, match=text) as caught:
        isolation._serve_child(ours, parent(), CallFunction(3, SOON_S), process)
    assert joined == [isolation.GRACE_S]
    assert isinstance(caught.value, ConnectionError)  # which policies take for transient
    assert caught.value.__suppress_context__


def test_an_answer_that_is_cut_off_in_the_middle_is_none(pipe: tuple[Connection, Connection]) -> None:
    ours, theirs = pipe
    theirs.send("value")
    theirs.close()
    with pytest.raises(ProcessDied):
        isolation._serve_child(ours, parent(), CallFunction(3, SOON_S), no_process())


@pytest.mark.parametrize(
    ("whole", "kind"), [(False, oncemore.AttemptTimeout), (True, oncemore.DeadlineExceeded)]
)
def test_silence_beyond_the_limit_is_a_timeout(
    pipe: tuple[Connection, Connection], limit: Callable[[float], None], whole: bool, kind: type[Exception]
) -> None:
    limit(0.05)
    with pytest.raises(kind, match=r"work: attempt 3 was cut off after 0\.05 s") as caught:
        isolation._serve_child(pipe[0], parent(), CallFunction(3, 0.05, whole), no_process())
    assert type(caught.value) is kind


def test_an_error_that_cannot_be_read_here_is_said_in_words(pipe: tuple[Connection, Connection]) -> None:
    """One that the child could read again, and this process cannot."""
    ours, theirs = pipe
    theirs.send("error")
    theirs.send_bytes(pickle.dumps(Picky("one", "two")))
    with pytest.raises(RemoteError, match=r"TypeError: .*missing 1 required positional argument"):
        isolation._serve_child(ours, parent(), CallFunction(3, SOON_S), no_process())


def test_killing_ends_the_process_and_whatever_it_has_started() -> None:
    script = "sleep 600 & echo begun; wait"
    with subprocess.Popen(["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        isolation._kill_process_group(process.pid)
        assert process.stdout.read() == b""  # at its end only when the program has ended too
        assert process.wait(SOON_S) == -signal.SIGKILL


@pytest.mark.parametrize("error", [ProcessLookupError, PermissionError])
def test_killing_one_that_is_gone_or_was_never_there_is_nothing(
    monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    asked: list[tuple[str, int, int]] = []

    def refuse(what: str, pid: int, sent: int) -> None:
        asked.append((what, pid, sent))
        raise error

    monkeypatch.setattr(os, "kill", partial(refuse, "process"))
    monkeypatch.setattr(os, "killpg", partial(refuse, "group"))
    isolation._kill_process_group(None)
    assert asked == []  # least of all this process's own group, which 0 would mean
    isolation._kill_process_group(12345)
    assert asked == [("process", 12345, signal.SIGKILL), ("group", 12345, signal.SIGKILL)]


# With real processes ---------------------------------------------------------------------------------


def test_nothing_of_an_attempt_is_left_when_it_has_returned(fifo: tuple[str, int]) -> None:
    path, reading = fifo
    pid = isolation.run_in_process(job(starts_a_program, path), parent(), CallFunction(3, SOON_S))
    assert pid != os.getpid()
    assert at_its_end(reading), "the program goes on"


def test_a_process_is_killed_at_its_limit(limit: Callable[[float], None]) -> None:
    limit(0.2)
    began = time.monotonic()
    with pytest.raises(oncemore.AttemptTimeout):
        isolation.run_in_process(job(sleeps), parent(), CallFunction(3, 0.2))
    assert time.monotonic() - began < SOON_S
    assert multiprocessing.active_children() == []


def test_a_process_whose_caller_is_gone_ends_with_all_its_programs(fifo: tuple[str, int]) -> None:
    path, reading = fifo
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    args = (theirs, where(starts_a_program_and_waits), (path,), {}, letter())
    process = context.Process(target=isolation._run_child, args=args, daemon=True)
    process.start()
    theirs.close()
    assert ours.poll(SOON_S)
    assert [ours.recv(), ours.recv()] == ["checkpoint", "begun"]
    ours.send(None)
    with pytest.raises(BlockingIOError):  # the program runs
        os.read(reading, 1)
    ours.close()
    process.join(SOON_S)
    assert process.exitcode == -signal.SIGKILL
    assert at_its_end(reading), "the program goes on"
    process.close()


# The engine of the surroundings ---------------------------------------------------------------------


@pytest.mark.parametrize("reachable", [True, False])
def test_the_child_enters_the_engine_of_its_surroundings_or_refuses_its_steps(
    reachable: bool, tmp_path: Path
) -> None:
    opens = partial(oncemore.open, tmp_path / "log.db")

    def child() -> None:
        isolation._enter_engine(pickle.dumps(opens) if reachable else "it cannot be reached")
        engine = current_engine()
        assert engine is not None
        try:
            if reachable:
                assert engine.url.endswith("/log.db")
            else:
                with pytest.raises(oncemore.UsageError, match="it cannot be reached"):
                    assert engine.store
        finally:
            engine.__exit__(None, None, None)

    contextvars.Context().run(child)
    assert current_engine() is None


def test_inputs_and_usage_of_a_child_reach_its_parent(child: Child) -> None:
    attempt = parent()
    assert child.serve(attempt, uses_and_reports, b"abc") == 3
    assert [edge["name"] for edge in attempt.used] == ["in"]
    assert attempt.reported is not None
    assert attempt.reported.kwh == 0.5
