# ruff: noqa: E501 - decorators on one line, as they are compared
"""Migrated code does the same: equal calls, equal waits with equal draws, the same end."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

import pytest
import tenacity

from tests.migrate.both_versions import load_names, migrate, run_after, run_before

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.migrate.both_versions import Behaviour

LOST = ConnectionError("lost")
SCRIPTS: list[list[object]] = [
    [LOST],
    [LOST, LOST, "page"],
    ["page"],
    [LOST, ValueError("wrong"), "page"],
    ["", LOST, "page"],
    [TimeoutError("busy now"), OSError("gone"), 0],
]

TENACITY = [
    "stop=stop_after_attempt(4)",
    "stop=stop_after_attempt(4), reraise=True",
    "stop=stop_after_attempt(4), wait=wait_none(), reraise=True",
    "stop=stop_after_attempt(4), wait=None, reraise=True",
    "stop=stop_after_attempt(4), wait=wait_fixed(2), reraise=True",
    "stop=stop_after_attempt(TRIES), wait=wait_fixed(DELAY), reraise=True",
    "stop=stop_after_attempt(TRIES), wait=wait_exponential(DELAY, max=9, exp_base=3), reraise=True",
    "stop=stop_after_attempt(TRIES), wait=wait_random_exponential(DELAY, 9), reraise=True",
    "stop=stop_after_attempt(TRIES), wait=wait_exponential_jitter(initial=DELAY, max=9, jitter=2), reraise=True",
    "stop=stop_after_attempt(TRIES), wait=wait_chain(wait_fixed(1), wait_fixed(DELAY)), reraise=True",
    "stop=stop_after_attempt(8), wait=wait_exponential(), reraise=True",
    "stop=stop_after_attempt(9), wait=wait_exponential(multiplier=2, exp_base=3), reraise=True",
    "stop=stop_after_attempt(6), wait=wait_exponential(multiplier=1, min=4, max=10), reraise=True",
    "stop=stop_after_attempt(6), wait=wait_exponential(multiplier=20, max=10), reraise=True",
    "stop=stop_after_attempt(6), wait=wait_exponential(multiplier=8, exp_base=0.5, max=10), reraise=True",
    "stop=stop_after_attempt(6), wait=wait_random(1, 3), reraise=True",
    "stop=stop_after_attempt(6), wait=wait_random(), reraise=True",
    "stop=stop_after_attempt(6), wait=wait_random(20, 50), reraise=True",
    "stop=stop_after_attempt(7), wait=wait_random_exponential(multiplier=0.5, max=60), reraise=True",
    "stop=stop_after_attempt(7), wait=wait_random_exponential(multiplier=0.5), reraise=True",
    "stop=stop_after_attempt(9), wait=wait_random_exponential(), reraise=True",
    "stop=stop_after_attempt(7), wait=wait_exponential_jitter(), reraise=True",
    "stop=stop_after_attempt(9), wait=wait_exponential_jitter(), reraise=True",
    "stop=stop_after_attempt(7), wait=wait_exponential_jitter(multiplier=2, max=5, jitter=3), reraise=True",
    "stop=stop_after_attempt(7), wait=wait_exponential_jitter(jitter=0), reraise=True",
    "stop=stop_after_attempt(7), wait=wait_incrementing(start=2, increment=3), reraise=True",
    "stop=stop_after_attempt(7), wait=wait_incrementing(5, -2), reraise=True",
    "stop=stop_after_attempt(7), wait=wait_incrementing(1, 1, 4), reraise=True",
    "stop=stop_after_attempt(5), wait=wait_chain(wait_fixed(1), wait_fixed(5)), reraise=True",
    "stop=stop_after_attempt(9), wait=wait_chain(*[wait_fixed(3) for i in range(3)] + [wait_fixed(7) for i in range(2)]"
    " + [wait_fixed(9)]), reraise=True",
    "stop=stop_after_attempt(5), wait=wait_chain(*[wait_fixed(1)] * 2, wait_exponential(2)), reraise=True",
    "stop=stop_after_attempt(5), wait=wait_fixed(3) + wait_random(0, 2), reraise=True",
    "stop=stop_after_attempt(5), wait=wait_combine(wait_fixed(3), wait_exponential(max=4)), reraise=True",
    "stop=stop_after_attempt(5), wait=wait_exponential(max=4) + wait_random(1, 3), reraise=True",
    "stop=stop_after_attempt(5), wait=wait_exponential(max=40) + wait_random(0, 3), reraise=True",
    "stop=stop_after_attempt(5) | stop_before_delay(7), wait=wait_fixed(2), reraise=True",
    "stop=stop_any(stop_after_attempt(9), stop_before_delay(7)), wait=wait_exponential(), reraise=True",
    "stop=stop_after_attempt(3), retry=retry_if_exception_type(), reraise=True",
    "stop=stop_after_attempt(3), retry=retry_if_exception_type(OSError), reraise=True",
    "stop=stop_after_attempt(3), retry=retry_if_exception_type((OSError, ValueError)), reraise=True",
    "stop=stop_after_attempt(3), retry=retry_if_exception_type(ERRORS), reraise=True",
    "stop=stop_after_attempt(3), retry=retry_if_not_exception_type(ValueError), reraise=True",
    "stop=stop_after_attempt(3), retry=retry_if_exception_message(message='lost'), reraise=True",
    "stop=stop_after_attempt(3), retry=retry_if_exception_message(match='los|busy'), reraise=True",
    "stop=stop_after_attempt(3), retry=retry_if_exception(is_lost), reraise=True",
    "stop=stop_after_attempt(3), retry=retry_if_exception(lambda e: 'lost' in str(e)), reraise=True",
    "stop=stop_after_attempt(3), retry=retry_if_exception_type(TimeoutError) | retry_if_exception_type(ValueError),"
    " reraise=True",
    "stop=stop_after_attempt(3), retry=retry_if_exception_type(ERRORS) | retry_if_exception(lambda e: not e.args),"
    " reraise=True",
    "stop=stop_after_attempt(3), retry=retry_all(retry_if_exception_type(OSError),"
    " retry_if_exception(lambda e: 'o' in str(e) or not e)), reraise=True",
    "stop=stop_after_attempt(3), retry=retry_if_result(lambda r: r == '' or r == 0), reraise=True",
    "stop=stop_after_attempt(3), retry=retry_if_result(is_empty)",
    "stop=stop_after_attempt(3), retry=retry_if_not_result(bool)",
    "stop=stop_after_attempt(3), retry=retry_if_not_result(lambda r: r or r is None)",
    "stop=stop_after_attempt(3), retry=retry_if_result(is_empty) & retry_if_not_result(bool)",
    "stop=stop_after_attempt(3), retry=retry_if_result(is_empty) | retry_if_exception_type(OSError), reraise=True",
    "stop=stop_after_attempt(3), retry=retry_any(retry_if_result(is_empty), retry_if_result(lambda r: r == 'page'))",
    "stop=stop_after_attempt(3), retry_error_callback=lambda state: None",
    "stop=stop_after_attempt(3), retry_error_callback=lambda _: 'default', retry=retry_if_exception_type(OSError)",
    "stop=stop_after_attempt(3), retry=retry_if_result(is_empty), retry_error_callback=lambda s: s.outcome.result()",
    "stop=stop_after_attempt(3), wait=wait_fixed(2), reraise=True, before_sleep=lambda s:"
    " HEARD.append((s.attempt_number, s.next_action.sleep, str(s.outcome.exception())))",
    "stop=stop_after_attempt(3), before_sleep=before_sleep_log(LOGGER, 20), reraise=True",
]
TENACITY_HEAD = """
import logging
from tenacity import *
TRIES, DELAY, ERRORS, HEARD, LOGGER = 4, 1.5, (OSError, KeyError), [], logging.getLogger("x")
def is_lost(error): return "lost" in str(error)
def is_empty(value): return not value
"""

BACKOFF = [
    "backoff.expo, OSError, max_tries=5",
    "backoff.expo, OSError, max_tries=9",
    "backoff.expo, (OSError, ValueError), max_tries=5, jitter=None",
    "backoff.expo, ERRORS, max_tries=TRIES, max_value=4",
    "backoff.expo, OSError, base=3, factor=0.5, max_value=4, jitter=None, max_tries=6",
    "backoff.expo, OSError, max_tries=6, jitter=backoff.random_jitter",
    "backoff.expo, OSError, max_tries=6, max_value=4, jitter=backoff.random_jitter",
    "backoff.expo, OSError, max_tries=6, max_value=300, jitter=backoff.random_jitter",
    "backoff.expo, OSError, max_tries=8, max_value=300, jitter=backoff.full_jitter",
    "backoff.fibo, OSError, max_tries=7",
    "backoff.fibo, OSError, max_tries=9, max_value=5, jitter=None",
    "backoff.constant, OSError, max_tries=4",
    "backoff.constant, OSError, interval=2, max_tries=4, jitter=None",
    "backoff.constant, OSError, interval=[1, 5, 2], jitter=None",
    "backoff.constant, OSError, interval=[1, 5, 2], max_tries=2",
    "backoff.constant, OSError, interval=(1, 5, 2), max_tries=9",
    "backoff.constant, OSError, interval=0, max_tries=3, raise_on_giveup=False",
    "backoff.expo, OSError, max_tries=4, giveup=lambda e: 'lost' in str(e)",
    "backoff.expo, OSError, max_tries=4, giveup=is_lost",
    "backoff.expo, OSError, max_tries=4, logger=None",
    "backoff.expo, OSError, max_tries=4, jitter=None, on_backoff=lambda d: HEARD.append((d['tries'], d[\"wait\"]))",
]
PREDICATES = [
    "backoff.constant, interval=2, jitter=None, max_tries=2",
    "backoff.fibo, lambda r: r == '' or r == 0, max_tries=4",
    "backoff.expo, predicate=is_empty, max_tries=3, max_value=9",
]
BACKOFF_HEAD = """
import backoff
ERRORS, HEARD = (OSError, ValueError), []
TRIES = 5
def is_lost(error): return "lost" in str(error)
def is_empty(value): return not value
"""

STAMINA = [
    "on=OSError, timeout=None",
    "on=OSError",
    "on=(OSError, ValueError), attempts=4, timeout=None",
    "on=ERRORS, attempts=TRIES, wait_initial=DELAY, timeout=None",
    "on=OSError, attempts=6, wait_initial=1, wait_max=3, wait_jitter=0, timeout=None",
    "on=OSError, attempts=6, wait_initial=1.5, wait_max=100, wait_jitter=20, wait_exp_base=3, timeout=None",
    "on=OSError, attempts=4, wait_initial=datetime.timedelta(seconds=2), wait_jitter=0, timeout=None",
    "on=OSError, attempts=4, wait_initial=DELAY, wait_max=9, wait_jitter=DELAY, wait_exp_base=3, timeout=None",
    "on=lambda e: isinstance(e, OSError), attempts=4, timeout=None",
    "on=is_lost, attempts=4, timeout=datetime.timedelta(hours=1)",
]
STAMINA_HEAD = """
import datetime, stamina
TRIES, DELAY, ERRORS, HEARD = 4, 0.5, (OSError, ValueError), []
def is_lost(error) -> bool: return "lost" in str(error)
"""


def decorate(decorators: Sequence[str], kind: str = "def") -> list[str]:
    """Return the source of one function for each decorator."""
    return [f"\n@{one}\n{kind} work{n}(act):\n    return act()\n" for n, one in enumerate(decorators)]


def compare(head: str, works: Sequence[str], library: str) -> None:
    """Migrate all functions in one module, and run each before and after."""
    source = head + "\n".join(works)
    migrated = migrate(source, library)
    assert [call.reason for call in migrated.calls if not call.is_rewritten] == []
    assert len(migrated.calls) == len(works)
    after = migrated.source.decode()
    assert f"import {library}" not in after
    old_names, new_names = load_names(source), load_names(after)
    for number, text in enumerate(works):
        for script in SCRIPTS:
            old_names["HEARD"].clear()
            new_names["HEARD"].clear()
            old = run_before(old_names[f"work{number}"], script)
            new = run_after(new_names[f"work{number}"], script)
            assert_same(old, new, text)
            assert new_names["HEARD"] == old_names["HEARD"], text


def assert_same(old: Behaviour, new: Behaviour, text: str) -> None:
    assert new.calls == old.calls, text
    # A wait of zero does not sleep here.
    assert new.delays == pytest.approx([delay for delay in old.delays if delay]), text
    assert new.end == old.end, text


def name_imports(text: str) -> str:
    """Return the head with the names of tenacity that a text uses: star imports are left alone."""
    used = {name for name in re.findall(r"\w+", text) if name in tenacity.__all__}
    return TENACITY_HEAD.replace("import *", f"import {', '.join(sorted(used))}")


def test_tenacity_decorators_do_the_same() -> None:
    works = decorate([f"retry({arguments})" for arguments in TENACITY])
    compare(name_imports("\n".join(works)), works, "tenacity")


def test_backoff_decorators_do_the_same() -> None:
    decorators = [f"backoff.on_exception({arguments})" for arguments in BACKOFF]
    decorators += [f"backoff.on_predicate({arguments})" for arguments in PREDICATES]
    compare(BACKOFF_HEAD, decorate(decorators), "backoff")


def test_stamina_decorators_do_the_same() -> None:
    compare(STAMINA_HEAD, decorate([f"stamina.retry({arguments})" for arguments in STAMINA]), "stamina")


BLOCK = """
def work{name}(act):
    for attempt in {iterator}:
        with attempt:
            HEARD.append(attempt.{number})
            return act()
"""
ASYNC_BLOCK = BLOCK.replace("def work", "async def work").replace("for attempt", "async for attempt")


def test_blocks_do_the_same() -> None:
    arguments = "stop=stop_after_attempt(4), wait=wait_exponential(), retry=retry_if_exception_type(OSError)"
    works = [
        form.format(
            name=n, iterator=f"{kind}({arguments}, reraise=True)", number="retry_state.attempt_number"
        )
        for n, (form, kind) in enumerate([(BLOCK, "Retrying"), (ASYNC_BLOCK, "AsyncRetrying")])
    ]
    compare(name_imports("\n".join(works)), works, "tenacity")
    iterator = (
        "stamina.retry_context(OSError, attempts=4, wait_initial=1, wait_max=3, wait_jitter=0, timeout=None)"
    )
    works = [
        form.format(name=n, iterator=iterator, number="num") for n, form in enumerate([BLOCK, ASYNC_BLOCK])
    ]
    compare(STAMINA_HEAD, works, "stamina")


def test_coroutine_functions_do_the_same() -> None:
    works = decorate(
        ["retry(stop=stop_after_attempt(4), wait=wait_exponential(), reraise=True)"], "async def"
    )
    compare(name_imports(works[0]), works, "tenacity")
    works = decorate(["backoff.on_exception(backoff.expo, OSError, max_tries=4)"], "async def")
    compare(BACKOFF_HEAD, works, "backoff")
    works = decorate(["stamina.retry(on=OSError, attempts=4, timeout=None)"], "async def")
    compare(STAMINA_HEAD, works, "stamina")


def test_a_decorator_that_is_kept_in_a_name_or_called_does_the_same() -> None:
    works = [
        "\nstubborn = retry(stop=stop_after_attempt(3), wait=wait_fixed(1))\n@stubborn\ndef work0(act): return act()\n",
        "\nwork1 = retry(stop=stop_after_attempt(2))(lambda act: act())\n",
    ]
    compare(name_imports("\n".join(works)), works, "tenacity")


def draw_wait(draw: random.Random, depth: int = 2) -> str:
    number = draw.choice(["1", "0.5", "3", "7", "2 * 3", "-1"] if depth == 2 else ["1", "0.25", "4"])
    top = draw.choice(["", ", max=5", ", max=45"])
    least = draw.choice(["", "", ", min=2"])
    kinds = [
        f"wait_fixed({number})",
        f"wait_random(1, {draw.choice(['2', '40'])})",
        f"wait_exponential({number}{top}{least}, exp_base={draw.choice(['2', '1', '3'])})",
        f"wait_random_exponential({number}{top}{least})",
        f"wait_exponential_jitter({number}{top}, jitter={draw.choice(['1', '9'])})",
        f"wait_incrementing({number}, {draw.choice(['1', '0', '-1'])}{top})",
    ]
    if depth:
        parts = [draw_wait(draw, depth - 1) for _ in range(draw.choice([2, 3]))]
        kinds += [" + ".join(parts), f"wait_combine({', '.join(parts)})", f"wait_chain({', '.join(parts)})"]
    return draw.choice(kinds)


def draw_condition(draw: random.Random, depth: int = 2) -> str:
    kinds = [
        "retry_if_exception_type(OSError)",
        "retry_if_exception_type((ValueError, TimeoutError))",
        "retry_if_not_exception_type(ValueError)",
        "retry_if_exception(is_lost)",
        "retry_if_exception(lambda e: 'o' in str(e) or not e.args)",
        "retry_if_exception_message(match='l|b')",
        "retry_if_result(is_empty)",
        "retry_if_result(lambda v: v == 'page' and v)",
        "retry_if_not_result(bool)",
    ]
    if depth:
        parts = [draw_condition(draw, depth - 1) for _ in range(2)]
        kinds += [f"({parts[0]}) {draw.choice('|&')} ({parts[1]})"] * 4
    return draw.choice(kinds)


@pytest.mark.unmeasured
def test_random_decorators_do_the_same_or_are_left_alone() -> None:
    seed = random.randrange(10**6)
    draw = random.Random(seed)
    decorators = [
        f"retry(stop=stop_after_attempt({draw.randint(1, 9)}), wait={draw_wait(draw)}, "
        f"retry={draw_condition(draw)}, reraise=True)"
        for _ in range(50)
    ]
    works = decorate(decorators)
    source = name_imports("\n".join(works)) + "\n".join(works)
    migrated = migrate(source, "tenacity")
    assert [call.is_rewritten or bool(call.reason) for call in migrated.calls] == [True] * len(works), seed
    old_names, new_names = load_names(source), load_names(migrated.source.decode())
    rewritten = [number for number, call in enumerate(migrated.calls) if call.is_rewritten]
    assert len(rewritten) > 5, seed
    for number in rewritten:
        for script in SCRIPTS:
            old = run_before(old_names[f"work{number}"], script)
            new = run_after(new_names[f"work{number}"], script)
            assert_same(old, new, f"seed {seed}: {works[number]}")
