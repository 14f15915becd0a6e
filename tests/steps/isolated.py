"""Steps whose work runs in a process of its own."""

import os

import oncemore


@oncemore.step(effect="idempotent", isolate="process", timeout=30, name="isolated")
def where(x: int) -> list[int]:
    oncemore.current().checkpoint(x)
    return [os.getpid(), oncemore.current().number, x]
