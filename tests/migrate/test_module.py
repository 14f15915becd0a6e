# ruff: noqa: E501 - decorators on one line, as they are compared
"""What a migrated module looks like, and which calls are left alone for which reason."""

from __future__ import annotations

import pytest

from oncemore.migrate.options import CannotMigrate
from tests.migrate.both_versions import migrate

#: Decorators that have no counterpart, with a part of the reason.
LEFT_ALONE = {
    "tenacity": {
        "tenacity.retry": "repeats for ever",
        "tenacity.retry()": "repeats for ever",
        "tenacity.retry(stop=tenacity.stop_never)": "not a strategy of tenacity that is written in place",
        "tenacity.retry(stop=tenacity.stop_after_delay(3))": "no limit on attempts",
        "tenacity.retry(stop=tenacity.stop_after_attempt(0))": "attempts must be 1 to 1000, not 0",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2000))": "not 2000",
        "tenacity.retry(stop=tenacity.stop_all(tenacity.stop_after_attempt(2)))": "stop=stop_all has no counterpart",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2) | tenacity.stop_after_attempt(3))": "two limits",
        "tenacity.retry(**OPTIONS)": "built at run time (**OPTIONS)",
        "tenacity.retry(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)": "more positional arguments",
        "tenacity.retry(STOP, wait=WAIT, stop=STOP)": "sleep= has no counterpart",
        "tenacity.retry(stop=STOP)": "stop=STOP is not a strategy",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=WAIT)": "wait=WAIT is not a strategy",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=M())": "wait=M() is not a strategy",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), retry=tenacity.retry_if_result(lambda a, *b: a))": "one parameter",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_exception(f))": "wait_exception has no",
        "tenacity.retry(stop=tenacity.stop_after_attempt(N), wait=tenacity.wait_exponential())": "add a maximum",
        "tenacity.retry(stop=tenacity.stop_after_attempt(N), wait=tenacity.wait_exponential(M))": "add max=",
        "tenacity.retry(stop=tenacity.stop_after_attempt(N), wait=tenacity.wait_exponential(M, min=N, max=3))": "min=",
        "tenacity.retry(stop=tenacity.stop_after_attempt(N), wait=tenacity.wait_random(M))": "not written in place",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_random(3, 2))": "is above the longest",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_exponential(1, typo=3))": "typo=",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_exponential(-1))": "negative",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_fixed(-1))": "negative",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_random_exponential(min=1))": "minimum",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_exponential_jitter(min=1))": "minimum",
        "tenacity.retry(stop=tenacity.stop_after_attempt(4), wait=tenacity.wait_exponential_jitter(9, max=3))": "below its first",
        "tenacity.retry(stop=tenacity.stop_after_attempt(20), wait=tenacity.wait_incrementing(1, 2))": "list of 19",
        "tenacity.retry(stop=tenacity.stop_after_attempt(N), wait=tenacity.wait_incrementing(1, 2))": "as a list",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_random() + tenacity.wait_random())": "sum of these random",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_fixed(N) + tenacity.wait_fixed(1))": "not plain numbers",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_chain(tenacity.wait_random()))": "chain with random",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_chain(tenacity.wait_fixed(N), tenacity.wait_random()))": "plain seconds",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_chain(tenacity.wait_exponential(N, max=3)))": "plain seconds",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_chain(*MEMBERS))": "built at run time",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_chain(*[tenacity.wait_fixed(i) for i in range(3)]))": "built at run time",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_chain(*[tenacity.wait_fixed(1) for i in range(N)]))": "built at run time",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_chain(*[tenacity.wait_fixed(1) for i in M]))": "built at run time",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_chain(*[tenacity.wait_fixed(1) for i in M(3)]))": "built at run time",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_chain(*[tenacity.wait_fixed(1)] * N))": "built at run time",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), retry=tenacity.retry_always)": "retry=tenacity.retry_always",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), retry=tenacity.retry_unless_exception_type(OSError))": "no counterpart",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), retry=tenacity.retry_if_exception_type(BaseException))": "never retried",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), retry=tenacity.retry_if_exception(f) & tenacity.retry_if_result(f))": "joined by `and`",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), retry=tenacity.retry_if_result(lambda a, b=1: a))": "one parameter",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), retry=tenacity.retry_if_result(lambda *a: a))": "one parameter",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), retry=tenacity.retry_if_result(lambda a: [a for a in a]))": "too involved",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), retry=tenacity.retry_if_result(lambda a: a in value))": "too involved",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), before=f)": "first line of the function",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), before_sleep=f)": "rewrite it for on_retry=",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), before_sleep=lambda s: f(s))": "more than a RetryReport",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), before_sleep=lambda s: report(s.attempt_number))": "more than a RetryReport",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), reraise=N)": "reraise= is not True or False",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), retry_error_callback=f)": "rewrite it for fallback=",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), retry_error_callback=lambda s: s.args)": "rewrite it for fallback=",
        "tenacity.retry(stop=tenacity.stop_after_attempt(2), enabled=N)": "ONCEMORE_RETRY=off",
    },
    "backoff": {
        "backoff.on_exception(backoff.expo, OSError)": "add max_tries=n",
        "backoff.on_exception(backoff.expo, OSError, max_tries=None, max_time=3)": "add max_tries=n",
        "backoff.on_exception(backoff.runtime, OSError, value=f, max_tries=3)": "generator backoff.runtime has no",
        "backoff.on_exception()": "wait generator",
        "backoff.on_exception(backoff.expo, OSError, max_tries=f)": "max_tries=f may be a function",
        "backoff.on_exception(backoff.expo, OSError, max_tries=2, max_time=f)": "max_time=f may be a function",
        "backoff.on_exception(backoff.expo, OSError, max_tries=0)": "not 0",
        "backoff.on_exception(backoff.expo, OSError, max_tries=3, jitter=f)": "function of your own",
        "backoff.on_exception(backoff.expo, OSError, max_tries=3, base=f)": "base=f is not a number",
        "backoff.on_exception(backoff.constant, OSError, interval=[f])": "intervals are not numbers",
        "backoff.on_exception(backoff.constant, OSError, interval=[1], max_tries=FIVE)": "beside a list of intervals",
        "backoff.on_exception(backoff.expo, OSError, max_tries=3, on_giveup=f)": "on_giveup=",
        "backoff.on_exception(backoff.expo, OSError, max_tries=3, raise_on_giveup=f)": "not True or False",
        "backoff.on_exception(backoff.expo, OSError, max_tries=3, raise_on_giveup=False, giveup=f)": "with giveup=",
    },
    "stamina": {
        "stamina.retry(attempts=3)": "it has no on=",
        "stamina.retry(on=OSError, attempts=None)": "no limit on attempts",
        "stamina.retry(on=OSError, attempts=1001)": "not 1001",
        "stamina.retry(on=OSError, timeout=0)": "nothing is retried",
        "stamina.retry(on=f)": "may return seconds",
        "stamina.retry(on=lambda e: e.wait)": "may return seconds",
        "stamina.retry(on=OSError, wait_initial=9)": "below its first delay",
    },
}


@pytest.mark.parametrize("library", LEFT_ALONE)
def test_a_call_without_counterpart_is_left_alone_for_a_reason(library: str) -> None:
    works = [f"@{one}\ndef work{n}(): ...\n" for n, one in enumerate(LEFT_ALONE[library])]
    source = f"import {library}\nFIVE = 5\nOPTIONS, M, STOP, WAIT, f, N, MEMBERS = read()\n\n" + "\n".join(
        works
    )
    migrated = migrate(source, library)
    assert [call.call for call in migrated.calls if call.is_rewritten] == []
    assert migrated.source == source.encode()
    assert len(migrated.calls) == len(works)
    for call, (decorator, reason) in zip(migrated.calls, LEFT_ALONE[library].items(), strict=True):
        assert not call.is_rewritten
        assert reason in call.reason, decorator
        assert source.splitlines()[call.line - 1] == f"@{decorator}"


#: Functions and modules that are left alone, with a part of the reason.
AROUND = {
    "@tenacity.retry({})\ndef work():\n    yield 1\n": "generator function",
    "@tenacity.retry({})\n@staticmethod\ndef work(): ...\n": "above @staticmethod",
    "@tenacity.retry({})\nclass Work: ...\n": "decorates a class",
    "@tenacity.retry({})\ndef work(): ...\nwork.retry_with(stop=1)\n": "uses work.retry_with",
    "@tenacity.retry({})\ndef work(): ...\ntry:\n    work()\nexcept tenacity.RetryError: ...\n": "uses RetryError",
    "@tenacity.retry({})\ndef work():\n    raise tenacity.TryAgain\n": "raises TryAgain",
    "oncemore = 3\n@tenacity.retry({})\ndef work(): ...\n": "variable called oncemore",
    "again = tenacity.retry\n": "not called here",
    "tenacity.Retrying({})(work)\n": "not the iterator of a for loop",
    "for attempt in tenacity.Retrying({}):\n    with attempt:\n        pass\nelse:\n    pass\n": "has an else",
    "for attempt in tenacity.Retrying({}):\n    pass\n": "more than one block",
    "for attempt in tenacity.Retrying({}):\n    with attempt as x:\n        pass\n": "more than one block",
    "for attempt in tenacity.Retrying({}):\n    with attempt:\n        f(attempt)\n": "uses attempt for more",
    "for a in tenacity.Retrying({}, retry=tenacity.retry_if_result(f)):\n    with a:\n        pass\n": "no value",
    "for a in tenacity.Retrying({}, retry_error_callback=f):\n    with a:\n        pass\n": "no fallback",
    "if tenacity.retry({},  # why\n)(f): ...\n": "comments inside of the call",
}


@pytest.mark.parametrize("source", AROUND)
def test_code_around_a_call_can_forbid_the_change(source: str) -> None:
    text = "import tenacity\n" + source.format("stop=tenacity.stop_after_attempt(2)")
    migrated = migrate(text, "tenacity")
    assert migrated.source == text.encode()
    assert [AROUND[source] in call.reason for call in migrated.calls] == [True], migrated.calls


def test_a_star_import_is_left_alone() -> None:
    migrated = migrate(
        "from tenacity import *\n\n@retry(stop=stop_after_attempt(2))\ndef work(): ...\n", "tenacity"
    )
    assert [(call.line, call.reason) for call in migrated.calls] == [
        (1, "import the names that are used instead of *")
    ]


@pytest.mark.parametrize(
    "source",
    [
        "from mine import retry\n\n@retry(stop=3)\ndef work(): ...  # not tenacity\n",
        "try:\n    from tenacity import retry\nexcept ImportError:\n    from mine import retry\n\n@retry(stop=1)\ndef work(): ...\n",
        "from .tenacity import retry\n\n@retry(stop=3)\ndef work(): ...\n",
        "def tenacity(): ...\n\n@tenacity.retry(stop=1)\ndef work(): ...\n",
    ],
)
def test_a_function_of_the_same_name_from_elsewhere_is_not_touched(source: str) -> None:
    migrated = migrate(source, "tenacity")
    assert (migrated.source, migrated.calls) == (source.encode(), ())


def test_a_source_that_is_not_python_is_reported() -> None:
    with pytest.raises(CannotMigrate, match="cannot be parsed"):
        migrate("import tenacity\ndef (", "tenacity")


BEFORE = '''"""Orders."""
import logging
import tenacity as again
from tenacity import (
    RetryCallState,  # for other modules
    retry,
    stop_after_attempt,
    wait_exponential,
)
from tenacity.stop import stop_after_delay

log = logging.getLogger()


class Orders:
    # Orders are slow in the morning.
    @retry(
        # The provider asked for four.
        stop=stop_after_attempt(4),
        wait=wait_exponential(max=20),  # seconds
        reraise=True,
    )
    def load(self, day):   # spaces stay
        return  [ day ]

    @again.retry(stop=stop_after_attempt(2) | stop_after_delay(9), reraise=True)
    def save(self): ...
'''
AFTER = '''"""Orders."""
import logging
from tenacity import (
    RetryCallState,  # for other modules
)
import oncemore

log = logging.getLogger()


class Orders:
    # Orders are slow in the morning.
    # The provider asked for four.
    # seconds
    @oncemore.retry(
        on=Exception,
        attempts=4,
        wait=oncemore.backoff.exponential(1, cap=20),
        jitter="none",
    )
    def load(self, day):   # spaces stay
        return  [ day ]

    @oncemore.retry(on=Exception, attempts=2, total_timeout=9, wait=0)
    def save(self): ...
'''


def test_formatting_comments_and_needed_imports_are_kept() -> None:
    migrated = migrate(BEFORE, "tenacity")
    assert migrated.source.decode() == AFTER
    assert [(call.line, len(call.differences)) for call in migrated.calls] == [(17, 0), (26, 1)]
    assert "does not start a wait that does not fit" in migrated.calls[1].differences[0]


VARIED = """# A header.
from collections import *
# About retries.
import tenacity
import time
from tenacity import (retry, stop_after_attempt, wait_fixed as pause)
from tenacity import wait_exponential, wait_random, RetryError
from tenacity import (RetryAction, retry_if_exception)
from tenacity import (
    Future,  # kept
    AsyncRetrying
)
from tenacity import (WrappedFn,
    stop_never, stop_any)
from tenacity import (after_log,
    wait_combine)

__all__ = ["wait_random"]


@retry(
    stop=stop_after_attempt(2 * 2),
    wait=wait_exponential(
        multiplier=3,  # seconds
        exp_base=1e200,
    ) + wait_random(
        0, 1
    ),
    retry=tenacity.retry_if_exception_type((*ERRORS, OSError)),
    before_sleep=None, sleep=time.sleep, reraise=True,
)
@cached
def load():
    def inner():
        yield 1
    return inner, lambda: (yield)


def lazily():
    # Only here.
    import tenacity as again

    return again.retry(stop=again.stop_after_attempt(2), reraise=True)


async def alone():
    import tenacity as again
    @again.retry(stop=again.stop_after_attempt(2), wait=wait_combine(pause(1)), reraise=True, retry=retry_if_exception(partial(
        is_lost, "x"
    )))
    def inner(): ...
    async for attempt in AsyncRetrying(stop=stop_any(stop_after_attempt(2)), reraise=True):
        with attempt: pass


try:
    from tenacity import wait_none
except ImportError: ...
@retry(stop=stop_after_attempt(1), wait=wait_none(), reraise=True)
def last(): ...
"""
VARIED_AFTER = """# A header.
from collections import *
# About retries.
import time
from tenacity import wait_random, RetryError
from tenacity import (RetryAction)
from tenacity import (
    Future,  # kept
)
from tenacity import (WrappedFn,
    stop_never)
from tenacity import (after_log,
    )
import oncemore

__all__ = ["wait_random"]


# seconds
@oncemore.retry(
    on=(*ERRORS, OSError),
    attempts=2 * 2,
    wait=[3, 3e+200, 1e+300],
    jitter=oncemore.jitter.additive(1),
)
@cached
def load():
    def inner():
        yield 1
    return inner, lambda: (yield)


def lazily():
    # Only here.

    return oncemore.retry(on=Exception, attempts=2, wait=0)


async def alone():
    @oncemore.retry(
        on=partial( is_lost, "x" ),
        attempts=2,
        wait=1,
    )
    def inner(): ...
    async for attempt in oncemore.attempts(on=Exception, attempts=2, wait=0):
        with attempt: pass


try:
    pass
except ImportError: ...
@oncemore.retry(on=Exception, attempts=1, wait=0)
def last(): ...
"""


def test_imports_of_all_forms_are_mended() -> None:
    migrated = migrate(VARIED, "tenacity")
    assert [call.reason for call in migrated.calls] == [""] * 5
    assert migrated.source.decode() == VARIED_AFTER


def test_a_time_limit_of_backoff_is_a_difference() -> None:
    source = "import backoff\n@backoff.on_exception(backoff.expo, OSError, max_tries=3, max_time=9)\ndef f(): ...\n"
    migrated = migrate(source, "backoff")
    assert "total_timeout=9" in migrated.source.decode()
    assert len(migrated.calls[0].differences) == 1


def test_exact_leaves_calls_with_differences_alone() -> None:
    migrated = migrate(BEFORE, "tenacity", exact=True)
    assert [call.is_rewritten for call in migrated.calls] == [True, False]
    assert "--exact was given, and total_timeout" in migrated.calls[1].reason


def test_differences_and_warnings_are_named() -> None:
    source = (
        "import tenacity, stamina\n"
        "@tenacity.retry(stop=tenacity.stop_after_attempt(12) | tenacity.stop_before_delay(5), wait=tenacity.wait_fixed(1))\n"
        "async def work(): ...\n"
    )
    (call,) = migrate(source, "tenacity").calls
    assert [difference.split(",")[0].split(" at ")[0] for difference in call.differences] == [
        "total_timeout also cancels an attempt of a coroutine that is still running",
        "raises the function's own error",
    ]
    assert call.notes == (
        "a constant wait without jitter gives a PolicyWarning",
        "more than ten attempts give a PolicyWarning",
    )
    (call,) = migrate(
        "import stamina\nstamina.set_testing(True)\n@stamina.retry(on=OSError)\ndef f(): ...\n", "stamina"
    ).calls
    assert [text.split(" ")[0] for text in (*call.differences, *call.notes)] == ["total_timeout", "hooks"]


def test_line_ends_and_the_encoding_are_kept() -> None:
    source = "# -*- coding: latin-1 -*-\r\nimport stamina\r\nname = 'é'\r\n@stamina.retry(on=OSError)\r\ndef f(): ...\r\n"
    from oncemore.migrate.module import migrate_module

    after = migrate_module(source.encode("latin-1"), "stamina").source.decode("latin-1")
    assert "name = 'é'\r\n@oncemore.retry(" in after
    assert after.count("\r\n") == after.count("\n")
