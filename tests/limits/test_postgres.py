"""The promises of breakers, rates, permits and budgets that need a shared store, on PostgreSQL.

The tests are those that hold for SQLite and in memory; here the engine is another one.
"""

from __future__ import annotations

import itertools
import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.limits.concurrency import load_quota
from oncemore.log.postgres.store import PostgresStore
from oncemore.policy.backoff import Schedule
from oncemore.policy.policy import Policy
from oncemore.steps.history import verify_chain
from tests.limits.test_budgets import test_all_who_share_a_store_have_one_budget
from tests.limits.test_paces import (
    test_calls_that_had_begun_before_count_as_permits,
    test_the_limit_of_a_fleet_goes_down_by_half_and_back_step_by_step,
)
from tests.limits.test_rates import (
    test_all_who_share_a_store_have_one_rate_together,
    test_what_has_to_wait_longer_is_parked_until_its_moment_and_takes_no_other,
)
from tests.limits.test_retry import run as run_light
from tests.limits.test_retry import (
    test_a_good_probe_closes_it_and_a_bad_one_keeps_it_open,
    test_a_probe_that_could_not_be_taken_is_not_held,
    test_an_open_breaker_fails_at_once_and_nothing_is_sent,
    test_those_who_share_a_store_share_it_and_a_new_one_does_not_reset_it,
)
from tests.limits.test_step_budgets import (
    test_a_decision_that_was_not_written_gives_its_token_back,
    test_a_run_without_a_token_can_be_parked_until_there_is_one,
    test_a_token_is_written_with_the_decision_that_took_it,
)
from tests.limits.test_steps import run as run_step
from tests.limits.test_steps import (
    test_a_run_that_is_refused_waits_and_no_attempt_is_counted,
    test_a_worker_does_not_spin_on_what_is_refused,
    test_the_outage_of_the_documents,
)
from tests.servers import postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncemore.testing import FakeClock

__all__ = [
    "test_a_decision_that_was_not_written_gives_its_token_back",
    "test_a_good_probe_closes_it_and_a_bad_one_keeps_it_open",
    "test_a_probe_that_could_not_be_taken_is_not_held",
    "test_a_run_that_is_refused_waits_and_no_attempt_is_counted",
    "test_a_run_without_a_token_can_be_parked_until_there_is_one",
    "test_a_token_is_written_with_the_decision_that_took_it",
    "test_a_worker_does_not_spin_on_what_is_refused",
    "test_all_who_share_a_store_have_one_budget",
    "test_all_who_share_a_store_have_one_rate_together",
    "test_an_open_breaker_fails_at_once_and_nothing_is_sent",
    "test_calls_that_had_begun_before_count_as_permits",
    "test_the_limit_of_a_fleet_goes_down_by_half_and_back_step_by_step",
    "test_the_outage_of_the_documents",
    "test_those_who_share_a_store_share_it_and_a_new_one_does_not_reset_it",
    "test_what_has_to_wait_longer_is_parked_until_its_moment_and_takes_no_other",
]

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def _new_worlds() -> None:
    from tests.limits import test_step_budgets, test_steps

    test_steps.world.__init__()  # type: ignore[misc]
    test_step_budgets.world.__init__()  # type: ignore[misc]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        with postgres.database() as address:
            yield address
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))


@pytest.fixture
def schema() -> str:
    return f"gates_{next(_numbers)}"


@pytest.fixture
def engine(url: str, schema: str) -> Iterator[oncemore.Engine]:
    with oncemore.Engine(lambda: PostgresStore(url, schema), "postgresql://") as engine:
        yield engine


@pytest.fixture
def make(engine: oncemore.Engine) -> Callable[..., oncemore.Breaker]:
    def made(name: str = "stac", **told: Any) -> oncemore.Breaker:
        return oncemore.Breaker(name, **{"cooldown_s": 300, "shared": True, **told})

    return made


@pytest.fixture
def budget() -> Callable[..., oncemore.Budget]:
    def made(capacity: float, per_success: float = 0.0, at_empty: str = "fail") -> oncemore.Budget:
        return oncemore.Budget(capacity, per_success, at_empty=at_empty, name="api", shared=True)

    return made


@pytest.fixture(params=["plain", "async"])
def run(request: pytest.FixtureRequest) -> Any:
    """That of the module which a test is from."""
    of = {"tests.limits.test_retry": run_light, "tests.limits.test_steps": run_step}
    made: Any = of[request.function.__module__]
    return getattr(made, "__wrapped__", made)(request)


def test_two_engines_share_the_permits_of_one_store(
    url: str, schema: str, engine: oncemore.Engine, clock: FakeClock
) -> None:
    with oncemore.Engine(lambda: PostgresStore(url, schema), "postgresql://") as other:
        engine.concurrency_limits.record_throttling("api", engine.now(), 5)
        assert (engine.concurrency_limits.begin_call("api"), other.concurrency_limits.begin_call("api")) == (
            True,
            True,
        )
        assert (engine.concurrency_limits.begin_call("api"), other.concurrency_limits.begin_call("api")) == (
            False,
            False,
        )
        other.close()  # and its permits end with it
        assert engine.concurrency_limits.begin_call("api")
        assert load_quota(engine, "api").active_calls == {engine.leases.current_identity().name: 2}


def all_at_once(engines: list[oncemore.Engine], call: Callable[[int], None]) -> None:
    """Let a thread on each engine call in the same moment."""
    start = threading.Barrier(len(engines))

    def caller(which: oncemore.Engine, n: int) -> None:
        with which:
            start.wait(20)
            call(n)

    told = [(which, n) for n, which in enumerate(engines)]
    callers = [threading.Thread(target=copy_context().run, args=(caller, *one)) for one in told]
    for one in callers:
        one.start()
    for one in callers:
        one.join(60)
        assert not one.is_alive()


@pytest.fixture
def engines(url: str, schema: str) -> list[oncemore.Engine]:
    """Engines on one store; each is closed by who uses it."""
    return [oncemore.Engine(lambda: PostgresStore(url, schema), "postgresql://") for _ in range(4)]


def test_of_many_at_once_each_takes_its_own_token(
    engine: oncemore.Engine, engines: list[oncemore.Engine]
) -> None:
    """Real connections and threads: whoever is second is refused by the server, and decides again."""
    bucket = oncemore.Budget(7, 0, name="api", shared=True)
    policy = Policy("quick", max_attempts=3, schedule=Schedule("fixed", delays=(0.001, 0.002)))

    @oncemore.step(effect="idempotent", name="spend", policy=policy, budget=bucket)
    def spend(n: int) -> None:
        raise ConnectionResetError

    def call(n: int) -> None:
        for item in range(3):
            spend.run(10 * n + item)

    all_at_once(engines, call)
    tried = [spend.last_run(10 * n + item).state.attempt_count for n in range(4) for item in range(3)]  # type: ignore[union-attr]
    assert sum(tried) == 12 + 7
    assert load_quota(engine, "api").tokens == 0
    verify_chain(engine.store.read_entries())


def test_of_many_at_once_one_has_the_probe(engine: oncemore.Engine, engines: list[oncemore.Engine]) -> None:
    told = {"failures": 1, "shared": True}
    with pytest.raises(ConnectionResetError), oncemore.Breaker("api", cooldown_s=0.001, **told):  # type: ignore[arg-type]
        raise ConnectionResetError
    came: list[str] = []
    over = threading.Barrier(4)

    def call(n: int) -> None:
        try:
            with oncemore.Breaker("api", cooldown_s=60, **told):  # type: ignore[arg-type]
                came.append("through")
                over.wait(20)
        except oncemore.CircuitOpen:
            came.append("refused")
            over.wait(20)

    all_at_once(engines, call)
    assert sorted(came) == ["refused"] * 3 + ["through"]
    assert oncemore.Breaker("api", shared=True).state == "CLOSED"
