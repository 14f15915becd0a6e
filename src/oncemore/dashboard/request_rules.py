"""Decide whether a request may be answered at all: its Host, its origin, its session token. Values only.

A browser sends cookies with every request to this address, also with requests that another site has caused.
Four rules keep those out:

    Host      must be a loopback name or one that the owner has listed. A site that lets its own name resolve
              to 127.0.0.1 (DNS rebinding) arrives with its own name
    Origin    of a request that changes something must be this dashboard. A form on another site cannot set it
    token     of the session must be in the form or in a header. Another site cannot read it
    cookie    is SameSite=Strict: the browser does not send it with a request from another site
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

#: Methods that change nothing; every other one is checked for its origin and its token.
SAFE_METHODS: Final = ("GET", "HEAD", "OPTIONS")
LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
#: The largest body of a request. The longest field is a reason of 2,000 characters, or a JSON value.
MAX_BODY_BYTES = 65_536

# No inline script or style, no other host, no frame. `connect-src` permits the stream of live updates.
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS: Final = (
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # Not no-referrer: with it browsers send `Origin: null`, and the check of the origin would refuse them.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


def split_host(host: str) -> str:
    """Return the name of a Host header without its port, in lower case."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()


def is_known_host(host: str, hosts: Iterable[str]) -> bool:
    """Return whether a Host header names this dashboard: by a loopback name, or by one of `hosts`.

    hosts  names with or without a port; one without a port matches every port
    """
    name, full = split_host(host), host.lower()
    return name in LOOPBACK_NAMES or any(known.lower() in (name, full) for known in hosts)


def find_origin_fault(origin: str | None, fetch_site: str | None, own_origins: Iterable[str]) -> str:
    """Return why a changing request was not sent by a page of this dashboard; empty if it was.

    fetch_site  the Sec-Fetch-Site header, which a page cannot forge; None if the browser does not send it
    """
    if fetch_site not in (None, "same-origin"):
        return f"the request comes from another site (Sec-Fetch-Site: {fetch_site})"
    if origin is None:
        return "the request has no Origin header"
    if origin.lower() not in {own.lower() for own in own_origins}:
        return f"the request comes from {origin[:100]}"
    return ""


def is_local_path(path: str) -> bool:
    """Return whether a redirect target is a path of this host, and not the address of another one."""
    # Browsers read // and /\ as the beginning of a host name.
    return (
        path.startswith("/") and not path.startswith(("//", "/\\")) and "\n" not in path and "\r" not in path
    )
