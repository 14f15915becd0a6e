"""Reads the strategies of tenacity: `wait=` as planned delays, `retry=` as conditions."""

from __future__ import annotations

import libcst as cst

from oncemore.migrate.conditions import Condition, all_conditions, any_condition, match_types
from oncemore.migrate.expressions import (
    bind_arguments,
    inline_function,
    read_number,
    read_types,
    read_word,
    refuse_arguments,
    write_source,
)
from oncemore.migrate.options import CannotMigrate
from oncemore.migrate.waits import (
    KnownWait,
    WrittenWait,
    chained_wait,
    combined_wait,
    constant_wait,
    exponential_wait,
    random_wait,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from oncemore.migrate.expressions import ResolveName
    from oncemore.migrate.waits import WaitPlan

LIBRARY = "tenacity"
ANY_ERROR = Condition(types=("Exception",))


def read_strategy(node: cst.BaseExpression, resolve: ResolveName, option: str) -> tuple[str, cst.Call]:
    """Return the name and the call of a strategy of tenacity that is written in place."""
    if isinstance(node, cst.Call):
        library, _, name = resolve(node.func).rpartition(".")
        if library == LIBRARY:
            return name, node
    raise CannotMigrate(
        f"{option}={write_source(node)} is not a strategy of tenacity that is written in place"
    )


# Waits.


def read_wait_argument(arguments: Mapping[str, cst.BaseExpression], resolve: ResolveName) -> WaitPlan:
    """Return the planned delays of a call: none if it has no `wait=`."""
    node = arguments.get("wait")
    if node is None or read_word(node) == "None" or read_number(node) == 0.0:
        return constant_wait(0.0)
    return read_wait(node, resolve)


def read_wait(node: cst.BaseExpression, resolve: ResolveName) -> WaitPlan:
    """Return the planned delays of a `wait=`."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        return combined_wait([read_wait(node.left, resolve), read_wait(node.right, resolve)])
    name, call = read_strategy(node, resolve, "wait")
    if name == "wait_chain":
        return chained_wait([read_wait(one, resolve) for one in _expand_members(call)])
    if name == "wait_combine":
        return combined_wait([read_wait(argument.value, resolve) for argument in call.args])
    if name not in _WAITS:
        raise CannotMigrate(f"wait={name} has no counterpart")
    parameters, build, write = _WAITS[name]
    # Numbers are computed; names can only be copied, into a schedule of the same shape.
    arguments = bind_arguments(call, tuple(parameters))
    refuse_arguments(arguments, parameters, {})
    numbers = dict(parameters) | {
        parameter: number
        for parameter, node in arguments.items()
        if (number := read_number(node)) is not None
    }
    texts = {parameter: write_source(node) for parameter, node in arguments.items()}
    if all(read_number(node) is not None for node in arguments.values()):
        return build(numbers)
    return write(texts)


def _expand_members(call: cst.Call) -> list[cst.BaseExpression]:
    """Return the members of a chain, also those that a list with a repetition stands for."""
    members: list[cst.BaseExpression] = []
    for argument in call.args:
        members += _expand_list(argument.value) if argument.star == "*" else [argument.value]
    return members


def _expand_list(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(node, (cst.List, cst.Tuple)):
        return [element.value for element in node.elements]
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        return [*_expand_list(node.left), *_expand_list(node.right)]
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply):
        times = read_number(node.right)
        if times is not None:
            return _expand_list(node.left) * int(times)
    if isinstance(node, (cst.ListComp, cst.GeneratorExp)):
        times = _count_turns(node.for_in)
        variable = write_source(node.for_in.target)
        if (
            times is not None
            and variable not in write_source(node.elt).replace("(", " ").replace(")", " ").split()
        ):
            return [node.elt] * times
    raise CannotMigrate("the members of wait_chain are built at run time")


def _count_turns(loop: cst.CompFor) -> int | None:
    """Return n of `for x in range(n)`; None for any other loop."""
    call = loop.iter
    if loop.ifs or loop.inner_for_in is not None or not isinstance(call, cst.Call):
        return None
    if write_source(call.func) != "range" or len(call.args) != 1:
        return None
    number = read_number(call.args[0].value)
    return None if number is None else int(number)


def _build_exponential(numbers: dict[str, Any]) -> WaitPlan:
    base, factor, top = numbers["multiplier"], numbers["exp_base"], numbers["max"]
    return exponential_wait(base, factor, top, least=numbers["min"])


def _build_random_exponential(numbers: dict[str, Any]) -> WaitPlan:
    base, factor, top = numbers["multiplier"], numbers["exp_base"], numbers["max"]
    return exponential_wait(base, factor, top, least=numbers["min"], spread="full")


def _build_exponential_jitter(numbers: dict[str, Any]) -> WaitPlan:
    if numbers["min"] > 0.0:
        raise CannotMigrate("a random wait with a minimum (min=) has no counterpart")
    # `initial` is the older name of `multiplier`; tenacity refuses both at once.
    base = numbers["initial"] if numbers["initial"] != 1.0 else numbers["multiplier"]
    plan = exponential_wait(base, numbers["exp_base"], numbers["max"])
    amount = numbers["jitter"]
    return plan._replace(spread="additive", amount=amount, limit=numbers["max"]) if amount else plan


def _build_incrementing(numbers: dict[str, Any]) -> WaitPlan:
    start, increment, top = numbers["start"], numbers["increment"], numbers["max"]
    return KnownWait(lambda n: _clip(start + increment * (n - 1), top))


def _clip(delay: float, top: float | None) -> float:
    return max(0.0, delay if top is None else min(delay, top))


def _write_fixed(texts: dict[str, str]) -> WaitPlan:
    return WrittenWait(texts["wait"])


def _write_exponential(texts: dict[str, str]) -> WaitPlan:
    return WrittenWait(_write_schedule(texts), '"none"')


def _write_random_exponential(texts: dict[str, str]) -> WaitPlan:
    return WrittenWait(_write_schedule(texts))


def _write_exponential_jitter(texts: dict[str, str]) -> WaitPlan:
    jitter = texts.get("jitter", "1")
    base = {"multiplier": texts["initial"]} if "initial" in texts else {}
    return WrittenWait(_write_schedule(texts | base), f"oncemore.jitter.additive({jitter})")


def _write_schedule(texts: dict[str, str]) -> str:
    """Return an exponential schedule with expressions; its cap must be given, because ours has a default."""
    if texts.get("min", "0") not in ("0", "0.0"):
        raise CannotMigrate("min= with values that are not plain numbers has no counterpart")
    if "max" not in texts:
        raise CannotMigrate("the wait has no max=, and its numbers are not written in place: add max=")
    factor = f", factor={texts['exp_base']}" if "exp_base" in texts else ""
    return f"oncemore.backoff.exponential({texts.get('multiplier', '1')}{factor}, cap={texts['max']})"


def _refuse_names(texts: dict[str, str]) -> WaitPlan:
    raise CannotMigrate("the numbers of the wait are not written in place")


#: Parameters with their defaults, the plan for numbers, and the texts for anything else.
_WAITS: dict[str, tuple[dict[str, Any], Callable[..., WaitPlan], Callable[..., WaitPlan]]] = {
    "wait_none": ({}, lambda numbers: constant_wait(0.0), _refuse_names),
    "wait_fixed": ({"wait": 0.0}, lambda numbers: constant_wait(numbers["wait"]), _write_fixed),
    "wait_random": (
        {"min": 0.0, "max": 1.0},
        lambda numbers: random_wait(numbers["min"], numbers["max"]),
        _refuse_names,
    ),
    "wait_incrementing": (
        {"start": 0.0, "increment": 100.0, "max": None},
        _build_incrementing,
        _refuse_names,
    ),
    "wait_exponential": (
        {"multiplier": 1.0, "max": None, "exp_base": 2.0, "min": 0.0},
        _build_exponential,
        _write_exponential,
    ),
    "wait_random_exponential": (
        {"multiplier": 1.0, "max": None, "exp_base": 2.0, "min": 0.0},
        _build_random_exponential,
        _write_random_exponential,
    ),
    "wait_exponential_jitter": (
        {"initial": 1.0, "max": None, "exp_base": 2.0, "jitter": 1.0, "min": 0.0, "multiplier": 1.0},
        _build_exponential_jitter,
        _write_exponential_jitter,
    ),
}
_WAITS["wait_full_jitter"] = _WAITS["wait_random_exponential"]


# Conditions.


def read_condition(node: cst.BaseExpression, resolve: ResolveName) -> Condition:
    """Return the condition of a `retry=`."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.BitOr, cst.BitAnd)):
        join = any_condition if isinstance(node.operator, cst.BitOr) else all_conditions
        return join([read_condition(node.left, resolve), read_condition(node.right, resolve)])
    name, call = read_strategy(node, resolve, "retry")
    if name in ("retry_any", "retry_all"):
        conditions = [read_condition(argument.value, resolve) for argument in call.args]
        return any_condition(conditions) if name == "retry_any" else all_conditions(conditions)
    if name not in _CONDITIONS:
        raise CannotMigrate(f"retry={name} has no counterpart")
    parameters, read = _CONDITIONS[name]
    return read(bind_arguments(call, parameters))


def _match_exception_type(arguments: dict[str, cst.BaseExpression]) -> Condition:
    if "exception_types" not in arguments:
        return ANY_ERROR
    return match_types(*read_types(arguments["exception_types"]))


def _match_other_type(arguments: dict[str, cst.BaseExpression]) -> Condition:
    types = write_source(arguments["exception_types"]) if "exception_types" in arguments else "Exception"
    return Condition(test=f"not isinstance(error, {types})")


def _match_message(arguments: dict[str, cst.BaseExpression]) -> Condition:
    if "message" in arguments:
        return Condition(test=f"str(error) == {write_source(arguments['message'])}")
    return Condition(test=f"re.match({write_source(arguments['match'])}, str(error)) is not None")


def _match_predicate(arguments: dict[str, cst.BaseExpression]) -> Condition:
    node = arguments["predicate"]
    if isinstance(node, cst.Lambda):
        return Condition(test=inline_function(node, "error"))
    return Condition(predicate=write_source(node))


def _match_result(arguments: dict[str, cst.BaseExpression]) -> Condition:
    return Condition(repeat=inline_function(arguments["predicate"], "value"))


def _match_other_result(arguments: dict[str, cst.BaseExpression]) -> Condition:
    node = arguments["predicate"]
    if isinstance(node, cst.Lambda):
        return Condition(repeat=f"not ({inline_function(node, 'value')})")
    return Condition(until=write_source(node))


_CONDITIONS: dict[str, tuple[tuple[str, ...], Callable[[dict[str, cst.BaseExpression]], Condition]]] = {
    "retry_if_exception_type": (("exception_types",), _match_exception_type),
    "retry_if_not_exception_type": (("exception_types",), _match_other_type),
    "retry_if_exception_message": (("message", "match"), _match_message),
    "retry_if_exception": (("predicate",), _match_predicate),
    "retry_if_result": (("predicate",), _match_result),
    "retry_if_not_result": (("predicate",), _match_other_result),
}
