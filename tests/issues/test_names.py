"""Issue 15, 1.5: two spellings of one name (NFC and NFD) are one name, wherever names are compared."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
import oncemore.http
from oncemore.audit.recorder import OperationIds
from oncemore.control.model import SWITCHES_ENTITY, SwitchBoard, turn_switch_on
from oncemore.control.nats_switches import bucket_key
from oncemore.errors import NotPermitted
from oncemore.log.entry_codec import build_write, load_head
from oncemore.log.record import RecordChange
from oncemore.log.store import Batch
from oncemore.queries import limits
from oncemore.queries.audit import AuditTrail
from oncemore.queries.audit import EventFilter as WantedEvents
from oncemore.queries.runs import RunFilter, list_runs
from oncemore.queries.tail import EntryFilter, LogTailer

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.testing import FakeClock

#: One name in its two spellings: composed (NFC) and decomposed (NFD).
NFC, NFD = "Jos\u00e9", "Jose\u0301"
SPELLINGS = pytest.mark.parametrize(("first", "second"), [(NFC, NFD), (NFD, NFC)], ids=["nfc", "nfd"])


@oncemore.step(effect="idempotent", name=f"issues.{NFD}", tenant=lambda order, whose: whose, provider=NFD)
def ship(order: int, whose: str) -> str:
    run = oncemore.current()
    return f"{run.step} {run.tenant}"


@SPELLINGS
def test_the_switch_of_a_tenant_stops_both_spellings(
    first: str, second: str, engine: oncemore.Engine
) -> None:
    engine.switches.on(tenant=first, reason="test")
    for number, spelling in enumerate((first, second)):
        with pytest.raises(NotPermitted):
            ship(number, spelling)
    assert engine.switches.off(tenant=second, reason="test")
    assert ship(1, first) == f"issues.{NFC} {NFC}"


@SPELLINGS
def test_the_switch_of_a_step_stops_both_spellings(first: str, second: str, engine: oncemore.Engine) -> None:
    engine.switches.on(step=f"issues.{first}", reason="test")
    with pytest.raises(NotPermitted):
        ship(1, "x")
    assert engine.switches.off(step=f"issues.{second}", reason="test")
    assert not engine.switches.status()


def test_a_switch_that_an_older_version_has_thrown_stays_on(engine: oncemore.Engine) -> None:
    told = {"by": "operator", "reason": "test", "at": 0.0}
    seen = load_head(engine.store, SWITCHES_ENTITY, None, SwitchBoard)
    after = turn_switch_on(SwitchBoard(), f"tenant:{NFD}", told)
    write = build_write(
        SWITCHES_ENTITY, 0, seen.hash, RecordChange(("CONTROL", "DECISION"), None, after, {}), engine.now()
    )
    engine.store.append(Batch((write,))).wait()
    with pytest.raises(NotPermitted):
        ship(1, NFC)
    assert engine.switches.off(tenant=NFC, reason="test")
    ship(1, NFC)


@SPELLINGS
def test_context_names_are_normalised(first: str, second: str, engine: oncemore.Engine) -> None:
    @oncemore.step(effect="pure", name="who")
    def who() -> str:
        return oncemore.current().tenant

    with oncemore.context(tenant=first, actor=first) as inner:
        assert (inner.tenant, inner.actor) == (NFC, NFC)
        key = who.key()
        assert who() == NFC
    with oncemore.context(tenant=second):
        assert who.key() == key
    assert engine.switches.on(reason="test", by=first).by == NFC


@SPELLINGS
def test_breakers_rates_and_budgets_have_one_name(first: str, second: str, engine: oncemore.Engine) -> None:
    one = oncemore.Breaker(first, failures=1, shared=True)
    other = oncemore.Breaker(second, failures=1, shared=True)
    with pytest.raises(ConnectionRefusedError):
        one.call(_refuse)
    assert (other.state, other.name) == ("OPEN", NFC)
    assert limits.load_breaker(engine, second)[0].state == "OPEN"
    assert limits.reset_breaker(engine, second, "test", first).state == "CLOSED"
    assert one.state == "CLOSED"
    assert oncemore.Rate("1/s", name=first).name == oncemore.Rate("1/s", name=second, shared=True).name == NFC
    assert oncemore.Budget(name=first).name == oncemore.Budget(name=second, shared=True).name == NFC
    budget = oncemore.Budget(5, name=first, shared=True)
    assert budget.entity == oncemore.Budget(5, name=second, shared=True).entity


def _refuse() -> None:
    raise ConnectionRefusedError


@SPELLINGS
def test_breakers_of_a_process_have_one_name(first: str, second: str) -> None:
    @oncemore.retry(on=ConnectionRefusedError, attempts=1, breaker=f"{first} of {first}, {first == NFC}")
    def ask() -> None:
        _refuse()

    @oncemore.retry(on=ConnectionRefusedError, attempts=1, breaker=f"{second} of {second}, {first == NFC}")
    def ask_too() -> None:
        _refuse()

    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            ask()
    with pytest.raises(oncemore.CircuitOpen):
        ask_too()


@SPELLINGS
def test_what_is_left_alone_has_one_name(
    first: str, second: str, engine: oncemore.Engine, clock: FakeClock
) -> None:
    cooldown = oncemore.Cooldown(lambda name: name, overrides={second: {"base_s": 50.0}})

    @oncemore.step(effect="idempotent", name="fetch", provider=first, cooldown=cooldown)
    def fetch(name: str) -> None:
        raise oncemore.PermanentError("gone")

    with pytest.raises(oncemore.StepFailed):
        fetch(first)
    assert engine.cooldowns.get(second) == engine.cooldowns.get(first) is not None
    (found,) = engine.cooldowns.list(state="all", provider=second)
    assert (found.resource, found.provider) == (NFC, NFC)
    assert fetch._options.cooldown_of((first,), {}).rest.base_s == 50.0


@SPELLINGS
def test_a_principal_has_one_name(first: str, second: str, engine: oncemore.Engine) -> None:
    asked: list[Any] = []
    statuses = [
        asyncio.run(_post(engine, asked, spelling, b"order")) for spelling in (first, second, "somebody else")
    ]
    assert statuses == [201, 201, 201]
    assert asked == ["order", "order"], "the two spellings are one client, the other client is not"
    assert {row.tenant for row in list_runs(engine.store, RunFilter())} == {NFC, "somebody else"}


async def _post(engine: oncemore.Engine, asked: list[Any], principal: str, body: bytes) -> int:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append((await receive())["body"].decode())
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"made"})

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    sent: list[Any] = []
    served = oncemore.http.IdempotencyMiddleware(
        app, effect="idempotent", principal=lambda scope: principal, engine=engine
    )
    scope = {
        "type": "http", "method": "POST", "path": "/orders", "raw_path": b"/orders", "query_string": b"",
        "headers": [(b"idempotency-key", b'"k1"')], "http_version": "1.1", "scheme": "http",
    }  # fmt: skip
    await served(scope, receive, send)
    return int(sent[0]["status"])


@SPELLINGS
def test_lists_find_both_spellings(
    first: str, second: str, engine: oncemore.Engine, clock: FakeClock
) -> None:
    @oncemore.step(effect="once", name=first, tenant=first, dataset=first)
    def pay() -> None:
        raise ConnectionError

    with pytest.raises(oncemore.OutcomeUnknown):
        pay()
    assert len(list_runs(engine.store, RunFilter(step=second, dataset=second, tenant=second))) == 1
    assert len(engine.quarantine.list(step=second, tenant=second)) == 1
    assert len(LogTailer(engine.store, EntryFilter(step=second, tenant=second)).read_last_lines(10)) > 0
    assert engine.prune(older_than=60, step=second, dry_run=True).runs == 0
    assert len(oncemore.Worker(engine, [pay]).unknown_steps()) == 0


@SPELLINGS
def test_aliases_and_audit_names_are_normalised(first: str, second: str, tmp_path: Path) -> None:
    with pytest.raises(oncemore.UsageError, match="twice"):
        oncemore.step(effect="pure", name=first, aliases=second)(_refuse)
    assert OperationIds(first).clean_ids() == OperationIds(second).clean_ids() == OperationIds(NFC)
    assert OperationIds().clean_ids() == OperationIds()
    assert bucket_key("tenant", first) == bucket_key("tenant", second)
    with (tmp_path / "audit.jsonl").open("w+") as file:
        assert AuditTrail(file, "audit.jsonl", WantedEvents(tenant_id=second))._filter.tenant_id == NFC
