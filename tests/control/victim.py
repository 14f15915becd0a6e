"""A process that copies a log and is killed at it: `python -m tests.control.victim FROM TO`."""

from __future__ import annotations

import sys

import oncemore
from oncemore.maintenance import copy

if __name__ == "__main__":
    source, target = (oncemore.open(url) for url in sys.argv[1:])
    copy.ENTRY_PAGE_SIZE = 5

    def progress(done: int, of: int) -> None:
        print(done, flush=True)

    with source, target:
        copy.move_log(source, target, reason="the move", by="operator", progress=progress)
    print("over", flush=True)
