import itertools
import time
from urllib.request import urlopen

import backoff
import redis.retry
import requests
import retrying
import stamina
import tenacity
import urllib3
from celery import shared_task
from google.api_core import retry as google_retry
from redis.backoff import ExponentialBackoff
from retry import retry
from tenacity import retry as again


def loop(url):
    while True:  # finds OM101
        try:
            return requests.get(url, timeout=5)
        except requests.RequestException as error:
            print(f"again: {error}")
            time.sleep(delay(url))


def flag(connect):
    connection = None
    while connection is None:  # finds OM101
        try:
            connection = connect()
        except ConnectionError:
            time.sleep(delay(connect))
    return connection


def counted(url):
    for number in itertools.count():  # finds OM101
        try:
            return urlopen(url, timeout=5)
        except OSError:
            time.sleep(2**number)


def recursive(url):
    try:
        return requests.get(url, timeout=5)
    except requests.ConnectionError:
        time.sleep(1)
        return recursive(url)  # finds OM101


class Client:
    async def send(self, message):
        try:
            return await self.post(message)
        except Exception:
            return await self.send(message)  # finds OM101

    def connect(self):
        while not self.connected:  # finds OM101
            try:
                self.open()
                self.connected = True
            except ConnectionRefusedError:
                time.sleep(self.pause())


@again(wait=tenacity.wait_random_exponential())  # finds OM101
def decorated(): ...


@tenacity.retry(stop=tenacity.stop_never, wait=tenacity.wait_random_exponential())  # finds OM101
def never_stopped(): ...


@backoff.on_exception(backoff.expo, OSError)  # finds OM101
def with_backoff(): ...


@backoff.on_exception(backoff.expo, OSError, max_tries=None)  # finds OM101
def with_backoff_none(): ...


@retrying.retry(wait_exponential_multiplier=1000)  # finds OM101
def with_retrying(): ...


@retry(OSError, delay=1, backoff=2)  # finds OM101
def with_retry(): ...


@stamina.retry(on=OSError, attempts=None, timeout=None)  # finds OM101
def with_stamina(): ...


@shared_task(max_retries=None)  # finds OM101
def task(): ...


@app.task(bind=True, max_retries=None)  # finds OM101
def bound_task(self): ...


POLICY = urllib3.Retry(total=None, backoff_factor=1)  # finds OM101
GOOGLE = google_retry.Retry(timeout=None)  # finds OM101
REDIS = redis.retry.Retry(ExponentialBackoff(), -1)  # finds OM101


def bare(url, lock):
    while True:  # finds OM101
        with lock:
            try:
                reply = requests.get(url, timeout=5)
            except:
                time.sleep(delay(url))
                continue
            return reply


def http_timeout(url, lock):
    with lock:
        while True:  # finds OM101
            try:
                return requests.get(url, timeout=5)
            except requests.Timeout:
                time.sleep(delay(url))


def provider(url):
    while True:  # finds OM101
        try:
            return requests.get(url, timeout=5)
        except StrangeFault:
            print("again")


def with_inner_parts(url):
    while True:  # finds OM101
        def name():
            raise RuntimeError

        try:
            return requests.get(url, timeout=5)
        except requests.RequestException:
            time.sleep(delay(url))
