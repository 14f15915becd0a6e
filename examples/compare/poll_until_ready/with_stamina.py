"""Ask for an export until it is ready: soon at first, then less often, ten times at most (stamina)."""

import os

import httpx
import stamina

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)


class NotReady(Exception):
    pass


@stamina.retry(on=NotReady, attempts=10, wait_jitter=0.1)
def wait_for_export(number: int) -> dict:
    export = SERVICE.get(f"/exports/{number}").raise_for_status().json()
    if export["state"] != "ready":
        raise NotReady
    return export


try:
    print(wait_for_export(1)["rows"])
except NotReady as error:
    raise SystemExit("the export is not ready yet") from error
