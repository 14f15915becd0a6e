"""Maintenance processes that run until they are killed: python -m tests.maintenance.victim WHAT STORE FOLDER

They say "ready" and then do what they are told again and again; whoever started them kills them.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import oncemore
from oncemore.queries.import_keys import KeyFile, import_key_file
from tests.maintenance.steps import finished, imported, person


def main(what: str, store: str, folder: str) -> None:
    with oncemore.open(store) as engine:
        print("ready", flush=True)
        if what == "prune":
            from oncemore.testing import FakeClock

            clock = FakeClock()
            with clock:
                clock.advance(86_400.0)
                engine.prune(older_than=3600, reason="r", by="b")
        elif what == "erase":
            for n in itertools.count():
                key = person.key(f"canary-{n}")
                if engine.store.load_head(f"run/{key}") is None:
                    break
                engine.erase(key, reason="r", by="b")
        elif what == "backup":
            for n in itertools.count():
                finished(f"while {n}")
                to = Path(folder) / f"{n}.db"
                if not to.exists():
                    engine.backup(to, by="b")
        else:
            import_key_file(
                engine, imported, KeyFile(Path(folder) / "done.csv", {}, "result"), reason="r", by="b"
            )
        print("over", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
