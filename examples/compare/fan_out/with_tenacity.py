"""Make a hundred thumbnails, ten at a time; try those again that fail for the moment (tenacity)."""

import os
from concurrent.futures import ThreadPoolExecutor

import httpx
import tenacity

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(httpx.HTTPError),
    stop=tenacity.stop_after_attempt(3),
    wait=tenacity.wait_random_exponential(multiplier=0.5, max=5),
    reraise=True,
)
def make_thumbnail(number: int) -> int:
    return SERVICE.get(f"/thumbnails/{number}").raise_for_status().json()["bytes"]


with ThreadPoolExecutor(max_workers=10) as pool:
    print(sum(pool.map(make_thumbnail, range(100))))
