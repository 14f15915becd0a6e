"""HTTP: clients that try again without doing twice, and endpoints that can be asked twice.

    import httpx, oncemore.http

    client = httpx.Client(transport=oncemore.http.Transport())      # or httpx2; AsyncTransport for async
    session.mount("https://", oncemore.http.Adapter())              # requests

    app.add_middleware(oncemore.http.Idempotency, effect="once", principal=who_asks)

Names only: what they stand for loads at first use, and no client's library is ever imported before it is.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.http.clients import Adapter, AsyncTransport, Transport
    from oncemore.http.key_scope import idempotency_key
    from oncemore.http.middleware import Idempotency, everyone
    from oncemore.http.request_retry import Told, told
    from oncemore.http.stored_response import Answer

_HOMES = {
    "oncemore.http.clients": "Adapter AsyncTransport Transport",
    "oncemore.http.key_scope": "idempotency_key",
    "oncemore.http.middleware": "Idempotency everyone",
    "oncemore.http.request_retry": "Told told",
    "oncemore.http.stored_response": "Answer",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Adapter",
    "Answer",
    "AsyncTransport",
    "Idempotency",
    "Told",
    "Transport",
    "everyone",
    "idempotency_key",
    "told",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'oncemore.http' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
