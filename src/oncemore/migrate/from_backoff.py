"""Translates calls of backoff: `on_exception` and `on_predicate`."""

from __future__ import annotations

import libcst as cst

from oncemore.migrate.conditions import Condition, exclude_errors, match_types, write_on, write_until
from oncemore.migrate.expressions import (
    inline_function,
    read_number,
    read_types,
    read_word,
    refuse_arguments,
    rewrite_hook,
    write_source,
)
from oncemore.migrate.options import MOST_ATTEMPTS, CannotMigrate, RetryCall, compare_timeouts
from oncemore.migrate.waits import KnownWait, constant_wait, exponential_wait, write_number, write_wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.migrate.expressions import CallSite
    from oncemore.migrate.waits import Spread

LIBRARY = "backoff"
ENTRY_POINTS = {"on_exception": ("wait_gen", "exception"), "on_predicate": ("wait_gen", "predicate")}
BLOCKS: frozenset[str] = frozenset()
ATTEMPT_FIELDS: dict[str, str] = {}
FUNCTION_ATTRIBUTES: frozenset[str] = frozenset()
SUBMODULES: tuple[str, ...] = ()

HOOK_FIELDS = {
    '{}["tries"]': "number",
    '{}["wait"]': "delay_s",
    '{}["exception"]': "error",
    '{}["value"]': "value",
}
ADVICE = {
    "on_success": "on_success= has no exact counterpart: on_event= also reports successes",
    "on_giveup": "on_giveup= has no exact counterpart: on_give_up= is also called for other errors",
}
LOG_OPTIONS = ("logger", "backoff_log_level", "giveup_log_level")
LOGS = "the logger oncemore.retry has one WARNING per retry; logger= and the log levels are gone"


def translate_call(site: CallSite) -> RetryCall:
    """Return the new call for `on_exception` or `on_predicate`."""
    arguments = dict(site.arguments)
    notes = (LOGS,) if any(arguments.pop(option, None) is not None for option in LOG_OPTIONS) else ()
    wait_parameters = _read_generator(arguments, site)
    refuse_arguments(
        arguments,
        (
            *("wait_gen", "exception", "predicate", "max_tries", "max_time", "jitter", "giveup"),
            *("on_backoff", "raise_on_giveup", *wait_parameters),
        ),
        ADVICE,
    )
    attempts, number = _read_attempts(arguments, site)
    plan, most = _plan_wait(arguments, site)
    # backoff ends with a list of intervals; a list of oncemore repeats its last delay.
    if most is not None and (number is None or most < number):
        if attempts and number is None:
            raise CannotMigrate("max_tries= is not a plain number beside a list of intervals")
        attempts, number = str(most), most
    if not attempts:
        raise CannotMigrate("it has no limit on attempts: add max_tries=n first")
    condition, fallback = _read_condition(arguments)
    wait = write_wait(plan, number)
    seconds, differences = _read_max_time(arguments, site)
    return RetryCall(
        on=write_on(condition),
        until=write_until(condition),
        attempts=attempts,
        attempts_number=number,
        total_timeout=seconds,
        wait=wait.wait,
        jitter=wait.jitter,
        fallback=fallback,
        on_retry=rewrite_hook(arguments["on_backoff"], HOOK_FIELDS, "on_backoff=")
        if "on_backoff" in arguments
        else "",
        differences=differences,
        notes=notes,
    )


def _read_attempts(arguments: Mapping[str, cst.BaseExpression], site: CallSite) -> tuple[str, int | None]:
    node = arguments.get("max_tries")
    if node is None or read_word(node) == "None":
        return "", None
    number = read_number(node)
    source = write_source(node)
    if number is None:
        # backoff calls a function at run time to get the number.
        if source not in site.numbers:
            raise CannotMigrate(f"max_tries={source} may be a function: oncemore takes a number")
        return source, None
    if not 1 <= number <= MOST_ATTEMPTS:
        raise CannotMigrate(f"attempts must be 1 to {MOST_ATTEMPTS}, not {write_number(number)}")
    return source, int(number)


def _read_max_time(
    arguments: Mapping[str, cst.BaseExpression], site: CallSite
) -> tuple[str, tuple[str, ...]]:
    node = arguments.get("max_time")
    if node is None or read_word(node) == "None":
        return "", ()
    source = write_source(node)
    if read_number(node) is None and source not in site.numbers:
        raise CannotMigrate(f"max_time={source} may be a function: oncemore takes a number")
    return source, compare_timeouts("max_time shortens it and tries once more", site.is_async)


# Waits.

_GENERATORS = {
    "backoff.expo": ("base", "factor", "max_value"),
    "backoff.fibo": ("max_value",),
    "backoff.constant": ("interval",),
}


def _read_generator(arguments: Mapping[str, cst.BaseExpression], site: CallSite) -> tuple[str, ...]:
    """Return the parameters of the wait generator."""
    node = arguments.get("wait_gen")
    name = "" if node is None else site.resolve(node)
    if name not in _GENERATORS:
        source = "" if node is None else write_source(node)
        raise CannotMigrate(
            f"the wait generator {source} has no counterpart: it is not expo, fibo or constant"
        )
    return _GENERATORS[name]


def _plan_wait(arguments: Mapping[str, cst.BaseExpression], site: CallSite) -> tuple[KnownWait, int | None]:
    """Return the planned delays, and the attempts that a list of intervals allows."""
    spread, amount = _read_jitter(arguments, site)
    name = site.resolve(arguments["wait_gen"])
    most = None
    if name == "backoff.constant" and isinstance(arguments.get("interval"), (cst.List, cst.Tuple)):
        delays = _read_intervals(arguments["interval"])
        most = len(delays) + 1
        plan = KnownWait(lambda n: delays[min(n, len(delays)) - 1])
    else:
        plan = _PLANS[name](_read_numbers(arguments, _GENERATORS[name]))
    return plan._replace(spread=spread, amount=amount), most


def _read_numbers(
    arguments: Mapping[str, cst.BaseExpression], parameters: tuple[str, ...]
) -> dict[str, float]:
    numbers = {}
    for parameter in parameters:
        node = arguments.get(parameter)
        if node is not None and read_word(node) != "None":
            number = read_number(node)
            if number is None:
                raise CannotMigrate(
                    f"{parameter}={write_source(node)} is not a number that is written in place"
                )
            numbers[parameter] = number
    return numbers


def _read_intervals(node: cst.BaseExpression) -> list[float]:
    assert isinstance(node, (cst.List, cst.Tuple))
    numbers = [read_number(element.value) for element in node.elements]
    known = [number for number in numbers if number is not None]
    if not known or len(known) < len(numbers):
        raise CannotMigrate("the intervals are not numbers that are written in place")
    return known


def _plan_fibonacci(numbers: dict[str, float]) -> KnownWait:
    top = numbers.get("max_value")

    def plan_delay(n: int) -> float:
        this, following = 1, 1
        for _ in range(n - 1):
            this, following = following, this + following
        return float(this) if top is None else min(float(this), top)

    return KnownWait(plan_delay)


_PLANS: dict[str, Callable[[dict[str, float]], KnownWait]] = {
    "backoff.expo": lambda numbers: exponential_wait(
        numbers.get("factor", 1.0), numbers.get("base", 2.0), numbers.get("max_value")
    ),
    "backoff.fibo": _plan_fibonacci,
    "backoff.constant": lambda numbers: constant_wait(numbers.get("interval", 1.0)),
}


def _read_jitter(arguments: Mapping[str, cst.BaseExpression], site: CallSite) -> tuple[Spread, float]:
    node = arguments.get("jitter")
    name = "backoff.full_jitter" if node is None else site.resolve(node)
    if node is not None and read_word(node) == "None":
        return "none", 0.0
    if name == "backoff.full_jitter":
        return "full", 0.0
    if name == "backoff.random_jitter":
        return "additive", 1.0
    assert node is not None
    raise CannotMigrate(f"jitter={write_source(node)} is a function of your own and has no counterpart")


# Conditions.


def _read_condition(arguments: Mapping[str, cst.BaseExpression]) -> tuple[Condition, str]:
    """Return the condition, and `fallback=`."""
    if "exception" not in arguments:
        return _read_predicate(arguments), "lambda error: error.value"
    condition = match_types(*read_types(arguments["exception"]))
    word = read_word(arguments["raise_on_giveup"]) if "raise_on_giveup" in arguments else "True"
    if not word:
        raise CannotMigrate("raise_on_giveup= is not True or False")
    if "giveup" in arguments:
        if word == "False":
            raise CannotMigrate(
                "raise_on_giveup=False with giveup= has no counterpart: fallback= is for retried errors"
            )
        condition = exclude_errors(condition, inline_function(arguments["giveup"], "error"))
    return condition, "None" if word == "False" else ""


def _read_predicate(arguments: Mapping[str, cst.BaseExpression]) -> Condition:
    if "predicate" not in arguments:
        return Condition(until="bool")
    return Condition(repeat=inline_function(arguments["predicate"], "value"))
