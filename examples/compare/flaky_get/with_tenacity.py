"""Get a forecast from a service that is busy at times; wait as long as it asks for (tenacity)."""

import os
import time
from email.utils import parsedate_to_datetime

import httpx
import tenacity

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)
BACKOFF = tenacity.wait_random_exponential(multiplier=0.5, max=5)


def is_transient(error: BaseException) -> bool:
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (408, 425, 429, 500, 502, 503, 504)
    return isinstance(error, httpx.TransportError)


def wait_as_asked(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception()
    asked = error.response.headers.get("Retry-After") if isinstance(error, httpx.HTTPStatusError) else None
    if asked is None:
        return BACKOFF(state)
    if asked.isdigit():
        return float(asked)
    return max(0.0, parsedate_to_datetime(asked).timestamp() - time.time())


@tenacity.retry(
    retry=tenacity.retry_if_exception(is_transient),
    stop=tenacity.stop_after_attempt(4),
    wait=wait_as_asked,
    reraise=True,
)
def get_forecast(place: str) -> dict:
    return SERVICE.get(f"/forecast/{place}").raise_for_status().json()


print(get_forecast("harbour")["sky"])
try:
    get_forecast("atlantis")
except httpx.HTTPStatusError as error:
    print(error.response.status_code)
