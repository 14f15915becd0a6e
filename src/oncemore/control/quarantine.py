"""QUARANTINE: what waits for a person, with its evidence, and the decisions about it.

Nothing is kept twice: this is a view of the log. Three kinds of things wait here,

    run       held for a person: its outcome is unknown, it needs review, its bytes are not what they were,
              or its workers died until no attempt was left
    artifact  set aside because its bytes were altered
    event     a dead letter: refused for good, or out of attempts

and each leaves by a decision (`control.review`), with a name and a reason, or because it was settled by the
step's own `reconcile` function. A reference that a held run waits for is part of that run's item.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.artifacts.store import Missing
from oncemore.control.moved_log import only_here
from oncemore.control.notifications import DEAD_LETTER, told
from oncemore.control.review import Ruling, changed, choices, held, ruled, ruling
from oncemore.errors import StaleDecision, UsageError, Violation
from oncemore.limits.cooldowns import resources_with
from oncemore.log.entry_codec import head_of, header_of, read_body
from oncemore.log.head_access import seen_in
from oncemore.log.head_index import HELD
from oncemore.log.record import Kept, Outgoing, Run
from oncemore.log.result_codec import encode
from oncemore.log.store import Query
from oncemore.policy.canonical_json import normalize_name
from oncemore.policy.closing import DOUBTFUL
from oncemore.policy.policy import STANDARD
from oncemore.steps import flow
from oncemore.steps import run as history
from oncemore.steps.call_in_progress import Job, Kit
from oncemore.steps.driver import blocking
from oncemore.steps.ops import Answer, Call, Plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from oncemore.control.notifications import Told
    from oncemore.log.encryption import Seal
    from oncemore.log.store import Entry, Head
    from oncemore.steps.engine import Engine
    from oncemore.steps.run import Attempted

#: The most things of one kind that are listed; the oldest run ids and references come first.
MOST_LISTED = 100_000
#: The fewest characters that may stand for an id.
SHORTEST = 4
KINDS: dict[str, type] = {"run": Run, "artifact": Kept, "event": Outgoing}
_LISTED = (("run", HELD), ("artifact", "QUARANTINED"), ("event", "DEAD"))


class Item(Value):
    """One thing in quarantine.

    id        of the run (its run_id, never its key), the artifact's reference or the event
    kind      run, artifact or event
    reason    outcome_unknown, quarantined, checksum_mismatch, poison or dead_letter
    step      whose work it is; of an event its topic
    since     when it came here, in POSIX seconds
    version   of its entity: a decision about another version bounces
    attempts  how many were made
    error     the neutral record of what went wrong
    entity    where it stands in the log
    """

    id: str
    kind: str
    reason: str
    step: str
    since: float
    version: int
    attempts: int
    error: dict[str, Any]
    tenant: str
    correlation_id: str
    dataset: str
    entity: str


class Case(Value):
    """An item with all of its evidence.

    rule        which rule said what the failure is
    effect      of the step; empty for an event
    input_hash  the digest of the run's arguments
    proof       of the decision that brought it here, if one did
    attempts    each with its outcome and error
    artifact    name, expected and found digest of the bytes that are in doubt
    decisions   what people decided about it before
    told        who was told, and whether that has arrived
    choices     what can be decided about it now
    """

    item: Item
    rule: str
    effect: str
    input_hash: str
    proof: dict[str, Any] | None
    attempts: tuple[Attempted, ...]
    artifact: dict[str, Any] | None
    decisions: tuple[dict[str, Any], ...]
    told: tuple[Told, ...]
    choices: tuple[str, ...]


class Quarantine:
    """The quarantine of an engine's store: `engine.quarantine`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return f"<oncemore.Quarantine of {self._engine.url}>"

    def __iter__(self) -> Iterator[Item]:
        return iter(self.list())

    def __len__(self) -> int:
        return len(self.list())

    def list(
        self,
        *,
        step: str | None = None,
        reason: str | None = None,
        kind: str | None = None,
        tenant: str | None = None,
        since: datetime | float | None = None,
    ) -> tuple[Item, ...]:
        """Return what waits for a person, the longest first; every filter that is given must fit.

        since  only what came here at or after this time: an aware datetime, or POSIX seconds
        """
        if kind is not None and kind not in KINDS:
            raise UsageError(f"kind is {kind!r}; the kinds are {', '.join(KINDS)}")
        earliest = 0.0 if since is None else _posix(since)
        step, tenant = (None if name is None else normalize_name(name) for name in (step, tenant))
        found = [item for one, state in _LISTED if kind in (None, one) for item in self._of(one, state, step)]
        return tuple(
            sorted(
                (
                    item
                    for item in found
                    if item.since >= earliest
                    and reason in (None, item.reason)
                    and tenant in (None, item.tenant)
                ),
                key=lambda item: (item.since, item.id),
            )
        )

    def show(self, item: str | Item) -> Case:
        """Return an item with its evidence; found by its id, the beginning of one, or its entity."""
        found = self._find(item)
        return _case(self._engine, found)

    # Decisions --------------------------------------------------------------------------------------

    def release(self, item: str | Item, *, by: str, reason: str, version: int = 0) -> None:
        """Let it go on as it would have: another attempt, the artifact in use again, the event sent again.

        version  refuse to decide unless the item still has this version; that of an `Item` counts by itself
        """
        self._decide(item, ruling("release", by, reason, version))

    def reject(self, item: str | Item, *, by: str, reason: str, version: int = 0) -> None:
        """End it: the run fails for good, the artifact stays out of use, the event is not sent."""
        self._decide(item, ruling("reject", by, reason, version))

    def rerun(
        self, item: str | Item, *, by: str, reason: str, extra_attempts: int = 1, version: int = 0
    ) -> None:
        """Let a run go on with attempts beyond its budget; the extra budget is recorded."""
        self._decide(item, ruling("rerun", by, reason, version, extra_attempts))

    def settle(self, item: str | Item, answer: Answer, *, by: str, reason: str, version: int = 0) -> None:
        """Say what became of a run whose outcome is unknown: `applied(value)` or `not_applied()`.

        A value is kept as plain JSON has it; `step.settle` knows the types that a step returns.
        """
        if type(answer) is not Answer or answer.found == "unknown":
            raise UsageError("settle takes oncemore.applied(value) or oncemore.not_applied()")
        made = ruling("settle", by, reason, version)
        where, made = self._aim(item, made)
        seen = seen_in(self._engine.store, where, self._engine.seal)
        run = seen.run
        if type(run) is not Run or run.held_for != DOUBTFUL:
            raise self._unsettled(where, seen, made)
        if made.version and made.version != seen.version:
            raise changed(
                where, f"it has version {seen.version} now, and was looked at in version {made.version}"
            )
        plan = _plan(run)
        told_ = answer._replace(decided=made.record)
        if answer.found == "applied":
            encode(answer.value)  # refuses what has no form, before anything is decided
        script = flow.settle(plan, Call(where, "", run.cfg_hash), told_, seen)
        try:
            blocking(self._job(run.step), only_here(run.step, script))
        except UsageError:
            raise changed(where, "it was changed in this very moment") from None

    # ------------------------------------------------------------------------------------------------

    def _unsettled(self, where: str, seen: Any, made: Ruling) -> Exception:
        if where.startswith("run/") and seen.run is not None and held(seen.run):
            return UsageError(
                f"the outcome of {seen.run.step} is not in doubt ({seen.run.held_for}); release, rerun or "
                "reject it"
            )
        if not where.startswith("run/"):
            return UsageError("only a run can be settled; release it, or reject it")
        return changed(where, "it is not in quarantine any more")

    def _decide(self, item: str | Item, made: Ruling) -> None:
        where, made = self._aim(item, made)
        kind = KINDS[where.partition("/")[0]]
        also = self._with(where, made) if kind is Run and made.what == "release" else ()
        if kind is Run and made.what in ("release", "rerun"):
            also = (*also, *resources_with(self._engine, where, made.record))
        if kind is Kept and made.what == "release":
            self._check_whole(where)
        blocking(self._job(where), only_here(where, ruled(where, kind, made, also)))
        if kind is Outgoing and made.what == "release" and self._engine.notices is not None:
            self._engine.notices.wake(self._engine)

    def _with(self, where: str, made: Ruling) -> tuple[Any, ...]:
        """Return what is released together with a run: the artifact it waits for, if its bytes are right."""
        seen = seen_in(self._engine.store, where, self._engine.seal)
        ref = (seen.body or {}).get("quarantine", {}).get("artifact")
        if seen.run is None or not held(seen.run) or ref is None:
            return ()
        self._check_whole(ref)
        kept = seen_in(self._engine.store, ref, self._engine.seal, Kept)
        if kept.run is None or kept.run.state != "QUARANTINED":
            return ()
        from oncemore.log.record import Change

        return ((kept, Change(("DECISION",), kept.run, kept.run._replace(state="KEPT"), made.record)),)

    def _check_whole(self, ref: str) -> None:
        """Refuse to release an artifact whose bytes are not what they were."""
        kept = seen_in(self._engine.store, ref, self._engine.seal, Kept).run
        if kept is None or kept.state != "QUARANTINED":
            return
        found = self._engine.shelf.verify(kept.digest, kept.size)
        if found != "valid":
            why = str(found) if isinstance(found, Violation) else str(Missing(f"{kept.digest} is missing"))
            raise UsageError(f"{kept.name} of {kept.step} cannot be released: {why}")

    def _job(self, name: str) -> Job:
        return Job(self._engine, _nobody, Kit(name, _nobody, _nobody, _nobody))

    def _aim(self, item: str | Item, made: Ruling) -> tuple[str, Ruling]:
        """Return the entity that is decided about, and the decision with the version that was looked at."""
        if isinstance(item, Item):
            return item.entity, made._replace(version=made.version or item.version)
        if isinstance(item, str) and item.partition("/")[0] in KINDS and "/" in item:
            return item, made
        return self._find(item).entity, made

    def _find(self, asked: str | Item) -> Item:
        """Return the item that is meant by an id, the beginning of one, a key or an entity."""
        if isinstance(asked, Item):
            asked = asked.entity
        if not isinstance(asked, str) or len(asked) < SHORTEST:
            raise UsageError(f"the id is {asked!r}; it takes {SHORTEST} characters or more of one")
        items = self.list()
        whole = [item for item in items if asked in (item.id, item.entity, item.entity.partition("/")[2])]
        found = whole or [item for item in items if item.id.startswith(asked)]
        if len(found) > 1:
            raise UsageError(
                f"{len(found)} things in quarantine have ids that begin with {asked!r}; give more of it"
            )
        if not found:
            raise StaleDecision(
                f"nothing in quarantine has the id {asked!r}; it may have been decided on already: "
                "oncemore quarantine list shows what waits"
            )
        return found[0]

    def _of(self, kind: str, state: str, step: str | None) -> Iterator[Item]:
        store = self._engine.store
        for head in store.heads(Query(kind, state, step=step, limit=MOST_LISTED)):
            made = _item(self._engine, head)
            if made is not None:
                yield made


def _item(engine: Engine, head: Head) -> Item | None:
    """Return the item of a head that is held; None if it was decided on while it was looked at."""
    kind = head.entity.partition("/")[0]
    state: Any = head_of(head.head, KINDS[kind])
    entry = next(iter(engine.store.entries(head.entity, head.version - 1)), None)
    if entry is None or not held(state):
        return None
    body, since = _body(entry, engine.seal), header_of(entry.header).at
    error = body.get("error") or {}
    if type(state) is Run:
        return Item(
            state.run_id, kind, state.held_for, state.step, since, head.version, state.tried, error,
            state.tenant, state.correlation_id, state.dataset, head.entity,
        )  # fmt: skip
    if type(state) is Outgoing:
        return Item(
            state.event_id, kind, DEAD_LETTER, state.topic, since, head.version, state.attempt, error,
            state.tenant, state.correlation_id, "", head.entity,
        )  # fmt: skip
    assert type(state) is Kept
    of = seen_in(engine.store, state.run, engine.seal)
    run = of.run
    if run is not None and (of.body or {}).get("quarantine", {}).get("artifact") == head.entity and held(run):
        return None  # it is part of that run's item
    error = {
        "type": "Violation",
        "code": "CHECKSUM_MISMATCH",
        "message": body.get("quarantine", {}).get("message", ""),
    }
    return Item(
        head.entity.partition("/")[2], kind, flow.MISMATCHED, state.step, since, head.version, 0, error,
        state.tenant, "" if run is None else run.correlation_id, "" if run is None else run.dataset,
        head.entity,
    )  # fmt: skip


def _case(engine: Engine, item: Item) -> Case:
    entries = list(engine.store.entries(item.entity))[: item.version]
    last = _body(entries[-1], engine.seal)
    state: Any = None
    for _, state, _ in history.told(entries, engine.seal):  # noqa: B007 - the last one is wanted
        pass
    run = history.Run(engine, item.entity) if item.kind == "run" else None
    return Case(
        item,
        item.error.get("rule", ""),
        state.effect if type(state) is Run else "",
        state.input_hash if type(state) is Run else "",
        last.get("proof"),
        run.attempts if run is not None else (),
        _artifact(engine, item, last),
        tuple(_decisions(entries, engine.seal)),
        told(engine, last.get("notices", [])),
        choices(state),
    )


def _artifact(engine: Engine, item: Item, body: dict[str, Any]) -> dict[str, Any] | None:
    """Return which bytes are in doubt: what they should be, and what was found."""
    ref = item.entity if item.kind == "artifact" else body.get("quarantine", {}).get("artifact")
    if ref is None:
        return None
    found = seen_in(engine.store, ref, engine.seal, Kept)
    kept, told_ = found.run, (found.body or {}).get("quarantine", {})
    return {
        "reference": ref, "name": kept.name, "expected": kept.digest, "expected_size": kept.size,
        "found": told_.get("found", ""), "found_size": told_.get("found_size", 0),
    }  # fmt: skip


def _decisions(entries: list[Entry], seal: Seal | None) -> Iterator[dict[str, Any]]:
    for entry in entries:
        made = _body(entry, seal).get("decision")
        if made is not None:
            yield {**made, "at": header_of(entry.header).at}


def _body(entry: Entry, seal: Seal | None) -> dict[str, Any]:
    return read_body(entry, seal)


def _plan(run: Run) -> Plan:
    """Return what settling needs to know of a step that is not at hand."""
    return Plan(
        run.step,
        run.effect,
        STANDARD,
        _nobody,
        encode=encode,
        decode=_nobody,
        describe=lambda error, failure: {},
    )


def _nobody(*told: Any, **named: Any) -> Any:  # pragma: no cover - a decision runs no work
    raise AssertionError("a decision runs no work")


def _posix(since: datetime | float) -> float:
    if isinstance(since, int | float) and not isinstance(since, bool) and since >= 0:
        return float(since)
    if getattr(since, "tzinfo", None) is None:
        raise UsageError(f"since is {since!r}; it takes an aware datetime, or POSIX seconds")
    return since.timestamp()  # type: ignore[union-attr]


__all__ = ["Case", "Item", "Quarantine"]
