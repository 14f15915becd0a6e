import random
import secrets
import time
from random import uniform


def jittered_backoff(number):
    return 2**number + uniform(0, 1)  # finds OM111


def loop(call):
    for attempt in range(3):
        try:
            return call()
        except ConnectionError:
            time.sleep(2**attempt * random.random())  # finds OM111


def retry_delay(number):
    return secrets.SystemRandom().random() + secrets.randbelow(5)  # finds OM111
