"""Make a hundred thumbnails, ten at a time; try those again that fail for the moment (oncemore)."""

import os

import httpx

import oncemore

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)


@oncemore.step(effect="pure", on=httpx.HTTPError)
def make_thumbnail(number: int) -> int:
    return SERVICE.get(f"/thumbnails/{number}").raise_for_status().json()["bytes"]


print(sum(make_thumbnail.map(range(100), max_concurrency=10).values))
