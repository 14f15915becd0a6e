"""SWITCHES and APPROVALS: what people say about work that has not begun, written down.

    engine.switch.on(reason="the ledger is wrong", by="operator")              no attempt of any step begins
    engine.switch.on(step="shop.pay", reason="the bank is down")               none of that step
    engine.switch.off(reason="the ledger is right again")                      what waits goes on

    engine.approvals.approve(run, reason="seen, 40 parcels", by="operator")    that run may begin

Each is one entry in the log, with who, why and when; `control.permits` reads them before every attempt. Of
two who say something at the same moment, the second is told what the first said, or says it on top of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unicodedata import normalize

from oncemore._values import Value
from oncemore.control.model import (
    CONTROL,
    GRANTED,
    MOST_SWITCHES,
    NEEDED,
    REVOKED,
    UNKNOWN,
    Approval,
    Control,
    Wanted,
    switch_name,
    turned_off,
    turned_on,
)
from oncemore.control.moved_log import write_here
from oncemore.control.permits import approval_of, read
from oncemore.control.review import LONGEST_REASON, Ruling, changed, goes_on, spoken
from oncemore.errors import Blocked, StaleDecision, UsageError
from oncemore.log.entry_codec import head_of, header_of, read_body
from oncemore.log.head_access import seen_in, write_of
from oncemore.log.head_index import HELD
from oncemore.log.record import NOWHERE, Change, Run
from oncemore.log.store import Batch, Query, Stored
from oncemore.maintenance.erase import find
from oncemore.maintenance.tasks import somebody

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Seen

TRIES = 20
MOST_LISTED = 100_000
#: How long an approval holds where nobody says otherwise, and at most.
EXPIRES_S, LONGEST_S = 86_400.0, 366 * 86_400.0
#: The fewest characters that may stand for an id, and those of a whole one.
SHORTEST, WHOLE_ID = 4, 36


class Thrown(Value):
    """A switch that is on: its name, who threw it, why, and when in POSIX seconds (0: not known).

    kept_in  the address of the bucket that has it (`control=`); empty for the switches of the log
    """

    name: str
    by: str
    reason: str
    at: float
    kept_in: str = ""


class Said(Value):
    """One thing that was said about a switch; `what` is "on", "off" or "moved"."""

    what: str
    name: str
    by: str
    reason: str
    at: float


class Switches:
    """The switches of an engine's store: `engine.switch`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return f"<oncemore.Switches of {self._engine.url}>"

    def on(
        self, *, reason: str, step: str = "", tenant: str = "", pipeline: str = "", by: str | None = None
    ) -> Thrown:
        """Throw a switch: no attempt begins any more, of a step, of a tenant, of a pipeline, or at all.

        What is under way may end. What waits is not failed and loses no attempt: it goes on when the switch
        is released. One that is on already is left as it is.
        """
        name, why, who = (
            _named(step, tenant, pipeline),
            spoken("reason", reason, LONGEST_REASON, "say why"),
            somebody(by),
        )
        told = {"by": who, "reason": why, "at": self._engine.now()}

        def throw(control: Control) -> Control:
            _check_here(control)
            if len(control.on) >= MOST_SWITCHES and name not in control.on:
                raise UsageError(f"{MOST_SWITCHES} switches are on; release some, or stop everything instead")
            return control if name in control.on else turned_on(control, name, told)

        control = turn(self._engine, throw, {"what": "on", "switch": name, "reason": why, "actor": who})
        return _thrown(name, control.on[name])

    def off(
        self, *, reason: str, step: str = "", tenant: str = "", pipeline: str = "", by: str | None = None
    ) -> bool:
        """Release a switch; return whether it was on."""
        name, why, who = (
            _named(step, tenant, pipeline),
            spoken("reason", reason, LONGEST_REASON, "say why"),
            somebody(by),
        )
        was: list[bool] = []

        def release(control: Control) -> Control:
            _check_here(control)
            after = turned_off(control, name)
            was[:] = [len(after.on) < len(control.on)]
            return after

        turn(self._engine, release, {"what": "off", "switch": name, "reason": why, "actor": who})
        return was[0]

    def status(self) -> tuple[Thrown, ...]:
        """Return the switches that are on: those of the log, the oldest first, then those of `control=`.

        Raises Blocked if `control=` cannot be read, because nothing begins then either.
        """
        elsewhere = self._engine.controls.elsewhere
        found = thrown(read(self._engine)[1])
        return found if elsewhere is None else found + _thrown_elsewhere(elsewhere)

    def history(self) -> tuple[Said, ...]:
        """Return what was said about switches, the oldest first."""
        return tuple(self._said())

    def _said(self) -> Iterator[Said]:
        for entry in self._engine.store.entries(CONTROL):
            made = read_body(entry, self._engine.seal).get("decision", {})
            if made:
                at = header_of(entry.header).at
                yield Said(made["what"], made["switch"], made["actor"], made["reason"], at)


def _named(step: str, tenant: str, pipeline: str) -> str:
    if len([name for name in (step, tenant, pipeline) if name]) > 1:
        raise UsageError("a switch is that of a step, of a tenant or of a pipeline; throw one for each")
    return switch_name(step, tenant, normalize("NFC", pipeline))


def _check_here(control: Control) -> None:
    if control.moved:
        raise UsageError(f"this log has moved to {control.moved}; turn switches there")


def thrown(control: Control) -> tuple[Thrown, ...]:
    """Return the switches that are on, the oldest first."""
    return tuple(sorted((_thrown(name, told) for name, told in control.on.items()), key=lambda one: one.at))


def _thrown_elsewhere(elsewhere: Any) -> tuple[Thrown, ...]:
    """Return the switches that are on in `control=`; only that of everything if it cannot list them all."""
    address = str(getattr(elsewhere, "url", "control="))
    try:
        control: Control = getattr(elsewhere, "all_switches", lambda: elsewhere.switches((), ""))()
    except Exception as error:
        raise Blocked(
            f"the switches in {address} cannot be read ({type(error).__name__}: {error}); "
            "nothing begins until they can",
            UNKNOWN,
        ) from error
    return tuple(one._replace(kept_in=address) for one in thrown(control))


def _thrown(name: str, told: dict[str, Any]) -> Thrown:
    return Thrown(name, told.get("by", ""), told.get("reason", ""), told.get("at", 0.0))


def turn(engine: Engine, how: Any, decision: dict[str, Any], more: dict[str, Any] | None = None) -> Control:
    """Change the switches of a log, whoever else does; return them as they are then."""
    for _ in range(TRIES):
        seen = seen_in(engine.store, CONTROL, engine.seal, Control)
        before: Control | None = seen.run
        after: Control = how(before or Control())
        if after == (before or Control()):
            return after
        body = {"decision": decision, **(more or {})}
        change = Change(("CONTROL", "DECISION"), before, after, body)
        write = write_of(CONTROL, seen.version, seen.hash, change, engine.now(), engine.seal)
        if isinstance(engine.store.append(Batch((write,))).wait(), Stored):
            engine.controls.forget()
            return after
    raise StaleDecision(f"nothing was changed: {TRIES} others turned switches meanwhile; look at them first")


# Approvals ------------------------------------------------------------------------------------------


class Waiting(Value):
    """A run that waits for an approval, and why what there is does not count."""

    run_id: str
    key: str
    step: str
    why: str
    since: float
    arguments: Any


class Given(Value):
    """An approval, as it is now.

    state  GRANTED, REVOKED or EXPIRED
    """

    key: str
    step: str
    state: str
    by: str
    reason: str
    at: float
    expires: float
    upto: int


class Approvals:
    """The approvals of an engine's store: `engine.approvals`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return f"<oncemore.Approvals of {self._engine.url}>"

    def waiting(self) -> tuple[Waiting, ...]:
        """Return the runs that wait for an approval, the longest first."""
        from oncemore.steps.run import opening_of

        engine, found = self._engine, []
        for head in engine.store.heads(Query("run", HELD, limit=MOST_LISTED)):
            run: Run = head_of(head.head)
            if run.held_for == NEEDED:
                entries = list(engine.store.entries(head.entity))
                last = entries[-1]
                body = read_body(last, engine.seal)
                opening = opening_of(iter(entries), engine.seal)
                found.append(
                    Waiting(
                        run.run_id, head.entity.removeprefix("run/"), run.step,
                        body.get("error", {}).get("message", ""), header_of(last.header).at,
                        opening.get("arguments"),
                    )
                )  # fmt: skip
        return tuple(sorted(found, key=lambda one: (one.since, one.run_id)))

    def list(self) -> tuple[Given, ...]:
        """Return the approvals that were given, the oldest first."""
        now = self._engine.now()
        heads = self._engine.store.heads(Query("approval", limit=MOST_LISTED))
        made = [head_of(head.head, Approval) for head in heads]
        return tuple(sorted((_given(one, now) for one in made), key=lambda one: (one.at, one.key)))

    def approve(self, run: Any, *, reason: str, by: str | None = None, expires: float | None = None) -> Given:
        """Let a run that waits for an approval begin, as it was when it was held: and nothing else.

        run      a `Run`, its id, its key, or the beginning of one
        expires  for how many seconds it holds (a day)
        """
        seen, wanted = self._waits(run)
        left = seen.run.allowed - seen.run.tried
        return grant(self._engine, wanted, seen, left, reason, by, expires)

    def draft(
        self, run: Any, *, reason: str, by: str | None = None, expires: float | None = None
    ) -> Approval:
        """Return the approval that would let a run begin, and write nothing: others may keep it."""
        seen, wanted = self._waits(run)
        return approval_for(
            wanted, seen.run.allowed - seen.run.tried, self._engine.now(), reason, by, expires
        )

    def _waits(self, run: Any) -> tuple[Seen, Wanted]:
        """Return a run that waits for an approval, and what it must be given for."""
        seen = seen_in(self._engine.store, self._entity(run), self._engine.seal)
        if seen.run is None or seen.run.held_for != NEEDED or "wanted" not in (seen.body or {}):
            which = f"{seen.run.step} {seen.run.run_id}" if seen.run is not None else str(run)
            raise StaleDecision(
                f"{which} does not wait for an approval; oncemore approve --list shows what does"
            )
        return seen, Wanted(**(seen.body or {})["wanted"])

    def revoke(self, run: Any, *, reason: str, by: str | None = None) -> Given:
        """Let an approval count no more; an attempt that has begun under it may end."""
        engine, why, who = self._engine, spoken("reason", reason, LONGEST_REASON, "say why"), somebody(by)
        entity = approval_of(self._entity(run))
        seen = seen_in(engine.store, entity, engine.seal, Approval)
        if seen.run is None or seen.run.state != GRANTED:
            raise StaleDecision(
                f"there is no approval of {run} to revoke; oncemore approve --list shows them"
            )
        after = seen.run._replace(state=REVOKED)
        told = {"decision": {"what": "revoke", "reason": why, "actor": who}}
        _write(engine, seen, Change(("APPROVAL", "DECISION"), seen.run, after, told))
        return _given(after, engine.now())

    def _entity(self, asked: Any) -> str:
        """Return the run that is meant by itself, an id, a key, or the beginning of one."""
        text = str(getattr(asked, "key", asked)).removeprefix("run/")
        waiting = [one for one in self.waiting() if len(text) >= SHORTEST and one.run_id.startswith(text)]
        if len(waiting) == 1:
            return f"run/{waiting[0].key}"
        if waiting:
            raise UsageError(f"{len(waiting)} runs that wait begin with {text!r}; give more of the id")
        heads = self._engine.store.heads(Query("approval", limit=MOST_LISTED, begins=f"approval/{text}"))
        found = [head.entity for head in heads] if len(text) >= SHORTEST else []
        if len(found) == 1:
            return f"run/{found[0].removeprefix('approval/')}"
        if len(text) == WHOLE_ID:  # of a run that does not wait: people are told that
            named = f'"{text}"'.encode()
            for head in self._engine.store.heads(Query("run", limit=1, holds=named)):
                return head.entity
        return find(self._engine, asked).entity


def grant(
    engine: Engine,
    wanted: Wanted,
    seen: Seen,
    attempts: int,
    reason: str,
    by: str | None,
    expires: float | None,
) -> Given:
    """Write an approval of so many attempts down, and let its run go on if it waits for one; as one."""
    now, run = engine.now(), seen.run
    made = approval_for(wanted, attempts, now, reason, by, expires)
    before = seen_in(engine.store, approval_of(wanted.run), engine.seal, Approval)
    told = {"decision": {"what": "approve", "reason": made.reason, "actor": made.by}}
    change = Change(("APPROVAL", "DECISION"), before.run, made, told)
    also: tuple[tuple[Seen, Change], ...] = ()
    if run is not None and run.held_for == NEEDED:
        also = ((seen, goes_on(seen, Ruling("approve", made.by, made.reason), now, run.allowed)),)
    _write(engine, before, change, *also)
    return _given(made, now)


def approval_for(
    wanted: Wanted, attempts: int, now: float, reason: str, by: str | None, expires: float | None
) -> Approval:
    """Return an approval of so many attempts, from the wanted one on, for so many seconds."""
    why, who = spoken("reason", reason, LONGEST_REASON, "say why"), somebody(by)
    holds = EXPIRES_S if expires is None else expires
    if isinstance(holds, bool) or not isinstance(holds, int | float) or not 0 < holds <= LONGEST_S:
        raise UsageError(f"expires is {expires!r}; it takes more than 0 and up to {LONGEST_S:g} seconds")
    return Approval(
        GRANTED, wanted.run, wanted.step, wanted.effect, wanted.input_hash, wanted.cfg_hash, wanted.policy,
        wanted.attempt + attempts - 1, now + holds, who, why, now,
    )  # fmt: skip


def _write(engine: Engine, seen: Seen, change: Change, *also: tuple[Seen, Change]) -> None:
    now = engine.now()
    writes = [
        write_of(each.entity, each.version, each.hash or NOWHERE, to, now, engine.seal)
        for each, to in ((seen, change), *also)
    ]
    if not isinstance(write_here(engine, seen.entity, writes), Stored):
        raise changed(seen.entity, "it was changed in this very moment")


def _given(one: Approval, now: float) -> Given:
    state = "EXPIRED" if one.state == GRANTED and one.expires and now >= one.expires else one.state
    key = one.run.removeprefix("run/")
    return Given(key, one.step, state, one.by, one.reason, one.at, one.expires, one.upto)
