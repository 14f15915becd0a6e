import queue
import time
from random import choice

import backoff
import requests
import tenacity
import urllib3
from celery import shared_task

from .own import retry


def counted(url):
    for attempt in range(4):
        try:
            return requests.get(url, timeout=5)
        except requests.RequestException:
            time.sleep(2**attempt)
    raise RuntimeError(url)


def limited(url):
    tries = 0
    while True:
        try:
            return requests.get(url, timeout=5)
        except requests.RequestException:
            tries += 1
            if tries > 5:
                raise
            time.sleep(2**tries)


def decided_elsewhere(url, policy):
    while True:
        try:
            return requests.get(url, timeout=5)
        except requests.RequestException as error:
            policy.record(error)


def serve(server):
    while True:
        try:
            server.handle(server.accept())
        except Exception as error:
            print(error)


def ask():
    while True:
        try:
            return int(input("how many? "))
        except Exception as error:
            print(error)


def take(items):
    while True:
        try:
            return items.get(timeout=1)
        except queue.Empty:
            continue


def find_name(connect, names):
    while True:
        name = choice(names)
        try:
            return connect(name)
        except ConnectionError:
            continue


def fallback(urls):
    for url in urls:
        try:
            return requests.get(url, timeout=5)
        except requests.RequestException as error:
            print(error)
    raise RuntimeError("no mirror replies")


async def bounded_by_timeout(connect, asyncio):
    async with asyncio.timeout(30):
        while True:
            try:
                return await connect()
            except ConnectionError:
                await asyncio.sleep(compute())


def halve(send, batch):
    while True:
        try:
            return send(batch)
        except ConnectionError:
            batch = batch[: len(batch) // 2]


def finally_left(stop):
    while True:
        if stop():
            try:
                stop.kill()
            except OSError:
                pass
            break
        time.sleep(1)


@tenacity.retry(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_random_exponential())
def decorated(): ...


@tenacity.retry(**OPTIONS)
def options_elsewhere(): ...


@backoff.on_exception(backoff.expo, OSError, max_time=60)
def with_backoff(): ...


@shared_task(max_retries=5)
def task(): ...


@retry
def relative_import_is_not_tenacity(): ...


POLICY = urllib3.Retry(total=None, connect=3, read=2, backoff_factor=1)


def repr_value(value):
    try:
        return value.shown()
    except Exception:
        return repr(value)


def counted_elsewhere(open_it):
    attempts = 0
    while True:
        try:
            return open_it()
        except StrangeFault:
            attempts += 1
            if attempts > 3:
                raise


def checked_outside(url, deadline):
    while True:
        if deadline.is_over():
            raise TimeoutError
        try:
            return requests.get(url, timeout=5)
        except requests.RequestException:
            time.sleep(delay(url))


def checked_inside(url, end):
    while True:
        try:
            if time.monotonic() > end:
                break
            return requests.get(url, timeout=5)
        except requests.RequestException:
            time.sleep(delay(url))


def ended_process(url, sys):
    while True:
        try:
            return requests.get(url, timeout=5)
        except requests.RequestException:
            if url.is_gone():
                sys.exit(1)
            time.sleep(delay(url))


def nested_try(url):
    while True:
        try:
            try:
                return requests.get(url, timeout=5)
            except KeyError:
                raise
        except requests.RequestException as error:
            print(error)
            try:
                url.report()
                return None
            except OSError:
                return None


def matched(message, url):
    while True:
        match message.read():
            case "fetch":
                try:
                    print(requests.get(url, timeout=5))
                except requests.RequestException as error:
                    print(error)
            case _:
                return


def wrapped(url):
    try:
        return requests.get(url, timeout=5)
    except requests.ConnectionError:
        return [wrapped(url)]


def other_error(value):
    try:
        return value.shown()
    except KeyError:
        return other_error(value)


def remembered(url, seen):
    try:
        return requests.get(url, timeout=5)
    except requests.ConnectionError:
        seen[url] = True
        return remembered(url, seen)


def woken(condition):
    while True:
        try:
            return condition.take()
        except TimeoutError:
            print("still nothing")
