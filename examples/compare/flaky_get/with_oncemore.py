"""Get a forecast from a service that is busy at times; wait as long as it asks for (oncemore)."""

import os

import httpx

import oncemore

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)


@oncemore.retry(on="transient", attempts=4)
def get_forecast(place: str) -> dict:
    return SERVICE.get(f"/forecast/{place}").raise_for_status().json()


print(get_forecast("harbour")["sky"])
try:
    get_forecast("atlantis")
except httpx.HTTPStatusError as error:
    print(error.response.status_code)
