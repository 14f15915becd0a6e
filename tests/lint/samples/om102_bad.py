import asyncio
import time

import backoff
import requests
import retrying
import tenacity
import urllib3
from celery import shared_task
from redis.backoff import NoBackoff
from redis.retry import Retry as RedisRetry
from requests.adapters import Retry
from retry import retry

PAUSE = 5


def fixed(url):
    for attempt in range(5):  # finds OM102
        try:
            return requests.get(url, timeout=5)
        except requests.ConnectionError:
            time.sleep(3)


def fixed_name(url):
    for _ in range(5):  # finds OM102
        try:
            return requests.get(url, timeout=5)
        except requests.ConnectionError:
            time.sleep(PAUSE)


def busy(url):
    for attempt in range(5):  # finds OM102
        try:
            return requests.get(url, timeout=5)
        except requests.ConnectionError as error:
            print(error)


async def after_the_try(connect):
    tries = 0
    while tries < 10:  # finds OM102
        try:
            return await connect()
        except OSError:
            tries += 1
        await asyncio.sleep(0.5)


@tenacity.retry(stop=tenacity.stop_after_attempt(3))  # finds OM102
def without_wait(): ...


@tenacity.retry(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_fixed(2))  # finds OM102
def with_fixed_wait(): ...


@backoff.on_exception(backoff.constant, OSError, max_tries=3)  # finds OM102
def with_backoff(): ...


@retry(OSError, tries=3, delay=2)  # finds OM102
def with_retry(): ...


@shared_task(autoretry_for=(OSError,), max_retries=3)  # finds OM102
def task(): ...


FIRST = urllib3.Retry(total=3)  # finds OM102
SECOND = Retry(3, backoff_factor=0)  # finds OM102
REDIS = RedisRetry(NoBackoff(), 3)  # finds OM102


@retrying.retry(stop_max_attempt_number=3)  # finds OM102
def with_retrying(): ...


@retrying.retry(stop_max_attempt_number=3, wait_fixed=2000)  # finds OM102
def with_fixed_retrying(): ...


def conditional(url):
    for attempt in range(5):  # finds OM102
        try:
            reply = requests.get(url, timeout=5)
            if reply.ok:
                return reply
        except requests.ConnectionError:
            time.sleep(3)
