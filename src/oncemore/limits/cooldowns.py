"""COOLDOWNS: what is left alone, for people: looked at, asked about, and let go with a name and a reason.

Everything here is a view of the log (`limits.cooldown_rules.Resource`). A release is an entry like all
others; where
the resource's last run waits for a person too, both are decided in one write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.control import review
from oncemore.control.moved_log import only_here, write_here
from oncemore.errors import StaleDecision, UsageError
from oncemore.limits.cooldown_rules import Resource, held, name_of, record_of, skip
from oncemore.limits.cooldown_step import DECIDED, entity_of, letting_go
from oncemore.log.entry_codec import head_of
from oncemore.log.head_access import seen_in, write_of
from oncemore.log.record import Change, over
from oncemore.log.store import Conflict, Query
from oncemore.maintenance.tasks import somebody
from oncemore.policy.canonical_json import normalize_name
from oncemore.policy.closing import close_run, closing_proof
from oncemore.steps import run as history
from oncemore.steps.call_in_progress import Job, Kit
from oncemore.steps.driver import blocking
from oncemore.steps.ops import End, Load, Now, Save

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Script, Seen

#: The most that are listed.
MOST_LISTED = 100_000
STATES = ("READY", "COOLING", "HELD", "DONE")
#: What is shown unless somebody asks for more: what is left alone.
USUAL = ("COOLING", "HELD")


class Told(Value):
    """A resource with what led to it.

    resource   its record
    skip       what an execution would come to now, as SKIPPED_…; empty if it would ask for it
    left_s     seconds until it may be asked for; 0 if that is now, or waits for a person
    error      the neutral record of the last failure, if there was one
    correlation_id  of the run that the last execution was
    decisions  who let it go before, and why
    entries    every change of its record: when, and the state that it led to
    """

    resource: Resource
    skip: str
    left_s: float
    error: dict[str, Any] | None
    correlation_id: str
    decisions: tuple[dict[str, Any], ...]
    entries: tuple[tuple[float, Resource], ...]


class Cooldowns:
    """The resources of an engine's store: `engine.cooldowns`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return f"<oncemore.Cooldowns of {self._engine.url}>"

    def __iter__(self) -> Iterator[Resource]:
        return iter(self.list())

    def list(
        self, *, state: str | None = None, provider: str | None = None, step: str | None = None
    ) -> tuple[Resource, ...]:
        """Return what is left alone: what may be asked for soonest first, what waits for a person last.

        state  READY, COOLING, HELD, DONE, or "all"; without it COOLING (and not over yet) and HELD
        """
        if state is not None and state not in (*STATES, "all"):
            raise UsageError(f"state is {state!r}; the states are {', '.join(STATES)}, or all")
        provider, step = (None if name is None else normalize_name(name) for name in (provider, step))
        now, wanted = self._engine.now(), STATES if state == "all" else (state,) if state else USUAL
        found = [
            resource
            for one in wanted
            for resource in self._of(one, step)
            if provider in (None, resource.provider) and (state or skip(resource, now))
        ]
        return tuple(sorted(found, key=_soonest))

    def get(self, resource: str) -> Resource | None:
        """Return the record of a resource, or None if nobody has ever asked for it."""
        found: Resource | None = self._seen(resource).run
        return found

    def check(self, resource: str) -> str:
        """Return what an execution would come to now: one of the SKIPPED_… words, or "" if it would ask."""
        return skip(self.get(resource), self._engine.now())

    def show(self, resource: str) -> Told:
        """Return a resource with its last error, the decisions about it and the changes of its record."""
        seen, now = self._known(resource), self._engine.now()
        record: Resource = seen.run
        entries = list(history.told(self._engine.store.entries(seen.entity), self._engine.seal))
        why = skip(record, now)
        errors = [body["error"] for _, _, body in entries if "error" in body]
        run = seen_in(self._engine.store, record.run, self._engine.seal).run if record.run else None
        return Told(
            record, why,
            max(0.0, record.next_eligible_attempt_at - now) if why == "SKIPPED_BACKOFF" else 0.0,
            errors[-1] if errors else None, "" if run is None else run.correlation_id,
            tuple({**body["decision"], "at": head.at} for head, _, body in entries if "decision" in body),
            tuple((head.at, state) for head, state, _ in entries),
        )  # fmt: skip

    def release(self, resource: str, *, reason: str, by: str | None = None) -> Resource:
        """Let a resource go: the next execution asks for it, whatever its cooldown or quarantine said.

        Its last run, where that waits for a person, is over with it. What was counted stays counted.
        """
        ruling = review.ruling("release", somebody(by), reason)
        seen = self._known(resource)
        job = Job(self._engine, _nobody, Kit(resource, _nobody, _nobody, _nobody))
        saved: Resource = blocking(job, only_here(resource, _released(seen.entity, ruling.record))).run
        return saved

    def bring_in(
        self, resource: str, fields: Mapping[str, Any], *, reason: str, by: str | None = None
    ) -> Resource:
        """Take over the record of a resource that was kept elsewhere, if there is none here yet.

        fields  by the names of COOL-2; times are POSIX seconds, and VALIDATED is read as VALID
        """
        made = record_of(name_of(resource), fields)
        told = review.ruling("import", somebody(by), reason).record
        seen, engine = self._seen(resource), self._engine
        if seen.run is None:
            change = Change(DECIDED, None, made, told)
            write = write_of(seen.entity, 0, seen.hash, change, engine.now(), engine.seal)
            if not isinstance(write_here(engine, resource, (write,)), Conflict):
                return made
        raise UsageError(f"{resource} is known here already; what is known stays")

    # ------------------------------------------------------------------------------------------------

    def _of(self, state: str, step: str | None) -> Iterator[Resource]:
        heads = self._engine.store.heads(Query("resource", state, step=step, limit=MOST_LISTED))
        return (head_of(head.head, Resource) for head in heads)

    def _seen(self, resource: str) -> Seen:
        entity = entity_of(name_of(resource))
        return seen_in(self._engine.store, entity, self._engine.seal, Resource)

    def _known(self, resource: str) -> Seen:
        seen = self._seen(resource)
        if seen.run is None:
            raise UsageError(
                f"no step has asked for {resource!r} in this store; oncemore cooldowns --state all lists "
                "what was"
            )
        return seen


def _soonest(resource: Resource) -> tuple[bool, float, str]:
    return held(resource), resource.next_eligible_attempt_at, resource.resource


def _released(entity: str, decided: dict[str, Any]) -> Script:
    """Let a resource go, and end the run that waits with it; in one write, or nothing of it."""
    seen = yield Load(entity, Resource)
    now = yield Now()
    changes = letting_go(seen, now, decided)
    if changes:
        yield from _let_go(seen, changes[0], decided, now)
    else:
        yield End(None, _nothing(seen.run))


def _let_go(seen: Seen, change: tuple[Seen, Change], decided: dict[str, Any], now: float) -> Script:
    run = (yield Load(seen.run.run)) if seen.run.run else None
    also: tuple[Any, ...] = ()
    if run is not None and run.run is not None and review.held(run.run):
        after = over(run.run, "HARD_FAIL", "released", failed=run.version + 1)
        proof = closing_proof(close_run(run.run, "resource_released", now))
        body = {**decided, "error": (run.body or {}).get("error", {}), "proof": proof}
        also = ((run, Change(("HARD_FAIL", "DECISION"), run.run, after, body)),)
    saved = yield Save(*change, also=also)
    late = StaleDecision(
        f"{seen.run.resource} was not released: it changed in this very moment; look again: "
        "oncemore cooldowns"
    )
    yield End(saved, late if saved is None else None)


def _nothing(resource: Resource) -> UsageError:
    why = "it is there and valid" if resource.validation_status == "VALID" else "it may be asked for already"
    return UsageError(f"{resource.resource} was not released: {why}")


def resources_with(engine: Engine, run: str, decided: dict[str, Any]) -> tuple[tuple[Seen, Change], ...]:
    """Return the changes by which resources are let go that are held because of a run."""
    found = engine.store.heads(Query("resource", "HELD", holds=run.encode(), limit=MOST_LISTED))
    seen = [seen_in(engine.store, head.entity, engine.seal, Resource) for head in found]
    now = engine.now()
    return tuple(
        change for one in seen if one.run and one.run.run == run for change in letting_go(one, now, decided)
    )


def _nobody(*told: Any) -> Any:  # pragma: no cover - a decision runs no work
    raise AssertionError("nothing is run here")
