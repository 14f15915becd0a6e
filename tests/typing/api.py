"""Only type-checked, never run: what a type checker sees of the public names.

mypy and pyright both check it. A `type: ignore` here is a promise too: both fail when the error goes away
(`warn_unused_ignores`, `reportUnnecessaryTypeIgnoreComment`).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, assert_type

import httpx
import httpx2
import requests

import oncemore
import oncemore.http
from oncemore.testing import FakeClock, instant_waits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


@oncemore.retry(on=OSError, attempts=3)
def fetch(url: str, *, retries: int = 0) -> bytes:
    return url.encode()


assert_type(fetch("x"), bytes)
assert_type(fetch("x", retries=2), bytes)
assert_type(fetch.with_options(attempts=1)("x"), bytes)
assert_type(fetch.__wrapped__("x"), bytes)
fetch(5)  # type: ignore[arg-type]
fetch()  # type: ignore[call-arg]
fetch("x", retry=1)  # type: ignore[call-arg]
fetch.with_options(tries=1)  # type: ignore[call-arg]
name: str = fetch.__name__


@oncemore.retry(on="transient", timeout=timedelta(seconds=5), total_timeout=30)
async def load(url: str) -> dict[str, int]:
    return {url: 1}


async def use() -> None:
    assert_type(await load("x"), dict[str, int])
    await load(5)  # type: ignore[arg-type]
    async for attempt in oncemore.attempts(on=(OSError, KeyError)):
        async with attempt:
            assert_type(attempt.number, int)


class Client:
    @oncemore.retry(on=OSError)
    def get(self, path: str) -> int:
        return len(path)

    @oncemore.retry(on=OSError)
    async def stream(self, path: str) -> str:
        return path

    @classmethod
    @oncemore.retry(on=OSError)
    def make(cls) -> Client:
        return cls()

    @staticmethod
    @oncemore.retry(on=OSError)
    def double(x: int) -> int:
        return 2 * x


client = Client()
assert_type(client.get("/"), int)
assert_type(Client.get(client, "/"), int)
client.get(5)  # type: ignore[arg-type]
awaited: Awaitable[str] = client.stream("/")
# mypy does not bind a class to a decorated object below @classmethod; at run time it works.
assert_type(Client.make(), Client)  # type: ignore[call-arg]
assert_type(Client.double(2), int)

assert_type(oncemore.retrying(fetch.__wrapped__, on=OSError)("x"), bytes)
passed_on: Callable[[str], bytes] = fetch

oncemore.retry()  # type: ignore[call-arg]
oncemore.retry(fetch)  # type: ignore[arg-type, call-arg]
oncemore.retry(on=BaseException)  # type: ignore[arg-type]
oncemore.retry(on="flaky")  # type: ignore[arg-type]
oncemore.retry(on=OSError, attempts="3")  # type: ignore[arg-type]
oncemore.retry(on=lambda error: "busy" in str(error), deadline=datetime.now(UTC), seed=7)
oncemore.retry(
    on=OSError, wait=oncemore.backoff.exponential(0.5, cap=10), jitter=oncemore.jitter.proportional(0.1)
)
oncemore.retry(on=OSError, wait=[1, timedelta(seconds=2)], budget=oncemore.Budget(5))


def hear(report: oncemore.RetryReport) -> None:
    assert_type(report.number, int)
    assert_type(report.decision, oncemore.Decision)
    assert_type(report.error, Exception | None)
    report.number = 5  # type: ignore[misc]


oncemore.retry(on=OSError, on_retry=hear, on_give_up=hear)

for turn in oncemore.attempts(on=OSError):
    with turn:
        assert_type(turn.last, bool)

decision = oncemore.get_decision(OSError())
assert_type(decision, oncemore.Decision | None)
if decision is not None:
    assert_type(decision.explain(), str)
    assert_type(decision.proof_bytes(), bytes)
assert_type(oncemore.time_remaining(), float | None)
assert_type(oncemore.classify(OSError(), 0.0), oncemore.Failure)
with instant_waits(attempts=1) as clock:
    assert_type(clock, FakeClock)
    assert_type(clock.delays, list[float])


@oncemore.classifier(OSError, "their.module", name="busy")
def busy(error: OSError) -> oncemore.Failure | None:
    return oncemore.Failure("transient", "no", 1.5, "BUSY") if error.errno == 16 else None


assert_type(busy(OSError()), oncemore.Failure | None)
oncemore.classifier(KeyboardInterrupt)  # type: ignore[arg-type]


@oncemore.classifier(OSError)  # type: ignore[type-var]
def unfit(error: OSError) -> str:
    return "transient"


# Durable steps -------------------------------------------------------------------------------------


@oncemore.step(effect="once", key="order", not_applied=ConnectionRefusedError, timeout=timedelta(seconds=5))
def pay(order: str, amount: int, *, token: oncemore.Secret | None = None) -> dict[str, int]:
    return {order: amount}


@oncemore.step(
    effect="idempotent", on=(OSError, KeyError), attempts=3, wait=[1, timedelta(seconds=2)], until=bool
)
def poll_job(job: str) -> bool:
    return bool(job)


@oncemore.step(effect="idempotent", on="transient", wait=oncemore.backoff.linear(2))
async def poll_job_async(job: str) -> bool:
    return bool(job)


assert_type(poll_job("j-1"), bool)
oncemore.step(effect="pure", on="sometimes")  # type: ignore[arg-type]
oncemore.step(effect="pure", on=lambda error: isinstance(error, OSError), until=lambda value: value > 1)
oncemore.step(effect="pure", wait="long")  # type: ignore[arg-type]
assert_type(pay("o-1", 5), dict[str, int])
assert_type(pay("o-1", amount=5, token=oncemore.Secret("x")), dict[str, int])
assert_type(pay.__wrapped__("o-1", 5), dict[str, int])
assert_type(pay.key("o-1", 5), str)
assert_type(pay.last_run("o-1", 5), oncemore.Run[dict[str, int]] | None)
assert_type(pay.run("o-1", 5), oncemore.Run[dict[str, int]])
assert_type(pay.run("o-1", 5).value, dict[str, int])
assert_type(pay.submit("o-1", 5), oncemore.Run[dict[str, int]])
assert_type(pay.submit("o-1", 5, at=timedelta(hours=1)), oncemore.Run[dict[str, int]])
assert_type(pay.cancel("o-1", 5, reason="no longer needed"), oncemore.Run[dict[str, int]])
assert_type(pay.rerun("o-1", 5, reason="mended"), dict[str, int])
assert_type(pay.map([("o-1", 5)], unpack="args").values, list[dict[str, int]])
assert_type(pay.map([{"order": "o-1", "amount": 5}], unpack="kwargs").values, list[dict[str, int]])
assert_type(pay.map([("o-1", 5)], unpack="args"), oncemore.JobRun[dict[str, int]])
assert_type(pay.mark_done("o-1", 5, value={}, reason="paid by hand"), oncemore.Run[dict[str, int]])
assert_type(pay.approve("o-1", 5, reason="checked").reason, str)
assert_type(pay.name, str)
assert_type(pay.settle(oncemore.applied({"o-1": 5}), "o-1", 5, reason="seen"), oncemore.Run[dict[str, int]])
pay(5, 5)  # type: ignore[arg-type]
pay("o-1")  # type: ignore[call-arg]
pay.key("o-1", "5")  # type: ignore[arg-type]
pay.settle(oncemore.not_applied(), "o-1", 5)  # type: ignore[call-arg]
pay.rerun("o-1", 5)  # type: ignore[call-arg]
pay.cancel("o-1", 5)  # type: ignore[call-arg]
pay.approve("o-1", 5)  # type: ignore[call-arg]
pay.mark_done("o-1", 5, value={})  # type: ignore[call-arg]
pay.run("o-1", "5")  # type: ignore[arg-type]
pay.last_run("o-1")  # type: ignore[call-arg]
pay.submit("o-1")  # type: ignore[call-overload]
pay.submit("o-1", "5")  # type: ignore[call-overload]
pay.submit("o-1", 5, at="tomorrow")  # type: ignore[call-overload]
pay.map([5])  # type: ignore[call-overload]
pay.map([("o-1", 5)])  # type: ignore[call-overload]
pay.map([5], unpack="args")  # type: ignore[call-overload]
pay.map(["o-1"], unpack="each")  # type: ignore[call-overload]
pay.map(["o-1"], at_once=5)  # type: ignore[call-overload]
oncemore.step(effect="safe")  # type: ignore[arg-type]
oncemore.step(effect="pure", if_running="skip")  # type: ignore[arg-type]
oncemore.step(effect="pure", retries=3)  # type: ignore[call-arg]
oncemore.step(effect="pure", on=(OSError, KeyError), attempts=4, wait=oncemore.backoff.exponential(1))
oncemore.step(effect="pure", attempts="4")  # type: ignore[arg-type]
oncemore.step(effect="pure", on="flaky")  # type: ignore[arg-type]
oncemore.step(effect="pure", queue="mail", concurrency="5")  # type: ignore[arg-type]


def poll_group(url: str) -> str:
    return url[:5]


@oncemore.step(effect="pure", bucket="day", total_timeout=60, partition=poll_group)
async def poll(url: str) -> list[str]:
    attempt = oncemore.current()
    assert_type(attempt, oncemore.Attempt)
    assert_type(attempt.number, int)
    assert_type(attempt.key, str)
    assert_type(attempt.fence, int)
    assert_type(attempt.remaining(), float | None)
    assert_type(attempt.emit("polled", {"url": url}), str)
    assert_type(attempt.rng.random(), float)
    await attempt.checkpoint(url)
    return [url]


async def use_steps() -> None:
    assert_type(await poll("x"), list[str])
    await poll(5)  # type: ignore[arg-type]
    assert_type(poll.last_run("x"), oncemore.Run[list[str]] | None)
    assert_type(await poll.run("x"), oncemore.Run[list[str]])
    assert_type((await poll.submit("x")).value, list[str])
    assert_type((await poll.map(["x"])).values, list[list[str]])
    assert_type(await poll.submit("x", at=timedelta(hours=1)), oncemore.Run[list[str]])
    assert_type(await poll.map([{"url": "x"}], unpack="kwargs"), oncemore.JobRun[list[str]])
    assert_type(await poll.cancel("x", reason="late"), oncemore.Run[list[str]])
    assert_type(await poll.rerun("x", reason="mended"), list[str])
    assert_type(poll.settle(oncemore.not_applied(), "x", reason="seen"), oncemore.Run[list[str]])
    await poll.run(5)  # type: ignore[arg-type]
    await poll.submit(5)  # type: ignore[call-overload]
    await poll.map([5])  # type: ignore[list-item]
    assert_type(poll.submit("x").value, list[str])  # type: ignore[attr-defined, assert-type]


with oncemore.open("memory:", lease_s=30, max_inline_wait_s=5) as engine:
    assert_type(engine, oncemore.Engine)
    assert_type(pay.bind(engine)("o-1", 5), dict[str, int])
    for item in engine.quarantine:
        assert_type(item.id, str)
        assert_type(engine.quarantine.show(item).choices, tuple[str, ...])
        engine.quarantine.release(item, by="operator", reason="fine")
        engine.quarantine.settle(item.id, oncemore.applied(5), by="operator", reason="fine")
        engine.quarantine.reject(item)  # type: ignore[call-arg]
    with oncemore.context(tenant="acme", deadline=datetime.now(UTC)) as around:
        assert_type(around.tenant, str)
oncemore.open(5)  # type: ignore[arg-type]
oncemore.context("acme")  # type: ignore[call-arg]

run = pay.last_run("o-1", 5)
if run is not None:
    assert_type(run.status, str)
    assert_type(run.explain(), str)
    assert_type(run.wait(5), oncemore.Run[dict[str, int]])
    assert_type(run.attempts[0].number, int)
    run.status = "COMPLETE"  # type: ignore[misc]


class Shop:
    @oncemore.step(effect="pure", ignore="self")
    def price(self, product: str) -> int:
        return len(product)


assert_type(Shop().price("x"), int)
assert_type(Shop().price.key("x"), str)
assert_type(Shop.price(Shop(), "x"), int)
assert_type(Shop().price.submit("x").value, int)
assert_type(Shop().price.map(["x"]).values, list[int])
Shop().price.map([5])  # type: ignore[list-item]
Shop().price(5)  # type: ignore[arg-type]

# A transport is one of both libraries, and each client takes its own colour only.
httpx.Client(transport=oncemore.http.Transport(attempts=3, idempotent=("POST",)))
httpx2.Client(
    transport=oncemore.http.Transport(httpx2.HTTPTransport(), budget=lambda host: oncemore.Budget())
)
httpx.AsyncClient(transport=oncemore.http.AsyncTransport(total_timeout=timedelta(seconds=3)))
httpx2.AsyncClient(transport=oncemore.http.AsyncTransport(key_style="bare", retries_in_step="retry"))
requests.Session().mount("https://", oncemore.http.Adapter(timeout=5))
httpx.AsyncClient(transport=oncemore.http.Transport())  # type: ignore[arg-type]
httpx.Client(transport=oncemore.http.AsyncTransport())  # type: ignore[arg-type]
oncemore.http.Transport(retries=3)  # type: ignore[call-arg]
oncemore.http.Transport(retries_in_step="never")  # type: ignore[arg-type]
told = oncemore.http.retry_info(httpx.Response(200))
if told is not None:
    assert_type(told.attempts, int)
    assert_type(told.not_before, float | None)


async def app(scope: object, receive: object, send: object) -> None: ...


oncemore.http.IdempotencyMiddleware(app, effect="once", principal=lambda scope: str(scope["path"]))
oncemore.http.IdempotencyMiddleware(
    app, effect="once", principal=oncemore.http.same_principal, expires_after=60
)
oncemore.http.IdempotencyMiddleware(app, effect="twice", principal=oncemore.http.same_principal)  # type: ignore[arg-type]
oncemore.http.IdempotencyMiddleware(app, effect="once")  # type: ignore[call-arg]


@oncemore.workflow
def order(number: int) -> str:
    oncemore.sleep(timedelta(days=1))
    oncemore.set_value("stage", "asked")
    word: str = oncemore.wait_for("approved", timeout=60, default="no")
    return word


@oncemore.workflow(name="ship", attempts=2, max_crashes=5)
async def ship(number: int) -> bytes:
    await oncemore.sleep(5)
    await oncemore.set_value("stage", 1)
    word: bytes = await oncemore.wait_for("approved")
    return word


@oncemore.schedule("0 6 * * *", tz="Europe/Berlin", missed="all")
@oncemore.step(effect="idempotent")
def nightly(tick: datetime) -> int:
    return tick.day


assert_type(nightly(datetime.now(UTC)), int)
assert_type(nightly.submit(datetime.now(UTC)), oncemore.Run[int])
nightly("today")  # type: ignore[arg-type]
oncemore.schedule("0 6 * * *", missed="never")  # type: ignore[arg-type]
oncemore.schedule(every="day")  # type: ignore[arg-type]


async def use_workflows() -> None:
    assert_type(order(1), str)
    assert_type(order.submit(1), oncemore.Run[str])
    assert_type(order.submit(1).signal("approved", True), bool)
    assert_type(await ship(1), bytes)
    assert_type(await ship.submit(1), oncemore.Run[bytes])
    assert_type(order.map([1, 2]).values, list[str])
    order("x")  # type: ignore[arg-type]
    order.submit("x")  # type: ignore[call-overload]
    order.map(["x"])  # type: ignore[list-item]
    await ship("x")  # type: ignore[arg-type]
