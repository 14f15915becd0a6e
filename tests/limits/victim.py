"""Processes at a breaker: python -m tests.limits.victim WHAT STORE URL [NUMBER [UNTIL]]

fail N        call until the breaker is open, with keys from N on
step N T      25 callers of a durable step, at the time T; prints what each came to
retry N T     the same for `retry` with a shared breaker
once N        one call; prints what it came to
spend N       call 60 keys from N on, all of which fail, with a retry budget that is shared
hammer N T    call as often as can be until the breaker has opened three times, or the time T
"""

from __future__ import annotations

import os
import sys
import threading
import time
import urllib.request
from collections import Counter
from contextvars import copy_context

import oncemore
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy

URL = ""
COOLDOWN_S = float(os.environ.get("GATES_COOLDOWN_S", "1"))
POLICY = Policy("gates", max_attempts=5, schedule=Schedule("fixed", delays=(0.05,)), jitter=Jitter("full"))
STEP = oncemore.Breaker("provider", failures=3, cooldown_s=COOLDOWN_S)


def ask(n: int) -> str:
    with urllib.request.urlopen(f"{URL}/{n}", timeout=20) as answer:  # noqa: S310 - our own server
        return str(answer.read().decode())


@oncemore.step(effect="idempotent", name="gates.fetch", policy=POLICY, breaker=STEP)
def fetch(n: int) -> str:
    return ask(n)


@oncemore.step(
    effect="idempotent",
    name="gates.spend",
    policy=POLICY,
    budget=oncemore.Budget(40, 0, name="provider", shared=True),
)
def spend(n: int) -> str:
    raise ConnectionResetError(n)


light = oncemore.retrying(
    ask,
    on="transient",
    policy=POLICY,
    breaker=oncemore.Breaker("provider", failures=3, cooldown_s=COOLDOWN_S, shared=True),
)


def told(work: object, n: int) -> str:
    try:
        return f"ok {work(n)}"  # type: ignore[operator]
    except Exception as error:
        return type(error).__name__


def together(work: object, first: int, at: float) -> Counter[str]:
    found: Counter[str] = Counter()

    def caller(n: int) -> None:
        time.sleep(max(0.0, at - time.time()))
        found[told(work, n)] += 1

    callers = [threading.Thread(target=copy_context().run, args=(caller, first + n)) for n in range(25)]
    for one in callers:
        one.start()
    for one in callers:
        one.join(60)
    return found


def main(what: str, store: str, url: str, number: str = "0", until: str = "0") -> None:
    global URL
    URL, first, at = url, int(number), float(until)
    with oncemore.open(store, max_inline_wait_s=0.3):
        print("ready", flush=True)
        if what == "fail":
            for n in range(first, first + 100):
                if told(fetch, n) == "Deferred" and told(fetch, n) == "Deferred":
                    break
        elif what in ("step", "retry"):
            print(dict(together(fetch if what == "step" else light, first, at)), flush=True)
        elif what == "spend":
            for n in range(first, first + 60):
                told(spend, n)
        elif what == "hammer":
            n, shared = first, oncemore.Breaker("provider", shared=True)
            while time.time() < at and shared.circuit.open_count < 3:
                told(fetch, n)
                n += 1
        else:
            print(told(fetch, first), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
