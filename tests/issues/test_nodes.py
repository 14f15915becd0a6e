"""Nodes of `retry_loop` are steps like all others."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import NotPermitted, TransientError, UsageError
from oncemore.profiles.kfm.loop import last_run, retry_loop
from oncemore.steps.read_only_values import ReadOnlyDict, ReadOnlyList, make_read_only
from oncemore.workers.find_steps import find_steps
from oncemore.workers.worker import Worker
from tests.issues.nodes import CFG, INPUTS, Later, Report, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.signed_policies import PolicySigners


@pytest.fixture(autouse=True)
def engine(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[oncemore.Engine]:
    monkeypatch.chdir(tmp_path)
    with oncemore.open("memory:") as engine:
        yield engine


def ends(run: Any) -> list[tuple[str, int, str]]:
    return [
        (line["state"], line["attempt"], line["reason"])
        for line in run.records()
        if line["kind"] == "TRANSITION" and line["state"] == "COMPLETE"
    ]


class Changes(Report):
    """A node that writes to what it is given."""

    node_id = "changes"

    def __init__(self, change: Any) -> None:
        self.change = change

    def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> Any:
        self.change(inputs, cfg)


@pytest.mark.parametrize(
    "change",
    [
        lambda inputs, cfg: inputs.update(a=1),
        lambda inputs, cfg: inputs.__setitem__("rows", []),
        lambda inputs, cfg: inputs.pop("rows"),
        lambda inputs, cfg: inputs.__ior__({"a": 1}),
        lambda inputs, cfg: inputs["rows"].append(4),
        lambda inputs, cfg: inputs["rows"].sort(),
        lambda inputs, cfg: inputs["rows"].__iadd__([4]),
        lambda inputs, cfg: inputs["rows"].__delitem__(0),
        lambda inputs, cfg: cfg.clear(),
    ],
)
def test_writing_to_the_inputs_of_a_node_raises(change: Any) -> None:
    inputs = copy.deepcopy(INPUTS)
    assert retry_loop(Changes(change), inputs, CFG) == "HARD_FAIL"
    run = last_run(Changes(change), inputs, CFG)
    assert run is not None
    assert run.attempts[0].error["type"] == "TypeError"  # type: ignore[index]
    assert "read-only; copy what you want to change" in run.attempts[0].error["message"]  # type: ignore[index]
    assert inputs == INPUTS


def test_a_node_that_draws_gives_the_same_in_every_run() -> None:
    assert retry_loop(Report(), INPUTS, CFG) == "OK"
    first = last_run(Report(), INPUTS, CFG)
    assert retry_loop(Report(), INPUTS, {**CFG, "unit": "g"}, on_config_change="new") == "OK"
    second = last_run(Report(), INPUTS, {**CFG, "unit": "g"})
    assert first is not None
    assert second is not None
    assert first.value["drawn"] == second.value["drawn"]


def test_read_only_copies_are_values_like_those_they_are_made_of() -> None:
    plain: Any = {"a": [1, {"b": (2, [3])}], "c": {4}, "d": b"x"}
    made = make_read_only(plain)
    assert made == plain
    assert (type(made), type(made["a"]), type(made["c"])) == (ReadOnlyDict, ReadOnlyList, frozenset)
    assert json.dumps(made["a"]) == json.dumps(plain["a"])
    assert type(copy.deepcopy(made)) is dict
    assert type(copy.copy(made["a"])) is list
    assert make_read_only(made) == made

    class Returns(Report):
        node_id = "returns"

        def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> Any:
            oncemore.current().checkpoint(inputs)
            return [inputs, cfg]

    assert retry_loop(Returns(), INPUTS, CFG) == "OK"
    run = last_run(Returns(), INPUTS, CFG)
    assert run is not None
    assert run.value == [INPUTS, CFG]
    assert type(run.value[0]) is dict


@pytest.mark.req("LEASE-5")
def test_a_message_that_is_delivered_again_is_logged_as_artifact_exists_and_computes_nothing() -> None:
    for _ in range(3):
        assert retry_loop(Report(), INPUTS, CFG) == "OK"
    run = last_run(Report(), INPUTS, CFG)
    assert run is not None
    assert ends(run) == [("COMPLETE", 1, ""), ("COMPLETE", 1, "artifact_exists")]
    assert (len(run.attempts), run.value["total"]) == (1, 6)
    assert asyncio.run(retry_loop(Later(), 1)) == asyncio.run(retry_loop(Later(), 1)) == "OK"
    later = last_run(Later(), 1)
    assert later is not None
    assert [reason for _, _, reason in ends(later)] == ["", "artifact_exists"]
    assert later.value == [1, None, {"at": 1}]


def test_a_redelivery_beside_another_is_logged_once(engine: oncemore.Engine) -> None:
    assert retry_loop(Report(), INPUTS, CFG) == "OK"
    first = engine.store.append
    turns = []

    def append(batch: Any) -> Any:
        if not turns:
            turns.append(1)
            assert retry_loop(Report(), INPUTS, CFG) == "OK"
        return first(batch)

    engine.store.append = append  # type: ignore[method-assign]
    assert retry_loop(Report(), INPUTS, CFG) == "OK"
    run = last_run(Report(), INPUTS, CFG)
    assert run is not None
    assert len(ends(run)) == 2


def test_a_worker_finds_the_nodes_of_a_module_and_does_their_runs(engine: oncemore.Engine) -> None:
    steps = find_steps(["tests.issues.nodes"])
    assert sorted(step.name for step in steps) == ["deferred", "monthly-report", "needs-a-table"]
    (report,) = [step for step in steps if step.name == "monthly-report"]
    report.submit(INPUTS, CFG)
    assert Worker(engine, steps).run_until_idle().done == 1
    run = last_run(Report(), INPUTS, CFG)
    assert run is not None
    assert run.value["unit"] == "kg"
    assert retry_loop(Report(), INPUTS, CFG) == "OK"
    (named,) = find_steps(["tests.issues.nodes:table"])
    named.submit(1, None)
    assert Worker(engine, [table]).run_until_idle().done == 1
    with pytest.raises(UsageError, match="has no step called 'Needs'"):
        find_steps(["tests.issues.nodes:Needs"])


def test_a_node_names_its_policy_and_its_pipeline(engine: oncemore.Engine) -> None:
    class Short(Report):
        node_id, policy, pipeline = "short", "p0-storm-nowcast", "nowcasts"

        def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> Any:
            raise TransientError("busy")

    with oncemore.testing.instant_waits():
        assert retry_loop(Short(), INPUTS) == "HARD_FAIL"
    run = last_run(Short(), INPUTS)
    assert run is not None
    assert len(run.attempts) == 4
    for name in ("nowcasts", "tests.issues.nodes"):
        engine.switches.on(pipeline=name, reason="stop")
    with pytest.raises(NotPermitted, match="pipeline nowcasts"):
        retry_loop(Short(), 2)
    with pytest.raises(NotPermitted, match=r"pipeline tests\.issues\.nodes"):
        retry_loop(Report(), 2, CFG)


def test_a_policy_file_says_what_a_changed_configuration_means(
    tmp_path: Any, policy_signers: PolicySigners
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "profile: mine\nversion: retry-loop-v1.0\nextends: kfm-loop\nidempotency: {on_config_change: new}\n"
    )
    policy_signers.sign(file)
    assert retry_loop(Report(), INPUTS, {"unit": "kg"}, policy=file) == "OK"
    assert retry_loop(Report(), INPUTS, {"unit": "g"}, policy=file) == "OK"
    with pytest.raises(oncemore.ConfigChanged):
        retry_loop(Report(), INPUTS, {"unit": "kg"}, policy="standard")
    with pytest.raises(oncemore.ConfigChanged):
        retry_loop(Report(), INPUTS, {"unit": "kg"})
