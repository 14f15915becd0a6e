"""Conditions of other libraries for another attempt, written as `on=` and `until=`."""

from __future__ import annotations

from oncemore._values import Value
from oncemore.migrate.options import CannotMigrate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: Exceptions that `on=` never covers: they end the program or cancel the task.
NEVER_RETRIED = frozenset(
    {"BaseException", "KeyboardInterrupt", "SystemExit", "GeneratorExit", "CancelledError"}
)


class Condition(Value):
    """A condition on the error or the value of one attempt; true means: try again.

    types      source of exception types, each a class
    type_test  source of one more class or tuple of classes, for `isinstance`
    predicate  source of a function of the error, if it is the whole condition
    test       an expression with the name `error`
    repeat     an expression with the name `value`, true for values that are not accepted
    until      source of a function that is true for accepted values, if it is the whole condition
    """

    types: tuple[str, ...] = ()
    type_test: str = ""
    predicate: str = ""
    test: str = ""
    repeat: str = ""
    until: str = ""


def match_types(sources: Sequence[str], is_tuple_name: bool = False) -> Condition:
    """Return the condition that an error has one of these types.

    is_tuple_name  the only source may be a name of a tuple, so that it cannot stand in another tuple
    """
    for source in sources:
        if source.rpartition(".")[2] in NEVER_RETRIED:
            raise CannotMigrate(f"{source} is never retried by oncemore: list the exceptions to retry")
    return Condition(type_test=sources[0]) if is_tuple_name else Condition(types=tuple(sources))


def write_on(condition: Condition) -> str:
    """Return the value of `on=`: types, a function, or `()` if no error is retried."""
    if condition.predicate:
        return condition.predicate
    if condition.type_test and not condition.test:
        return condition.type_test
    if condition.test:
        return f"lambda error: {condition.test}"
    if len(condition.types) == 1:
        return condition.types[0]
    return f"({', '.join(condition.types)})"


def write_until(condition: Condition) -> str:
    """Return the value of `until=`, or "" if values do not matter."""
    if condition.until:
        return condition.until
    return f"lambda value: {_negate(condition.repeat)}" if condition.repeat else ""


def _negate(expression: str) -> str:
    # `not a == b` and `not f(x)` need no parentheses; `not a or b` would mean something else.
    return f"not ({expression})" if " " in expression else f"not {expression}"


def _read_error_test(condition: Condition) -> str:
    """Return the condition on the error as an expression, or "" if it has none."""
    if condition.test:
        return condition.test
    if condition.predicate:
        return f"{condition.predicate}(error)"
    if condition.type_test:
        return f"isinstance(error, {condition.type_test})"
    if condition.types:
        one = len(condition.types) == 1
        return f"isinstance(error, {condition.types[0] if one else write_on(condition)})"
    return ""


def _read_value_test(condition: Condition) -> str:
    """Return the condition on the value as an expression, or "" if it has none."""
    return condition.repeat or (f"not {condition.until}(value)" if condition.until else "")


def any_condition(conditions: Sequence[Condition]) -> Condition:
    """Return the condition that holds if one of several holds."""
    errors = [condition for condition in conditions if _read_error_test(condition)]
    values = [condition for condition in conditions if _read_value_test(condition)]
    error = _join_errors(errors)
    if len(values) == 1:
        return error._replace(repeat=values[0].repeat, until=values[0].until)
    return error._replace(repeat=_join_tests([_read_value_test(value) for value in values], "or"))


def _join_errors(errors: Sequence[Condition]) -> Condition:
    if len(errors) == 1:
        return errors[0]._replace(repeat="", until="")
    # Classes alone are joined in one tuple; everything else in one expression.
    if all(error.types for error in errors):
        return Condition(types=tuple(dict.fromkeys(one for error in errors for one in error.types)))
    return Condition(test=_join_tests([_read_error_test(error) for error in errors], "or"))


def all_conditions(conditions: Sequence[Condition]) -> Condition:
    """Return the condition that holds if all of several hold."""
    errors = [_read_error_test(condition) for condition in conditions]
    values = [_read_value_test(condition) for condition in conditions]
    # An attempt has an error or a value: conditions on both at once never hold.
    if any(errors) == any(values) or any(map(bool, map(all, zip(errors, values, strict=True)))):
        raise CannotMigrate("conditions on the error and on the value are joined by `and`")
    if any(errors):
        return Condition(test=_join_tests(errors, "and"))
    return Condition(repeat=_join_tests(values, "and"))


def _join_tests(tests: Sequence[str], word: str) -> str:
    # Parentheses, because a test may hold an operator that binds less.
    parts = [f"({test})" if f" {_OTHER[word]} " in test or " if " in test else test for test in tests if test]
    return f" {word} ".join(parts)


_OTHER = {"or": "and", "and": "or"}


def exclude_errors(condition: Condition, giveup: str) -> Condition:
    """Return the condition without the errors that the expression `giveup` is true for."""
    return Condition(test=f"{_read_error_test(condition)} and {_negate(giveup)}")
