"""Make a hundred thumbnails, ten at a time; try those again that fail for the moment (stamina)."""

import os
from concurrent.futures import ThreadPoolExecutor

import httpx
import stamina

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)


@stamina.retry(on=httpx.HTTPError, attempts=3)
def make_thumbnail(number: int) -> int:
    return SERVICE.get(f"/thumbnails/{number}").raise_for_status().json()["bytes"]


with ThreadPoolExecutor(max_workers=10) as pool:
    print(sum(pool.map(make_thumbnail, range(100))))
