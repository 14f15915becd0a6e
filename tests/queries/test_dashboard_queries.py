"""What the pages of the dashboard read: pages of runs, trees, chains of terms, counts, and what is stuck."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import UsageError
from oncemore.queries import energy, run_pages, run_tree
from oncemore.queries.activity import ActivityCounter
from oncemore.queries.overview import load_overview
from oncemore.queries.proof_terms import list_proof_terms
from oncemore.queries.recorded_policies import find_policy_or_recorded, list_recorded_policies
from oncemore.queries.recorded_runs import RecordedRunFilter
from oncemore.queries.run_pages import list_running_rows, load_run_page
from oncemore.queries.runs import RunFilter, list_runs
from oncemore.telemetry.alerts import AlertRules
from oncemore.testing import FakeClock
from tests.dashboard.sample_store import SampleRuns, fill_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[oncemore.Engine, SampleRuns]]:
    engine = oncemore.open(tmp_path_factory.mktemp("queries") / "log.db")
    runs = fill_store(engine)
    yield engine, runs
    engine.close()


FILTERS = [
    RunFilter(),
    RunFilter(state="COMPLETE"),
    RunFilter(state="SOFT_FAIL"),
    RunFilter(state="HARD_FAIL"),
    RunFilter(step="tiles.check"),
    RunFilter(error="TIMEOUT"),
    RunFilter(held=True),
    RunFilter(dataset="burial-sites"),
]


@pytest.mark.parametrize("wanted", FILTERS, ids=str)
@pytest.mark.parametrize("window", [3, 10_000])
def test_pages_of_runs_together_are_the_whole_list(
    sample: tuple[oncemore.Engine, SampleRuns],
    wanted: RunFilter,
    window: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = sample[0].store
    monkeypatch.setattr(run_pages, "WINDOW", window)
    for budget_s in (0.0, 1e9):
        found, before = [], None
        while True:
            page = load_run_page(store, wanted._replace(limit=4, before=before), budget_s=budget_s)
            found += page.rows
            # Only a search that was cut short says how far it came.
            assert page.searched_to is None or page.next_before is not None
            if page.next_before is None:
                break
            before = page.next_before
        assert found == list_runs(store, wanted._replace(limit=1000))


def test_a_search_without_time_left_says_how_far_it_came(sample: tuple[oncemore.Engine, SampleRuns]) -> None:
    store = sample[0].store
    run_pages_window, run_pages.WINDOW = run_pages.WINDOW, 5
    try:
        page = load_run_page(store, RunFilter(step="nothing"), budget_s=0.0)
    finally:
        run_pages.WINDOW = run_pages_window
    assert page.rows == ()
    assert page.next_before is not None
    assert page.searched_to is not None


def test_the_tree_of_a_workflow_has_its_steps(sample: tuple[oncemore.Engine, SampleRuns]) -> None:
    engine, runs = sample
    from oncemore.queries.runs import find_run

    for subject in (runs.workflow, runs.workflow_child):
        key = find_run(engine.store, subject).entity.removeprefix("run/")
        tree = run_tree.load_tree(engine.store, key)
        assert [(node.depth, node.step) for node in tree.nodes] == [(0, "order.fulfil"), (1, "order.price")]
        assert [node.is_subject for node in tree.nodes] == [node.run_id == subject for node in tree.nodes]
        assert tree.is_complete
    assert run_tree.load_tree(engine.store, "nothing").nodes == ()


def test_the_chain_of_a_tuned_decision_names_every_term() -> None:
    proof: dict[str, Any] = {
        "attempt": 2,
        "verdict": "RETRYABLE",
        "failure": {
            "code": "HTTP_503",
            "kind": "transient",
            "sent": "no",
            "retry_after": 7.0,
            "rule": "http",
        },
        "inputs": {"seed": "a" * 64},
        "thresholds": {"max_attempts": 6, "schedule": {"shape": "exponential"}, "jitter": {"spread": "full"}},
        "formula": "u * 40",
        "terms": {
            "planned_s": 40.0,
            "u": 0.5,
            "jittered_s": 20.0,
            "tuned": {
                "stretch": 1.5,
                "carbon": 0.2,
                "price": 0.1,
                "risk": 0.1,
                "delay_s": 27.0,
                "missing": ["price"],
            },
            "room_s": 90.0,
        },
        "clamps": ["max_stretch", "deadline"],
        "action": "retry",
        "reason": "retry",
        "delay_s": 27.0,
        "policy": {"name": "kfm-loop", "version": "11.2", "digest": "d" * 64},
    }
    chain = {term.name: (term.value, term.source) for term in list_proof_terms(proof)}
    assert chain["failure"] == ("HTTP_503 (transient)", "classified by rule http")
    assert chain["verdict"] == ("retryable", "it cannot have taken effect")
    assert chain["own delay"] == ("20 s", "u * 40")
    assert chain["carbon and price"][0] == "times 1.5"
    assert chain["tuned delay"] == ("27 s", "not known: price")
    assert chain["Retry-After"][0] == "7 s"
    assert chain["room"][0] == "90 s"
    assert chain["bound"] == (
        "deadline",
        "shortened, so that the next attempt can finish before the deadline",
    )
    assert chain["decision"] == ("try again in 27 s", "")
    # A proof of another version, or of an end that no policy decided, has fewer terms and no error.
    assert [term.name for term in list_proof_terms({"action": "stop", "reason": "cancelled"})] == [
        "failure",
        "verdict",
        "decision",
        "policy",
    ]


def test_the_counter_counts_each_entry_once_and_knows_the_running_attempts(tmp_path: Path) -> None:
    with oncemore.open(tmp_path / "log.db") as engine:
        seen: list[Any] = []

        @oncemore.step(
            effect="idempotent",
            name="work",
            attempts=3,
            on=ValueError,
            wait=oncemore.backoff.exponential(0.01),
        )
        def work(number: int) -> int:
            counter.update()
            seen.append(counter.list_running())
            if number == 1 and len(seen) < 3:
                raise ValueError("again")
            return number

        work.submit(0)
        counter = ActivityCounter(engine)
        counter.update()
        for number in (1, 2):
            work(number)
        counter.update()
        counter.update()
        minutes = counter.list_minutes()
        total = {
            name: sum(getattr(each, name) for each in minutes)
            for name in ("attempts", "retries", "completed")
        }
        assert total == {"attempts": 4, "retries": 2, "completed": 2}
        assert [[attempt.number for attempt in each] for each in seen] == [[1], [2], [3], [1]]
        assert {attempt.step for each in seen for attempt in each} == {"work"}
        assert counter.list_running() == []
        assert list_running_rows(engine.store, seen[0], RunFilter()).rows == ()


def test_a_counter_that_starts_late_finds_the_running_attempts(tmp_path: Path) -> None:
    with oncemore.open(tmp_path / "log.db") as engine:

        @oncemore.step(effect="pure", name="work")
        def work(number: int) -> int:
            late = ActivityCounter(engine)
            late.update()
            rows = list_running_rows(engine.store, late.list_running(), RunFilter(step="work")).rows
            assert [row.state for row in rows] == ["RUNNING"]
            assert list_running_rows(engine.store, late.list_running(), RunFilter(step="other")).rows == ()
            return number

        work(1)


def test_the_overview_names_what_is_stuck_and_what_helps(sample: tuple[oncemore.Engine, SampleRuns]) -> None:
    engine, runs = sample
    overview = load_overview(engine, ActivityCounter(engine), AlertRules())
    items = {(item.kind, item.title): item for item in overview.attention}
    assert "settle" in items["held", "bank.pay"].advice
    assert items["held", "bank.pay"].subject == runs.unknown
    assert "Approve" in items["held", "parcels.redraw"].advice
    assert items["escalation", "sites.publish"].subject == runs.escalation
    assert "Reset" in items["breaker", "Breaker kfm-stac"].advice
    assert ("switch", "Switch step:legacy.sync") in items
    assert overview.counts.held == 4
    assert len(overview.minutes) == 60
    strict = load_overview(engine, ActivityCounter(engine), AlertRules(exhausted_share=0.0))
    assert [alert.kind for alert in strict.alerts] == ["exhaustion"]


def test_overdue_stopped_and_lost_work_is_named(tmp_path: Path) -> None:
    with FakeClock() as clock, oncemore.open(tmp_path / "log.db") as engine:

        @oncemore.step(effect="idempotent", name="late")
        def late(number: int) -> None: ...

        @oncemore.step(effect="idempotent", name="stopped")
        def stopped(number: int) -> None: ...

        late.submit(1)
        stopped.submit(1)
        engine.switches.on(step="stopped", reason="a test", by="operator")
        # The store's own clock does not move with the fake one: the runs are due since ten minutes ago.
        late.submit(2, at=timedelta(hours=2))
        clock.advance(600.0)
        overview = load_overview(engine, ActivityCounter(engine), AlertRules())
    kinds = {(item.kind, item.title) for item in overview.attention}
    assert ("overdue", "late") in kinds
    assert ("stopped", "stopped") in kinds
    assert (overview.counts.due, overview.counts.waiting) == (2, 1)


@pytest.mark.req("DASH-4")
def test_the_energy_of_steps_adds_up_to_the_export(sample: tuple[oncemore.Engine, SampleRuns]) -> None:
    from oncemore.steps.history import export_records
    from oncemore.telemetry.records import list_attempt_ends

    engine, _ = sample
    now = engine.now()
    period = energy.load_energy(engine, RecordedRunFilter(now - 3600, now + 86_400))
    exported = 0.0
    for head in engine.store.list_heads(_all_runs()):
        for record in list_attempt_ends(export_records(engine.store.read_entries(head.entity))):
            exported += record["telemetry_snapshot"]["energy_kWh"] or 0.0
    assert exported > 0
    assert period.totals.energy_kwh == pytest.approx(exported)
    for rows in (period.by_pipeline, period.by_step, period.by_policy, period.by_key):
        assert sum(row.totals.energy_kwh or 0.0 for row in rows) == pytest.approx(exported)
        assert sum(row.totals.attempts for row in rows) == period.totals.attempts
    shares = {row.name: row.retry_share for row in period.by_step}
    assert shares["tiles.check"] == 0.0
    assert shares["stac.poll"] is not None
    assert 0 < shares["stac.poll"] < 1
    only = energy.load_energy(engine, RecordedRunFilter(now - 3600, now + 86_400, step="stac.poll"))
    assert [row.name for row in only.by_step] == ["stac.poll"]


def _all_runs() -> Any:
    from oncemore.log.store import HeadQuery

    return HeadQuery("run")


def test_a_long_period_is_cut_and_says_so(
    sample: tuple[oncemore.Engine, SampleRuns], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = sample
    monkeypatch.setattr(energy, "MAX_ENTRIES", 10)
    period = energy.load_energy(engine, RecordedRunFilter(0.0, engine.now() + 86_400))
    assert period.is_cut
    assert period.since > 0
    empty = energy.load_energy(engine, RecordedRunFilter(0.0, 1.0))
    assert (empty.totals.runs, empty.retry_share) == (0, None)


def test_recorded_policies_are_listed_and_found(sample: tuple[oncemore.Engine, SampleRuns]) -> None:
    store = sample[0].store
    rows = list_recorded_policies(store)
    quick = next(row for row in rows if row.name == "quick")
    assert find_policy_or_recorded(store, quick.address).max_attempts == 4
    assert find_policy_or_recorded(store, "kfm-loop").name == "kfm-loop"
    for address in ("policy/ffffffffffff", "../secrets.yaml", "/etc/passwd", "nothing"):
        with pytest.raises(UsageError):
            find_policy_or_recorded(store, address)
