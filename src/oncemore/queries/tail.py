"""TAIL: the log as lines, its end first and then what comes."""

from __future__ import annotations

from oncemore._values import Value
from oncemore.queries.bodies import said
from oncemore.queries.names import normalize_names
from oncemore.queries.runs import error_class

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from oncemore.log.record import Run
    from oncemore.log.store import Entry, Store

LOOK_S = 0.5
MOST_KNOWN = 10_000


class Wanted(Value):
    """Which entries are told; what is None is not asked for.

    kinds  of entities: run, event, artifact, worker
    marks  that an entry must have one of
    """

    kinds: tuple[str, ...] = ("run", "event", "artifact")
    marks: tuple[str, ...] = ()
    step: str | None = None
    tenant: str | None = None
    correlation: str | None = None
    error: str | None = None


class Line(Value):
    """One entry, for people and programs.

    attempt  the number of the last attempt by then: every one takes a new fence
    """

    seq: int
    at: float
    kind: str
    name: str
    run_id: str
    step: str
    marks: tuple[str, ...]
    state: str
    attempt: int
    reason: str
    error: str
    message: str
    tenant: str
    correlation_id: str
    body: dict[str, Any]


class Tail:
    """Follows a log; remembers what runs are, because an entry says only what has changed."""

    def __init__(self, store: Store, wanted: Wanted) -> None:
        self._store, self._wanted = store, normalize_names(wanted, "step", "tenant")
        self._runs: dict[str, Run | None] = {}
        self.at = store.changed(0, 0.0)

    def last(self, count: int) -> list[Line]:
        """Return the last lines that are wanted, in their order; looks back until it has them."""
        span, found = max(50, 2 * count), list[Line]()
        while count:
            found = list(self._lines(max(0, self.at - span), self.at))[-count:]
            if len(found) == count or span >= self.at:
                break
            span *= 8
        return found

    def new(self) -> Iterator[Line]:
        """Return what has come since; waits a little if nothing has."""
        upto = self._store.changed(self.at, LOOK_S)
        if upto > self.at:
            after, self.at = self.at, upto
            yield from self._lines(after, upto)

    def _lines(self, after: int, upto: int) -> Iterator[Line]:
        for entry in self._store.entries(after=after):
            if entry.seq > upto:
                return
            line = self._line(entry)
            if line is not None:
                yield line

    def _line(self, entry: Entry) -> Line | None:
        from oncemore.log.entry_codec import header_of

        wanted = self._wanted
        kind, _, name = entry.entity.partition("/")
        header = header_of(entry.header)
        if kind not in wanted.kinds or (wanted.marks and not set(wanted.marks) & set(header.marks)):
            return None
        sets: dict[str, Any] = header.sets
        if "run_id" in sets:
            self._runs.pop(entry.entity, None)  # another life of the key
        run = self._run(entry.entity) if kind == "run" else None
        body = said(entry)
        error = body.get("error") or {}
        step = run.step if run is not None else sets.get("step") or sets.get("topic") or ""
        tenant = run.tenant if run is not None else sets.get("tenant", "")
        correlation = run.correlation_id if run is not None else sets.get("correlation_id", "")
        asked = (
            (wanted.step, step),
            (wanted.tenant, tenant),
            (wanted.correlation, correlation),
            (wanted.error, error_class(error)),
        )
        if any(want is not None and want != have for want, have in asked):
            return None
        run_id = sets.get("run_id") or (run.run_id if run is not None else "")
        return Line(
            entry.seq, header.at, kind, name, run_id, step, header.marks,
            sets.get("state", ""), header.fence, sets.get("reason", ""), error_class(error),
            str(error.get("message", "")), tenant, correlation, body,
        )  # fmt: skip

    def _run(self, entity: str) -> Run | None:
        """Return what is known of a run; of an earlier life of its key, what is known of the last."""
        from oncemore.log.entry_codec import head_of

        if entity not in self._runs:
            if len(self._runs) >= MOST_KNOWN:
                self._runs.clear()
            head = self._store.head(entity)
            self._runs[entity] = None if head is None else head_of(head.head)
        return self._runs[entity]
