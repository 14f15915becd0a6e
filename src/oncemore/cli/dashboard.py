"""`oncemore dashboard`: serve the dashboard of a store on this machine."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from oncemore.cli.commands import (
    FiniteNumber,
    WholeNumber,
    by_option,
    choice_option,
    documented_command,
    flag_option,
    store_option,
    value_option,
)
from oncemore.errors import MissingExtra
from oncemore.governance.role_model import OPERATOR, ROLES

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = """
oncemore dashboard
oncemore dashboard --port 8080 --role reviewer
oncemore dashboard --read-only --role viewer
oncemore dashboard --store postgresql://db/work --host 0.0.0.0 --allow-host ops.example.org
"""
DEFAULT_PORT = 8321
#: Addresses that only this machine reaches.
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@documented_command("dashboard", EXAMPLES, {"Alerts": "alert_retries alert_exhausted"})
@value_option(
    "--host", "ADDRESS", "Address to listen on (127.0.0.1: only this machine).", default="127.0.0.1"
)
@value_option(
    "--port",
    "N",
    f"Port to listen on; 0 selects a free one ({DEFAULT_PORT}).",
    type=WholeNumber(0, 65_535),
    default=DEFAULT_PORT,
)
@value_option(
    "--allow-host hosts", "NAME", "Name under which browsers reach it; can be repeated.", multiple=True
)
@choice_option("--role", ROLES, f"Role of the printed link ({OPERATOR}).", default=OPERATOR)
@by_option
@flag_option("--read-only", "Refuse every change; the store is opened for reading only.")
@value_option(
    "--audit audit_files",
    "FILE",
    "File of audit events for the page Categories; can be repeated.",
    multiple=True,
)
@value_option(
    "--alert-retries",
    "N",
    "Alert above this many retries in a minute (20).",
    type=WholeNumber(0, 1_000_000),
    default=20,
)
@value_option(
    "--alert-exhausted",
    "SHARE",
    "Alert above this share of operations that ran out of attempts (0.05).",
    type=FiniteNumber(0),
    default=0.05,
)
@store_option
def dashboard(store: str | None, **options: Any) -> int:
    """Show a store in the browser.

    Prints a link that signs you in once, with the given role; Enter prints another one. Listens on this
    machine only; with --host put a server with TLS in front of it. Stop it with Ctrl-C.
    """
    try:
        import uvicorn
    except ImportError as missing:
        raise MissingExtra("the dashboard needs uvicorn: pip install 'oncemore[web]'") from missing
    from oncemore.queries.stores import open_existing, open_for_viewing
    from oncemore.steps.step_log import keep_off_stderr

    # The log records of this process would appear between the lines of the terminal.
    keep_off_stderr()
    # A database role or a file that may only be read is enough for a dashboard that changes nothing.
    with (open_for_viewing if options["read_only"] else open_existing)(store) as engine:
        app, user = _create_app(engine, options)
        # Bound before the link is printed, which names the port.
        listener = _listen(options["host"], options["port"])
        with listener:
            address = f"http://{_shown_host(options['host'])}:{listener.getsockname()[1]}"
            _print_start(engine.url, address + app.create_link(user), options)
            _print_links_on_enter(lambda: address + app.create_link(user))
            config = uvicorn.Config(
                app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=1
            )
            server = uvicorn.Server(config)
            server.shutdown = _end_streams_before(server.shutdown, app)  # type: ignore[method-assign]
            server.run(sockets=[listener])
    return 0


def _end_streams_before(shutdown: Any, app: Any) -> Any:
    """Return the shutdown of a server that first ends the streams of open pages.

    uvicorn would wait for them until its time limit, and log each as an error.
    """

    async def end_streams_and_shut_down(sockets: Any = None) -> None:
        await app.feed.end_streams()
        await shutdown(sockets)

    return end_streams_and_shut_down


def _has_terminal() -> bool:
    """Return whether the operator can type here: not in a pipe, and not behind `&` of a shell."""
    import os

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:
        # A terminal that is not the controlling one has no jobs.
        return True


def _print_links_on_enter(create_link: Callable[[], str]) -> None:
    """Print another link whenever the operator presses Enter; only in a terminal."""
    if not _has_terminal():
        return
    import signal
    import threading

    # After Ctrl-Z and `bg`, reading from the terminal would stop the whole process; ignored, the read fails.
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)

    def read_lines() -> None:
        with suppress(OSError):
            for _ in sys.stdin:
                print(f"  {create_link()}", flush=True)

    # A daemon: reading from a terminal cannot be interrupted, and must not hold up the end.
    threading.Thread(target=read_lines, name="dashboard-links", daemon=True).start()


def _create_app(engine: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """Return the dashboard and the user of the printed link."""
    from oncemore.dashboard import create_app
    from oncemore.telemetry.alerts import AlertRules

    # Opened before the link is printed: a store that cannot be read ends the command with its own message.
    engine.store.now()
    app = create_app(
        engine,
        hosts=[options["host"], *options["hosts"]],
        read_only=options["read_only"],
        audit_files=options["audit_files"],
        alert_rules=AlertRules(
            retries_per_minute=options["alert_retries"], exhausted_share=options["alert_exhausted"]
        ),
    )
    # Counting the last hour of a large store takes a moment, which the first page would wait for.
    app.activity.update()
    return app, _find_user(engine, options)


def _find_user(engine: Any, options: dict[str, Any]) -> Any:
    """Return the user of the printed link; in a store with roles the user of this process has one there."""
    from oncemore.dashboard import DashboardUser
    from oncemore.errors import NotPermitted
    from oncemore.governance.identity import ROLE_MISSING, load_roles, read_process_user
    from oncemore.governance.role_model import find_role

    user, roles = read_process_user(), load_roles(engine)
    name, role = options["by"] or user.name, options["role"]
    if roles is None:
        return DashboardUser(name, role)
    own = find_role(roles, user)
    if not own:
        raise NotPermitted(
            f"{user.name} (uid {user.uid}) has no role in this store; a reviewer assigns one "
            "(oncemore control roles assign)",
            ROLE_MISSING,
        )
    # The option can only lower the role that the store knows.
    return DashboardUser(user.name, min(own, role, key=ROLES.index))


def _listen(host: str, port: int) -> Any:
    """Return a socket that listens; raise a usage error if the address is taken."""
    import socket

    # A colon is part of an IPv6 address, and of no IPv4 address or name.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    # A restart within a minute would otherwise find its own closed connections.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise click.BadParameter(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another with --port.",
            param_hint="'--port'",
        ) from error
    return listener


def _shown_host(host: str) -> str:
    # 0.0.0.0 is not an address that a browser can open.
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not listened on
        return "127.0.0.1" if host == "0.0.0.0" else "[::1]"  # noqa: S104
    return f"[{host}]" if ":" in host else host


def _print_start(url: str, link: str, options: dict[str, Any]) -> None:
    from oncemore.cli.output import OutputWriter

    out = OutputWriter(sys.stdout)
    out.write_line(f"The dashboard of {url} is running. Open this link; it works once:")
    out.write_line(f"  {link}", "bold")
    # The role says little in a dashboard that refuses every change.
    role = "read-only" if options["read_only"] else options["role"]
    more = "Enter prints another link, Ctrl-C stops." if _has_terminal() else "Stop with Ctrl-C."
    out.write_line(f"You are signed in as {role}. {more}")
    if options["host"] not in LOOPBACK:
        out.write_line(
            "Other machines can reach it, without encryption: put a server with TLS in front of it.", "yellow"
        )
