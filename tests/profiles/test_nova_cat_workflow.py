"""The state machine of nova-cat: accepted by an independent validator, executed by an emulator."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from statelint.linter import Linter

import oncemore
from oncemore.limits import cooldown_rules
from oncemore.policy import files
from oncemore.policy.backoff import planned_delay
from oncemore.profiles.nova_cat import names
from oncemore.profiles.nova_cat.state_machine import FUNCTIONS, build_workflow
from oncemore.stepfunctions import export, task
from oncemore.stepfunctions.check import find_faults
from oncemore.stepfunctions.export import retrier_delays
from tests.servers.step_functions import emulator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.servers.step_functions import Ended, Machine

ID = "0f6e2c1a-7d5b-4b8e-9a65-0c7de1f8a901"
GIVEN = {"data_product_id": "7f0c", "locator": "http://provider-a/7f0c.fits", "correlation_id": ID}
DEPLOYED = build_workflow(functions={name: name for name in FUNCTIONS})


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with emulator() as machine:
        yield machine


class Product:
    """The functions of a deployment, with a provider whose responses are scripted."""

    def __init__(self, *tries: Exception | dict[str, Any], **record: Any) -> None:
        self.tries, self.record = list(tries), {"now": 1000.0, **record}
        self.outcomes: list[str] = []
        self.validated: Exception | dict[str, Any] = {"validation_status": "VALID"}

    def acquire(self, event: Any) -> Any:
        return _answer(self.tries.pop(0) if len(self.tries) > 1 else self.tries[0])

    def recorded(self, event: Any) -> Any:
        self.outcomes.append(event["outcome"])
        return {
            "last_attempt_outcome": event["outcome"],
            "correlation_id": event["execution"]["correlation_id"],
        }

    def functions(self) -> dict[str, Callable[[Any], Any]]:
        return {
            "ReadProduct": lambda event: self.record,
            "AcquireArtifact": self.acquire,
            "ValidateSpectra": lambda event: _answer(self.validated),
            "RecordAttempt": self.recorded,
        }


def _answer(turn: Exception | dict[str, Any]) -> Any:
    if isinstance(turn, Exception):
        raise turn
    return turn


def played(machine: Machine, product: Product, given: Any = GIVEN) -> Ended:
    machine.slept.clear()
    machine.called.clear()
    return machine.run(DEPLOYED, given, product.functions())


RETRYABLE, TERMINAL = task.RetryableError("HTTP_429"), task.TerminalError("INVALID_UUID")
QUARANTINE = task.QuarantineError("CHECKSUM_MISMATCH")
GOOD = {"sha256": "51ab"}


# What it is -----------------------------------------------------------------------------------------


@pytest.mark.req("SFN-1")
@pytest.mark.parametrize("only", [None, *names.WORKFLOWS])
def test_an_independent_validator_accepts_it(only: str | None) -> None:
    made = build_workflow(only=only)
    assert Linter.validate(made) == []
    assert find_faults(made) == []
    assert json.loads(json.dumps(made)) == made


def test_the_validator_detects_errors() -> None:
    broken = build_workflow()
    broken["States"]["AcquireArtifact"]["Next"] = "Nowhere"
    assert Linter.validate(broken) != []
    assert find_faults(broken) != []


@pytest.mark.req("SFN-2")
def test_its_retriers_are_the_schedules_of_the_profile() -> None:
    states = DEPLOYED["States"]
    (slow,), (usual,) = states["AcquireArtifact"]["Retry"], states["ValidateSpectra"]["Retry"]
    numbers = ("IntervalSeconds", "BackoffRate", "MaxDelaySeconds", "MaxAttempts")
    assert [usual[name] for name in numbers] == [2, 5, 30, 3]
    assert [slow[name] for name in numbers] == [10, 6, 180, 3]
    assert (retrier_delays(usual), retrier_delays(slow)) == ([2, 10, 30], [10, 60, 180])
    profile = files.profile("nova-cat")
    for retrier, name in ((usual, "default"), (slow, "acquisition")):
        policy = profile.policy(name)
        assert retrier_delays(retrier) == [
            planned_delay(policy.schedule, n) for n in range(1, policy.max_attempts)
        ]


@pytest.mark.req("SFN-3")
def test_only_retryable_errors_are_in_a_retrier() -> None:
    found = [retrier for state in _all(DEPLOYED) for retrier in state.get("Retry", ())]
    assert len(found) >= 8
    for retrier in found:
        assert names.RETRYABLE_ERROR in retrier["ErrorEquals"]
        assert not {names.TERMINAL_ERROR, names.QUARANTINE_ERROR, "States.ALL"} & set(retrier["ErrorEquals"])


def test_the_names_of_errors_are_those_of_the_profile() -> None:
    named = (names.RETRYABLE_ERROR, names.TERMINAL_ERROR, names.QUARANTINE_ERROR)
    assert named == (export.RETRYABLE_ERROR, export.TERMINAL_ERROR, export.QUARANTINE_ERROR)
    raised = (task.RetryableError, task.TerminalError, task.QuarantineError)
    assert named == tuple(error.__name__ for error in raised)


@pytest.mark.req("SFN-4")
def test_acquisition_has_fifteen_minutes() -> None:
    assert DEPLOYED["States"]["AcquireArtifact"]["TimeoutSeconds"] == 900
    assert DEPLOYED["States"]["ValidateSpectra"]["TimeoutSeconds"] == 60


@pytest.mark.req("SFN-5")
def test_its_maps_run_one_and_five_at_a_time(machine: Machine) -> None:
    states = DEPLOYED["States"]
    assert states["DiscoverSpectraProducts"]["MaxConcurrency"] == 1
    assert states["ReferenceReconciliation"]["MaxConcurrency"] == 5
    peaks = []
    for name, items in (("DiscoverSpectraProducts", "providers"), ("ReferenceReconciliation", "references")):
        machine.most_at_once, together = 0, threading.Barrier(5 if items == "references" else 1)

        def work(event: Any, together: Any = together) -> Any:
            together.wait(10)  # nobody goes on before as many are there as may be
            time.sleep(0.01)
            return event["item"]

        functions = {"SearchProvider": work, "ResolveReference": work}
        ended = machine.run(DEPLOYED, {"workflow": name, "nova_id": "n", items: list(range(10))}, functions)
        assert ended.status == "SUCCEEDED"
        peaks.append(machine.most_at_once)
    assert peaks == [1, 5]


def _all(scope: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for state in scope["States"].values():
        yield state
        if "ItemProcessor" in state:
            yield from _all(state["ItemProcessor"])


# One product ----------------------------------------------------------------------------------------


@pytest.mark.req("SFN-1", "SFN-2")
def test_a_product_is_acquired_after_retries_with_the_stated_waits(machine: Machine) -> None:
    product = Product(RETRYABLE, RETRYABLE, RETRYABLE, GOOD)
    ended = played(machine, product)
    assert (ended.status, ended.output["outcome"]) == ("SUCCEEDED", names.SUCCESS)
    assert machine.slept == [10, 60, 180]
    assert machine.called.count("AcquireArtifact") == 4
    assert product.outcomes == [names.SUCCESS]
    assert ended.states[-2:] == ["RecordSuccess", "Done"]


@pytest.mark.req("SFN-3")
@pytest.mark.parametrize(
    ("error", "calls", "outcome", "branch", "name"),
    [
        (RETRYABLE, 4, names.RETRYABLE_FAILURE, "RecordRetryableFailure RetryableFailure", "RetryableError"),
        (TERMINAL, 1, names.TERMINAL_FAILURE, "RecordTerminalFailure TerminalFailure", "TerminalError"),
        (QUARANTINE, 1, names.QUARANTINED, "RecordQuarantine Quarantined", "QuarantineError"),
        (KeyError("x"), 1, names.TERMINAL_FAILURE, "RecordTerminalFailure TerminalFailure", "TerminalError"),
    ],
    ids=["retryable", "terminal", "quarantine", "unknown"],
)  # fmt: skip
def test_each_class_ends_in_its_own_branch(
    error: Exception, calls: int, outcome: str, branch: str, name: str, machine: Machine
) -> None:
    product = Product(error)
    ended = played(machine, product)
    assert (ended.status, ended.error) == ("FAILED", name)
    assert ended.states[-2:] == branch.split()
    assert machine.called.count("AcquireArtifact") == calls
    assert product.outcomes == [outcome]
    assert machine.slept == ([10, 60, 180] if calls == 4 else [])


@pytest.mark.req("SFN-3")
def test_a_spectrum_that_is_not_valid_is_quarantined(machine: Machine) -> None:
    product = Product(GOOD)
    product.validated = QUARANTINE
    ended = played(machine, product)
    assert ended.states[-3:] == ["ValidateSpectra", "RecordQuarantine", "Quarantined"]


#: Records of a product at the time 1000, and why it is not asked for; empty where it is.
RECORDS: list[tuple[dict[str, Any], str]] = [
    ({"validation_status": "VALID"}, names.SKIPPED_DUPLICATE),
    ({"validation_status": "VALID", "next_eligible_attempt_at": 2000.0}, names.SKIPPED_DUPLICATE),
    ({"next_eligible_attempt_at": 1000.001}, names.SKIPPED_BACKOFF),
    ({"next_eligible_attempt_at": 1000.0}, ""),
    ({"next_eligible_attempt_at": 0}, ""),
    ({"next_eligible_attempt_at": None}, ""),
    ({"last_attempt_outcome": "QUARANTINE"}, names.SKIPPED_QUARANTINED),
    ({"last_attempt_outcome": "QUARANTINE", "released_at": 0}, names.SKIPPED_QUARANTINED),
    ({"last_attempt_outcome": "QUARANTINE", "released_at": 900.5}, ""),
    ({"last_attempt_outcome": "TERMINAL_FAILURE"}, names.SKIPPED_TERMINAL),
    ({"last_attempt_outcome": "TERMINAL_FAILURE", "released_at": 900.5}, ""),
    ({"last_attempt_outcome": "RETRYABLE_FAILURE", "validation_status": "UNVALIDATED"}, ""),
    ({}, ""),
]


@pytest.mark.parametrize(("record", "outcome"), RECORDS)
def test_the_checks_are_those_of_the_cooldown(record: dict[str, Any], outcome: str) -> None:
    known = {name: value for name, value in record.items() if value is not None}
    assert cooldown_rules.skip_reason(cooldown_rules.ResourceRecord(**known), 1000.0) == outcome


@pytest.mark.req("SFN-6")
@pytest.mark.parametrize(("record", "outcome"), RECORDS)
def test_the_cooldown_is_checked_before_any_request(
    record: dict[str, Any], outcome: str, machine: Machine
) -> None:
    ended = played(machine, Product(GOOD, **record))
    assert ended.status == "SUCCEEDED"
    assert ended.output["outcome"] == (outcome or names.SUCCESS)
    assert ended.output["correlation_id"] == ID
    assert ("AcquireArtifact" in machine.called) is not bool(outcome)
    if outcome:
        assert machine.called == ["ReadProduct"]


@pytest.mark.req("SFN-7", "CORR-2")
def test_a_missing_correlation_id_is_created_first_and_is_in_every_later_state(
    machine: Machine,
) -> None:
    given = {name: value for name, value in GIVEN.items() if name != "correlation_id"}
    ended = played(machine, Product(RETRYABLE, GOOD), given)
    (first, _), (second, merged), *others = ended.entered
    assert (first, second) == ("CreateCorrelationId", "KeepGivenCorrelationId")
    ids = {merged["new"]["correlation_id"]} | {state["correlation_id"] for _, state in others}
    assert len(ids) == 1
    assert len(others) >= 7
    made = ids.pop()
    assert str(UUID(made)) == made == ended.output["correlation_id"]
    again = played(machine, Product(GOOD), given)
    assert again.output["correlation_id"] != made


@pytest.mark.req("CORR-1")
def test_a_given_correlation_id_is_kept_to_the_end(machine: Machine) -> None:
    ended = played(machine, Product(GOOD))
    assert {state["correlation_id"] for _, state in ended.entered[2:]} == {ID}
    assert ended.output["record"]["correlation_id"] == ID


def test_a_product_whose_record_cannot_be_read_is_not_fetched(machine: Machine) -> None:
    def unreadable(event: Any) -> Any:
        raise RETRYABLE

    machine.slept.clear()
    machine.called.clear()
    ended = machine.run(DEPLOYED, GIVEN, {"ReadProduct": unreadable})
    assert (ended.status, ended.error) == ("FAILED", "RetryableError")
    assert machine.slept == [2, 10, 30]
    assert set(machine.called) == {"ReadProduct"}


# Many ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turns", "error"),
    [
        ({"b": RETRYABLE}, "RetryableError"),
        ({"b": RETRYABLE, "c": TERMINAL}, "TerminalError"),
        ({"a": QUARANTINE, "b": RETRYABLE, "c": TERMINAL}, "QuarantineError"),
        ({}, ""),
    ],
)
def test_a_failing_provider_does_not_stop_the_remaining_ones(
    turns: dict[str, Exception], error: str, machine: Machine
) -> None:
    asked: list[str] = []

    def search(event: Any) -> Any:
        asked.append(event["item"])
        return _answer(turns.get(event["item"], {"products": 2}))

    given = {"workflow": names.DISCOVER, "nova_id": "n-1", "providers": ["a", "b", "c"]}
    ended = machine.run(DEPLOYED, given, {"SearchProvider": search})
    assert list(dict.fromkeys(asked)) == ["a", "b", "c"]
    assert ended.error == error
    assert ended.status == ("FAILED" if error else "SUCCEEDED")
    if not error:
        assert [item["result"] for item in ended.output["items"]] == [{"products": 2}] * 3


def test_a_map_without_its_items_is_terminal(machine: Machine) -> None:
    ended = machine.run(DEPLOYED, {"workflow": names.RECONCILE, "references": ["r-1"]}, {})
    assert (ended.status, ended.error) == ("FAILED", "TerminalError")
    ended = machine.run(DEPLOYED, {"workflow": "MakeCoffee"}, {})
    assert (ended.status, ended.error) == ("FAILED", "TerminalError")


@pytest.mark.parametrize("only", names.WORKFLOWS)
def test_one_workflow_can_stand_alone(only: str, machine: Machine) -> None:
    made = build_workflow(only=only, functions={name: name for name in FUNCTIONS})
    given = {**GIVEN, "nova_id": "n", "providers": ["a"], "references": ["r"]}
    both = {"SearchProvider": lambda event: 1, "ResolveReference": lambda event: 1}
    ended = machine.run(made, given, {**Product(GOOD).functions(), **both})
    assert (ended.status, ended.output["outcome"]) == ("SUCCEEDED", names.SUCCESS)


def test_placeholders_are_left_for_the_deployment() -> None:
    text = json.dumps(build_workflow())
    for name in FUNCTIONS:
        assert f'"${{{name}}}"' in text
    assert '"FunctionName": "arn:x"' in json.dumps(build_workflow(functions={"AcquireArtifact": "arn:x"}))
    with pytest.raises(
        oncemore.UsageError, match="'Brew' is not a function of nova-cat; they are ReadProduct"
    ):
        build_workflow(functions={"Brew": "arn:x"})
    with pytest.raises(oncemore.UsageError, match="it takes DiscoverSpectraProducts"):
        build_workflow(only="Brew")
