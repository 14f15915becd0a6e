import time

import oncemore
import requests
import stripe
import tenacity
from urllib3.util.retry import Retry


def post(order, key):
    for attempt in range(3):
        try:
            return requests.post("https://shop.example/orders", headers={"Idempotency-Key": key}, timeout=5)
        except requests.RequestException:
            time.sleep(2**attempt)


@tenacity.retry(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_random_exponential())
def pay(amount, key):
    return stripe.PaymentIntent.create(amount=amount, idempotency_key=key)


@oncemore.retry(on=OSError, attempts=3)
def search(words):
    return requests.post("https://shop.example/search", json=words, timeout=5)


@oncemore.retry(on=ConnectionRefusedError, attempts=3)
def not_sent(order):
    return requests.post("https://shop.example/orders", json=order, timeout=5)


def outside(order):
    for attempt in range(3):
        try:
            return requests.get("https://shop.example/orders", timeout=5)
        except requests.RequestException:
            time.sleep(2**attempt)
    return requests.post("https://shop.example/orders", json=order, timeout=5)


@oncemore.step(effect="once")
def charge(card): ...


@oncemore.step(effect="once", attempts=3, not_applied=ConnectionRefusedError)
def charge_again(card): ...


READS = Retry(3, backoff_factor=1, allowed_methods=["GET", "HEAD"])
