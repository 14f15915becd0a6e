"""Which runs are there: by step, state, error, dataset, tenant, course of events and time, the newest first.

What the store has no index for is found by looking through all heads, in the store itself; what it finds is
looked at again here, because bytes that occur somewhere are no answer yet.
"""

from __future__ import annotations

import re
from heapq import merge

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.queries.bodies import said
from oncemore.queries.control import with_stops
from oncemore.queries.names import normalize_names
from oncemore.queries.times import seq_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from oncemore.log.record import Run
    from oncemore.log.store import Head, Store

MOST = 100_000
PAGE, LARGEST_PAGE = 100, 20_000
SHORTEST_NAME = 4
#: Runs that wait for a person are listed under a word of their own, though they are in SOFT_FAIL.
HELD = "HELD"
LISTED = {"SOFT_FAIL": ("SOFT_FAIL", HELD)}
FAILED = ("SOFT_FAIL", HELD, "HARD_FAIL")


class Asked(Value):
    """What is looked for; what is None is not asked for. Times are those of a run's last change."""

    step: str | None = None
    state: str | None = None
    error: str | None = None
    dataset: str | None = None
    tenant: str | None = None
    correlation: str | None = None
    since: float | None = None
    until: float | None = None
    held: bool = False
    limit: int = 50


class Row(Value):
    """A key's last run at a glance.

    attempts  of this run, of how many it may have
    runs      how many lives the key has had
    changed   when something was last written about it
    error     the class of the error that it last ended with, if it ended with one
    stopped   the switch that keeps it from going on, if one does
    """

    run_id: str
    key: str
    step: str
    state: str
    reason: str
    held_for: str
    error: str
    message: str
    attempts: int
    allowed: int
    runs: int
    effect: str
    created: float
    changed: float
    not_before: float
    worker: str
    tenant: str
    dataset: str
    correlation_id: str
    policy: str
    seq: int
    stopped: str = ""


def runs(store: Store, asked: Asked) -> list[Row]:
    """Return the runs that are asked for, those first that changed last."""
    if not 1 <= asked.limit <= MOST:
        raise UsageError(f"limit is {asked.limit}; it takes 1 to {MOST}.")
    asked = normalize_names(asked, "step", "dataset", "tenant")
    states: tuple[str | None, ...] = FAILED if asked.error else (None,)
    if asked.state is not None:
        states = LISTED.get(asked.state, (asked.state,))
    if asked.held:
        states = (HELD,)
    found: list[Row] = []
    for head in merge(*(_heads(store, asked, state) for state in states), key=lambda head: -head.seq):
        row = row_of(store, head)
        if _fits(row, asked):
            found.append(row)
            if len(found) == asked.limit:
                break
    return with_stops(store, found)


def _heads(store: Store, asked: Asked, state: str | None) -> Iterator[Head]:
    """Return heads that may fit, page by page."""
    from msgspec.json import encode

    from oncemore.log.store import Query

    words = [encode(word) for word in (asked.correlation, asked.tenant) if word]
    query = Query(
        "run",
        state=state,
        step=asked.step,
        dataset=asked.dataset,
        newest=True,
        above=0 if asked.since is None else seq_at(store, asked.since),
        below=None if asked.until is None else seq_at(store, asked.until + 2.0) + 1,
        holds=words[0] if words else b"",
        tells=encode(asked.error) if asked.error else b"",
        limit=max(PAGE, asked.limit),
    )
    while True:
        page = list(store.heads(query))
        yield from page
        if len(page) < query.limit:
            return
        query = query._replace(below=page[-1].seq, limit=min(LARGEST_PAGE, 8 * query.limit))


def _fits(row: Row, asked: Asked) -> bool:
    wanted = (
        (asked.tenant, row.tenant),
        (asked.correlation, row.correlation_id),
        (asked.error, row.error),
    )
    return (
        all(want is None or want == have for want, have in wanted)
        and (asked.since is None or row.changed >= asked.since)
        and (asked.until is None or row.changed <= asked.until)
        and (not asked.held or bool(row.held_for))
    )


def row_of(store: Store, head: Head) -> Row:
    """Return a run's row: its head, and when and how its last entry ended."""
    from oncemore.log.entry_codec import head_of, header_of

    run: Run = head_of(head.head)
    last = next(iter(store.entries(head.entity, head.version - 1)), None)
    at = run.began if last is None else header_of(last.header).at
    body = {} if last is None else said(last)
    error = body.get("error") or {}
    return Row(
        run.run_id, head.entity.removeprefix("run/"), run.step, run.state, run.reason, run.held_for,
        error_class(error), str(error.get("message", "")), run.tried, run.allowed, run.runs, run.effect,
        run.created, at, run.not_before, run.worker, run.tenant, run.dataset, run.correlation_id, run.policy,
        head.seq,
    )  # fmt: skip


def error_class(error: dict[str, Any]) -> str:
    """Return what errors are counted by: their code, or their type where nobody gave them one."""
    return str(error.get("code") or error.get("type") or "")


# One run by its name --------------------------------------------------------------------------------


class Found(Value):
    """A run by its name: the key's entity, and which of its lives."""

    entity: str
    run_id: str


def find(store: Store, name: str) -> Found:
    """Return the run that a name means: an id or a key, or how one of them begins; just one, or none."""
    name = name.strip().removeprefix("run/")
    if len(name) < SHORTEST_NAME:
        raise UsageError(
            f"{name!r} is too short for a run; give {SHORTEST_NAME} characters or more of its id."
        )
    for places in (_by_key, _by_id, _by_time):
        found = list(places(store, name))
        if len(found) > 1 and all(one.entity != f"run/{name}" for one in found):
            some = ", ".join((one.run_id if places is not _by_key else one.entity[4:20]) for one in found[:3])
            raise UsageError(f"{name!r} begins several runs ({some}…); give more of it.")
        if found:
            return found[0]
    raise UsageError(f"there is no run {name!r}; `oncemore runs` lists those that are there.")


def _by_key(store: Store, name: str) -> Iterator[Found]:
    from oncemore.log.entry_codec import head_of
    from oncemore.log.store import Query

    for head in store.heads(Query("run", begins=f"run/{name}", limit=4)):
        yield Found(head.entity, head_of(head.head).run_id)


def _by_id(store: Store, name: str) -> Iterator[Found]:
    """Look for a key's last run by its id."""
    from oncemore.log.entry_codec import head_of
    from oncemore.log.store import Query

    if re.fullmatch(r"[0-9a-f-]+", name):
        for head in store.heads(Query("run", newest=True, holds=b'"' + name.encode(), limit=16)):
            run_id: str = head_of(head.head).run_id
            if run_id.startswith(name):
                yield Found(head.entity, run_id)


def _by_time(store: Store, name: str) -> Iterator[Found]:
    """Look for an earlier run of a key: its id begins with the time at which it was made."""
    from oncemore.log.entry_codec import header_of

    digits = name.replace("-", "")
    if not re.fullmatch(r"[0-9a-f]{12,32}", digits):
        return
    at = int(digits[:12], 16) / 1000.0
    for entry in store.entries(after=seq_at(store, at - 1.0)):
        header = header_of(entry.header)
        if header.at > at + 60.0:
            return
        if str(header.sets.get("run_id", "")).startswith(name) and entry.entity.startswith("run/"):
            yield Found(entry.entity, header.sets["run_id"])


# Names for shells -----------------------------------------------------------------------------------


def names(store: Store, begins: str, limit: int = 20, state: str | None = None) -> list[str]:
    """Return ids of the newest runs that begin so; for completion."""
    from oncemore.log.entry_codec import head_of

    states: Iterator[Run] = (head_of(head.head) for head in _newest(store, state))
    return [run.run_id for run in states if run.run_id.startswith(begins)][:limit]


def step_names(store: Store, begins: str) -> list[str]:
    """Return the steps of the newest runs that begin so; for completion."""
    return sorted({head.by.step for head in _newest(store, None) if head.by.step.startswith(begins)})


def _newest(store: Store, state: str | None) -> Iterator[Head]:
    from oncemore.log.store import Query

    return iter(store.heads(Query("run", state=state, newest=True, limit=500)))
