"""The checker finds each fault of a definition, with its position and its rule."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statelint.linter import Linter

from oncemore.policy import files
from oncemore.profiles.nova_cat.state_machine import build_workflow
from oncemore.stepfunctions import check
from oncemore.stepfunctions.check import find_faults
from oncemore.stepfunctions.export import build_definition

if TYPE_CHECKING:
    from collections.abc import Callable

GOOD: dict[str, Any] = {
    "StartAt": "Work",
    "States": {
        "Work": {
            "Type": "Task", "Resource": "arn:aws:states:::lambda:invoke", "TimeoutSeconds": 60,
            "HeartbeatSeconds": 10,
            "Retry": [
                {"ErrorEquals": ["A", "States.Timeout"], "IntervalSeconds": 2, "BackoffRate": 5.0,
                 "MaxAttempts": 3, "MaxDelaySeconds": 30, "JitterStrategy": "NONE"},
                {"ErrorEquals": ["States.ALL"], "MaxAttempts": 0},
            ],
            "Catch": [
                {"ErrorEquals": ["A", "B"], "Next": "Rest"}, {"ErrorEquals": ["States.ALL"], "Next": "Bad"},
            ],
            "Next": "Which",
        },
        "Which": {
            "Type": "Choice",
            "Choices": [
                {"Variable": "$.x", "StringEquals": "y", "Next": "Many"},
                {"And": [{"Variable": "$.x", "IsPresent": True},
                         {"Not": {"Variable": "$.x", "IsNull": True}}], "Next": "Both"},
            ],
            "Default": "Done",
        },
        "Many": {
            "Type": "Map", "MaxConcurrency": 5, "Next": "Done",
            "ItemProcessor": {
                "ProcessorConfig": {"Mode": "INLINE"}, "StartAt": "Each",
                "States": {"Each": {"Type": "Pass", "End": True}},
            },
        },
        "Both": {
            "Type": "Parallel", "Next": "Done",
            "Branches": [{"StartAt": "One", "States": {"One": {"Type": "Succeed"}}}],
        },
        "Rest": {"Type": "Wait", "Seconds": 0, "Next": "Done"},
        "Done": {"Type": "Succeed"},
        "Bad": {"Type": "Fail", "Error": "E", "Cause": "c"},
    },
}  # fmt: skip


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Put a value at a path of names and numbers; a path that ends with - removes the value."""

    def do(made: Any) -> None:
        *way, last = path.split("/")
        at = made["States"]
        for part in way:
            at = at[int(part) if part.isdigit() else part]
        if value is GONE:
            del at[last]
        else:
            at[int(last) if last.isdigit() else last] = value

    return do


GONE = object()
ALL = {"ErrorEquals": ["States.ALL"], "Next": "Bad"}
LONG = "x" * 81


def test_a_good_definition_has_no_fault() -> None:
    assert find_faults(GOOD) == []
    assert Linter.validate(GOOD) == []
    assert find_faults(build_workflow()) == []
    assert find_faults(build_definition(files.policy("nova-cat"))) == []


BROKEN = [
    ("Work/Retry/0/IntervalSeconds", 0, "bounds"),
    ("Work/Retry/0/IntervalSeconds", 2.5, "bounds"),
    ("Work/Retry/0/IntervalSeconds", True, "bounds"),
    ("Work/Retry/0/MaxAttempts", -1, "bounds"),
    ("Work/Retry/0/BackoffRate", 0.5, "bounds"),
    ("Work/Retry/0/BackoffRate", "2", "bounds"),
    ("Work/Retry/0/BackoffRate", float("inf"), "bounds"),
    ("Work/Retry/0/MaxDelaySeconds", 40_000_000, "bounds"),
    ("Work/Retry/0/JitterStrategy", "EQUAL", "bounds"),
    ("Work/Retry/0/MaxDelaySeconds", 1, "cap"),
    ("Work/Retry/0/ErrorEquals", ["A", "States.ALL"], "all"),
    ("Work/Catch/0/ErrorEquals", ["States.ALL"], "all"),
    ("Work/Retry/1/ErrorEquals", ["A"], "unreachable"),
    ("Work/Retry/0/ErrorEquals", ["A", "A"], "unreachable"),
    ("Work/Catch/1/ErrorEquals", ["B"], "unreachable"),
    ("Work/Catch", [{"ErrorEquals": ["States.TaskFailed"], "Next": "Rest"},
                    {"ErrorEquals": ["B"], "Next": "Bad"}], "unreachable"),
    ("Work/Retry/0/ErrorEquals", [], "errors"),
    ("Work/Retry/0/ErrorEquals", "A", "errors"),
    ("Work/Retry/0/ErrorEquals", ["States.Nonsense"], "errors"),
    ("Work/Retry", {}, "errors"),
    ("Work/Catch/0/Next", GONE, "errors"),
    ("Done/Catch", [ALL], "errors"),
    ("Work/TimeoutSeconds", 0, "bounds"),
    ("Work/HeartbeatSeconds", 60, "bounds"),
    ("Work/TimeoutSecondsPath", "$.t", "bounds"),
    ("Work/Resource", GONE, "task"),
    ("Work/Next", "Nowhere", "next"),
    ("Work/Catch/0/Next", "Nowhere", "next"),
    ("Which/Default", 5, "next"),
    ("Work/Next", GONE, "next"),
    ("Work/End", True, "next"),
    ("Rest/Next", GONE, "next"),
    ("Many/ItemProcessor/States/Each/End", False, "next"),
    ("Done/End", True, "next"),
    ("Which/Next", "Done", "next"),
    ("Lonely", {"Type": "Succeed"}, "unreachable"),
    ("Rest/Seconds", -1, "wait"),
    ("Rest/Timestamp", "2026-01-01T00:00:00Z", "wait"),
    ("Rest/Seconds", GONE, "wait"),
    ("Many/MaxConcurrency", -1, "map"),
    ("Many/MaxConcurrency", 41, "map"),
    ("Many/ItemProcessor", GONE, "map"),
    ("Many/ItemProcessor/StartAt", "Nowhere", "next"),
    ("Many/ItemProcessor/States/Each/Type", "Nap", "type"),
    ("Many/ItemProcessor/States", {}, "shape"),
    ("Many/ItemProcessor/States/Done", {"Type": "Succeed"}, "name"),
    ("Both/Branches", [], "map"),
    ("Which/Choices", [], "choice"),
    ("Which/Choices/0/Next", GONE, "choice"),
    ("Which/Choices/0/StringEquals", GONE, "choice"),
    ("Which/Choices/0/NumericEquals", 1, "choice"),
    ("Which/Choices/0/Variable", GONE, "choice"),
    ("Which/Choices/1/And", [], "choice"),
    ("Which/Choices/1/And/0", 5, "choice"),
    ("Which/Choices/1/And/0/Next", "Done", "choice"),
    ("Which/Choices/0", 5, "choice"),
    ("Work", 5, "type"),
    (LONG, {"Type": "Succeed"}, "name"),
]  # fmt: skip


@pytest.mark.req("SFN-1")
@pytest.mark.parametrize(("path", "value", "rule"), BROKEN, ids=[f"{p}-{r}"[-60:] for p, _, r in BROKEN])
def test_each_fault_is_found(path: str, value: Any, rule: str) -> None:
    made = copy.deepcopy(GOOD)
    change(path, value)(made)
    assert rule in [fault.rule for fault in find_faults(made)]
    assert all(fault.pointer.startswith("/") and fault.message for fault in find_faults(made))


def test_every_fault_of_the_independent_validator_is_found() -> None:
    missed = []
    for path, value, _ in BROKEN:
        made = copy.deepcopy(GOOD)
        change(path, value)(made)
        try:
            theirs = Linter.validate(made)
        except Exception:  # it does not survive everything
            theirs = ["it broke"]
        if theirs and not find_faults(made):
            missed.append((path, theirs))
    assert missed == []


def test_faults_that_other_validators_accept_are_found() -> None:
    unseen = 0
    for path, value, rule in BROKEN:
        made = copy.deepcopy(GOOD)
        change(path, value)(made)
        if rule in ("all", "cap", "unreachable") and not Linter.validate(made):
            unseen += 1
    assert unseen >= 5


@pytest.mark.parametrize(
    "made", [None, 5, [], {}, {"States": {}}, {"States": []}, {"StartAt": "A", "States": {"A": 1}}]
)
def test_a_document_that_is_not_a_state_machine_is_refused(made: Any) -> None:
    assert find_faults(made)


def test_a_machine_without_an_end_is_found() -> None:
    loop = {"StartAt": "A", "States": {"A": {"Type": "Pass", "Next": "A"}}}
    assert [fault.rule for fault in find_faults(loop)] == ["endless"]


def test_limits_hold() -> None:
    deep: Any = {"StartAt": "S0", "States": {"S0": {"Type": "Pass", "End": True}}}
    for level in range(1, 25):
        state = {"Type": "Map", "ItemProcessor": deep, "End": True}
        deep = {"StartAt": f"S{level}", "States": {f"S{level}": state}}
    assert [fault.rule for fault in find_faults(deep)] == ["depth"]
    many = {"StartAt": "A", "States": {f"s/{n}": {"Type": "?"} for n in range(900)}}
    assert len(find_faults(many)) == check.MAX_FAULTS
    assert find_faults(many)[0].pointer == "/States/s~10"
    test: Any = {"Variable": "$.x", "IsNull": True}
    for _ in range(30):
        test = {"Not": test}
    made = copy.deepcopy(GOOD)
    made["States"]["Which"]["Choices"][0] = {**test, "Next": "Many"}
    assert [fault.rule for fault in find_faults(made)] == ["choice"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["Task", "Map", "A", "States.ALL"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["Type", "States", "StartAt", "Next", "End", "Retry", "Catch", "ErrorEquals", "Choices", "And",
             "Not", "ItemProcessor", "Branches", "A", "Seconds", "Variable", "IsNull"]
        ),
        inner, max_size=4,
    ),
    max_leaves=20,
)  # fmt: skip


@given(
    JSON,
    st.sampled_from(list(GOOD["States"])),
    st.sampled_from(["", "Retry", "Catch", "Choices", "ItemProcessor"]),
)
def test_no_document_makes_the_check_raise(value: Any, state: str, field: str) -> None:
    made = copy.deepcopy(GOOD)
    if field:
        made["States"][state][field] = value
    else:
        made["States"][state] = value
    assert isinstance(find_faults(made), list)
    assert isinstance(find_faults(value), list)
