"""What happened, as it can be read: from the log of oncemore, and from the recorder of the world.

A *fact* is plain data with its time in seconds since the story began, so that a story can be kept and drawn
again (tools/pictures.py does). Nobody tells anything here: both are files that others write.
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


class LogTail:
    """New entries of a log, as facts about orders.

    proofs  every decision that was made, with its order, step and key
    """

    def __init__(self, store: Store, began: float) -> None:
        self._store, self._began = store, began
        self._seq = 0
        self._states: dict[str, Any] = {}
        self._orders: dict[str, str] = {}
        self.proofs: list[tuple[str, str, str, dict[str, Any]]] = []

    def read_new_facts(self) -> Iterator[Fact]:
        """Return what is new."""
        for entry in list(self._store.read_entries(None, self._seq)):
            self._seq = entry.seq
            header = decode_header(entry.header)
            kind: Any = KINDS[header.entity.partition("/")[0]]
            state = self._states[header.entity] = apply_header(
                self._states.get(header.entity), header.sets, kind
            )
            body = {} if entry.body is None else decode_body(entry.body, None)
            order = (body.get("arguments") or body.get("payload") or {}).get("order")
            order = self._orders.setdefault(header.entity, order or "")
            if order and type(state) in (RunRecord, EventRecord):
                yield self._make_fact(order, header.entity, header.at, state, body)

    def _make_fact(self, order: str, entity: str, at: float, state: Any, body: dict[str, Any]) -> Fact:
        """Return one transition; a message counts as a step of its own, `send`."""
        step = state.step if type(state) is RunRecord else "send"
        proof = body.get("proof") or {}
        if proof:
            self.proofs.append((order, step, entity.partition("/")[2], proof))
        return {
            "t": round(at - self._began, 3),
            "who": "log",
            "order": order,
            "step": step,
            "attempt": state.attempt,
            "state": state.state,
            "reason": state.reason,
            "code": (body.get("error") or {}).get("code", ""),
            "until": round(state.not_before - self._began, 3) if state.not_before else 0.0,
            "sentence": proof.get("sentence", ""),
        }


class RecorderTail:
    """New lines of the recorder, as facts; a line that is not whole yet is read the next time."""

    def __init__(self, path: Path, began: float) -> None:
        self._path, self._began = path, began
        self._read = 0

    def read_new_facts(self) -> Iterator[Fact]:
        """Return what is new."""
        if not self._path.exists():
            return
        with self._path.open("rb") as book:
            book.seek(self._read)
            new = book.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            told = json.loads(line)
            yield {**told, "who": "world", "t": round(told.pop("at") - self._began, 3)}
