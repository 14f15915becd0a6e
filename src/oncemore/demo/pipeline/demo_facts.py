"""Facts about a running pipeline demo, read from oncemore's log and from the recorder's file.

A *fact* is a dictionary with the seconds since the start of the demo. Facts can be saved and drawn again
later, as tools/pictures.py does.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from oncemore.log.entry_codec import decode_body, decode_header
from oncemore.log.record import EventRecord, RunRecord, apply_header
from oncemore.steps.history import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncemore.log.store import Store

    Fact = dict[str, Any]
    # Order, step, key and proof of a decision.
    ProvedDecision = tuple[str, str, str, dict[str, Any]]


class LogTail:
    """Reads new entries of a log as facts about orders.

    proofs  every decision so far
    """

    def __init__(self, store: Store, began: float) -> None:
        self._store, self._began = store, began
        self._seq = 0
        self._states: dict[str, Any] = {}
        self._orders: dict[str, str] = {}
        self.proofs: list[ProvedDecision] = []

    def read_new_facts(self) -> Iterator[Fact]:
        """Yield the facts since the last call."""
        for entry in list(self._store.read_entries(None, self._seq)):
            self._seq = entry.seq
            header = decode_header(entry.header)
            kind: Any = KINDS[header.entity.partition("/")[0]]
            state = self._states[header.entity] = apply_header(
                self._states.get(header.entity), header.sets, kind
            )
            body = {} if entry.body is None else decode_body(entry.body, None)
            # Only the first entry of a run has its arguments; the later ones are found by entity.
            order = (body.get("arguments") or body.get("payload") or {}).get("order")
            order = self._orders.setdefault(header.entity, order or "")
            if order and type(state) in (RunRecord, EventRecord):
                step = state.step if type(state) is RunRecord else "send"
                if proof := body.get("proof"):
                    self.proofs.append((order, step, header.entity.partition("/")[2], proof))
                yield self._make_fact((order, step), header.at, state, body)

    def _make_fact(self, order_step: tuple[str, str], at: float, state: Any, body: dict[str, Any]) -> Fact:
        """Return one state change; the delivery of a message counts as a step, `send`."""
        order, step = order_step
        return {
            "t": round(at - self._began, 3),
            "source": "log",
            "order": order,
            "step": step,
            "attempt": state.attempt,
            "state": state.state,
            "reason": state.reason,
            "code": (body.get("error") or {}).get("code", ""),
            "until": round(state.not_before - self._began, 3) if state.not_before else 0.0,
            "sentence": (body.get("proof") or {}).get("sentence", ""),
        }


class RecorderTail:
    """Reads new lines of the recorder's file as facts; an incomplete line is read at the next call."""

    def __init__(self, path: Path, began: float) -> None:
        self._path, self._began = path, began
        self._position = 0

    def read_new_facts(self) -> Iterator[Fact]:
        """Yield the facts since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            new = file.read()
        # The recorder may be writing at this moment.
        complete = new[: new.rfind(b"\n") + 1]
        self._position += len(complete)
        for text in complete.splitlines():
            line = json.loads(text)
            yield {**line, "source": "services", "t": round(line.pop("at") - self._began, 3)}
