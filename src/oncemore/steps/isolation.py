"""Run an attempt in a child process: it can be killed at its limit even if its code never returns.

Each attempt gets a fresh process. The child imports the function by its module and name, calls it with the
arguments that the parent sent, and sends its value or its error back over a pipe. At its limit it is killed.
If the parent dies, the pipe closes and the child kills its own process group: a worker that takes the run
over must not meet an attempt that still runs.

Both processes pickle their messages (`multiprocessing`); nothing of that is stored.
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
from oncemore.telemetry.meter import read_ended_child

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from oncemore.artifacts.store import ChildArtifactWriter
    from oncemore.log.record import LoadedHead
    from oncemore.retries.loop import CallFunction
    from oncemore.steps.attempt import RunningAttempt
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.inputs import RecordedDigests

#: How long the parent waits for a child that was killed or has closed its pipe.
GRACE_S = 5.0
#: The longest text, in characters, that replaces a value or an error that cannot be pickled.
MOST_TEXT = 2000


class ProcessDied(ConnectionError):
    """The process that an attempt ran in ended without an answer; the message has its exit code."""


class RemoteError(Exception):
    """Stands for an error of the child that cannot be pickled; the message has its type and text."""


class UnsentValue:
    """Stands for a value that cannot be pickled: the work is done, and its value is lost."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"<a value that could not leave its process: {self.text}>"


def run_in_process(call: PreparedCall, attempt: RunningAttempt, invoke: CallFunction) -> Any:
    """Run the function of a step in a process of its own, and kill that process at its limit."""
    import multiprocessing

    address = address_of(call.plan.name, call.plan.function)
    # A forked child would inherit locks that threads of this process hold, and the store's file handles.
    context = multiprocessing.get_context("spawn")
    parent_pipe, child_pipe = context.Pipe()
    setup = {
        "head": attempt.head,
        "limit_s": invoke.limit_s,
        "checkpoint": attempt.resume(),
        # The child has no log: it compares its inputs with those that the parent has read for it.
        "inputs": attempt.load_recorded_inputs(),
        "writer": make_child_writer(call),
        "engine": _pickle_engine_opener(),
    }
    process = context.Process(
        target=_run_child, args=(child_pipe, address, call.args, call.kwargs, setup), daemon=True
    )
    process.start()
    # Only the child may hold this end: otherwise its death would not close the pipe.
    child_pipe.close()
    try:
        return _serve_child(parent_pipe, attempt, invoke, process)
    finally:
        # Also after a value: programs that the function has started must not outlive the attempt.
        _kill_process_group(process.pid)
        attempt.cpu_s += read_ended_child(process.pid or 0) or 0.0
        process.join(GRACE_S)
        parent_pipe.close()


def _pickle_engine_opener() -> bytes | str:
    """Return the pickled function that opens the entered engine in the child, for inner steps.

    It is empty if no engine is entered: the child then opens the one of the settings. It is a text with the
    reason if the child cannot open the engine; inner steps are refused with that text.
    """
    try:
        engine = current_engine()
        return b"" if engine is None else pickle.dumps(_find_engine_opener(engine))
    except UsageError as refused:
        return str(refused)
    except Exception as fault:  # noqa: BLE001 - codecs and sinks of the user may raise anything when pickled
        return f"the engine of this call cannot be sent to the process of an isolated attempt: {fault}"


def _find_engine_opener(engine: Engine) -> Callable[[], Engine]:
    if engine.reopen is None:
        raise UsageError(
            f"{engine.url} cannot be opened in the process of an isolated attempt; call its inner steps "
            "without isolate='process', or use a SQLite file or a server"
        )
    return engine.reopen


def _enter_engine(opener: bytes | str) -> None:
    """Make inner steps of the child use the parent's engine; refuse them if `opener` is a reason."""

    def refuse() -> Any:
        raise UsageError(str(opener))

    # The refusal waits for the first inner step: most isolated functions call none.
    if isinstance(opener, str):
        enter_engine(Engine(refuse, "memory:"))
    elif opener:
        enter_engine(pickle.loads(opener)())  # noqa: S301 - from our own parent


def _kill_process_group(pid: int | None) -> None:
    """Kill the child and all programs that it has started; it leads its own process group."""
    # The child alone first: before its `setsid` it has no group of its own.
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid or 0, signal.SIGKILL) if pid else None
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL) if pid else None


def address_of(name: str, work: Any) -> tuple[str, str]:
    """Return the module and the qualified name of a function; refuse one that cannot be imported by them."""
    module, qualname = getattr(work, "__module__", None), getattr(work, "__qualname__", "")
    # Names such as <lambda> and outer.<locals>.inner exist only in the process that made them.
    if not module or not qualname or "<" in qualname:
        raise UsageError(
            f"{name} cannot be found from another process; isolate='process' needs a function of a module"
        )
    return module, qualname


def check_importable(name: str, work: Any) -> None:
    """Refuse a function that another process would not find under its module and name."""
    module, qualname = address_of(name, work)
    main = sys.modules["__main__"]
    # The main module of an interactive session has no file that a child could run again.
    has_no_file = module == "__main__" and not getattr(main, "__file__", None)
    try:
        function = None if has_no_file else _import_function(module, qualname)
    except (ImportError, AttributeError):
        function = None
    # A name may be bound to another function by now; the child would call that one.
    if function is not work:
        raise UsageError(
            f"{name} cannot run with isolate='process': another process does not find it as "
            f"{module}.{qualname}; define it under its own name at the top of a module that can be imported"
        )


def _serve_child(pipe: Connection, attempt: RunningAttempt, invoke: CallFunction, process: Any) -> Any:
    """Perform the requests of the child until it sends its value or error, dies, or reaches its limit."""
    while True:
        try:
            kind, value = _receive_message(pipe, attempt, invoke), _receive_message(pipe, attempt, invoke)
        except (EOFError, ConnectionResetError):
            process.join(GRACE_S)
            raise ProcessDied(
                f"{attempt.step}: the process of attempt {attempt.number} ended without an answer "
                f"(exit code {process.exitcode})"
            ) from None
        if kind == "value":
            return value
        if kind == "error":
            raise value if isinstance(value, BaseException) else RemoteError(value.text)
        if kind == "events":
            attempt.adopt_outputs(value)
        elif kind == "inputs":
            attempt.used = value
        elif kind == "usage":
            attempt.add_usage(**value)
        else:
            assert kind == "checkpoint"
            pipe.send(_save_checkpoint(attempt, value))


def _receive_message(pipe: Connection, attempt: RunningAttempt, invoke: CallFunction) -> Any:
    """Return the next message of the child; an `UnsentValue` if it cannot be unpickled here."""
    if not pipe.poll(attempt.remaining()):
        raise timeout_error(attempt.step, invoke)
    message = pipe.recv_bytes()
    try:
        return pickle.loads(message)  # noqa: S301 - from our own child, by a private pipe
    except Exception as fault:  # noqa: BLE001 - classes of the user may raise anything when unpickled
        return UnsentValue(f"{type(fault).__name__}: {fault}"[:MOST_TEXT])


def _save_checkpoint(attempt: RunningAttempt, plain: Any) -> BaseException | None:
    try:
        attempt.save_checkpoint(plain)
    except Exception as error:  # noqa: BLE001 - the child raises it where the work is
        # The child waits for a reply: an error that it could not unpickle would leave it waiting for ever.
        return _make_portable(error)
    return None


def _run_child(
    pipe: Connection, address: tuple[str, str], args: Any, kwargs: Any, setup: dict[str, Any]
) -> None:
    """Run one attempt: the main function of the child process."""
    # A group of its own, so that the parent can kill it with all programs that it starts.
    os.setsid()
    # The parent sends nothing unasked: data here is the end of the pipe, so the parent has died.
    if pipe.poll(0):
        os._exit(1)
    replies = _ParentReplies(pipe)
    threading.Thread(target=replies.read_replies, daemon=True).start()
    try:
        value, events = _call_function(replies, address, args, kwargs, setup)
    except BaseException as error:  # noqa: BLE001 - raised again in the parent
        _send_usage(pipe)
        _send_message(pipe, "error", _make_portable(error))
    else:
        _send_usage(pipe)
        # The value is last: the parent kills the child as soon as it has it.
        _send_message(pipe, "events", events)
        _send_message(pipe, "value", value)
    # Without exit handlers: they would close and flush objects that were made from the parent's.
    os._exit(0)


def _send_usage(pipe: Connection) -> None:
    """Send the usage that the function has reported by `add_usage`; the parent knows the CPU time itself."""
    from oncemore.steps.attempt import CURRENT

    attempt = CURRENT.get()
    if attempt is not None and attempt.reported is not None:
        reported = attempt.reported
        usage = {"energy_kwh": reported.kwh, "network_bytes": reported.network_bytes, "cpu_s": reported.cpu_s}
        _send_message(pipe, "usage", usage)


class _ParentReplies:
    """Receives the replies of the parent; kills the child's process group when the parent is gone."""

    def __init__(self, pipe: Connection) -> None:
        from queue import SimpleQueue

        self.pipe = pipe
        self.queue: Any = SimpleQueue()

    def read_replies(self) -> None:
        """Queue the replies until the pipe ends, then kill this process and the programs it has started."""
        try:
            while True:
                self.queue.put(self.pipe.recv())
        except (EOFError, OSError):
            os.killpg(0, signal.SIGKILL)


def _call_function(
    replies: _ParentReplies, address: tuple[str, str], args: Any, kwargs: Any, setup: dict[str, Any]
) -> Any:
    """Return the value of the function and the outputs of its attempt."""
    from oncemore.artifacts.artifact import CURRENT_READER
    from oncemore.retries.loop import ENDS
    from oncemore.steps.attempt import CURRENT, RunningAttempt

    writer = setup["writer"]
    storage = ChildStorage(writer, replies, setup["checkpoint"], setup["inputs"])
    attempt = RunningAttempt(setup["head"], storage)
    CURRENT_READER.set(writer.artifact_store)
    CURRENT.set(attempt)
    _enter_engine(setup["engine"])
    # As seconds from now: the monotonic clocks of two processes need not agree.
    if setup["limit_s"] is not None:
        ENDS.set(clocks.current.monotonic() + setup["limit_s"])
    try:
        value = _import_function(*address)(*args, **kwargs)
    finally:
        # Also after an error: a later attempt is compared with the inputs of this one.
        if attempt.used:
            _send_message(replies.pipe, "inputs", attempt.used)
    return value, attempt.collect_outputs()


class ChildStorage:
    """Stores the outputs of an attempt in a child process: artifacts here, checkpoints through the parent.

    The child writes no log entries: the parent has the lease and the head of the run.
    """

    def __init__(
        self, writer: ChildArtifactWriter, replies: _ParentReplies, checkpoint: Any, inputs: RecordedDigests
    ) -> None:
        self._writer, self._replies, self._checkpoint = writer, replies, checkpoint
        self._inputs = inputs
        self.artifact_name = writer.artifact_name
        self.put_artifact, self.leave_evidence = writer.put_artifact, writer.leave_evidence
        self.find_recorded_artifact = writer.find_recorded_artifact

    def now(self) -> float:
        """Return the time of this machine; the child process has no store."""
        return clocks.current.wall()

    def save_checkpoint(self, attempt: RunningAttempt, plain: Any) -> None:
        """Have the parent process append a checkpoint; raise its error here."""
        _send_message(self._replies.pipe, "checkpoint", plain)
        error = self._replies.queue.get()
        if error is not None:
            raise error
        self._checkpoint = untag_value(plain)
        # Any version but 0 makes `resume()` ask for the checkpoint; the real one is in the parent's head.
        attempt.head = attempt.head._replace(record=attempt.head.record._replace(checkpoint_version=1))

    def load_checkpoint(self, head: LoadedHead) -> Any:
        """Return the last checkpoint of the run."""
        return self._checkpoint

    def load_recorded_inputs(self, head: LoadedHead) -> RecordedDigests:
        """Return the recorded inputs that the parent process has sent."""
        return self._inputs

    def begin_transaction(self, attempt: RunningAttempt, connection: Any) -> Any:
        """Refuse: `isolate` and transactional effects exclude each other (`steps.options`)."""
        raise AssertionError("a transactional step runs in the process of its caller")  # pragma: no cover

    def check_supports_on_commit(self, step: str) -> None:
        """Refuse, for the same reason."""
        raise AssertionError("a transactional step runs in the process of its caller")  # pragma: no cover


def _import_function(module: str, name: str) -> Any:
    """Return a function by its module and qualified name; of a step, the function that it wraps."""
    member: Any = importlib.import_module(module)
    for part in name.split("."):
        member = getattr(member, part)
    # The name is bound to the step, and calling that would begin a run inside the run.
    return getattr(member, "__wrapped__", member)


def _send_message(pipe: Connection, kind: str, value: Any) -> None:
    """Send the kind of a message, then its value; an `UnsentValue` if that cannot be pickled."""
    pipe.send(kind)
    try:
        pipe.send(value)
    except Exception as fault:  # noqa: BLE001 - values of the user may raise anything when pickled
        pipe.send(UnsentValue(f"a {type(value).__name__}: {fault}"[:MOST_TEXT]))


def _make_portable(error: BaseException) -> BaseException:
    """Return the error if another process can unpickle it, otherwise a `RemoteError` with its text."""
    try:
        is_portable = type(pickle.loads(pickle.dumps(error))) is type(error)  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - errors with an `__init__` of their own often cannot be unpickled
        is_portable = False
    if is_portable:
        return error
    return RemoteError(f"{type(error).__name__}: {_describe_error(error)}"[:MOST_TEXT])


def _describe_error(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an error that cannot even be shown is still an error
        return "it cannot be shown"
