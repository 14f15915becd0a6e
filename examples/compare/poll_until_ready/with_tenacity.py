"""Ask for an export until it is ready: soon at first, then less often, ten times at most (tenacity)."""

import os

import httpx
import tenacity

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)


@tenacity.retry(
    retry=tenacity.retry_if_result(lambda export: export["state"] != "ready"),
    stop=tenacity.stop_after_attempt(10),
    wait=tenacity.wait_random_exponential(multiplier=0.1, max=5),
)
def wait_for_export(number: int) -> dict:
    return SERVICE.get(f"/exports/{number}").raise_for_status().json()


try:
    print(wait_for_export(1)["rows"])
except tenacity.RetryError as error:
    raise SystemExit("the export is not ready yet") from error
