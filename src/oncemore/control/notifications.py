"""NOTICES: sinks hear of everything that is held for a person, and of every run that fails for good.

A notice is an event like all others (`messaging.delivery`), one for each sink: written in the batch that
holds
or ends the run, sets the artifact aside or gives the event up, so that it exists if and only if that does,
and delivered at least once under one id. One that cannot be delivered is a dead letter, and in quarantine
itself; of that nobody is told, for whom it was meant cannot be reached.

**Storms.** Work is often held in crowds, and a person who gets five hundred messages reads none. So within a
stretch of time (`every_s`, 300 s) each sink hears of a step and a reason twice at most: of the first thing at
once, and, if there was more, once more when the stretch is over. What a notice says is fixed when it is
written; how many there are, and which, is asked of the list, which has all of them.

That is arranged without anything that is counted or shared: the ids of both notices follow from sink, step,
reason and stretch, and a batch creates the one that is not there yet. Of two that are first at the same time
one bounces, reads again, and writes without it.

A notice holds no idempotency key and no text of an error: what is to be known beyond type and code is
behind the item's id, in the log.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.errors import StoreError, UsageError
from oncemore.log.entry_codec import head_of
from oncemore.log.interrupt_shield import Shield
from oncemore.log.record import Kept, Outgoing, Run
from oncemore.policy.canonical_json import digest, event_id_of
from oncemore.settings import NOTIFY_EVERY_S, NOTIFY_OF
from oncemore.steps.attempt import OURS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.log.record import Change
    from oncemore.messaging.message import Message
    from oncemore.messaging.relay import Relay
    from oncemore.policy.model import Failure
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Given

#: Topics of notices: this, and the sink's name.
TOPIC = f"{OURS}quarantine."
LONGEST_NAME = 100
#: How long an engine that is closed waits for what is being told.
CLOSE_S = 5.0
DEAD_LETTER, QUARANTINED = "dead_letter", "QUARANTINED"
#: What a notice is about, as the setting `notify_of` names it.
HOLD, FAILURE = "holds", "failures"
#: The first and the second notice of a stretch, by what they are about.
_WORDS = {HOLD: ("quarantine", "more in quarantine"), FAILURE: ("failure", "more failures")}


class Told(Value):
    """One notice about an item, as it is now.

    sink   who is told, by name
    state  PENDING, SENDING, DELIVERED, or DEAD: it could not be delivered
    due    when it is to be sent, if it is not yet
    """

    sink: str
    state: str
    event_id: str
    due: float


class What(Value):
    """What a notice is about."""

    event: str
    kind: str
    item: str
    step: str
    reason: str
    tenant: str
    correlation_id: str
    attempts: int
    error: dict[str, Any]


def find_event(change: Change) -> str:
    """Return what sinks may hear of: HOLD where something is held for a person, FAILURE where a run fails.

    Empty for every other change.
    """
    before, after = change.before, change.after
    if type(after) is Run:
        same = type(before) is Run and before.run_id == after.run_id
        if after.held_for:
            return "" if same and before.held_for else HOLD  # type: ignore[union-attr]
        failed_before = same and before.state == "HARD_FAIL"  # type: ignore[union-attr]
        return FAILURE if after.state == "HARD_FAIL" and not failed_before else ""
    if type(after) is Outgoing:
        return HOLD if after.state == "DEAD" and not after.topic.startswith(TOPIC) else ""
    return HOLD if type(after) is Kept and after.state == QUARANTINED else ""


class Notices:
    """Whom an engine tells, and how often at most.

    sinks    by name; a sink is a function of one `Message`
    every_s  the stretch in which a sink hears twice at most of one step and reason; 0: of everything
    about    what they hear of: all, holds or failures
    """

    def __init__(
        self,
        sinks: Mapping[str, Callable[[Message], Any]],
        *,
        classify: Callable[[BaseException, float], Failure],
        describe: Callable[[BaseException, Failure | None], dict[str, Any]],
        every_s: float = NOTIFY_EVERY_S,
        about: str = "all",
    ) -> None:
        if about not in NOTIFY_OF:
            raise UsageError(f"notify_of is {about!r}; the choices are {', '.join(NOTIFY_OF)}")
        for name in sinks:
            if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME:
                raise UsageError(f"notify has the name {name!r}; it takes 1 to {LONGEST_NAME} characters")
        from oncemore.messaging.driver import Sinks

        if Sinks(sinks).awaits:
            raise UsageError("notify takes plain functions; they are called in a thread of their own")
        self.sinks, self.every_s, self.about = dict(sinks), every_s, about
        self._classify, self._describe = classify, describe
        self.begin_anew()

    def begin_anew(self) -> None:
        """Have no thread: at first, and in a forked child."""
        self._teller: _Teller | None = None
        self._lock = threading.Lock()

    # Writing ----------------------------------------------------------------------------------------

    def concerns(self, change: Change) -> bool:
        """Return whether the sinks hear of a change."""
        event = find_event(change)
        return bool(event) and self.about in ("all", event)

    def of(
        self, engine: Engine, entity: str, version: int, change: Change, now: float
    ) -> tuple[Change, tuple[Given, ...]]:
        """Return a change that knows who is told of it, and the notices that are to be written with it."""
        if not self.concerns(change):
            return change, ()
        what = _what(engine, entity, change)
        ids, given = [], []
        for sink in self.sinks:
            lane = self._lane(sink, what, now, f"{entity}#{version + 1}")
            ordinal = 1 if _there(engine, event_id_of(lane, 0, 0)) else 0
            event_id = event_id_of(lane, 0, ordinal)
            if not ordinal or not _there(engine, event_id):
                due = self._ends(now) if ordinal else 0.0
                given.append(self._notice(sink, lane, ordinal, due, what, now))
            ids.append(event_id)
        return change._replace(body={**change.body, "notices": ids}), tuple(given)

    def _lane(self, sink: str, what: What, now: float, alone: str) -> str:
        stretch = str(int(now // self.every_s)) if self.every_s else alone
        group = {"sink": sink, "step": what.step, "reason": what.reason, "stretch": stretch}
        if what.event == FAILURE:  # its reasons are other words than those of a hold, but may be the same
            group["event"] = FAILURE
        return f"notice/{digest(group)[:32]}"

    def _ends(self, now: float) -> float:
        return (now // self.every_s + 1) * self.every_s if self.every_s else 0.0

    def _notice(self, sink: str, lane: str, ordinal: int, due: float, what: What, now: float) -> Given:
        letter = Outgoing(
            "PENDING", TOPIC + sink, event_id_of(lane, 0, ordinal), lane, ordinal, now, due,
            what.tenant, what.correlation_id,
        )  # fmt: skip
        return letter, {
            "what": _WORDS[what.event][ordinal],
            "kind": what.kind,
            "item": what.item,
            "step": what.step,
            "reason": what.reason,
            "attempts": what.attempts,
            "error": {name: what.error.get(name, "") for name in ("type", "code")},
            "since": now,
            "told_again_after": self._ends(now) or None,
            "next": _next_command(what, ordinal),
        }

    # Delivering -------------------------------------------------------------------------------------

    def relay(self, engine: Engine) -> Relay:
        """Return a relay for the notices of these sinks, and for nothing else."""
        from oncemore.messaging.relay import Relay

        routes = {TOPIC + name: sink for name, sink in self.sinks.items()}
        return Relay(engine, routes, classify=self._classify, describe=self._describe)

    def wake(self, engine: Engine) -> None:
        """Have a thread tell what is due; also what other processes have left."""
        with self._lock:
            if self._teller is None:
                self._teller = _Teller(self.relay(engine), engine)
        self._teller.look()

    def close(self, within_s: float = CLOSE_S) -> None:
        """Tell what is due, within a few seconds; what is not told then is left to others."""
        with self._lock:
            teller, self._teller = self._teller, None
        if teller is not None:
            teller.close(within_s)


class _Teller:
    """A thread that looks for notices when it is woken."""

    def __init__(self, relay: Relay, engine: Engine) -> None:
        self._relay, self._grumble = relay, engine.grumble
        self._woken, self._over, self._stop = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="oncemore-notices", daemon=True)
        with suppress(RuntimeError), Shield():  # the interpreter ends: nobody is told from here any more
            self._thread.start()

    def look(self) -> None:
        self._woken.set()

    def _run(self) -> None:
        while not self._over.is_set():
            self._woken.wait()
            self._woken.clear()
            try:
                self._relay.run_once(self._stop)
            except Exception as error:  # noqa: BLE001 - what was not told is told at the next look
                self._grumble(f"a notice was not delivered: {type(error).__name__}")

    def close(self, within_s: float) -> None:
        self._over.set()
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join(within_s)
        self._stop.set()


def _there(engine: Engine, event_id: str) -> bool:
    return engine.store.head(f"event/{event_id}") is not None


def _next_command(what: What, ordinal: int) -> str:
    """Return the command with which an operator looks at what a notice is about."""
    if what.event == FAILURE:
        more = f"oncemore runs --step {what.step} --state HARD_FAIL"
        return more if ordinal else f"oncemore show {what.item}"
    more = f"oncemore quarantine list --step {what.step} --reason {what.reason}"
    return more if ordinal else f"oncemore quarantine show {what.item}"


def _what(engine: Engine, entity: str, change: Change) -> What:
    """Return what a notice tells of something that is held, or of a run that has failed."""
    after, error = change.after, change.body.get("error") or {}
    if type(after) is Run:
        event = find_event(change)
        return What(
            event, "run", after.run_id, after.step, after.held_for or after.reason, after.tenant,
            after.correlation_id, after.tried, error,
        )  # fmt: skip
    if type(after) is Outgoing:
        return What(
            HOLD, "event", after.event_id, after.topic, DEAD_LETTER, after.tenant, after.correlation_id,
            after.attempt, error,
        )  # fmt: skip
    assert type(after) is Kept
    head = engine.store.head(after.run)
    correlation_id = "" if head is None else head_of(head.head).correlation_id
    item = entity.removeprefix("artifact/")
    error = {"type": "Violation", "code": "CHECKSUM_MISMATCH"}
    return What(
        HOLD, "artifact", item, after.step, "checksum_mismatch", after.tenant, correlation_id, 0, error
    )


def told(engine: Engine, ids: list[str]) -> tuple[Told, ...]:
    """Return what became of the notices about an item."""
    found = []
    for event_id in ids:
        with suppress(StoreError):
            head = engine.store.head(f"event/{event_id}")
            if head is not None:
                event = head_of(head.head, Outgoing)
                found.append(Told(event.topic.removeprefix(TOPIC), event.state, event_id, event.not_before))
    return tuple(found)
