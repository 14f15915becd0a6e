"""Writes a golden log of the format as it is now: python -m tests.golden.make > tests/golden/log-2.jsonl

Run it once for each format, when the format is new; after that the file is only read.
"""

from __future__ import annotations

import json
import sys

import oncemore
from oncemore.testing import instant_waits


def made() -> list[dict[str, object]]:
    """Return the entries and heads of a log in which everything happens once."""
    tries: list[int] = []

    @oncemore.step(effect="idempotent", name="golden.fetch")
    def fetch(name: str) -> dict[str, object]:
        tries.append(1)
        kept = oncemore.current().resume(0)
        oncemore.current().checkpoint(kept + 1)
        if len(tries) < 3:
            raise ConnectionError("the line is down")
        oncemore.current().emit("fetched", {"name": name})
        return {"name": name, "size": (1, 2.5, None)}

    @oncemore.step(effect="once", name="golden.print")
    def letter(to: str) -> str:
        raise TimeoutError(f"no answer for {to}")

    @oncemore.step(effect="pure", name="golden.parse")
    def parse(text: str) -> int:
        return int(text)

    engine = oncemore.open("memory:")
    with instant_waits(), engine, oncemore.context(tenant="a tenant", actor="an operator"):
        fetch("a.tif")
        letter.run("a customer")
        letter.settle(oncemore.applied("printed"), "a customer", reason="it lay in the tray")
        parse.run("no number")
        parse.run("7")
    lines: list[dict[str, object]] = []
    for entry in engine.store.read_entries():
        assert entry.body is not None
        lines.append(
            {
                "entity": entry.entity,
                "version": entry.version,
                "hash": entry.hash.hex(),
                "header": entry.header.decode(),
                "body": entry.body.decode(),
            }
        )
    for entity in sorted({str(line["entity"]) for line in lines}):
        head = engine.store.load_head(entity)
        assert head is not None
        lines.append({"head_of": entity, "hash": head.hash.hex(), "head": head.head.decode()})
    return lines


if __name__ == "__main__":
    sys.stdout.writelines(json.dumps(line) + "\n" for line in made())
