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
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from oncemore.engine.limits import too_late
from oncemore.errors import UsageError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from oncemore.engine.attempt import Attempt
    from oncemore.engine.perform import Job
    from oncemore.engine.retry import Invoke

GRACE_S = 5.0


class ProcessDied(ConnectionError):
    """The process that an attempt ran in ended without an answer; the message has its exit code."""


class RemoteError(Exception):
    """An error from the other process that could not be brought over; the message says what it was."""


def run(job: Job, attempt: Attempt, invoke: Invoke) -> Any:
    """Run a job's function in a process of its own; kill that at its limit."""
    import multiprocessing

    where = _address(job.name, job.work)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    told = {"seen": attempt.seen, "ends_in": invoke.limit_s, "resume": attempt.resume()}
    process = context.Process(target=_child, args=(theirs, where, job.args, job.kwargs, told), daemon=True)
    process.start()
    theirs.close()
    try:
        return _served(ours, attempt, invoke, process)
    finally:
        _kill(process.pid)
        process.join(GRACE_S)
        ours.close()


def _kill(pid: int | None) -> None:
    """Kill the child and whatever it has started; it leads a group of its own."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid or 0, signal.SIGKILL) if pid else None
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL) if pid else None


def _address(name: str, work: Any) -> tuple[str, str]:
    module, own = getattr(work, "__module__", None), getattr(work, "__qualname__", "")
    if not module or "<" in own:
        raise UsageError(
            f"{name} cannot be found from another process; isolate='process' needs a function of a module"
        )
    return module, own


def _served(ours: Connection, attempt: Attempt, invoke: Invoke, process: Any) -> Any:
    """Answer what the child asks for, until it sends its end, dies or takes too long."""
    while True:
        if not ours.poll(attempt.remaining()):
            raise too_late(attempt.step, invoke)
        try:
            what, value = ours.recv()
        except EOFError:
            process.join(GRACE_S)
            raise ProcessDied(
                f"{attempt.step}: the process of attempt {attempt.number} ended without an answer "
                f"(exit code {process.exitcode})"
            ) from None
        if what == "value":
            attempt.events.extend(value[1])
            return value[0]
        if what == "error":
            raise value
        assert what == "checkpoint"
        ours.send(_kept(attempt, value))


def _kept(attempt: Attempt, plain: Any) -> BaseException | None:
    try:
        attempt.keep(plain)
    except Exception as error:  # noqa: BLE001 - the child raises it where the work is
        return error
    return None


def _child(pipe: Connection, where: tuple[str, str], args: Any, kwargs: Any, told: dict[str, Any]) -> None:
    """Be the process of one attempt."""
    os.setsid()
    answers = _Answers(pipe)
    threading.Thread(target=answers.listen, daemon=True).start()
    value: Any
    try:
        what, value = "value", _call(answers, where, args, kwargs, told)
    except BaseException as error:  # noqa: BLE001 - it is raised again in the process that called
        what, value = "error", error
    _send(pipe, what, value)
    os._exit(0)  # nothing of the parent's that was copied here is closed or flushed


class _Answers:
    """What the parent sends; when it is gone, so are we."""

    def __init__(self, pipe: Connection) -> None:
        from queue import SimpleQueue

        self.pipe = pipe
        self.arrived: Any = SimpleQueue()

    def listen(self) -> None:
        """Take what comes; the pipe's end is the end of this process."""
        try:
            while True:
                self.arrived.put(self.pipe.recv())
        except (EOFError, OSError):
            os._exit(1)


def _call(answers: _Answers, where: tuple[str, str], args: Any, kwargs: Any, told: dict[str, Any]) -> Any:
    from oncemore.codec.tagged import Tagger, untag
    from oncemore.engine import clock as clocks
    from oncemore.engine.attempt import CURRENT, Attempt
    from oncemore.engine.retry import ENDS

    plain, kept = Tagger(), [told["resume"]]

    def keep(attempt: Attempt, value: Any) -> None:
        answers.pipe.send(("checkpoint", value))
        refused = answers.arrived.get()
        if refused is not None:
            raise refused
        kept[0] = untag(value)
        attempt.seen = attempt.seen._replace(run=attempt.seen.run._replace(checkpoint=1))

    attempt = Attempt(
        told["seen"],
        clocks.current.wall,
        lambda value: plain.tag(value, "the value"),
        keep,
        lambda seen: kept[0],
    )
    CURRENT.set(attempt)
    if told["ends_in"] is not None:
        ENDS.set(clocks.current.monotonic() + told["ends_in"])
    value = _function(*where)(*args, **kwargs)
    return value, attempt.events


def _function(module: str, name: str) -> Any:
    """Return the function behind a step, found by its module and name."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return getattr(found, "__wrapped__", found)


def _send(pipe: Connection, what: str, value: Any) -> None:
    try:
        pipe.send((what, value))
    except Exception as fault:  # noqa: BLE001 - it cannot be brought over; say what it was
        name = type(value).__name__
        text = f"{name}: {value}" if what == "error" else f"the result, a {name}, cannot be sent: {fault}"
        pipe.send(("error", RemoteError(text[:2000])))
