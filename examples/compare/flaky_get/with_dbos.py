"""Get a forecast from a service that is busy at times; wait as long as it asks for (DBOS)."""

import os
import time
from email.utils import parsedate_to_datetime

import httpx
from dbos import DBOS

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)


def is_transient(error: BaseException) -> bool:
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (408, 425, 429, 500, 502, 503, 504)
    return isinstance(error, httpx.TransportError)


def wait_as_asked(asked: str) -> None:
    if asked.isdigit():
        time.sleep(float(asked))
    else:
        time.sleep(max(0.0, parsedate_to_datetime(asked).timestamp() - time.time()))


@DBOS.step(retries_allowed=True, max_attempts=4, interval_seconds=0.5, should_retry=is_transient)
def get_forecast(place: str) -> dict:
    response = SERVICE.get(f"/forecast/{place}")
    if "Retry-After" in response.headers:
        wait_as_asked(response.headers["Retry-After"])
    return response.raise_for_status().json()


@DBOS.workflow()
def print_forecasts() -> None:
    print(get_forecast("harbour")["sky"])
    try:
        get_forecast("atlantis")
    except httpx.HTTPStatusError as error:
        print(error.response.status_code)


DBOS(config={"name": "forecast", "system_database_url": "sqlite:///dbos.db"})
DBOS.launch()
print_forecasts()
DBOS.destroy()
