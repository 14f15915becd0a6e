"""Retrying HTTP clients, and a middleware that makes endpoints idempotent.

    import httpx, oncemore.http

    client = httpx.Client(transport=oncemore.http.Transport())      # or httpx2; AsyncTransport for async
    session.mount("https://", oncemore.http.Adapter())              # requests

    app.add_middleware(oncemore.http.IdempotencyMiddleware, effect="once", principal=user_of)        # ASGI
    app.wsgi_app = oncemore.http.WsgiIdempotencyMiddleware(app.wsgi_app, effect="once", principal=user_of)
    MIDDLEWARE = [..., "oncemore.http.DjangoIdempotencyMiddleware"]                                 # Django

May import `retries`, `steps`, `limits` and `classifiers`. The names load at first use, and no client library
is imported before the program does so.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.http.clients import AsyncTransport, Transport
    from oncemore.http.django import DjangoIdempotencyMiddleware
    from oncemore.http.endpoint import same_principal
    from oncemore.http.key_scope import idempotency_key
    from oncemore.http.middleware import IdempotencyMiddleware
    from oncemore.http.request_retry import RetryInfo, retry_info
    from oncemore.http.requests_adapter import Adapter
    from oncemore.http.stored_response import StoredResponse
    from oncemore.http.wsgi import WsgiIdempotencyMiddleware

# The same names as strings: the imports above are only for the type checker.
_NAMES_BY_MODULE = {
    "oncemore.http.clients": "AsyncTransport Transport",
    "oncemore.http.django": "DjangoIdempotencyMiddleware",
    "oncemore.http.endpoint": "same_principal",
    "oncemore.http.key_scope": "idempotency_key",
    "oncemore.http.middleware": "IdempotencyMiddleware",
    "oncemore.http.request_retry": "RetryInfo retry_info",
    "oncemore.http.requests_adapter": "Adapter",
    "oncemore.http.stored_response": "StoredResponse",
    "oncemore.http.wsgi": "WsgiIdempotencyMiddleware",
}
_MODULE_OF_NAME = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}

__all__ = [
    "Adapter",
    "AsyncTransport",
    "DjangoIdempotencyMiddleware",
    "IdempotencyMiddleware",
    "RetryInfo",
    "StoredResponse",
    "Transport",
    "WsgiIdempotencyMiddleware",
    "idempotency_key",
    "retry_info",
    "same_principal",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'oncemore.http' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_MODULE_OF_NAME[name]), name)
    globals()[name] = value  # so that the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
