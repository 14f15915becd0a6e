import time

import oncemore
import tenacity


def formula(state):
    return eval(FORMULA)  # finds OM110


@tenacity.retry(stop=tenacity.stop_after_attempt(3), wait=formula)
def registered(): ...


@tenacity.retry(stop=tenacity.stop_after_attempt(3), wait=lambda state: eval(FORMULA))  # finds OM110
def with_lambda(): ...


def compute_backoff(number):
    scope = {"number": number}
    exec(FORMULA, scope)  # finds OM110
    return scope["delay"]


def loop(call):
    for attempt in range(3):
        try:
            return call()
        except ConnectionError:
            time.sleep(eval(FORMULA))  # finds OM110
