import time

import requests


def status(url):
    for attempt in range(5):
        response = requests.get(url, timeout=5)
        if response.status_code == 429:
            time.sleep(float(response.headers.get("Retry-After", 2**attempt)))
            continue
        return response


def given_up(url):
    for _ in range(5):
        response = requests.get(url, timeout=5)
        if response.status_code == 503:
            raise RuntimeError("busy")
