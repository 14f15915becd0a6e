import re

import tenacity


def formula(state):
    return 2**state.attempt_number


@tenacity.retry(stop=tenacity.stop_after_attempt(3), wait=formula)
def registered(): ...


def compute_backoff(number):
    pattern = re.compile("a+")
    return len(pattern.pattern) ** number


def run_console(text):
    return eval(text)


@tenacity.retry
def bare():
    return run_console("1")


VALUE = eval("1 + 1")
