"""Read the end of a log, and follow it, one line per entry."""

from __future__ import annotations

from oncemore._values import Value
from oncemore.queries import normalize_names
from oncemore.queries.entries import read_body
from oncemore.queries.runs import error_class

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from oncemore.log.record import RunRecord
    from oncemore.log.store import Entry, Store

POLL_S = 0.5
MAX_CACHED_RUNS = 10_000


class EntryFilter(Value):
    """The entries to select; a field that is None matches every entry.

    kinds  the kinds of entities: run, event, artifact, worker
    marks  an entry must have one of these marks; empty for all entries
    """

    kinds: tuple[str, ...] = ("run", "event", "artifact")
    marks: tuple[str, ...] = ()
    step: str | None = None
    tenant: str | None = None
    correlation: str | None = None
    error: str | None = None


class TailLine(Value):
    """One entry with the facts of its run.

    attempt   the number of the last attempt so far; it equals the fence, which grows with every attempt
    attempts  the number of attempts of the run; for an earlier run of the key, as `attempt`
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
    attempts: int = 0


class LogTailer:
    """Follows a log, and caches its runs, because an entry holds only the changed fields of its run."""

    def __init__(self, store: Store, wanted: EntryFilter) -> None:
        self._store, self._filter = store, normalize_names(wanted, "step", "tenant")
        self._runs: dict[str, RunRecord | None] = {}
        self.position = store.wait_for_change(0, 0.0)

    def read_last_lines(self, count: int) -> list[TailLine]:
        """Return the last lines that match, oldest first."""
        span, lines = max(50, 2 * count), list[TailLine]()
        # The filter may skip most entries: look back further until there are enough lines.
        while count:
            lines = list(self._read_lines(max(0, self.position - span), self.position))[-count:]
            if len(lines) == count or span >= self.position:
                break
            span *= 8
        return lines

    def read_new_lines(self) -> Iterator[TailLine]:
        """Yield the lines written since the last call; wait up to POLL_S seconds if there are none."""
        upto = self._store.wait_for_change(self.position, POLL_S)
        if upto > self.position:
            after, self.position = self.position, upto
            yield from self._read_lines(after, upto)

    def _read_lines(self, after: int, upto: int) -> Iterator[TailLine]:
        for entry in self._store.read_entries(after=after):
            # Entries written meanwhile belong to the next call; else they would be shown twice.
            if entry.seq > upto:
                return
            line = self._make_line(entry)
            if line is not None:
                yield line

    def _make_line(self, entry: Entry) -> TailLine | None:
        """Return the line of an entry; None if the filter excludes it."""
        from oncemore.log.entry_codec import decode_header

        wanted = self._filter
        kind, _, name = entry.entity.partition("/")
        header = decode_header(entry.header)
        # Checked before the body is read, which costs the most.
        if kind not in wanted.kinds or (wanted.marks and not set(wanted.marks) & set(header.marks)):
            return None
        sets: dict[str, Any] = header.sets
        if "run_id" in sets:
            self._runs.pop(entry.entity, None)  # a new run of the key: the cached one is out of date
        run = self._load_run(entry.entity) if kind == "run" else None
        body = read_body(entry)
        error = body.get("error") or {}
        # The cached run is the last of its key: an earlier one had other attempts.
        is_last_run = run is not None and header.fence > run.attempt - run.attempt_count
        # Only the first entry of a run holds its step and tenant; later ones need the run.
        step = run.step if run is not None else sets.get("step") or sets.get("topic") or ""
        tenant = run.tenant if run is not None else sets.get("tenant", "")
        correlation = run.correlation_id if run is not None else sets.get("correlation_id", "")
        pairs = (
            (wanted.step, step),
            (wanted.tenant, tenant),
            (wanted.correlation, correlation),
            (wanted.error, error_class(error)),
        )
        if any(want is not None and want != value for want, value in pairs):
            return None
        return TailLine(
            seq=entry.seq,
            at=header.at,
            kind=kind,
            name=name,
            run_id=sets.get("run_id") or (run.run_id if run is not None else ""),
            step=step,
            marks=header.marks,
            state=sets.get("state", ""),
            attempt=header.fence,
            reason=sets.get("reason", ""),
            error=error_class(error),
            message=str(error.get("message", "")),
            tenant=tenant,
            correlation_id=correlation,
            body=body,
            attempts=run.attempt_count if is_last_run and run is not None else header.fence,
        )

    def _load_run(self, entity: str) -> RunRecord | None:
        """Return the last run of a key from its head; an entry of an earlier run gets the same facts."""
        from oncemore.log.entry_codec import decode_head

        if entity not in self._runs:
            # Dropping all is simple, and costs one read per run that comes again.
            if len(self._runs) >= MAX_CACHED_RUNS:
                self._runs.clear()
            head = self._store.load_head(entity)
            self._runs[entity] = None if head is None else decode_head(head.head)
        return self._runs[entity]
