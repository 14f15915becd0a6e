"""Ask for an export until it is ready: soon at first, then less often, ten times at most (oncemore)."""

import os

import httpx

import oncemore

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)


def is_ready(export: dict) -> bool:
    return export["state"] == "ready"


@oncemore.retry(on=(), until=is_ready, attempts=10, wait=oncemore.backoff.exponential(0.1, cap=5))
def wait_for_export(number: int) -> dict:
    return SERVICE.get(f"/exports/{number}").raise_for_status().json()


try:
    print(wait_for_export(1)["rows"])
except oncemore.RetriesExhausted as error:
    raise SystemExit("the export is not ready yet") from error
