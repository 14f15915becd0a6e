import time

import oncemore
import requests


@oncemore.retry(on=OSError, attempts=3)
def fetch(url):
    return requests.get(url, timeout=5)  # finds OM109


def loop(url):
    for attempt in range(3):
        try:
            return requests.get(url, timeout=5)  # finds OM109
        except requests.ConnectionError:
            time.sleep(2**attempt)
