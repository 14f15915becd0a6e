"""Make a hundred thumbnails, ten at a time; try those again that fail for the moment (DBOS)."""

import os

import httpx
from dbos import DBOS

SERVICE = httpx.Client(base_url=os.environ.get("SERVICE", "http://127.0.0.1:8000"), timeout=60)


@DBOS.step(retries_allowed=True)
def make_thumbnail(number: int) -> int:
    return SERVICE.get(f"/thumbnails/{number}").raise_for_status().json()["bytes"]


@DBOS.workflow()
def thumbnail_workflow(number: int) -> int:
    return make_thumbnail(number)


DBOS(config={"name": "thumbnails", "system_database_url": "sqlite:///dbos.db"})
DBOS.launch()
DBOS.register_queue("thumbnails", global_concurrency=10, polling_interval_sec=0.1)
handles = [DBOS.enqueue_workflow("thumbnails", thumbnail_workflow, number) for number in range(100)]
print(sum(handle.get_result() for handle in handles))
DBOS.destroy()
