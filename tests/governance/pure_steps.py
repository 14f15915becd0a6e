"""A pure step on a dataset, for the replay in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path

import oncemore


@oncemore.step(effect="pure", name="governed.count", dataset="survey", operation="count")
def count_words(text: str) -> int:
    # The replay counts its calls in a file that the test names.
    if marker := os.environ.get("GATE_TEST_CALLS"):
        print(f"call of {text}", file=Path(marker).open("a", encoding="utf-8"))  # noqa: SIM115
    return len(text.split())
