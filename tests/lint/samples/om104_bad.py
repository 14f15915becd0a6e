import time

import requests
from provider import RateLimitError
from urllib3 import Retry


def status(url):
    for attempt in range(5):
        response = requests.get(url, timeout=5)
        if response.status_code == 429:  # finds OM104
            time.sleep(2**attempt)
            continue
        return response


def statuses(url):
    for attempt in range(5):
        response = requests.get(url, timeout=5)
        if response.status_code in (429, 503):  # finds OM104
            time.sleep(2**attempt)
        else:
            return response


def error(call):
    for attempt in range(5):
        try:
            return call()
        except RateLimitError:  # finds OM104
            time.sleep(2**attempt)


DEAF = Retry(3, backoff_factor=1, respect_retry_after_header=False)  # finds OM104
