"""Ship an order when a person has approved it, within three days; a restart changes nothing (DBOS).

with_dbos.py ORDER                       wait for the approval, then ship
with_dbos.py approve ORDER PERSON        approve it, from another process
"""

import os
import sys

import httpx
from dbos import DBOS, DBOSClient, SetWorkflowID

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)
DATABASE = "sqlite:///dbos.db"


def is_lost(error: BaseException) -> bool:
    return isinstance(error, httpx.TransportError)


@DBOS.step(retries_allowed=True, should_retry=is_lost)
def ship(order: str, person: str) -> str:
    headers, body = {"Idempotency-Key": order}, {"order": order, "approved_by": person}
    return SERVICE.post("/shipments", json=body, headers=headers).raise_for_status().json()["id"]


@DBOS.workflow()
def ship_when_approved(order: str) -> str:
    person = DBOS.recv("approved", timeout_seconds=3 * 86_400)
    if person is None:
        raise TimeoutError(order)
    return ship(order, person)


if sys.argv[1] == "approve":
    client = DBOSClient(system_database_url=DATABASE)
    client.send(f"ship-{sys.argv[2]}", sys.argv[3], topic="approved")
    client.destroy()
else:
    DBOS(config={"name": "approval", "system_database_url": DATABASE})
    DBOS.launch()
    with SetWorkflowID(f"ship-{sys.argv[1]}"):
        handle = DBOS.start_workflow(ship_when_approved, sys.argv[1])
    print("waiting")
    print(handle.get_result())
    DBOS.destroy()
