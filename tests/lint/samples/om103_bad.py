import smtplib
import time

import oncemore
import requests
import stripe
import tenacity
from httpx import Client
from urllib3.util.retry import Retry


def post(order):
    for attempt in range(3):
        try:
            return requests.post("https://shop.example/orders", json=order, timeout=5)  # finds OM103
        except requests.RequestException:
            time.sleep(2**attempt)


@tenacity.retry(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_random_exponential())
def pay(amount):
    return stripe.PaymentIntent.create(amount=amount)  # finds OM103


@oncemore.retry(on=OSError, attempts=3)
def notify(message):
    with smtplib.SMTP("mail.example", timeout=5) as server:
        server.send_message(message)  # finds OM103


@oncemore.retry(on=OSError, attempts=3)
def change(client: Client, body):
    with Client() as session:
        return session.request("PATCH", "https://shop.example/orders/1", json=body)  # finds OM103


@oncemore.step(effect="once", attempts=3)  # finds OM103
def charge(card): ...


EVERY = Retry(3, backoff_factor=1, allowed_methods=None)  # finds OM103
POST = Retry(3, backoff_factor=1, allowed_methods=frozenset(["GET", "POST"]))  # finds OM103
