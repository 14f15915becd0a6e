"""Translates calls of stamina: `retry` and `retry_context`."""

from __future__ import annotations

import libcst as cst

from oncemore.migrate.conditions import match_types, write_on
from oncemore.migrate.expressions import read_number, read_types, read_word, refuse_arguments, write_source
from oncemore.migrate.options import MOST_ATTEMPTS, CannotMigrate, RetryCall, compare_timeouts
from oncemore.migrate.waits import WrittenWait, exponential_wait, write_number, write_wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncemore.migrate.expressions import CallSite

LIBRARY = "stamina"
_PARAMETERS = ("on", "attempts", "timeout", "wait_initial", "wait_max", "wait_jitter", "wait_exp_base")
ENTRY_POINTS = {"retry": _PARAMETERS, "retry_context": _PARAMETERS}
BLOCKS = frozenset({"retry_context"})
ATTEMPT_FIELDS = {"num": "number"}
FUNCTION_ATTRIBUTES: frozenset[str] = frozenset()
SUBMODULES: tuple[str, ...] = ()

HOOKS = "hooks set with stamina.instrumentation and stamina.set_testing() have no effect on it"
#: The numbers of stamina, for arguments that are not given.
DEFAULTS = {"wait_initial": 0.1, "wait_max": 5.0, "wait_jitter": 1.0, "wait_exp_base": 2.0}


def translate_call(site: CallSite) -> RetryCall:
    """Return the new call for `retry` or `retry_context`."""
    arguments = site.arguments
    refuse_arguments(arguments, _PARAMETERS, {})
    attempts, number = _read_attempts(arguments)
    wait = _read_wait(arguments, number)
    seconds, differences = _read_timeout(arguments, site)
    return RetryCall(
        on=_read_on(arguments, site),
        attempts=attempts,
        attempts_number=number,
        total_timeout=seconds,
        wait=wait.wait,
        jitter=wait.jitter,
        differences=differences,
        notes=(HOOKS,) if {"stamina.instrumentation", "stamina.set_testing"} & site.used_names else (),
    )


def _read_attempts(arguments: Mapping[str, cst.BaseExpression]) -> tuple[str, int | None]:
    node = arguments.get("attempts", cst.Integer("10"))
    number = read_number(node)
    if read_word(node) == "None":
        raise CannotMigrate("it has no limit on attempts: give attempts=n first")
    if number is not None and not 1 <= number <= MOST_ATTEMPTS:
        raise CannotMigrate(f"attempts must be 1 to {MOST_ATTEMPTS}, not {write_number(number)}")
    return write_source(node), None if number is None else int(number)


def _read_timeout(arguments: Mapping[str, cst.BaseExpression], site: CallSite) -> tuple[str, tuple[str, ...]]:
    """Return `total_timeout=`: the timeout of stamina is that of the whole call."""
    node = arguments.get("timeout", cst.Integer("45"))
    if read_word(node) == "None":
        return "", ()
    number = read_number(node)
    if number is not None and number <= 0.0:
        raise CannotMigrate("timeout=0 means that nothing is retried: remove the decorator, or give a time")
    return write_source(node), compare_timeouts("stamina waits and tries once more", site.is_async)


def _read_wait(arguments: Mapping[str, cst.BaseExpression], attempts: int | None) -> WrittenWait:
    given = {name: read_number(arguments[name]) for name in DEFAULTS if name in arguments}
    if all(number is not None for number in given.values()):
        numbers = DEFAULTS | {name: number for name, number in given.items() if number is not None}
        plan = exponential_wait(numbers["wait_initial"], numbers["wait_exp_base"], numbers["wait_max"])
        if numbers["wait_jitter"]:
            plan = plan._replace(spread="additive", amount=numbers["wait_jitter"], limit=numbers["wait_max"])
        return write_wait(plan, attempts)
    texts = {name: write_number(number) for name, number in DEFAULTS.items()}
    texts |= {name: write_source(arguments[name]) for name in given}
    factor = f", factor={texts['wait_exp_base']}" if "wait_exp_base" in given else ""
    schedule = f"oncemore.backoff.exponential({texts['wait_initial']}{factor}, cap={texts['wait_max']})"
    spread = (
        '"none"' if given.get("wait_jitter") == 0.0 else f"oncemore.jitter.additive({texts['wait_jitter']})"
    )
    return WrittenWait(schedule, spread)


def _read_on(arguments: Mapping[str, cst.BaseExpression], site: CallSite) -> str:
    """Return `on=`; a function must return True or False, because seconds have no counterpart."""
    if "on" not in arguments:
        raise CannotMigrate("it has no on=")
    node = arguments["on"]
    source = write_source(node)
    if isinstance(node, cst.Lambda):
        if not isinstance(node.body, (cst.Comparison, cst.BooleanOperation, cst.UnaryOperation)) and not (
            isinstance(node.body, cst.Call) and write_source(node.body.func) == "isinstance"
        ):
            raise CannotMigrate("on= may return seconds, which have no counterpart: return True or False")
        return source
    types, may_be_function = read_types(node)
    if may_be_function and not source.isupper() and not _returns_bool(source, site):
        raise CannotMigrate(
            f"on={source} may return seconds, which have no counterpart: annotate it with -> bool"
        )
    return source if may_be_function else write_on(match_types(types))


def _returns_bool(name: str, site: CallSite) -> bool:
    function = site.functions.get(name)
    return (
        function is not None
        and function.returns is not None
        and write_source(function.returns.annotation) == "bool"
    )
