"""The state in which the log ends an attempt, for an example of every class (CLASS-9, CLASS-3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import VIOLATIONS
from tests.classifiers.outages import raise_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncemore.testing import FakeClock

RETRYABLE: dict[str, Callable[[], BaseException]] = {
    "TransientError": lambda: oncemore.TransientError("soon"),
    "connection refused": lambda: raise_fault("urllib", "refused"),
    "timeout": lambda: TimeoutError(),
    "429": lambda: raise_fault("urllib", "429"),
    "503": lambda: raise_fault("urllib", "503"),
}
TERMINAL: dict[str, Callable[[], BaseException]] = {
    "PermanentError": lambda: oncemore.PermanentError("never"),
    "404": lambda: raise_fault("urllib", "404"),
    "a bug": lambda: KeyError("x"),
    "invalid data": lambda: raise_fault("pydantic", "schema"),
}
GOVERNANCE: dict[str, Callable[[], BaseException]] = {
    code: lambda code=code: oncemore.PolicyViolation(code)  # type: ignore[misc]
    for code in VIOLATIONS
    if code != "CHECKSUM_MISMATCH"
}
QUARANTINE: dict[str, Callable[[], BaseException]] = {
    "NeedsReview": lambda: oncemore.NeedsReview("AMBIGUOUS_NAME"),
    "CHECKSUM_MISMATCH": lambda: oncemore.PolicyViolation("CHECKSUM_MISMATCH"),
}
EXAMPLES = {
    **dict.fromkeys(RETRYABLE, "SOFT_FAIL"),
    **dict.fromkeys((*TERMINAL, *GOVERNANCE), "HARD_FAIL"),
    **dict.fromkeys(QUARANTINE, "SOFT_FAIL"),
}


@pytest.fixture
def engine(instant_retries: FakeClock) -> Iterator[oncemore.Engine]:
    with oncemore.open("memory:") as engine:
        yield engine


def fail_once(error: BaseException) -> Any:
    """Return a durable step of kfm-loop whose first attempt fails in this way."""
    errors = [error]

    @oncemore.step(effect="idempotent", policy="kfm-loop", name="node")
    def node() -> str:
        if errors:
            raise errors.pop()
        return "done"

    return node


def list_states(run: Any) -> list[str]:
    """Return the states that the log has for the run's transitions, in order."""
    return [line["state"] for line in run.records() if line["kind"] == "TRANSITION"]


@pytest.mark.req("CLASS-9")
@pytest.mark.parametrize("decision", ["reject", "release"])
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_attempt_of_every_error_class_ends_in_its_state(
    example: str, decision: str, engine: oncemore.Engine
) -> None:
    node = fail_once({**RETRYABLE, **TERMINAL, **GOVERNANCE, **QUARANTINE}[example]())
    run = node.run()
    states = list_states(run)
    assert states[:3] == ["PENDING", "RUNNING", EXAMPLES[example]]
    escalations = [line for line in run.records() if line["kind"] == "ESCALATION"]
    assert len(escalations) == (0 if example in RETRYABLE else 1)
    if example in RETRYABLE:
        assert states[3:] == ["RUNNING", "COMPLETE"]
    elif example not in QUARANTINE:
        assert states[3:] == []
    else:  # held for a person, who ends it or lets it go on
        assert (states[3:], bool(run.held_for)) == ([], True)
        (item,) = engine.quarantine
        getattr(engine.quarantine, decision)(item, by="operator", reason="looked at it")
        if decision == "reject":
            assert list_states(node.last_run())[3:] == ["HARD_FAIL"]
        else:
            assert node() == "done"
            assert list_states(node.last_run())[-2:] == ["RUNNING", "COMPLETE"]


def test_a_non_retryable_error_in_stage_2_of_3_leaves_stage_3_uncalled_and_one_quarantine_record(
    engine: oncemore.Engine,
) -> None:
    """CLASS-3 without its ledger entry, which is not built yet; so it has no mark."""
    calls = []

    def make_stage(number: int) -> Any:
        @oncemore.step(effect="idempotent", policy="kfm-rules", name=f"stage-{number}")
        def stage(item: str) -> str:
            calls.append(number)
            if number == 2:
                raise oncemore.PolicyViolation("SCHEMA_INVALID", "no geometry")
            return item

        return stage

    stages = [make_stage(number) for number in (1, 2, 3)]
    with pytest.raises(oncemore.Quarantined):
        for stage in stages:
            stage("kfm-0007")
    assert calls == [1, 2]
    (item,) = engine.quarantine
    assert (item.step, item.attempts, item.error["code"]) == ("stage-2", 1, "SCHEMA_INVALID")
