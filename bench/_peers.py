"""The same function under each library: three calls at most, again after a `ConnectionError`.

Each library is told the same wait, without jitter. A decorator that cannot be told a number of calls
(google-api-core has a time limit only) is left with what it has. Nobody logs: stamina's hooks and
backoff's logger are off, and ours finds no handler.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from functools import wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, NamedTuple

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # google-api-core has opinions on Python versions
    import backoff
    import hyx.retry
    import stamina
    import tenacity
    from google.api_core import retry as google

import oncemore

if TYPE_CHECKING:
    from collections.abc import Callable

    Work = Callable[..., Any]

ATTEMPTS = 3
LIMIT = "hand-written (limit)"

stamina.instrumentation.set_on_retry_hooks([])
# That a constant wait is unwise is true, and beside the point here.
warnings.filterwarnings("ignore", category=oncemore.PolicyWarning)


class UnknownError(Exception):
    """An error of somebody's own program, which no classifier has heard of."""


# The limits: what a careful person writes by hand, for any signature.


def plain_try(work: Work) -> Work:
    """Return the least that a generic decorator can be: one `try` around the call."""
    if iscoroutinefunction(work):

        @wraps(work)
        async def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return await work(*args, **kwargs)
            except ConnectionError:
                raise

    else:

        @wraps(work)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return work(*args, **kwargs)
            except ConnectionError:
                raise

    return call


def loop(work: Work, wait: float) -> Work:
    """Return the hand-written loop in its quickest form; with `for … in range` it costs a tenth more."""
    if iscoroutinefunction(work):

        @wraps(work)
        async def call(*args: Any, **kwargs: Any) -> Any:
            number = 1
            while True:
                try:
                    return await work(*args, **kwargs)
                except ConnectionError:
                    if number == ATTEMPTS:
                        raise
                number += 1
                if wait:
                    await asyncio.sleep(wait)

    else:

        @wraps(work)
        def call(*args: Any, **kwargs: Any) -> Any:
            number = 1
            while True:
                try:
                    return work(*args, **kwargs)
                except ConnectionError:
                    if number == ATTEMPTS:
                        raise
                number += 1
                if wait:
                    time.sleep(wait)

    return call


# The libraries.


def with_oncemore(work: Work, wait: float, on: type[Exception] = ConnectionError, **more: Any) -> Work:
    return oncemore.retry(on=on, attempts=ATTEMPTS, wait=wait, **more)(work)


def with_oncemore_within(work: Work, wait: float) -> Work:
    """A limit for the whole call: a success then needs more than to be returned."""
    return with_oncemore(work, wait, total_timeout=60.0)


def with_oncemore_drawn(work: Work, wait: float) -> Work:
    """With jitter, and so with a seed to keep; at least half of the wait."""
    return with_oncemore(work, wait, jitter="equal")


def with_oncemore_unknown(work: Work, wait: float) -> Work:
    """For an error that no rule knows: it has to be looked at each time."""
    return with_oncemore(work, wait, on=UnknownError)


def with_tenacity(work: Work, wait: float) -> Work:
    return tenacity.retry(
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=tenacity.wait_fixed(wait) if wait else tenacity.wait_none(),
        retry=tenacity.retry_if_exception_type(ConnectionError),
        reraise=True,
    )(work)


def with_stamina(work: Work, wait: float) -> Work:
    return stamina.retry(
        on=ConnectionError,
        attempts=ATTEMPTS,
        timeout=None,
        wait_initial=wait,
        wait_max=wait,
        wait_jitter=0.0,
    )(work)


def with_backoff(work: Work, wait: float) -> Work:
    return backoff.on_exception(
        backoff.constant, ConnectionError, max_tries=ATTEMPTS, jitter=None, logger=None, interval=wait
    )(work)


def with_hyx(work: Work, wait: float) -> Work:
    return hyx.retry.retry(on=ConnectionError, attempts=ATTEMPTS, backoff=wait)(work)


def with_google(work: Work, wait: float) -> Work:
    kind = google.AsyncRetry if iscoroutinefunction(work) else google.Retry
    return kind(predicate=google.if_exception_type(ConnectionError), initial=wait, maximum=wait, timeout=1e9)(
        work
    )


class Peer(NamedTuple):
    """A library and how a function is decorated with it."""

    name: str
    decorate: Callable[[Work, float], Work]
    plain: bool = True


OURS = Peer("oncemore", with_oncemore)
OURS_WITHIN = Peer("oncemore, total_timeout=60", with_oncemore_within)
OURS_UNKNOWN = Peer("oncemore, own error class", with_oncemore_unknown)
OURS_DRAWN = Peer("oncemore, with jitter", with_oncemore_drawn)
LIBRARIES = (
    Peer("google-api-core", with_google),
    Peer("hyx", with_hyx, plain=False),
    Peer("backoff", with_backoff),
    Peer("stamina", with_stamina),
    Peer("tenacity", with_tenacity),
)
PACKAGES = ("oncemore", "tenacity", "stamina", "backoff", "hyx", "google-api-core")


# The work.


def succeeds(value: object) -> object:
    return value


async def succeeds_async(value: object) -> object:
    return value


def succeeds_third(error: type[Exception] = ConnectionError) -> Work:
    """Return a function that fails twice and then succeeds, over and over."""
    number = 0

    def work(value: object) -> object:
        nonlocal number
        number += 1
        if number % ATTEMPTS:
            raise error("down")
        return value

    return work


def succeeds_third_async(error: type[Exception] = ConnectionError) -> Work:
    """Return the same as a coroutine function."""
    number = 0

    async def work(value: object) -> object:
        nonlocal number
        number += 1
        if number % ATTEMPTS:
            raise error("down")
        return value

    return work


async def fails(value: object) -> object:
    raise ConnectionError("down")
