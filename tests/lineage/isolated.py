"""A step that runs in a process of its own and declares an input there."""

from __future__ import annotations

from pathlib import Path

import oncemore


@oncemore.step(effect="pure", name="read file", isolate="process")
def read_file(path: str) -> int:
    oncemore.current().use(Path(path), name="grid.csv")
    return len(Path(path).read_bytes())
