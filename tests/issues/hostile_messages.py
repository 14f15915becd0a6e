"""Messages that make reading fail, each in another way; and a step whose argument's class helps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import oncemore
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy

POLICY = Policy("test", max_attempts=2, schedule=Schedule("fixed", delays=(90.0,)), jitter=Jitter("none"))


class Unprintable(Exception):
    """An error whose text cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class ExitingText(Exception):
    """An error whose text ends the program."""

    def __str__(self) -> str:
        raise SystemExit(3)


ERRORS: dict[str, Any] = {
    "key": lambda: KeyError("k"),
    "value": lambda: ValueError("v"),
    "runtime": lambda: RuntimeError("boom"),
    "unprintable": Unprintable,
    "exiting-text": ExitingText,
    "memory": MemoryError,
    "recursion": lambda: RecursionError("deep"),
    "system-exit": lambda: SystemExit(2),
    "generator-exit": GeneratorExit,
    "stop-iteration": StopIteration,
    "group": lambda: ExceptionGroup("several", [Unprintable()]),
}


@dataclass
class Order:
    """An order that checks itself."""

    name: str
    amount: int = 1

    def __post_init__(self) -> None:
        if self.name in ERRORS:
            raise ERRORS[self.name]()


def make_step(booked: list[str]) -> Any:
    """Return a step that books orders."""

    @oncemore.step(effect="idempotent", policy=POLICY, name="issues.book", ignore="order")
    def book(name: str = "", order: Order | None = None) -> str:
        booked.append(name)
        return f"{name} booked"

    return book


#: Bodies from which no call can be made, by what is wrong with them.
BODIES: dict[str, bytes] = {
    **{f"post-init-{name}": b'{"order": {"name": "%s"}}' % name.encode() for name in ERRORS},
    "nested-arrays": b'{"order": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "nested-objects": b'{"order": ' + b'{"a":' * 2_000 + b"1" + b"}" * 2_000 + b"}",
    "nested-mixed": b'{"order": ' + b'[{"a":' * 300 + b"1" + b"}]" * 300 + b"}",
    "nested-a-little": b'{"name": ' + b"[" * 150 + b"]" * 150 + b"}",
    "not-utf-8": b'{"order": "\xff\xfe"}',
    "utf-16": '{"order": 1}'.encode("utf-16"),
    "huge-integer": b'{"order": {"name": "a", "amount": ' + b"9" * 5_000 + b"}}",
    "not-a-number": b'{"order": {"name": "a", "amount": NaN}}',
    "infinite": b'{"order": {"name": "a", "amount": 1e999}}',
    "surrogate": b'{"order": {"name": "\\ud800"}}',
    "surrogate-name": b'{"\\ud800": 1}',
    "wrong-type": b'{"order": {"name": 7}}',
    "wrong-shape": b"[1, 2]",
    "wrong-name": b'{"name": 7}',
    "unknown-argument": b'{"order": {"name": "a"}, "\\u0000": 1}',
    "empty": b"",
    "cut-off": b'{"order": {"na',
}
GOOD = b'{"name": "A-1"}'
