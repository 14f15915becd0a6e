"""`oncemore control roles`: who may make decisions about a store."""

from __future__ import annotations

import click

from oncemore.cli.commands import (
    CommandReport,
    LazyGroup,
    combine_options,
    reason_option,
    store_command,
    value_option,
)
from oncemore.cli.decisions import decision_options
from oncemore.cli.params import DURATION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.cli.output import OutputWriter
    from oncemore.governance.role_model import Identity
    from oncemore.steps.engine import Engine

EXAMPLES = """
oncemore control roles
oncemore control roles assign archivist reviewer --reason "head of the archive"
oncemore control roles assign uid:1002 operator --reason "on call"
oncemore control roles remove uid:1002 --reason "left the team"
oncemore control roles key add archivist archivist.pub --role reviewer --reason "…"
oncemore control roles token create duty --role operator --expires 90d --reason "dashboard"
"""
COMMANDS = {
    "list": "roles:list_",
    "assign": "roles:assign",
    "remove": "roles:remove",
    "key": "roles:key",
    "token": "roles:token",
}
EXAMPLES_OF_KEYS = """
oncemore control roles key add archivist archivist.pub --role reviewer --reason "…"
oncemore control roles key remove SHA256:… --reason "the laptop was stolen"
"""
EXAMPLES_OF_TOKENS = """
oncemore control roles token create duty --role operator --expires 90d --reason "dashboard"
oncemore control roles token list
oncemore control roles token revoke 1a2b3c4d --reason "left the team"
"""


@click.group("roles", cls=LazyGroup, modules=COMMANDS, examples=EXAMPLES, default_command="list")
def roles() -> None:
    """List and assign the roles of users, keys and tokens.

    The roles are viewer, operator and reviewer.

    Once a store has roles, a decision is made by the user that the command runs as, by the holder of a token
    (--token-file), or by the owner of a key (--sign-with); --by is only a remark. Sensitive data and
    approvals need a reviewer. The default command is `list`.
    """


@click.group("key", cls=LazyGroup, modules={"add": "roles:add_key", "remove": "roles:remove_key"},
             examples=EXAMPLES_OF_KEYS)  # fmt: skip
def key() -> None:
    """Register the keys whose signatures count as decisions."""


@click.group(
    "token",
    cls=LazyGroup,
    modules={"create": "roles:create_token", "list": "roles:list_tokens", "revoke": "roles:revoke_token"},
    examples=EXAMPLES_OF_TOKENS,
    default_command="list",
)
def token() -> None:
    """Create, list and revoke tokens.

    By a token the dashboard knows a person.
    """


_user_argument = click.argument("user", metavar="USER", help="A user of the operating system, or uid:N.")
_name_argument = click.argument("name", metavar="NAME", help="Name of the person, as it is recorded.")
_role_option = value_option("--role", "ROLE", "viewer, operator or reviewer.", required=True)
_reasoned = combine_options(reason_option, decision_options)


@store_command("list", "oncemore control roles list\noncemore control roles list --json")
def list_(engine: Engine) -> CommandReport:
    """List users, keys and tokens by role, and your own role."""
    members, keys, tokens = engine.roles.list(), engine.roles.list_keys(), engine.roles.list_tokens()
    identity = engine.roles.identity()
    value = {"roles": members, "keys": keys, "tokens": tokens, "identity": identity}

    def print_text(out: OutputWriter) -> None:
        # Without roles, the names that callers give are recorded as they are.
        if not members:
            out.write_line("This store has no roles; decisions record the name given by --by.")
        # One table for all three kinds: a reader asks who may decide, and not by what means.
        rows = [(role, "user", name, "") for role, users in members.items() for name in users]
        rows += [(each.role, "key", each.name, each.key_id) for each in keys]
        rows += [(each.role, "token", each.name, _describe_token(each)) for each in tokens]
        if rows:
            out.write_table([("role", "by", "name", ""), *rows])
        out.write_line(_describe_self(identity))

    return CommandReport(value, print_text)


def _describe_self(identity: Identity) -> str:
    return f"You are {identity.describe()}: {identity.role or 'no role'}."


def _describe_token(token: Any) -> str:
    from oncemore.queries.times import format_time

    return f"{token.token_id}, until {format_time(token.expires_at)}"


@store_command("assign", 'oncemore control roles assign archivist reviewer --reason "head of the archive"')
@_user_argument
@click.argument("role", metavar="ROLE", help="viewer, operator or reviewer.")
@_reasoned
def assign(engine: Engine, user: str, role: str, **decision: Any) -> CommandReport:
    """Give a user a role; the first role of a store must be a reviewer."""
    engine.roles.assign(user, role, **decision)
    return CommandReport(engine.roles.list(), lambda out: out.write_line(f"{user} is {role}", "green"))


@store_command("remove", 'oncemore control roles remove uid:1002 --reason "left the team"')
@_user_argument
@_reasoned
def remove(engine: Engine, user: str, **decision: Any) -> CommandReport:
    """Take the role of a user; the last reviewer keeps it."""
    engine.roles.remove(user, **decision)
    return CommandReport(engine.roles.list(), lambda out: out.write_line(f"{user} has no role", "yellow"))


@store_command("add", 'oncemore control roles key add archivist archivist.pub --role reviewer --reason "…"')
@_name_argument
@click.argument("file", metavar="FILE", help="The public key: ssh-ed25519, in the format of OpenSSH.")
@_role_option
@_reasoned
def add_key(engine: Engine, name: str, file: str, role: str, **decision: Any) -> CommandReport:
    """Register the public key of a person.

    Decisions that are signed with it are made by that person.
    """
    added = engine.roles.add_key(name, file, role, **decision)
    text = f"{added.name} decides as {added.role} by signatures of {added.key_id}"
    return CommandReport(added, lambda out: out.write_line(text, "green"))


@store_command("remove", 'oncemore control roles key remove SHA256:… --reason "the laptop was stolen"')
@click.argument(
    "key_id", metavar="KEY", help="The key id, as `oncemore control roles` and `ssh-keygen -l` print it."
)
@_reasoned
def remove_key(engine: Engine, key_id: str, **decision: Any) -> CommandReport:
    """Remove a key: it signs no further decision. Decisions that it has signed stay valid."""
    engine.roles.remove_key(key_id, **decision)
    text = f"{key_id} signs no further decision"
    return CommandReport({"removed": key_id}, lambda out: out.write_line(text, "yellow"))


@store_command(
    "create", 'oncemore control roles token create duty --role operator --expires 90d --reason "dashboard"'
)
@_name_argument
@_role_option
@value_option("--expires", "TIME", "How long it is valid: 8h, 90d.", type=DURATION, required=True)
@_reasoned
def create_token(engine: Engine, name: str, role: str, expires: float, **decision: Any) -> CommandReport:
    """Create a token for a person, and print it.

    It is shown once; the store has only its digest.
    """
    created = engine.roles.create_token(name, role, expires=expires, **decision)

    def print_text(out: OutputWriter) -> None:
        # Alone on the first line, so that `head -1` or a copy takes the token and nothing else.
        out.write_line(created)
        out.write_paragraph(
            f"Give it to {name}, who decides with it as {role}. It is not shown again.", "dim"
        )

    return CommandReport({"token": created, "name": name, "role": role}, print_text)


@store_command("list", "oncemore control roles token list")
def list_tokens(engine: Engine) -> CommandReport:
    """List the tokens that were not revoked, without their secrets."""
    from oncemore.queries.times import format_time

    tokens, now = engine.roles.list_tokens(), engine.now()

    def print_text(out: OutputWriter) -> None:
        if not tokens:
            out.write_line("This store has no tokens.")
            return
        rows = [
            (
                each.token_id,
                each.name,
                each.role,
                format_time(each.created_at),
                format_time(each.expires_at) if each.expires_at > now else "expired",
            )
            for each in tokens
        ]
        out.write_table([("id", "name", "role", "created", "expires"), *rows])

    return CommandReport(tokens, print_text)


@store_command("revoke", 'oncemore control roles token revoke 1a2b3c4d --reason "left the team"')
@click.argument(
    "token_id", metavar="ID", help="The id of the token, as `oncemore control roles token list` shows it."
)
@_reasoned
def revoke_token(engine: Engine, token_id: str, **decision: Any) -> CommandReport:
    """Revoke a token: it identifies nobody any more."""
    engine.roles.revoke_token(token_id, **decision)
    text = f"revoked the token {token_id}"
    return CommandReport({"revoked": token_id}, lambda out: out.write_line(text, "yellow"))
