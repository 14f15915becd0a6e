"""Steps that other processes can find."""

from __future__ import annotations

import os
from typing import Any

import oncemore


@oncemore.step(effect="pure", isolate="process", artifact="out")
def apart(given: oncemore.Artifact) -> Any:
    return oncemore.current().put(given.read().upper())


@oncemore.step(effect="pure", isolate="process")
def changing() -> Any:
    oncemore.current().emit("made", {"by": "a process of its own"})
    return oncemore.current().put(os.environ.get("STEPS_CONTENT", "").encode())
