"""One step for many items: bounded, slower toward whoever throttles, with a record of its own."""

from __future__ import annotations

import asyncio
import http.server
import io
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import StoreError
from oncemore.log.entry_codec import decode_head
from oncemore.log.record import JobRecord
from oncemore.log.store import HeadQuery
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy
from oncemore.steps.history import verify_chain
from oncemore.workers import map as course
from oncemore.workers.job_run import ProgressBar, ProviderSummary
from oncemore.workers.takeover import append_state
from tests.steps.colours import RAISES

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.testing import FakeClock

done: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


@oncemore.step(effect="idempotent", name="double")
def double(x: Any) -> Any:
    done.append(x)
    if x == "bad":
        raise ValueError("no number")
    return x * 2


@oncemore.step(effect="idempotent", name="adouble")
async def adouble(x: int, by: int = 2) -> int:
    done.append(x)
    await asyncio.sleep(0)
    return x * by


class Throttled(Exception):
    """Asks us to slow down."""


@pytest.fixture(autouse=True)
def _known_error() -> Any:
    def meaning(error: BaseException) -> oncemore.Failure | None:
        if isinstance(error, Throttled):
            return oncemore.Failure("throttled", "no", error.args[0] if error.args else None, "SLOW_DOWN")
        return None

    return oncemore.classifier(Throttled)(meaning)


# What it comes to -----------------------------------------------------------------------------------


def test_every_item_is_one_call_and_none_is_raised(engine: oncemore.Engine) -> None:
    job = double.map([1, "bad", 3, object()])
    assert (job.state, job.outcome) == ("DONE", "REFUSED")
    assert [item.outcome for item in job.items] == ["done", "failed", "done", "refused"]
    assert job.counts == {"done": 2, "failed": 1, "held": 0, "deferred": 0, "refused": 1, "skipped": 0}
    runs = job.runs
    assert [run.value for run in (runs[0], runs[2])] == [2, 6]  # type: ignore[union-attr]
    assert runs[1].error["type"] == "ValueError"  # type: ignore[union-attr,index]
    assert "no number" in job.items[1].error
    assert repr(job) == f"<oncemore.JobRun double {job.job_id} DONE: 2 done, 1 failed, 1 refused>"
    with pytest.raises(oncemore.PermanentFailure, match="no number"):
        _ = job.values
    verify_chain(engine.store.read_entries())


def test_what_an_item_is_can_be_said(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="idempotent", name="power")
    def power(base: int, exponent: int = 2) -> int:
        return int(base**exponent)

    assert power.map([2, 3]).values == [4, 9]
    assert power.map([(2, 5), [3]], unpack="args").values == [32, 9]
    assert power.map([{"base": 2}, {"base": 2, "exponent": 4}], unpack="kwargs").values == [4, 16]
    refused = power.map([7, (1, 2, 3)], unpack="args")
    assert refused.counts["refused"] == 2
    assert refused.runs == (None, None)
    assert power.map([]).outcome == "COMPLETE"
    assert repr(power.map([])).endswith("DONE: nothing>")


def test_async_steps_are_awaited(engine: oncemore.Engine) -> None:
    job = asyncio.run(adouble.map(((n, 3) for n in range(12)), unpack="args"))
    assert job.values == [3 * n for n in range(12)]
    assert sorted(done) == list(range(12))


def test_on_trio_too(engine: oncemore.Engine) -> None:
    trio = pytest.importorskip("trio")

    @oncemore.step(effect="idempotent", name="tdouble")
    async def tdouble(x: int) -> int:
        await trio.sleep(0)
        if x == 2 and oncemore.current().number == 1:
            raise ConnectionError("down")
        return x * 2

    async def main() -> Any:
        return await tdouble.map(range(4))

    with oncemore.testing.instant_waits():
        assert trio.run(main).values == [0, 2, 4, 6]


def test_what_is_done_is_not_done_again(engine: oncemore.Engine) -> None:
    double(2)
    double.map([1, 2, 3])
    again = double.map([1, 2, 3, 4, 2])
    assert again.values == [2, 4, 6, 8, 4]
    assert sorted(done) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"max_concurrency": 0}, "max_concurrency is 0; it takes 1 to 1000"),
        ({"max_concurrency": True}, "max_concurrency is True"),
        ({"unpack": "row"}, "unpack is 'row'; the choices are argument, args, kwargs"),
        ({"progress": "yes"}, "progress is 'yes'"),
    ],
)
def test_what_makes_no_sense_is_refused(engine: oncemore.Engine, told: Any, says: str) -> None:
    with pytest.raises(oncemore.UsageError, match=says):
        double.map([1], **told)


# Time -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 3])
def test_what_fails_for_now_is_tried_again_and_waits_without_a_place(
    engine: oncemore.Engine, clock: FakeClock, at_once: int
) -> None:
    soon = Policy(
        "soon", max_attempts=3, schedule=Schedule("fixed", delays=(1.0, 2.0)), jitter=Jitter("none")
    )

    @oncemore.step(effect="idempotent", policy=soon, name="flaky")
    def flaky(x: int) -> int:
        done.append((x, oncemore.current().number))
        if x == 0 and oncemore.current().number < 3:
            raise ConnectionError("down")
        return x

    job = flaky.map(range(4), max_concurrency=at_once)
    assert job.values == [0, 1, 2, 3]
    if at_once == 1:
        assert done[:4] == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert job.providers["flaky"].errors == {"CONNECTION_ERROR": 2}


def test_what_is_due_much_later_is_left_to_workers(engine: oncemore.Engine, clock: FakeClock) -> None:
    @oncemore.step(effect="idempotent", name="patient")
    def patient(x: int) -> int:
        if oncemore.current().number == 1:
            raise Throttled(3600.0)
        return x

    job = patient.map([1])
    assert (job.outcome, job.counts["deferred"]) == ("DEFERRED", 1)
    assert job.providers["patient"].cooldown == pytest.approx(engine.now() + 3600, abs=10)
    clock.advance(3700.0)
    assert oncemore.Worker(engine, [patient]).run_until_idle().done == 1
    assert patient.map([1]).values == [1]


def test_async_items_wait_for_their_time_too(engine: oncemore.Engine, clock: FakeClock) -> None:
    @oncemore.step(effect="idempotent", name="aflaky")
    async def aflaky(x: int) -> int:
        await asyncio.sleep(0.002)
        if x == 1 and oncemore.current().number < 3:
            raise ConnectionError("down")
        return x

    assert asyncio.run(aflaky.map(range(5), max_concurrency=2)).values == list(range(5))


# Limits ---------------------------------------------------------------------------------------------


class Door:
    """Counts who is inside."""

    def __init__(self) -> None:
        self.lock, self.inside, self.peak = threading.Lock(), 0, 0
        self.peaks: list[int] = []

    def __enter__(self) -> None:
        with self.lock:
            self.inside += 1
            self.peak = max(self.peak, self.inside)
            self.peaks.append(self.inside)

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.inside -= 1


@pytest.mark.parametrize("most", [1, 3, 5])
def test_no_more_are_under_way_at_once_than_may_be(engine: oncemore.Engine, most: int) -> None:
    door = Door()

    @oncemore.step(effect="idempotent", name="busy")
    def busy(x: int) -> int:
        with door:
            together.wait(60)  # breaks, and fails the item, unless so many come in at once
            time.sleep(0.002)  # one too many would come in now
        return x

    together = threading.Barrier(most)
    assert busy.map(range(30), max_concurrency=most).values == list(range(30))
    assert door.peak == most


@pytest.mark.req("CONC-3")
def test_the_default_is_five_and_more_must_be_asked_for(engine: oncemore.Engine) -> None:
    door = Door()

    @oncemore.step(effect="idempotent", name="busy")
    def busy(x: int) -> int:
        with door:
            time.sleep(0.02)
        return x

    busy.map(range(40))
    assert door.peak <= 5


@pytest.mark.req("CONC-5")
def test_a_provider_that_throttles_is_asked_for_less_at_once_and_then_for_more_again(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    seen: list[int] = []

    @oncemore.step(effect="idempotent", name="asks")
    def asks(x: int) -> int:
        seen.append(jobs[0]._queue.concurrency_states["asks"].now)
        clock.advance(1.5)
        if x in (3, 4) and oncemore.current().number == 1:
            raise Throttled
        return x

    jobs: list[Any] = []
    real = course.MapJob.__init__

    def spied(self: Any, *args: Any, **named: Any) -> None:
        real(self, *args, **named)
        self._queue._max_concurrency = 5  # as if five lanes were there, while one goes through them in order
        jobs.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(course.MapJob, "__init__", spied)
        job = asks.map(range(30), max_concurrency=1)
    changes = [n for n, before in zip(seen, [0, *seen], strict=False) if n != before]
    assert changes == [5, 2, 1, 2, 3, 4, 5]
    assert job.providers["asks"].errors == {"THROTTLED": 2}
    assert {run.state.max_attempts for run in job.runs if run} == {3}, "attempts stay as they were"


@pytest.mark.req("CONC-7")
@pytest.mark.req("COOL-13")
@pytest.mark.req("CORR-3")
def test_a_job_tells_what_it_met_at_each_provider(engine: oncemore.Engine, clock: FakeClock) -> None:
    @oncemore.step(effect="idempotent", name="fetch", provider=lambda x: x[0], policy=RAISES)
    def fetch(x: str) -> str:
        oncemore.current().emit("fetched", {"name": x[0]})
        if x.startswith("a"):
            raise Throttled(5.0)
        if x == "b2":
            raise oncemore.PolicyViolation("SCHEMA_INVALID")
        return x

    job = fetch.map(["a1", "b1", "b2", "c1"], max_concurrency=1)
    a, b, c = (job.providers[name] for name in "abc")
    assert (a.errors, a.failed, a.last_error["code"]) == ({"THROTTLED": 3}, 1, "SLOW_DOWN")  # type: ignore[index]
    assert a.cooldown is not None
    assert (b.errors, b.done, b.failed) == ({"SCHEMA_INVALID": 1}, 1, 1)
    assert c == ProviderSummary(done=1, concurrency=1)
    assert {run.state.provider for run in job.runs if run} == set("abc")
    again = fetch.map(["b2"])
    assert again.providers["b"].errors == {"SCHEMA_INVALID": 1}, "also what had failed before"
    (stored,) = [one for one in engine.jobs() if one.job_id == job.job_id]
    assert stored.providers == job.providers
    assert (stored.outcome, stored.counts) == (job.outcome, job.counts)
    assert [item[:3] for item in stored.items] == [item[:3] for item in job.items]
    assert 0 < stored.started <= stored.ended
    ids = {attempt.correlation_id for run in job.runs if run for attempt in run.attempts}
    events = engine.store.list_heads(HeadQuery("event"))
    from oncemore.log.record import EventRecord

    ids |= {decode_head(head.head, EventRecord).correlation_id for head in events}
    assert ids == {stored.correlation_id}
    assert [len(run.attempts) for run in job.runs if run] == [3, 1, 1, 1]


@pytest.mark.req("CONC-7")
def test_of_three_providers_each_has_its_own_summary(engine: oncemore.Engine, clock: FakeClock) -> None:
    """One throttles, one is down until its breaker opens, one is well."""

    @oncemore.step(effect="idempotent", name="fetch", policy="kfm-rules", provider=lambda x: x[0])
    def fetch(x: str) -> str:
        if x == "a1":
            raise Throttled(5.0)
        if x.startswith("b"):
            raise TimeoutError(x)
        return x

    job = fetch.map(["a1", "a2", *(f"b{n}" for n in range(4)), "c1"], max_concurrency=1, max_wait=20)
    (stored,) = engine.jobs()
    for told in (job.providers, stored.providers):
        a, b, c = (told[name] for name in "abc")
        assert (a.throttled, a.failures, a.failed, a.done) == (5, 0, 1, 1)
        assert a.last_error["code"] == "SLOW_DOWN"
        assert a.cooldown is not None
        assert (b.throttled, list(b.errors.values())) == (0, [b.failures])
        assert b.failures > 0
        assert b.last_error["type"] == "TimeoutError"
        assert oncemore.Breaker("b", shared=True).state == "OPEN"
        assert (b.deferred, b.failed) == (4, 0)
        assert b.cooldown == fetch.last_run("b3").not_before
        assert (c.throttled, c.failures, c.last_error, c.cooldown) == (0, 0, None, None)


def test_a_given_correlation_id_is_kept(engine: oncemore.Engine) -> None:
    with oncemore.context(correlation_id="c-7", tenant="acme", actor="a clerk"):
        job = double.map([1])
        assert double.last_run(1) is not None
    assert (job.correlation_id, job.runs[0].correlation_id) == ("c-7", "c-7")  # type: ignore[union-attr]
    (head,) = engine.store.list_heads(HeadQuery("job"))
    assert decode_head(head.head, JobRecord)[12:15] == ("acme", "c-7", "a clerk")


# Endings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_store_that_fails_ends_the_job_with_its_error(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    real = double._prepare_call

    def failing(args: Any, kwargs: Any) -> Any:
        if args[0] == 5:
            raise StoreError("no route")
        return real(args, kwargs)

    monkeypatch.setattr(double, "_prepare_call", failing)
    with pytest.raises(StoreError, match="no route"):
        double.map(range(1000), max_concurrency=at_once)
    assert len(done) < 100
    (job,) = engine.jobs()
    assert (job.state, job.outcome) == ("STOPPED", "STOPPED")


def test_whoever_makes_the_items_may_fail(engine: oncemore.Engine) -> None:
    def items() -> Any:
        yield 1
        raise RuntimeError("the file ends here")

    with pytest.raises(RuntimeError, match="the file ends here"):
        double.map(items())
    assert done == [1]
    assert engine.jobs()[0].counts["done"] == 1


@pytest.mark.parametrize("at_once", [1, 2])
def test_work_that_ends_the_program_ends_the_job_first(engine: oncemore.Engine, at_once: int) -> None:
    @oncemore.step(effect="idempotent", name="leaves")
    def leaves(x: int) -> int:
        if x == 1:
            raise SystemExit(3)
        return x

    with pytest.raises(SystemExit):
        leaves.map(range(50), max_concurrency=at_once)
    (job,) = engine.jobs()
    assert (job.state, job.counts["deferred"]) == ("STOPPED", 1)


def test_a_cancelled_job_is_stopped_in_order(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="idempotent", name="slow")
    async def slow(x: int) -> int:
        if x >= 2:
            started.release()
            await asyncio.sleep(600)
        return x

    async def main() -> None:
        job = asyncio.ensure_future(slow.map(range(10), max_concurrency=2))
        for _ in range(2):  # both places are taken by others: the first two are done
            await started.acquire()
        job.cancel()
        await job

    started = asyncio.Semaphore(0)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    (job,) = engine.jobs()
    assert (job.state, job.counts["done"]) == ("STOPPED", 2)


def test_a_ctrl_c_lets_what_is_under_way_end(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="idempotent", name="slow")
    def slow(x: int) -> int:
        if x == 1:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
        done.append(x)
        return x

    with pytest.raises(KeyboardInterrupt):
        slow.map(range(1000), max_concurrency=2)
    (job,) = engine.jobs()
    assert job.state == "STOPPED"
    assert 1 in done
    assert len(done) < 1000


KILLED = """
import os, sys, oncemore
@oncemore.step(effect="idempotent", name="fetch")
def fetch(x):
    with open("done.txt", "a") as file:
        file.write(f"{x}\\n")
    return x
with oncemore.open("log.db"):
    def items():
        for n in range(20):
            if n == 10 and "die" in sys.argv:
                os.kill(os.getpid(), 9)
            yield n
    job = fetch.map(items(), max_concurrency=1)
    print(job.counts["done"])
"""


def test_a_job_that_was_killed_is_finished_by_calling_it_again(tmp_path: Path) -> None:
    def call(*told: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", KILLED, *told], cwd=tmp_path, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip

    assert call("die").returncode == -9
    again = call()
    assert again.stdout == "20\n", again.stderr
    assert (tmp_path / "done.txt").read_text().split() == [str(n) for n in range(20)]
    with oncemore.open(tmp_path / "log.db") as engine:
        assert {job.state for job in engine.jobs()} == {"RUNNING", "DONE"}
        oncemore.Worker(engine, [double]).run_until_idle()
        assert {job.state for job in engine.jobs()} == {"LOST", "DONE"}
        verify_chain(engine.store.read_entries())


def test_a_job_that_was_taken_for_lost_says_that_it_is_not(
    engine: oncemore.Engine,
) -> None:
    def lost() -> Any:
        yield 1
        (head,) = engine.store.list_heads(HeadQuery("job"))
        job = decode_head(head.head, JobRecord)
        append_state(engine, head, job, job._replace(state="LOST"), "JOB")
        assert engine.jobs()[0].state == "LOST"
        yield 2

    assert double.map(lost(), max_concurrency=1).values == [2, 4]
    assert engine.jobs()[0].state == "DONE"


# The line on the terminal ---------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_how_far_it_is(engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.delenv("TERM", raising=False)
    double.map([1, "bad", 3])
    last = screen.getvalue().split("\r\x1b[K")[-1]
    assert last.startswith("double [########################] 3/3, 1 failed, ")
    assert last.endswith("/s\n")
    double.map(iter([5]))
    assert "double 1, " in screen.getvalue()
    before = screen.getvalue()
    double.map([7], progress="off")
    monkeypatch.setenv("TERM", "dumb")
    double.map([8])
    assert screen.getvalue() == before


def test_where_nobody_looks_nothing_is_drawn(
    engine: oncemore.Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    double.map([1])
    assert capsys.readouterr().err == ""


def test_it_is_drawn_seldom_and_a_terminal_that_goes_away_hurts_nobody() -> None:
    screen, now = Terminal(), [0.0]
    bar = ProgressBar("x", 4, screen, lambda: now[0])
    bar.draw_line({"done": 1})
    assert screen.getvalue() == ""
    now[0] = 0.2
    bar.draw_line({"done": 1})
    bar.draw_line({"done": 2})
    assert screen.getvalue().count("1/4") == 1
    assert "2/4" not in screen.getvalue()
    screen.close()
    bar.draw_line({"done": 3}, last=True)
    bar.draw_line({"done": 4}, last=True)


# A real server ----------------------------------------------------------------------------------------


class Server:
    """A server on this machine that counts how many requests it has at once, and fails as it is told."""

    def __init__(self, failing: bool) -> None:
        server = self
        self.door, self.failing, self.asked, counting = Door(), failing, 0, threading.Lock()
        first_four = threading.Barrier(4)

        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with server.door:
                    with counting:
                        server.asked += 1
                        number = server.asked
                        bad = server.failing and number % 4 != 0
                    if number <= 4:
                        first_four.wait(60)  # however busy the machine is, four are here at once
                    time.sleep(0.01)
                self.send_response(503 if bad else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *told: Any) -> None:
                """Say nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def peak(self, engine: oncemore.Engine, name: str) -> int:
        """Ask it for many things, and return how many requests it had at once at most."""

        @oncemore.step(effect="idempotent", name=name, policy=HASTY)
        def get(x: int) -> int:
            try:
                with urllib.request.urlopen(f"{self.url}{x}", timeout=10) as answer:  # noqa: S310
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                error.close()
                raise

        job = get.bind(engine).map(range(30), max_concurrency=4)
        self.server.shutdown()
        self.server.server_close()
        assert job.counts["done"] + job.counts["failed"] == 30
        return self.door.peak


HASTY = Policy("hasty", max_attempts=4, schedule=Schedule("exponential", base=0.001), jitter=Jitter("full"))


@pytest.mark.req("CONC-1")
def test_a_failing_server_has_no_more_requests_at_once_than_a_healthy_one(engine: oncemore.Engine) -> None:
    healthy, failing = Server(failing=False), Server(failing=True)
    assert healthy.peak(engine, "healthy") == 4
    assert failing.peak(engine, "failing") <= 4
    # Of 30 with 4 attempts each, a request in four is good: that takes 69 at least, whoever gets which.
    assert (healthy.asked, failing.asked >= 69) == (30, True)
