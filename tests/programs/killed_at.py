"""Runs `oncemore exec` in a process that kills itself: `killed_at.py POINT ARGUMENTS…`.

POINT is "before" or "after" and the number of a write (1: the claim, 2: the outcome), or "work".
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from oncemore.cli import main
from oncemore.steps.call_operations import CALL_OPERATIONS
from oncemore.steps.ops import AppendChange, RunAttempt


def lethal(does: Any, kind: str, when: str, at: str) -> Any:
    counted = [0]

    def done(job: Any, op: Any) -> Any:
        counted[0] += 1
        hit = at == kind or at == str(counted[0])
        if hit and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = does(job, op)
        if hit and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    return done


if __name__ == "__main__":
    when, at = sys.argv[1].split("-")
    performs: Any = CALL_OPERATIONS.blocking
    if at == "work":
        performs[RunAttempt] = lethal(performs[RunAttempt], "work", when, at)
    else:
        performs[AppendChange] = lethal(performs[AppendChange], "save", when, at)
    main(["exec", *sys.argv[2:]])
