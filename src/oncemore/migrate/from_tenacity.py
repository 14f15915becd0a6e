"""Translates calls of tenacity: `retry`, `Retrying`, `AsyncRetrying`."""

from __future__ import annotations

import libcst as cst

from oncemore._values import Value
from oncemore.migrate.conditions import write_on, write_until
from oncemore.migrate.expressions import (
    bind_arguments,
    read_number,
    read_parameter,
    read_word,
    refuse_arguments,
    rewrite_hook,
    write_source,
)
from oncemore.migrate.options import MOST_ATTEMPTS, CannotMigrate, RetryCall, compare_timeouts
from oncemore.migrate.tenacity_strategies import (
    ANY_ERROR,
    read_condition,
    read_strategy,
    read_wait_argument,
)
from oncemore.migrate.waits import write_number, write_wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncemore.migrate.conditions import Condition
    from oncemore.migrate.expressions import CallSite, ResolveName

LIBRARY = "tenacity"
#: Functions and classes whose calls are rewritten, with their parameters in order.
_PARAMETERS = (
    *("sleep", "stop", "wait", "retry", "before", "after", "before_sleep", "reraise"),
    *("retry_error_cls", "retry_error_callback", "name", "enabled"),
)
ENTRY_POINTS = {"retry": _PARAMETERS, "Retrying": _PARAMETERS, "AsyncRetrying": _PARAMETERS}
#: Entry points that iterate over the attempts of a block.
BLOCKS = frozenset({"Retrying", "AsyncRetrying"})
#: The number of an attempt in a block, and its name here.
ATTEMPT_FIELDS = {"retry_state.attempt_number": "number"}
#: Attributes of a decorated function that only this library has.
FUNCTION_ATTRIBUTES = frozenset({"retry_with", "statistics", "retry"})
#: Modules of the library whose names are also in the library itself.
SUBMODULES = ("wait", "stop", "retry", "before", "after", "before_sleep", "nap")

HOOK_FIELDS = {
    "{}.attempt_number": "number",
    "{}.outcome.exception()": "error",
    "{}.next_action.sleep": "delay_s",
    "{}.upcoming_sleep": "delay_s",
}
ADVICE = {
    "enabled": "enabled= has no counterpart: ONCEMORE_RETRY=off in the environment disables retries",
    "retry_error_cls": "retry_error_cls= has no counterpart: raise your error in fallback=",
    "before": "before= has no counterpart: make it the first line of the function",
    "after": "after= has no counterpart: use on_retry= and on_give_up=",
    "sleep": "sleep= has no counterpart: oncemore.testing.instant_waits() is for tests",
}
OWN_ERROR = (
    "raises the function's own error at the end, where tenacity without reraise=True raised RetryError"
)
NO_VALUE = "raises oncemore.RetriesExhausted if no value is accepted, where tenacity raised RetryError"
LOGS = "the logger oncemore.retry has one WARNING per retry; the log hook is gone"


class StopLimits(Value):
    """The limits of a `stop=`: attempts as source and number, seconds as source, and the differences."""

    attempts: str = ""
    number: int | None = None
    seconds: str = ""
    differences: tuple[str, ...] = ()


def translate_call(site: CallSite) -> RetryCall:
    """Return the new call for one of `retry`, `Retrying` or `AsyncRetrying`."""
    arguments = dict(site.arguments)
    notes = _drop_log_hooks(arguments, site.resolve)
    refuse_arguments(
        arguments,
        ("stop", "wait", "retry", "before_sleep", "reraise", "retry_error_callback", "name"),
        ADVICE,
    )
    if "tenacity.TryAgain" in site.used_names:
        raise CannotMigrate('this module raises TryAgain: raise oncemore.TransientError with on="transient"')
    stop = _read_stop(arguments, site)
    condition = read_condition(arguments["retry"], site.resolve) if "retry" in arguments else ANY_ERROR
    if write_until(condition) and site.is_block:
        raise CannotMigrate("a block has no value for retry_if_result: use a function with until=")
    wait = write_wait(read_wait_argument(arguments, site.resolve), stop.number)
    fallback, callback_difference = _read_callback(arguments, condition, site)
    differences = (
        *stop.differences,
        *_compare_errors(arguments, condition, fallback, site),
        *callback_difference,
    )
    on = write_on(condition)
    return RetryCall(
        on=on,
        until=write_until(condition),
        attempts=stop.attempts,
        attempts_number=stop.number,
        total_timeout=stop.seconds,
        wait=wait.wait,
        jitter=wait.jitter,
        fallback=fallback,
        on_retry=rewrite_hook(arguments["before_sleep"], HOOK_FIELDS, "before_sleep=")
        if "before_sleep" in arguments
        else "",
        name=write_source(arguments["name"]) if "name" in arguments else "",
        differences=differences,
        notes=notes,
        imports=("re",) if "re.match(" in on else (),
    )


def _drop_log_hooks(arguments: dict[str, cst.BaseExpression], resolve: ResolveName) -> tuple[str, ...]:
    """Remove hooks that only write log records, and sleep functions that are the default."""
    notes = []
    for hook in ("before", "after", "before_sleep"):
        node = arguments.get(hook)
        if isinstance(node, cst.Call) and resolve(node.func) == f"tenacity.{hook}_log":
            del arguments[hook]
            notes.append(LOGS)
        elif node is not None and read_word(node) == "None":
            del arguments[hook]
    if "sleep" in arguments and resolve(arguments["sleep"]) in (
        "time.sleep",
        "asyncio.sleep",
        "tenacity.sleep",
    ):
        del arguments["sleep"]
    return tuple(dict.fromkeys(notes))


def _compare_errors(
    arguments: Mapping[str, cst.BaseExpression], condition: Condition, fallback: str, site: CallSite
) -> tuple[str, ...]:
    """Return the differences between the errors at the end of a call."""
    word = read_word(arguments["reraise"]) if "reraise" in arguments else "False"
    if not word:
        raise CannotMigrate("reraise= is not True or False")
    if fallback:
        return ()
    differences = []
    if write_until(condition):
        differences.append(NO_VALUE)
    if word == "False" and write_on(condition) != "()":
        differences.append(OWN_ERROR)
    if differences and "tenacity.RetryError" in site.used_names:
        raise CannotMigrate(
            "this module uses RetryError: catch the function's own error, and add reraise=True"
        )
    return tuple(differences)


def _read_callback(
    arguments: Mapping[str, cst.BaseExpression], condition: Condition, site: CallSite
) -> tuple[str, tuple[str, ...]]:
    """Return `fallback=` for a `retry_error_callback=`, with its difference."""
    node = arguments.get("retry_error_callback")
    if node is None or read_word(node) == "None":
        return "", ()
    if site.is_block:
        raise CannotMigrate("a block has no fallback for retry_error_callback=")
    if not isinstance(node, cst.Lambda):
        raise CannotMigrate("retry_error_callback= gets a RetryCallState: rewrite it for fallback=")
    body, parameter = write_source(node.body), read_parameter(node)
    if body == f"{parameter}.outcome.result()" and write_on(condition) == "()":
        return "lambda error: error.value", ()
    if read_number(node.body) is not None or isinstance(node.body, cst.SimpleString) or read_word(node.body):
        return body, ()
    raise CannotMigrate("retry_error_callback= gets a RetryCallState: rewrite it for fallback=")


# Limits.


def _read_stop(arguments: Mapping[str, cst.BaseExpression], site: CallSite) -> StopLimits:
    if "stop" not in arguments:
        raise CannotMigrate("it repeats for ever: give stop=stop_after_attempt(n) first")
    limits = _read_limits(arguments["stop"], site)
    if not limits.attempts:
        raise CannotMigrate("it has no limit on attempts: add stop_after_attempt(n) with `|` first")
    return limits


def _read_limits(node: cst.BaseExpression, site: CallSite) -> StopLimits:
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.BitOr):
        return _merge_limits(_read_limits(node.left, site), _read_limits(node.right, site))
    name, call = read_strategy(node, site.resolve, "stop")
    if name == "stop_any":
        merged = StopLimits()
        for argument in call.args:
            merged = _merge_limits(merged, _read_limits(argument.value, site))
        return merged
    if name == "stop_after_attempt":
        return _limit_attempts(bind_arguments(call, ("max_attempt_number",))["max_attempt_number"])
    if name in ("stop_after_delay", "stop_before_delay"):
        seconds = write_source(bind_arguments(call, ("max_delay",))["max_delay"])
        differences = compare_timeouts("stop_after_delay waits and tries once more", site.is_async)
        # stop_before_delay ends before the wait too; only the cancellation differs.
        return StopLimits(
            seconds=seconds, differences=differences if name == "stop_after_delay" else differences[1:]
        )
    raise CannotMigrate(f"stop={name} has no counterpart")


def _limit_attempts(node: cst.BaseExpression) -> StopLimits:
    number = read_number(node)
    if number is None:
        return StopLimits(attempts=write_source(node))
    if not 1 <= number <= MOST_ATTEMPTS:
        raise CannotMigrate(f"attempts must be 1 to {MOST_ATTEMPTS}, not {write_number(number)}")
    return StopLimits(attempts=write_source(node), number=int(number))


def _merge_limits(first: StopLimits, second: StopLimits) -> StopLimits:
    if (first.attempts and second.attempts) or (first.seconds and second.seconds):
        raise CannotMigrate("stop= has two limits of the same kind")
    return StopLimits(
        first.attempts or second.attempts,
        first.number if first.attempts else second.number,
        first.seconds or second.seconds,
        (*first.differences, *second.differences),
    )
