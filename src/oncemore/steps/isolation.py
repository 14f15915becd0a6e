"""Work in a process of its own: one that can really be stopped, whatever it does.

Each attempt gets a fresh process. It is told where to find the function (module and name: nothing of ours is
shipped there but arguments), calls it, and sends back its value or its error over a pipe. At its limit it is
killed. If the caller's process dies, the pipe closes and the child ends itself at once, so that nothing goes
on behind the back of whoever takes over.

The transport between the two is `multiprocessing`'s, which pickles; nothing of it is stored.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore.artifacts.store import make_child_writer
from oncemore.errors import UsageError
from oncemore.log.tagged_json import untag_value
from oncemore.retries.deadlines import timeout_error
from oncemore.steps.engine import Engine
from oncemore.steps.entered_engine import current_engine, enter_engine

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from oncemore.artifacts.store import ChildArtifactWriter
    from oncemore.log.record import LoadedHead
    from oncemore.retries.loop import CallFunction
    from oncemore.steps.attempt import RunningAttempt
    from oncemore.steps.call import PreparedCall

GRACE_S = 5.0
MOST_TEXT = 2000


class ProcessDied(ConnectionError):
    """The process that an attempt ran in ended without an answer; the message has its exit code."""


class RemoteError(Exception):
    """An error from the other process that could not be brought over; the message says what it was."""


class UnsentValue:
    """Stands for a value that could not be brought over: the work is done, and its value is lost."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"<a value that could not leave its process: {self.text}>"


def run_in_process(call: PreparedCall, attempt: RunningAttempt, invoke: CallFunction) -> Any:
    """Run the function of a step in a process of its own, and kill that process at its limit."""
    import multiprocessing

    where = address_of(call.plan.name, call.plan.function)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    told = {"seen": attempt.head, "ends_in": invoke.limit_s, "resume": attempt.resume()}
    told["files"] = make_child_writer(call)
    told["engine"] = _surroundings()
    process = context.Process(
        target=_run_child, args=(theirs, where, call.args, call.kwargs, told), daemon=True
    )
    process.start()
    theirs.close()
    try:
        return _serve_child(ours, attempt, invoke, process)
    finally:
        _kill_process_group(process.pid)
        process.join(GRACE_S)
        ours.close()


def _surroundings() -> bytes | str:
    """Return what opens the engine that steps called by the work use; or why the child cannot open it.

    It is empty where they use the engine of the settings, which are the same in the child.
    """
    try:
        engine = current_engine()
        return b"" if engine is None else pickle.dumps(_reopening(engine))
    except UsageError as refused:
        return str(refused)
    except Exception as fault:  # noqa: BLE001 - whatever a codec or a sink does when it is pickled
        return f"the engine of the surroundings cannot be sent to a process of its own: {fault}"


def _reopening(engine: Engine) -> Callable[[], Engine]:
    if engine.reopen is None:
        raise UsageError(
            f"{engine.url} cannot be opened in the process of an isolated attempt; call its inner steps "
            "without isolate='process', or use a SQLite file or a server"
        )
    return engine.reopen


def _enter(surroundings: bytes | str) -> None:
    """Have steps that the work calls use the engine of the parent's surroundings, or refuse them."""

    def refuse() -> Any:
        raise UsageError(str(surroundings))

    if isinstance(surroundings, str):
        enter_engine(Engine(refuse, "memory:"))
    elif surroundings:
        enter_engine(pickle.loads(surroundings)())  # noqa: S301 - from our own parent


def _kill_process_group(pid: int | None) -> None:
    """Kill the child and whatever it has started; it leads a group of its own."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid or 0, signal.SIGKILL) if pid else None
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL) if pid else None


def address_of(name: str, work: Any) -> tuple[str, str]:
    """Return the module and the name by which another process finds a function; or refuse it."""
    module, own = getattr(work, "__module__", None), getattr(work, "__qualname__", "")
    if not module or not own or "<" in own:
        raise UsageError(
            f"{name} cannot be found from another process; isolate='process' needs a function of a module"
        )
    return module, own


def check_importable(name: str, work: Any) -> None:
    """Refuse a function that another process would not find under its module and name."""
    where = address_of(name, work)
    main = sys.modules["__main__"]
    no_file = where[0] == "__main__" and not getattr(main, "__file__", None)
    try:
        found = None if no_file else _import_function(*where)
    except (ImportError, AttributeError):
        found = None
    if found is not work:
        raise UsageError(
            f"{name} cannot run with isolate='process': another process does not find it as "
            f"{where[0]}.{where[1]}; define it under its own name at the top of a module that can be imported"
        )


def _serve_child(ours: Connection, attempt: RunningAttempt, invoke: CallFunction, process: Any) -> Any:
    """Answer what the child asks for, until it sends its end, dies or takes too long."""
    while True:
        try:
            what, value = _receive_message(ours, attempt, invoke), _receive_message(ours, attempt, invoke)
        except (EOFError, ConnectionResetError):
            process.join(GRACE_S)
            raise ProcessDied(
                f"{attempt.step}: the process of attempt {attempt.number} ended without an answer "
                f"(exit code {process.exitcode})"
            ) from None
        if what == "value":
            return value
        if what == "error":
            raise value if isinstance(value, BaseException) else RemoteError(value.text)
        if what == "events":
            attempt.adopt_outputs(value)
        else:
            assert what == "checkpoint"
            ours.send(_save_checkpoint(attempt, value))


def _receive_message(ours: Connection, attempt: RunningAttempt, invoke: CallFunction) -> Any:
    """Return what the child sent; what cannot be read here is said in words."""
    if not ours.poll(attempt.remaining()):
        raise timeout_error(attempt.step, invoke)
    sent = ours.recv_bytes()
    try:
        return pickle.loads(sent)  # noqa: S301 - from our own child, by a pipe that nobody else has
    except Exception as fault:  # noqa: BLE001 - whatever a class does when it is made anew
        return UnsentValue(f"{type(fault).__name__}: {fault}"[:MOST_TEXT])


def _save_checkpoint(attempt: RunningAttempt, plain: Any) -> BaseException | None:
    try:
        attempt.save_checkpoint(plain)
    except Exception as error:  # noqa: BLE001 - the child raises it where the work is
        return _make_portable(error)  # one that the child could not read would leave it waiting
    return None


def _run_child(
    pipe: Connection, where: tuple[str, str], args: Any, kwargs: Any, told: dict[str, Any]
) -> None:
    """Be the process of one attempt."""
    os.setsid()
    if pipe.poll(0):
        os._exit(1)  # nothing is sent before the work asks for it: this is the end of whoever called
    answers = _ParentReplies(pipe)
    threading.Thread(target=answers.read_replies, daemon=True).start()
    try:
        value, events = _call_function(answers, where, args, kwargs, told)
    except BaseException as error:  # noqa: BLE001 - it is raised again in the process that called
        _send_message(pipe, "error", _make_portable(error))
    else:
        _send_message(pipe, "events", events)
        _send_message(pipe, "value", value)
    os._exit(0)  # nothing of the parent's that was copied here is closed or flushed


class _ParentReplies:
    """What the parent sends; when it is gone, so are we."""

    def __init__(self, pipe: Connection) -> None:
        from queue import SimpleQueue

        self.pipe = pipe
        self.arrived: Any = SimpleQueue()

    def read_replies(self) -> None:
        """Take what comes; the pipe's end is the end of this process."""
        try:
            while True:
                self.arrived.put(self.pipe.recv())
        except (EOFError, OSError):
            os.killpg(0, signal.SIGKILL)  # with whatever the work has started


def _call_function(
    answers: _ParentReplies, where: tuple[str, str], args: Any, kwargs: Any, told: dict[str, Any]
) -> Any:
    from oncemore.artifacts.artifact import CURRENT_READER
    from oncemore.retries.loop import ENDS
    from oncemore.steps.attempt import CURRENT, RunningAttempt

    attempt = RunningAttempt(told["seen"], ChildStorage(told["files"], answers, told["resume"]))
    CURRENT_READER.set(told["files"].artifact_store)
    CURRENT.set(attempt)
    _enter(told["engine"])
    if told["ends_in"] is not None:
        ENDS.set(clocks.current.monotonic() + told["ends_in"])
    value = _import_function(*where)(*args, **kwargs)
    return value, attempt.collect_outputs()


class ChildStorage:
    """Stores what an attempt in a child process produces: artifacts here, checkpoints through the parent."""

    def __init__(self, writer: ChildArtifactWriter, answers: _ParentReplies, checkpoint: Any) -> None:
        self._writer, self._answers, self._checkpoint = writer, answers, checkpoint
        self.artifact_name = writer.artifact_name
        self.put_artifact, self.leave_evidence = writer.put_artifact, writer.leave_evidence
        self.find_recorded_artifact = writer.find_recorded_artifact

    def now(self) -> float:
        """Return the time of this machine; the child process has no store."""
        return clocks.current.wall()

    def save_checkpoint(self, attempt: RunningAttempt, plain: Any) -> None:
        """Send a checkpoint to the parent process, which appends it; raise its error here."""
        _send_message(self._answers.pipe, "checkpoint", plain)
        refused = self._answers.arrived.get()
        if refused is not None:
            raise refused
        self._checkpoint = untag_value(plain)
        attempt.head = attempt.head._replace(record=attempt.head.record._replace(checkpoint_version=1))

    def load_checkpoint(self, head: LoadedHead) -> Any:
        """Return the last checkpoint of the run."""
        return self._checkpoint

    def begin_transaction(self, attempt: RunningAttempt, connection: Any) -> Any:
        """Refuse: `isolate` and transactional effects exclude each other (`steps.options`)."""
        raise AssertionError("a transactional step runs in the process of its caller")  # pragma: no cover

    def check_supports_on_commit(self, step: str) -> None:
        """Refuse, for the same reason."""
        raise AssertionError("a transactional step runs in the process of its caller")  # pragma: no cover


def _import_function(module: str, name: str) -> Any:
    """Return the function behind a step, found by its module and name."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return getattr(found, "__wrapped__", found)


def _send_message(pipe: Connection, what: str, value: Any) -> None:
    """Send what it is, then the thing itself; what cannot be sent is said in words."""
    pipe.send(what)
    try:
        pipe.send(value)
    except Exception as fault:  # noqa: BLE001 - whatever a value does when it is written
        pipe.send(UnsentValue(f"a {type(value).__name__}: {fault}"[:MOST_TEXT]))


def _make_portable(error: BaseException) -> BaseException:
    """Return an error that can be raised elsewhere: itself, or what it was in words."""
    try:
        same = type(pickle.loads(pickle.dumps(error))) is type(error)  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - many errors cannot be made anew from what they keep
        same = False
    return error if same else RemoteError(f"{type(error).__name__}: {_describe_error(error)}"[:MOST_TEXT])


def _describe_error(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an error that cannot even be shown is still an error
        return "it cannot be shown"
