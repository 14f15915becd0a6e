"""Get a forecast from a service that is busy at times; wait as long as it asks for (stamina)."""

import os
import time
from email.utils import parsedate_to_datetime

import httpx
import stamina

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)


def transient_or_wait(error: Exception) -> bool | float:
    if not isinstance(error, httpx.HTTPStatusError):
        return isinstance(error, httpx.TransportError)
    if error.response.status_code not in (408, 425, 429, 500, 502, 503, 504):
        return False
    asked = error.response.headers.get("Retry-After")
    if asked is None:
        return True
    if asked.isdigit():
        return float(asked)
    return max(0.0, parsedate_to_datetime(asked).timestamp() - time.time())


@stamina.retry(on=transient_or_wait, attempts=4)
def get_forecast(place: str) -> dict:
    return SERVICE.get(f"/forecast/{place}").raise_for_status().json()


print(get_forecast("harbour")["sky"])
try:
    get_forecast("atlantis")
except httpx.HTTPStatusError as error:
    print(error.response.status_code)
