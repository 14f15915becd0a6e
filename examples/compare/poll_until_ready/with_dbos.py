"""Ask for an export until it is ready: soon at first, then less often, ten times at most (DBOS)."""

import os

import httpx
from dbos import DBOS

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)


@DBOS.step()
def get_export(number: int) -> dict:
    return SERVICE.get(f"/exports/{number}").raise_for_status().json()


@DBOS.workflow()
def wait_for_export(number: int) -> dict:
    for number_of_polls in range(10):
        export = get_export(number)
        if export["state"] == "ready":
            return export
        DBOS.sleep(min(5, 0.1 * 2**number_of_polls))
    raise SystemExit("the export is not ready yet")


DBOS(config={"name": "export", "system_database_url": "sqlite:///dbos.db"})
DBOS.launch()
print(wait_for_export(1)["rows"])
DBOS.destroy()
