"""A small STAC API on the loopback address that fails on request and logs every request.

    GET /                                     the landing page
    GET /collections/C                        a collection
    GET /collections/C/items?datetime=DAY     the items of a collection
    GET /collections/C/items/I                one item

`queue_faults` sets the next replies, `is_down` fails every request, and `break_item` damages an item. The log
has the time of each request on a clock that the caller gives: the waits of the demo that end at once still
show in it with their length.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from oncemore.demo.local_server import LocalServer, QuietHandler

if TYPE_CHECKING:
    from collections.abc import Callable

STAC_VERSION = "1.0.0"
COLLECTION, SENSITIVE_COLLECTION = "kfm-landcover", "kfm-heritage-sites"
COLLECTIONS = (COLLECTION, SENSITIVE_COLLECTION)
ITEMS = 12
#: Longest time that a connection may stay idle.
IDLE_S = 10.0


class StacFault(NamedTuple):
    """A scripted reply: its status, the code in its body, and its Retry-After header."""

    status: int
    code: str
    retry_after_s: int | None = None


SLOW_DOWN = StacFault(503, "SlowDown")
RETRY_AFTER = StacFault(503, "ServiceUnavailable", 2)
DOWN = StacFault(503, "ServiceUnavailable")


class StacRequest(NamedTuple):
    """A line of the log; `day` is the polled day, or empty."""

    path: str
    day: str
    status: int
    at: float


class StacServer(LocalServer):
    """The server and its log.

    now      the clock of the log, in seconds
    is_down  whether every request fails
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(_StacHandler)
        self._now = now
        self._faults: list[StacFault] = []
        self._items = {item["id"]: item for item in map(make_item, range(1, ITEMS + 1))}
        self.requests: list[StacRequest] = []
        self.is_down = False

    def queue_faults(self, *faults: StacFault) -> None:
        """Set the replies of the next requests."""
        self._faults.extend(faults)

    def break_item(self, item_id: str) -> None:
        """Serve an item without its geometry, which the STAC schema requires."""
        del self._items[item_id]["geometry"]

    def requests_for(self, day: str) -> list[StacRequest]:
        """Return the logged requests for the items of a day, in order."""
        with self.lock:
            return [request for request in self.requests if request.day == day]

    def requests_for_item(self, item_id: str) -> list[StacRequest]:
        """Return the logged requests for one item, in order."""
        with self.lock:
            return [request for request in self.requests if request.path.endswith(f"/items/{item_id}")]

    def answer_request(self, target: str) -> tuple[int, Any, dict[str, str]]:
        """Log a request; return the status, the body and the headers of its reply."""
        url = urlsplit(target)
        day = parse_qs(url.query).get("datetime", [""])[0]
        with self.lock:
            fault = self._faults.pop(0) if self._faults else DOWN if self.is_down else None
            if fault is None:
                status, body = self._read(url.path)
                headers = {}
            else:
                status, body = fault.status, {"code": fault.code, "description": "try again later"}
                headers = {} if fault.retry_after_s is None else {"Retry-After": str(fault.retry_after_s)}
            self.requests.append(StacRequest(path=url.path, day=day, status=status, at=self._now()))
        return status, body, headers

    def _read(self, path: str) -> tuple[int, Any]:
        match path.strip("/").split("/"):
            case [""]:
                return 200, {"type": "Catalog", "stac_version": STAC_VERSION, "id": "kfm", "links": []}
            case ["collections", name] if name in COLLECTIONS:
                return 200, {"type": "Collection", "stac_version": STAC_VERSION, "id": name}
            case ["collections", name, "items"] if name in COLLECTIONS:
                return 200, {"type": "FeatureCollection", "features": list(self._items.values())}
            case ["collections", name, "items", item_id] if name in COLLECTIONS and item_id in self._items:
                return 200, self._items[item_id]
        return 404, {"code": "NotFound", "description": f"there is no {path}"}


def make_item(number: int) -> dict[str, Any]:
    """Return a valid STAC item."""
    west, south = -102.0 + number * 0.5, 37.0
    corners = [
        [west, south], [west + 0.5, south], [west + 0.5, south + 0.5], [west, south + 0.5], [west, south],
    ]  # fmt: skip
    item_id = f"kfm-{number:04}"
    return {
        "type": "Feature",
        "stac_version": STAC_VERSION,
        "id": item_id,
        "collection": COLLECTION,
        "geometry": {"type": "Polygon", "coordinates": [corners]},
        "bbox": [west, south, west + 0.5, south + 0.5],
        "properties": {"datetime": "2026-10-01T12:00:00Z"},
        "links": [],
        "assets": {"cover": {"href": f"./{item_id}.tif", "type": "image/tiff; application=geotiff"}},
    }


class _StacHandler(QuietHandler):
    timeout = IDLE_S

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server asks for
        """Reply as scripted, or with the catalogue."""
        stac: StacServer = self.server.owner
        status, body, headers = stac.answer_request(self.path)
        self.send_json(status, body, headers)
