"""`oncemore control roles`: who may make decisions about a store."""

from __future__ import annotations

import click

from oncemore.cli.commands import (
    CommandReport,
    LazyGroup,
    by_option,
    reason_option,
    store_command,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.cli.output import OutputWriter
    from oncemore.steps.engine import Engine

EXAMPLES = """
oncemore control roles
oncemore control roles assign archivist reviewer --reason "head of the archive"
oncemore control roles assign uid:1002 operator --reason "on call"
oncemore control roles remove uid:1002 --reason "left the team"
"""
COMMANDS = {"list": "roles:list_", "assign": "roles:assign", "remove": "roles:remove"}


@click.group("roles", cls=LazyGroup, modules=COMMANDS, examples=EXAMPLES, default_command="list")
def roles() -> None:
    """List and assign the roles of users.

    The roles are viewer, operator and reviewer.

    Once a store has roles, a decision is made by the user that the command runs as, and --by is only a
    remark. Sensitive data and approvals need a reviewer. The default command is `list`.
    """


_user_argument = click.argument("user", metavar="USER", help="A user of the operating system, or uid:N.")


@store_command("list", "oncemore control roles list\noncemore control roles list --json")
def list_(engine: Engine) -> CommandReport:
    """List the users by role, and your own role."""
    members, (user, role) = engine.roles.list(), engine.roles.identity()
    value = {"roles": members, "user": user.name, "uid": user.uid, "role": role}

    def print_text(out: OutputWriter) -> None:
        # Without roles, the names that callers give are recorded as they are.
        if not members:
            out.write_line("This store has no roles; decisions record the name given by --by.")
        for name, users in members.items():
            out.write_line(f"{name}: {', '.join(users) or '-'}")
        out.write_line(f"You are {user.describe()}: {role or 'no role'}.")

    return CommandReport(value, print_text)


@store_command("assign", 'oncemore control roles assign archivist reviewer --reason "head of the archive"')
@_user_argument
@click.argument("role", metavar="ROLE", help="viewer, operator or reviewer.")
@reason_option
@by_option
def assign(engine: Engine, user: str, role: str, **decision: Any) -> CommandReport:
    """Give a user a role; the first role of a store must be a reviewer."""
    engine.roles.assign(user, role, **decision)
    return CommandReport(engine.roles.list(), lambda out: out.write_line(f"{user} is {role}", "green"))


@store_command("remove", 'oncemore control roles remove uid:1002 --reason "left the team"')
@_user_argument
@reason_option
@by_option
def remove(engine: Engine, user: str, **decision: Any) -> CommandReport:
    """Take the role of a user; the last reviewer keeps it."""
    engine.roles.remove(user, **decision)
    return CommandReport(engine.roles.list(), lambda out: out.write_line(f"{user} has no role", "yellow"))
