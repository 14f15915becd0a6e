import random
import time

import backoff
import requests
import tenacity
import urllib3
from celery import shared_task
from redis.backoff import NoBackoff
from redis.retry import Retry as RedisRetry


def growing(url):
    for attempt in range(5):
        try:
            return requests.get(url, timeout=5)
        except requests.ConnectionError:
            time.sleep(2**attempt)


def growing_variable(url):
    delay = 1
    for _ in range(5):
        try:
            return requests.get(url, timeout=5)
        except requests.ConnectionError:
            time.sleep(delay)
            delay *= 2


def second_try(url):
    for _ in range(2):
        try:
            return requests.get(url, timeout=5)
        except requests.ConnectionError as error:
            print(error)


def repaired(connection, message):
    for attempt in range(3):
        try:
            return connection.send(message)
        except ConnectionError:
            connection.reconnect()


def drawn(url):
    for attempt in range(5):
        try:
            return requests.get(url, timeout=5)
        except requests.ConnectionError:
            time.sleep(random.uniform(0, 10))


def many(urls):
    for url in urls:
        try:
            print(requests.get(url, timeout=5))
        except requests.ConnectionError:
            time.sleep(1)


def find_port(bind):
    for port in range(8000, 9000):
        try:
            return bind(port)
        except OSError:
            continue


@tenacity.retry(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_random_exponential())
def with_tenacity(): ...


@backoff.on_exception(backoff.expo, OSError, max_tries=3)
def with_backoff(): ...


@shared_task(autoretry_for=(OSError,), max_retries=3, retry_backoff=True)
def task(): ...


FIRST = urllib3.Retry(total=3, backoff_factor=0.5)
OFF = urllib3.Retry(0)
REDIS = RedisRetry(NoBackoff(), 1)


def held_by_event(url, event):
    for attempt in range(5):
        try:
            return requests.get(url, timeout=5)
        except requests.ConnectionError:
            event.wait(5)


def held_in_the_call(client):
    for attempt in range(5):
        try:
            return client.fetch(wait_seconds=5)
        except ConnectionError as error:
            print(error)


def wait_for_server(url):
    for attempt in range(50):
        try:
            return requests.get(url, timeout=5)
        except requests.ConnectionError:
            time.sleep(0.1)


def sleeps_first(url):
    for attempt in range(50):
        time.sleep(1)
        try:
            return requests.get(url, timeout=5)
        except requests.ConnectionError as error:
            print(error)


def asks_until(url, deadline):
    while time.monotonic() < deadline:
        try:
            return requests.get(url, timeout=5)
        except requests.ConnectionError:
            time.sleep(0.1)


def interrupted(connection, errno):
    while True:
        try:
            return connection.accept()
        except OSError as error:
            if error.errno != errno.EINTR:
                raise
            time.sleep(0.1)


def stated_by_error(call):
    for attempt in range(5):
        try:
            return call()
        except ConnectionError as error:
            time.sleep(error.seconds)


def state_is_renewed(self):
    for attempt in range(5):
        try:
            return self.get_remote().send()
        except ConnectionError:
            self.remote = None
