import time

import backoff
import oncemore
import tenacity


@oncemore.retry(on=OSError, attempts=5)
def fetch(url): ...


@oncemore.retry(on=OSError, attempts=3)
def load(urls):
    return [fetch(url) for url in urls]  # finds OM112


@tenacity.retry(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_random_exponential())
@backoff.on_exception(backoff.expo, OSError, max_tries=3)  # finds OM112
def stacked(): ...


@oncemore.retry(on=OSError, attempts=3)
def with_loop(call):
    for attempt in range(3):  # finds OM112
        try:
            return call()
        except OSError:
            time.sleep(2**attempt)


def loops(call):
    for attempt in range(3):
        try:
            for inner in range(3):  # finds OM112
                try:
                    return call()
                except ConnectionError:
                    time.sleep(2**inner)
            return None
        except ConnectionError:
            time.sleep(2**attempt)
