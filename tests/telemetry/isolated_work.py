"""Steps that run in a process of their own."""

from __future__ import annotations

import time

import oncemore


@oncemore.step(effect="pure", isolate="process")
def burn_in_child(seconds: float) -> bool:
    """Use CPU time in the child process."""
    oncemore.current().add_usage(network_bytes=1000)
    ends = time.process_time() + seconds
    while time.process_time() < ends:
        pass
    return True


@oncemore.step(effect="pure", isolate="process", timeout=2, attempts=1)
def never_return() -> None:
    """Use CPU time until the process is killed."""
    while True:
        pass
