"""What is wrong with a definition in Amazon States Language, beside what it says.

Other checkers let things pass that deploy, and then do something else than was meant: a retrier whose error
an earlier one already owns, `States.ALL` among other names, a cap below the interval, a state that nothing
leads to. Here every rule is a function of one state or one scope, and a fault says where and what.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oncemore._values import Value
from oncemore.stepfunctions.export import LONGEST_DELAY, MOST_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Told = Iterator[tuple[str, str]]

MOST_CHARACTERS: Final = 1_048_576
LONGEST_NAME: Final = 80
MOST_INLINE: Final = 40
MOST_FAULTS: Final = 200
DEEPEST: Final = 20

RESERVED: Final = frozenset(
    f"States.{name}"
    for name in (
        "ALL", "Timeout", "HeartbeatTimeout", "TaskFailed", "Permissions", "ResultPathMatchFailure",
        "ParameterPathFailure", "QueryEvaluationError", "BranchFailed", "NoChoiceMatched", "IntrinsicFailure",
        "ExceedToleratedFailureThreshold", "ItemReaderFailed", "ResultWriterFailed", "DataLimitExceeded",
        "Runtime",
    )
)  # fmt: skip
TYPES: Final = ("Task", "Pass", "Choice", "Wait", "Succeed", "Fail", "Parallel", "Map")
CAUGHT: Final = ("Task", "Parallel", "Map")
ENDS: Final = ("Succeed", "Fail")
WAITS: Final = ("Seconds", "SecondsPath", "Timestamp", "TimestampPath")
#: What a comparison may be besides these is a name that begins with the type it compares.
COMPARES: Final = ("Boolean", "Numeric", "String", "Timestamp", "Is")


class Fault(Value):
    """One thing that is wrong: where, as a JSON pointer, by which rule, and what."""

    where: str
    rule: str
    what: str


def faults(definition: Any) -> list[Fault]:
    """Return everything that is wrong with a definition, in order; at most 200 faults."""
    found: list[Fault] = []
    for where, (rule, what) in _scope(definition, "", {}, 0):
        found.append(Fault(where or "/", rule, what))
        if len(found) == MOST_FAULTS:
            break
    return found


if TYPE_CHECKING:
    Found = Iterator[tuple[str, tuple[str, str]]]


def _scope(scope: Any, at: str, names: dict[str, str], depth: int) -> Found:
    """Check a machine, or a branch or iteration inside one."""
    if depth > DEEPEST:
        yield at, ("depth", f"machines inside machines, more than {DEEPEST} deep")
        return
    if not isinstance(scope, dict) or not isinstance(scope.get("States"), dict) or not scope["States"]:
        yield at, ("shape", "a state machine has StartAt, and States with at least one state")
        return
    states = scope["States"]
    for name, state in states.items():
        here = f"{at}/States/{_pointer(name)}"
        if len(name) > LONGEST_NAME:
            yield here, ("name", f"a name has at most {LONGEST_NAME} characters")
        if name in names:
            yield here, ("name", f"{name} is the name of another state too, at {names[name]}")
        names[name] = here
        if not isinstance(state, dict) or state.get("Type") not in TYPES:
            yield here, ("type", f"Type is one of {', '.join(TYPES)}")
            continue
        for rule in RULES:
            yield from ((here, told) for told in rule(state))
        for inner, where in _inner(state, here):
            yield from _scope(inner, where, names, depth + 1)
    yield from _paths(scope, at)


def _pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _inner(state: Mapping[str, Any], at: str) -> Iterator[tuple[Any, str]]:
    if state["Type"] == "Parallel" and isinstance(state.get("Branches"), list):
        yield from ((branch, f"{at}/Branches/{n}") for n, branch in enumerate(state["Branches"]))
    for name in ("ItemProcessor", "Iterator"):
        if state["Type"] == "Map" and name in state:
            yield state[name], f"{at}/{name}"


# Where states lead ----------------------------------------------------------------------------------


def _paths(scope: Mapping[str, Any], at: str) -> Found:
    """Check that everything leads to a state that is there, and that nothing is left out."""
    states, start = scope["States"], scope.get("StartAt")
    begins = isinstance(start, str) and start in states
    if not begins:
        yield f"{at}/StartAt", ("next", f"{start!r:.80} is no state here")
    for name, state in states.items():
        for target in _leads_to(state):
            if not isinstance(target, str) or target not in states:
                yield f"{at}/States/{_pointer(name)}", ("next", f"{target!r:.80} is no state here")
    reached, left = set(), [start]
    while left:
        name = left.pop()
        if isinstance(name, str) and name in states and name not in reached:
            reached.add(name)
            left += _leads_to(states[name])
    for name in states:
        if name not in reached and begins:
            yield f"{at}/States/{_pointer(name)}", ("unreachable", "no state leads here")
    if reached and not any(_is_end(states[name]) for name in reached):
        yield at, ("endless", "no state that can be reached is an end")


def _leads_to(state: Any) -> list[Any]:
    if not isinstance(state, dict):
        return []
    targets = [state[name] for name in ("Next", "Default") if name in state]
    for name in ("Choices", "Catch"):
        rows = state.get(name)
        targets += (
            [row.get("Next") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        )
    return targets


def _is_end(state: Any) -> bool:
    return isinstance(state, dict) and (state.get("End") is True or state.get("Type") in ENDS)


def _goes_on(state: Mapping[str, Any]) -> Told:
    kind, onward = state["Type"], [name for name in ("Next", "End") if name in state]
    if kind in ("Choice", *ENDS):
        if onward:
            yield "next", f"a {kind} state has no {onward[0]}"
    elif len(onward) != 1:
        yield "next", "a state has either Next or End"
    if "End" in state and state["End"] is not True:
        yield "next", "End is true, or left out"


# Retriers and catchers ------------------------------------------------------------------------------


def _errors(state: Mapping[str, Any]) -> Told:
    for field in ("Retry", "Catch"):
        if field not in state:
            continue
        rows = state[field]
        if state["Type"] not in CAUGHT:
            yield "errors", f"a {state['Type']} state has no {field}"
        elif not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            yield "errors", f"{field} is a list of objects"
        else:
            yield from _owned(field, rows)
            if field == "Retry":
                for number, row in enumerate(rows):
                    yield from _retrier(row, f"Retry {number}")
            elif any("Next" not in row for row in rows):
                yield "errors", "a catcher has Next"


def _owned(field: str, rows: list[dict[str, Any]]) -> Told:
    """Check names: the first row that matches owns an error, so that a later one for it never acts."""
    seen: dict[str, int] = {}
    for number, row in enumerate(rows):
        names, which = row.get("ErrorEquals"), f"{field} {number}"
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            yield "errors", f"{which}: ErrorEquals is a list of names, and not empty"
            continue
        for name in names:
            if name.startswith("States.") and name not in RESERVED:
                yield "errors", f"{which}: {name} is no error that Step Functions knows"
            if name in seen:
                yield "unreachable", f"{which}: {name} belongs to {field} {seen[name]}, which comes first"
            elif "States.TaskFailed" in seen and name not in ("States.ALL", "States.Timeout"):
                yield "unreachable", f"{which}: {name} is a States.TaskFailed, which comes first"
            seen.setdefault(name, number)
        if "States.ALL" in names and (len(names) > 1 or number != len(rows) - 1):
            yield "all", f"{which}: States.ALL stands alone, and last"


def _retrier(row: Mapping[str, Any], which: str) -> Told:
    bounds = (
        ("IntervalSeconds", 1, MOST_SECONDS),
        ("MaxAttempts", 0, MOST_SECONDS - 1),
        ("MaxDelaySeconds", 1, LONGEST_DELAY),
    )
    for name, low, high in bounds:
        if name in row and not _is_whole(row[name], low, high):
            yield "bounds", f"{which}: {name} is a whole number from {low} to {high}"
    rate = row.get("BackoffRate", 2.0)
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 1.0 <= rate < float("inf"):
        yield "bounds", f"{which}: BackoffRate is a number from 1.0 on"
    if row.get("JitterStrategy", "NONE") not in ("FULL", "NONE"):
        yield "bounds", f"{which}: JitterStrategy is FULL or NONE"
    cap, first = row.get("MaxDelaySeconds"), row.get("IntervalSeconds", 1)
    if _is_whole(cap, 1, LONGEST_DELAY) and _is_whole(first, 1, MOST_SECONDS) and cap < first:
        yield "cap", f"{which}: MaxDelaySeconds, {cap}, is below IntervalSeconds, {first}"


def _is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


# What each type has ---------------------------------------------------------------------------------


def _limits(state: Mapping[str, Any]) -> Told:
    for name in ("TimeoutSeconds", "HeartbeatSeconds"):
        if name in state:
            if not _is_whole(state[name], 1, MOST_SECONDS - 1):
                yield "bounds", f"{name} is a whole number from 1 to {MOST_SECONDS - 1}"
            if f"{name}Path" in state:
                yield "bounds", f"either {name} or {name}Path"
    limit, beat = state.get("TimeoutSeconds"), state.get("HeartbeatSeconds")
    if _is_whole(limit, 1, MOST_SECONDS) and _is_whole(beat, 1, MOST_SECONDS) and beat >= limit:  # type: ignore[operator]
        yield "bounds", f"HeartbeatSeconds, {beat}, is not below TimeoutSeconds, {limit}"


def _task(state: Mapping[str, Any]) -> Told:
    if state["Type"] == "Task" and not (isinstance(state.get("Resource"), str) and state["Resource"]):
        yield "task", "a Task has a Resource"


def _wait(state: Mapping[str, Any]) -> Told:
    if state["Type"] != "Wait":
        return
    given = [name for name in WAITS if name in state]
    if len(given) != 1:
        yield "wait", f"a Wait has exactly one of {', '.join(WAITS)}"
    if "Seconds" in state and not _is_whole(state["Seconds"], 0, MOST_SECONDS):
        yield "wait", f"Seconds is a whole number from 0 to {MOST_SECONDS}"


def _map(state: Mapping[str, Any]) -> Told:
    if state["Type"] == "Parallel" and not (isinstance(state.get("Branches"), list) and state["Branches"]):
        yield "map", "a Parallel has Branches, and not empty"
    if state["Type"] != "Map":
        return
    if ("ItemProcessor" in state) == ("Iterator" in state):
        yield "map", "a Map has an ItemProcessor"
    most = state.get("MaxConcurrency", 0)
    if not _is_whole(most, 0, MOST_SECONDS):
        yield "map", "MaxConcurrency is a whole number from 0 on"
    if _mode(state.get("ItemProcessor")) == "INLINE" and _is_whole(most, MOST_INLINE + 1, MOST_SECONDS):
        yield "map", f"an inline Map runs at most {MOST_INLINE} at once, whatever MaxConcurrency says"


def _mode(processor: Any) -> Any:
    config = processor.get("ProcessorConfig", {}) if isinstance(processor, dict) else None
    return config.get("Mode", "INLINE") if isinstance(config, dict) else ""


def _choice(state: Mapping[str, Any]) -> Told:
    if state["Type"] != "Choice":
        return
    rows = state.get("Choices")
    if not isinstance(rows, list) or not rows:
        yield "choice", "a Choice has Choices, and not empty"
        return
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or "Next" not in row:
            yield "choice", f"Choices {number} has Next"
        yield from _test(row, f"Choices {number}", 0)


def _test(row: Any, which: str, depth: int) -> Told:
    """Check one test of a Choice: a comparison, or And, Or, Not of some."""
    if not isinstance(row, dict) or depth > DEEPEST:
        yield "choice", f"{which}: a test is an object"
        return
    if depth and "Next" in row:
        yield "choice", f"{which}: only the outermost test has Next"
    joined = [name for name in ("And", "Or", "Not") if name in row]
    compared = [name for name in row if name.startswith(COMPARES)]
    if len(joined) + len(compared) != 1:
        yield "choice", f"{which}: a test has exactly one comparison, or And, Or or Not"
    if compared and not isinstance(row.get("Variable"), str):
        yield "choice", f"{which}: a comparison has a Variable"
    for name in joined:
        inner = [row[name]] if name == "Not" else row[name]
        if not isinstance(inner, list) or not inner:
            yield "choice", f"{which}: {name} is a list of tests, and not empty"
            continue
        for one in inner:
            yield from _test(one, which, depth + 1)


RULES: Final[tuple[Callable[[Mapping[str, Any]], Told], ...]] = (
    _goes_on, _errors, _limits, _task, _wait, _map, _choice,
)  # fmt: skip
