"""The interface of the LIT document: a client of Core, and writes to SQLite that others get in the way of.

    from oncemore.profiles.lit import CoreClient, CoreClientHTTPError, Persistence, context

    core = CoreClient("http://core.internal:8080")
    with context(request_id="r-17", session_id="s-4"):
        finding = core.call("/v1/analyze", {"document": "d-9"})
        Persistence(connection).write(save_finding, finding)

It is a front for the one mechanism, under the numbers of `lit.yaml`. Where the document leaves a hole, or
cannot work as printed, it says so:

* a reset or a half answer is the same kind of fault as a timeout (X-50)
* a request that is neither idempotent nor declared so is sent once (X-43); session actions always
* a `Retry-After` is obeyed up to 30 s; a longer one is raised at once, and readable on the error (X-42)
* SQLite's own waiting is switched off for a write, or the document's 20 ms would mean 15 s (X-51)
"""

from __future__ import annotations

from oncemore.profiles.lit.alert import Exhaustion, exhaustion
from oncemore.profiles.lit.client import CoreClient
from oncemore.profiles.lit.errors import ActionOutcomeUnknown, CoreClientError, CoreClientHTTPError
from oncemore.profiles.lit.persistence import Persistence, persist
from oncemore.profiles.lit.request_context import context
from oncemore.profiles.lit.session import Lost, Reconciled, Session, State

__all__ = [
    "ActionOutcomeUnknown",
    "CoreClient",
    "CoreClientError",
    "CoreClientHTTPError",
    "Exhaustion",
    "Lost",
    "Persistence",
    "Reconciled",
    "Session",
    "State",
    "context",
    "exhaustion",
    "persist",
]
