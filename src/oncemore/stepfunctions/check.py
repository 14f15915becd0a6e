"""Checks of a definition in Amazon States Language.

They also find faults that AWS accepts at deployment and that change the behavior: a retrier for an error that
an earlier retrier handles, `States.ALL` among other names, a cap below the interval, an unreachable state.
Each rule is a function of one state or one machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oncemore._values import Value
from oncemore.stepfunctions.export import MAX_DELAY_S, MAX_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    # A rule yields its name and a message; a check of a machine adds the pointer of the state.
    RuleFaults = Iterator[tuple[str, str]]
    FaultsAtPath = Iterator[tuple[str, tuple[str, str]]]

# The limits of the service, as AWS documents them; MAX_FAULTS and MAX_DEPTH bound our own work.
MAX_CHARACTERS: Final = 1_048_576
MAX_NAME_LENGTH: Final = 80
MAX_INLINE_CONCURRENCY: Final = 40
MAX_FAULTS: Final = 200
MAX_DEPTH: Final = 20

RESERVED_ERRORS: Final = frozenset(
    f"States.{name}"
    for name in (
        "ALL", "Timeout", "HeartbeatTimeout", "TaskFailed", "Permissions", "ResultPathMatchFailure",
        "ParameterPathFailure", "QueryEvaluationError", "BranchFailed", "NoChoiceMatched", "IntrinsicFailure",
        "ExceedToleratedFailureThreshold", "ItemReaderFailed", "ResultWriterFailed", "DataLimitExceeded",
        "Runtime",
    )
)  # fmt: skip
STATE_TYPES: Final = ("Task", "Pass", "Choice", "Wait", "Succeed", "Fail", "Parallel", "Map")
TYPES_WITH_RETRY: Final = ("Task", "Parallel", "Map")
END_TYPES: Final = ("Succeed", "Fail")
WAIT_FIELDS: Final = ("Seconds", "SecondsPath", "Timestamp", "TimestampPath")
#: The name of a comparison, such as StringEquals or IsPresent, begins with one of these.
COMPARISON_PREFIXES: Final = ("Boolean", "Numeric", "String", "Timestamp", "Is")


class DefinitionFault(Value):
    """A fault: its position as a JSON pointer, the rule, and a message."""

    pointer: str
    rule: str
    message: str


def find_faults(definition: Any) -> list[DefinitionFault]:
    """Return the faults of a definition in order, at most 200."""
    faults: list[DefinitionFault] = []
    for pointer, (rule, message) in _check_machine(definition, "", {}, 0):
        faults.append(DefinitionFault(pointer or "/", rule, message))
        if len(faults) == MAX_FAULTS:
            break
    return faults


def _check_machine(scope: Any, path: str, names: dict[str, str], depth: int) -> FaultsAtPath:
    """Check a machine, or a branch or item processor inside one.

    names  the states found so far; names must be unique in the whole definition
    """
    # The definition comes from a file: without a limit, deep nesting would exhaust the stack.
    if depth > MAX_DEPTH:
        yield path, ("depth", f"state machines are nested more than {MAX_DEPTH} deep")
        return
    if not isinstance(scope, dict) or not isinstance(scope.get("States"), dict) or not scope["States"]:
        yield path, ("shape", "a state machine needs StartAt, and States with at least one state")
        return
    states = scope["States"]
    for name, state in states.items():
        here = f"{path}/States/{_escape_pointer(name)}"
        if len(name) > MAX_NAME_LENGTH:
            yield here, ("name", f"a name has at most {MAX_NAME_LENGTH} characters")
        if name in names:
            yield here, ("name", f"{name} is also the name of the state at {names[name]}")
        names[name] = here
        if not isinstance(state, dict) or state.get("Type") not in STATE_TYPES:
            yield here, ("type", f"Type must be one of {', '.join(STATE_TYPES)}")
            continue
        for rule in STATE_RULES:
            yield from ((here, fault) for fault in rule(state))
        for inner, inner_path in _inner_machines(state, here):
            yield from _check_machine(inner, inner_path, names, depth + 1)
    yield from _check_reachable(scope, path)


def _escape_pointer(name: str) -> str:
    # RFC 6901: the tilde first, because it is part of the escape of the slash.
    return name.replace("~", "~0").replace("/", "~1")


def _inner_machines(state: Mapping[str, Any], path: str) -> Iterator[tuple[Any, str]]:
    if state["Type"] == "Parallel" and isinstance(state.get("Branches"), list):
        yield from ((branch, f"{path}/Branches/{n}") for n, branch in enumerate(state["Branches"]))
    # `Iterator` is the older name of `ItemProcessor`, which AWS still accepts.
    for name in ("ItemProcessor", "Iterator"):
        if state["Type"] == "Map" and name in state:
            yield state[name], f"{path}/{name}"


# Transitions between states -------------------------------------------------------------------------


def _check_reachable(scope: Mapping[str, Any], path: str) -> FaultsAtPath:
    """Check that every transition has a target, and that every state and an end can be reached."""
    states, start = scope["States"], scope.get("StartAt")
    has_start = isinstance(start, str) and start in states
    if not has_start:
        yield f"{path}/StartAt", ("next", f"{start!r:.80} is not a state of this machine")
    for name, state in states.items():
        for target in _next_states(state):
            if not isinstance(target, str) or target not in states:
                pointer = f"{path}/States/{_escape_pointer(name)}"
                yield pointer, ("next", f"{target!r:.80} is not a state of this machine")
    reached, pending = set(), [start]
    while pending:
        name = pending.pop()
        if isinstance(name, str) and name in states and name not in reached:
            reached.add(name)
            pending += _next_states(states[name])
    # Without a valid start every state would be reported, which hides the one fault.
    for name in states:
        if name not in reached and has_start:
            yield f"{path}/States/{_escape_pointer(name)}", ("unreachable", "no state leads to this one")
    if reached and not any(_is_end_state(states[name]) for name in reached):
        yield path, ("endless", "no reachable state ends the execution")


def _next_states(state: Any) -> list[Any]:
    if not isinstance(state, dict):
        return []
    targets = [state[name] for name in ("Next", "Default") if name in state]
    for name in ("Choices", "Catch"):
        rows = state.get(name)
        targets += (
            [row.get("Next") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        )
    return targets


def _is_end_state(state: Any) -> bool:
    return isinstance(state, dict) and (state.get("End") is True or state.get("Type") in END_TYPES)


def _check_next(state: Mapping[str, Any]) -> RuleFaults:
    kind, onward = state["Type"], [name for name in ("Next", "End") if name in state]
    if kind in ("Choice", *END_TYPES):
        if onward:
            yield "next", f"a {kind} state must not have {onward[0]}"
    elif len(onward) != 1:
        yield "next", "a state needs either Next or End"
    if "End" in state and state["End"] is not True:
        yield "next", "End must be true or absent"


# Retriers and catchers ------------------------------------------------------------------------------


def _check_error_fields(state: Mapping[str, Any]) -> RuleFaults:
    for field in ("Retry", "Catch"):
        if field not in state:
            continue
        rows = state[field]
        if state["Type"] not in TYPES_WITH_RETRY:
            yield "errors", f"a {state['Type']} state must not have {field}"
        elif not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            yield "errors", f"{field} must be a list of objects"
        else:
            yield from _check_error_names(field, rows)
            if field == "Retry":
                for number, row in enumerate(rows):
                    yield from _check_retrier(row, f"Retry {number}")
            elif any("Next" not in row for row in rows):
                yield "errors", "a catcher needs Next"


def _check_error_names(field: str, rows: list[dict[str, Any]]) -> RuleFaults:
    """Check error names: the first row that matches handles an error, so a later row for it has no effect."""
    owners: dict[str, int] = {}
    for number, row in enumerate(rows):
        names, label = row.get("ErrorEquals"), f"{field} {number}"
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            yield "errors", f"{label}: ErrorEquals must be a non-empty list of names"
            continue
        for name in names:
            if name.startswith("States.") and name not in RESERVED_ERRORS:
                yield "errors", f"{label}: {name} is not an error of Step Functions"
            if name in owners:
                yield "unreachable", f"{label}: {name} is already handled by {field} {owners[name]}"
            # States.TaskFailed matches every error except a time limit.
            elif "States.TaskFailed" in owners and name not in ("States.ALL", "States.Timeout"):
                yield "unreachable", f"{label}: {name} is already handled as States.TaskFailed"
            owners.setdefault(name, number)
        if "States.ALL" in names and (len(names) > 1 or number != len(rows) - 1):
            yield "all", f"{label}: States.ALL must be the only name, in the last row"


def _check_retrier(row: Mapping[str, Any], label: str) -> RuleFaults:
    bounds = (
        ("IntervalSeconds", 1, MAX_SECONDS),
        ("MaxAttempts", 0, MAX_SECONDS - 1),
        ("MaxDelaySeconds", 1, MAX_DELAY_S),
    )
    for name, low, high in bounds:
        if name in row and not _is_whole_number(row[name], low, high):
            yield "bounds", f"{label}: {name} must be a whole number from {low} to {high}"
    rate = row.get("BackoffRate", 2.0)
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 1.0 <= rate < float("inf"):
        yield "bounds", f"{label}: BackoffRate must be a number of at least 1.0"
    if row.get("JitterStrategy", "NONE") not in ("FULL", "NONE"):
        yield "bounds", f"{label}: JitterStrategy must be FULL or NONE"
    cap, first = row.get("MaxDelaySeconds"), row.get("IntervalSeconds", 1)
    if _is_whole_number(cap, 1, MAX_DELAY_S) and _is_whole_number(first, 1, MAX_SECONDS) and cap < first:
        yield "cap", f"{label}: MaxDelaySeconds ({cap}) is below IntervalSeconds ({first})"


def _is_whole_number(value: object, low: int, high: int) -> bool:
    # In Python, True is an int; in JSON it is not a number.
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


# Fields of the state types --------------------------------------------------------------------------


def _check_timeouts(state: Mapping[str, Any]) -> RuleFaults:
    for name in ("TimeoutSeconds", "HeartbeatSeconds"):
        if name in state:
            if not _is_whole_number(state[name], 1, MAX_SECONDS - 1):
                yield "bounds", f"{name} must be a whole number from 1 to {MAX_SECONDS - 1}"
            if f"{name}Path" in state:
                yield "bounds", f"give either {name} or {name}Path"
    limit, heartbeat = state.get("TimeoutSeconds"), state.get("HeartbeatSeconds")
    are_whole = _is_whole_number(limit, 1, MAX_SECONDS) and _is_whole_number(heartbeat, 1, MAX_SECONDS)
    if are_whole and heartbeat >= limit:  # type: ignore[operator]
        yield "bounds", f"HeartbeatSeconds ({heartbeat}) must be below TimeoutSeconds ({limit})"


def _check_task(state: Mapping[str, Any]) -> RuleFaults:
    if state["Type"] == "Task" and not (isinstance(state.get("Resource"), str) and state["Resource"]):
        yield "task", "a Task needs a Resource"


def _check_wait(state: Mapping[str, Any]) -> RuleFaults:
    if state["Type"] != "Wait":
        return
    fields = [name for name in WAIT_FIELDS if name in state]
    if len(fields) != 1:
        yield "wait", f"a Wait needs exactly one of {', '.join(WAIT_FIELDS)}"
    if "Seconds" in state and not _is_whole_number(state["Seconds"], 0, MAX_SECONDS):
        yield "wait", f"Seconds must be a whole number from 0 to {MAX_SECONDS}"


def _check_map(state: Mapping[str, Any]) -> RuleFaults:
    if state["Type"] == "Parallel" and not (isinstance(state.get("Branches"), list) and state["Branches"]):
        yield "map", "a Parallel needs a non-empty list of Branches"
    if state["Type"] != "Map":
        return
    if ("ItemProcessor" in state) == ("Iterator" in state):
        yield "map", "a Map needs an ItemProcessor"
    max_concurrency = state.get("MaxConcurrency", 0)
    if not _is_whole_number(max_concurrency, 0, MAX_SECONDS):
        yield "map", "MaxConcurrency must be a whole number of at least 0"
    # AWS accepts a higher number and silently runs fewer items at the same time.
    is_inline = _processor_mode(state.get("ItemProcessor")) == "INLINE"
    if is_inline and _is_whole_number(max_concurrency, MAX_INLINE_CONCURRENCY + 1, MAX_SECONDS):
        yield "map", f"MaxConcurrency of an inline Map must be at most {MAX_INLINE_CONCURRENCY}"


def _processor_mode(processor: Any) -> Any:
    config = processor.get("ProcessorConfig", {}) if isinstance(processor, dict) else None
    return config.get("Mode", "INLINE") if isinstance(config, dict) else ""


def _check_choice(state: Mapping[str, Any]) -> RuleFaults:
    if state["Type"] != "Choice":
        return
    rows = state.get("Choices")
    if not isinstance(rows, list) or not rows:
        yield "choice", "a Choice needs a non-empty list of Choices"
        return
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or "Next" not in row:
            yield "choice", f"Choices {number} needs Next"
        yield from _check_choice_test(row, f"Choices {number}", 0)


def _check_choice_test(row: Any, label: str, depth: int) -> RuleFaults:
    """Check one test of a Choice: a comparison, or And, Or, Not of other tests."""
    if not isinstance(row, dict) or depth > MAX_DEPTH:
        yield "choice", f"{label}: a test must be an object"
        return
    if depth and "Next" in row:
        yield "choice", f"{label}: only the outermost test may have Next"
    operators = [name for name in ("And", "Or", "Not") if name in row]
    comparisons = [name for name in row if name.startswith(COMPARISON_PREFIXES)]
    if len(operators) + len(comparisons) != 1:
        yield "choice", f"{label}: a test needs exactly one comparison, or And, Or or Not"
    if comparisons and not isinstance(row.get("Variable"), str):
        yield "choice", f"{label}: a comparison needs a Variable"
    for name in operators:
        inner = [row[name]] if name == "Not" else row[name]
        if not isinstance(inner, list) or not inner:
            yield "choice", f"{label}: {name} must be a non-empty list of tests"
            continue
        for test in inner:
            yield from _check_choice_test(test, label, depth + 1)


STATE_RULES: Final[tuple[Callable[[Mapping[str, Any]], RuleFaults], ...]] = (
    _check_next, _check_error_fields, _check_timeouts, _check_task, _check_wait, _check_map, _check_choice,
)  # fmt: skip
