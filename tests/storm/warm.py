"""A warm parent: it has everything imported and forks a worker in a millisecond, where a start takes 200.

    python -m tests.storm.warm

It reads one request per line and answers each with one line. It never opens a store and has no threads, so
that a child begins as a new process would.

    {"fork": "module:function", "args": {…}, "errors": file}   → {"pid": …}
    {"reap": pid, "total_timeout": seconds}                           → {"code": exit code, or null: it lives}

A child that was not reaped yet keeps its number, so that nobody else can be hit by a signal to it. When the
input ends, children that are left are killed, each by its number.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import Any

import oncemore
import oncemore.log.nats.store
import oncemore.log.sqlite.store
import tests.storm.work

children: set[int] = set()


def fork(told: dict[str, Any]) -> dict[str, Any]:
    """Fork a worker that calls a function and ends."""
    pid = os.fork()
    if pid == 0:
        _child(told)
    children.add(pid)
    return {"pid": pid}


def _child(told: dict[str, Any]) -> None:
    code = 70
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        errors = os.open(told["errors"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        for number, file in ((0, nothing), (1, nothing), (2, errors)):
            os.dup2(file, number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        faulthandler.register(signal.SIGUSR1, all_threads=True)  # where does one hang?
        module, _, name = told["fork"].partition(":")
        getattr(importlib.import_module(module), name)(**told["args"])
        code = 0
    except KeyboardInterrupt:
        code = 130
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def reap(told: dict[str, Any]) -> dict[str, Any]:
    """Wait for a child for some time."""
    ends = time.monotonic() + told["total_timeout"]
    pause = 0.0005
    while True:
        pid, status = os.waitpid(told["reap"], os.WNOHANG)
        if pid:
            children.discard(pid)
            return {"code": os.waitstatus_to_exitcode(status)}
        if time.monotonic() >= ends:
            return {"code": None}
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


def warm_up() -> None:
    """Import what a first call imports: Python loses a Ctrl-C that comes in the middle of an import."""

    @oncemore.step(effect="idempotent", policy=tests.storm.work.POLICY, name="warm")
    def work() -> int:
        if oncemore.current().number == 1:
            raise oncemore.TransientError("once")
        return oncemore.current().number

    with oncemore.open("memory:"):
        assert work() == 2
    while threading.active_count() > 1:
        time.sleep(0.001)
    # Python also loses a Ctrl-C in the callback of a weak reference, which runs when the collector frees a
    # closed engine: there is nothing left to free in the children.
    gc.collect()
    gc.freeze()


def main() -> None:
    """Answer requests until there are no more."""
    # Failures and take-overs are what a storm is made of: their log records are not complaints. Here and not
    # in a module that tests import: they look at these records too.
    logging.getLogger("oncemore.steps").setLevel(logging.ERROR)
    warm_up()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is for the tests
    try:
        for line in sys.stdin:
            told = json.loads(line)
            print(json.dumps(fork(told) if "fork" in told else reap(told)), flush=True)
    finally:
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
