"""The workflow of programs that tests start and kill: `oncemore worker killed_flow`, a copy of this file."""

from __future__ import annotations

import os

import oncemore


def note(text: str) -> None:
    """Append a line to the file that the test reads."""
    file = os.open("notes.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.write(file, f"{text}\n".encode())
    os.close(file)


@oncemore.step(effect="idempotent", name="killed.effect")
def effect(order: int, stage: str) -> str:
    note(f"{order} {stage}")
    return stage


@oncemore.workflow(name="killed.order", max_crashes=1000)
def order(number: int) -> list[str]:
    effect(number, "began")
    oncemore.sleep(0.1)
    effect(number, "slept")
    word = oncemore.wait_for("word")
    # Outside of a step on purpose: every execution after the wait must see the same word.
    note(f"{number} word {word}")
    oncemore.sleep(0.1)
    other = oncemore.wait_for("word", timeout=0.1, default="nothing")
    return [effect(number, f"ended {word}"), other]


@oncemore.step(effect="pure", name="killed.publish", isolate="process")
def publish_in_process(x: int) -> None:
    oncemore.set_value("x", x)
