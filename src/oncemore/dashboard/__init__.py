"""The dashboard: pages, live updates and a JSON API about one store, as an ASGI application.

    app = oncemore.dashboard.create_app(engine)            mount it into your own application
    oncemore dashboard                                     or start it by itself, on the loopback address

Pages are rendered here, on the server; a page in the browser keeps one stream open, on which the parts of the
page that changed arrive. Everything that a page shows is read by functions in `queries/`, and everything that
it changes is an operation of the engine, with the signed-in user and a reason in the log.
"""

from __future__ import annotations

from oncemore.dashboard.sessions import DashboardUser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from os import PathLike
    from typing import Any

    from oncemore.dashboard.app import Dashboard
    from oncemore.steps.engine import Engine
    from oncemore.telemetry.alerts import AlertRules

__all__ = ["DashboardUser", "create_app"]


def create_app(
    engine: Engine,
    *,
    identify: Callable[[str], DashboardUser | None] | None = None,
    user_of: Callable[[Mapping[str, Any]], DashboardUser | None] | None = None,
    hosts: Sequence[str] = (),
    read_only: bool = False,
    audit_files: Sequence[str | PathLike[str]] = (),
    alert_rules: AlertRules | None = None,
) -> Dashboard:
    """Return the dashboard of an engine's store as an ASGI application.

    identify      returns the user of a token that was typed on the sign-in page or sent as a bearer token,
                  None for one that it does not know; without it the tokens of the store are asked
                  (`oncemore control roles token create`)
    user_of       returns the user of a request from its ASGI scope, for an application that signs users in
                  itself; None if the request has no user
    hosts         the names under which browsers reach the dashboard, beside the loopback names; a request
                  with another Host header is refused
    read_only     whether every change is refused, for every role
    audit_files   files of an `AuditFile` sink, for the page about categories
    alert_rules   the rates above which the first page shows an alert
    """
    from oncemore.errors import MissingExtra

    try:
        import jinja2 as _jinja2
        import starlette as _starlette
    except ImportError as missing:
        raise MissingExtra(
            "the dashboard needs starlette and jinja2: pip install 'oncemore[web]'"
        ) from missing
    del _jinja2, _starlette
    from oncemore.dashboard.app import Dashboard, DashboardOptions
    from oncemore.telemetry.alerts import AlertRules

    options = DashboardOptions(
        identify=identify,
        user_of=user_of,
        hosts=tuple(hosts),
        read_only=read_only,
        audit_files=tuple(str(file) for file in audit_files),
        alert_rules=alert_rules or AlertRules(),
    )
    return Dashboard(engine, options)
