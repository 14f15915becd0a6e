"""The pipeline of the demo: poll a STAC API, then fetch and check single items."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import oncemore
from oncemore.demo.kfm_rules.stac_server import COLLECTION

#: The names of the example record in the requirements (5.1).
PIPELINE, STAGE, PROVIDER = "etl_stac_ingest_v10.3.1", "poll_stac_api", "stac.local"
PROFILE = "kfm-rules"
READ_TIMEOUT_S = 10.0
#: The required members of a STAC item, with their types. `geometry` may be null, but not absent.
ITEM_MEMBERS: dict[str, tuple[type, ...]] = {
    "type": (str,), "stac_version": (str,), "id": (str,), "geometry": (dict, type(None)),
    "properties": (dict,), "links": (list,), "assets": (dict,),
}  # fmt: skip


def read_json(url: str) -> Any:
    """Return the JSON behind an address; an `HTTPError` has the error code of the reply as its text."""
    try:
        with urlopen(url, timeout=READ_TIMEOUT_S) as response:  # noqa: S310 - the demo's own http address
            return json.load(response)
    except HTTPError as error:
        with error:
            text = str(json.load(error).get("code", error.reason))
        # Without the response: the error outlives the call and would keep the connection open.
        raise HTTPError(url, error.code, text, error.headers, None) from None


def check_item(item: dict[str, Any]) -> None:
    """Raise SCHEMA_INVALID for an item that the STAC schema does not allow."""
    for name, types in ITEM_MEMBERS.items():
        if name not in item:
            raise oncemore.PolicyViolation("SCHEMA_INVALID", f"item {item.get('id')}: {name} is missing")
        if not isinstance(item[name], types):
            raise oncemore.PolicyViolation(
                "SCHEMA_INVALID", f"item {item.get('id')}: {name} has a wrong type"
            )


@oncemore.step(
    effect="idempotent", name=STAGE, policy=PROFILE, provider=PROVIDER, pipeline=PIPELINE,
    dataset=lambda *args: args[2], ignore=("url",),
)  # fmt: skip
def poll_stac_api(url: str, day: str, collection: str) -> list[str]:
    """Return the ids of the items of a day."""
    found = read_json(f"{url}/collections/{collection}/items?datetime={day}")
    return [item["id"] for item in found["features"]]


@oncemore.step(
    effect="idempotent", name="ingest_item", policy=PROFILE, provider=PROVIDER, pipeline=PIPELINE,
    dataset=COLLECTION, ignore=("url",),
)  # fmt: skip
def ingest_item(url: str, item_id: str) -> str:
    """Fetch and check one item; return its time."""
    item = read_json(f"{url}/collections/{COLLECTION}/items/{item_id}")
    check_item(item)
    return str(item["properties"]["datetime"])
