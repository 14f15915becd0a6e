"""The interface of the LIT document: a client of Core, and SQLite writes that are retried after a lock.

    from oncemore.profiles.lit import CoreClient, CoreClientHTTPError, Persistence, context

    core = CoreClient("http://core.internal:8080")
    with context(request_id="r-17", session_id="s-4"):
        finding = core.call("/v1/analyze", {"document": "d-9"})
        Persistence(connection).write(save_finding, finding)

The profile uses the loop of `oncemore.retry` under the numbers of `lit.yaml`. Where the document is silent,
or cannot work as printed, these choices apply:

* a connection reset or a cut response is handled like a timeout (X-50)
* a request that is neither idempotent nor declared so is sent once (X-43); so are session actions
* a `Retry-After` is obeyed up to 30 s; a longer one is raised at once, and readable on the error (X-42)
* SQLite's own busy timeout is off during a write, or the document's 20 ms would become 15 s (X-51)
"""

from __future__ import annotations

from oncemore.profiles.lit.alert import ExhaustionAlert, exhaustion
from oncemore.profiles.lit.client import CoreClient
from oncemore.profiles.lit.errors import ActionOutcomeUnknown, CoreClientError, CoreClientHTTPError
from oncemore.profiles.lit.http import context
from oncemore.profiles.lit.persistence import Persistence, persist
from oncemore.profiles.lit.session import CoreSession, LostAction, ReconciledAction, SessionState

__all__ = [
    "ActionOutcomeUnknown",
    "CoreClient",
    "CoreClientError",
    "CoreClientHTTPError",
    "CoreSession",
    "ExhaustionAlert",
    "LostAction",
    "Persistence",
    "ReconciledAction",
    "SessionState",
    "context",
    "exhaustion",
    "persist",
]
