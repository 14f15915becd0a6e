"""Roles and identities as values, and the rules for them; no I/O.

    viewer     reads; decides nothing
    operator   decides about runs, switches and datasets that are not sensitive
    reviewer   the same for sensitive data, for approvals and for runs that the gate holds; assigns roles

A decision is made by an identity, which is never a name that the caller typed:

    user    the user that the process runs as, by the operating system; the table lists names and `uid:N`
    token   a secret that a reviewer has created for a person; the table has its digest
    key     a signature over the decision, by a key that the table lists

The three belong together by name: a user `archivist`, a token for `archivist` and a key of `archivist` are
one person, who cannot approve in one form what was asked for in another.
"""

from __future__ import annotations

from oncemore._values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Final

#: The entity that holds all roles of a store.
ROLES_ENTITY = "roles/table"
VIEWER, OPERATOR, REVIEWER = "viewer", "operator", "reviewer"
#: From the least to the most permitted; a role includes those before it.
ROLES: Final = (VIEWER, OPERATOR, REVIEWER)
#: The number of users, keys and tokens that a store has roles for, together.
MAX_MEMBERS = 1000
USER, TOKEN, KEY = "user", "token", "key"


class RoleRecord(Value):
    """The roles of a store.

    state     always ACTIVE: a store with roles keeps them
    members   the users of the operating system, by role
    store_id  a random name of the store, which signed decisions contain
    keys      public keys by key id, each with name, role and key
    tokens    tokens by id, each with name, role, digest and expires_at
    """

    state: str = "ACTIVE"
    members: dict[str, list[str]] = {}  # noqa: RUF012 - never changed in place
    store_id: str = ""
    keys: dict[str, dict[str, Any]] = {}  # noqa: RUF012
    tokens: dict[str, dict[str, Any]] = {}  # noqa: RUF012


class ProcessUser(Value):
    """The user that a process runs as, by the operating system and not by what the caller typed."""

    name: str
    uid: int


class Identity(Value):
    """Who makes a decision, and with which role.

    kind   user, token or key
    proof  what the name follows from: `uid 1000`, `token 1a2b3c4d`, `key SHA256:…`
    role   empty if the identity has none
    """

    kind: str
    name: str
    proof: str
    role: str

    def describe(self) -> str:
        """Return the identity as it is recorded with decisions."""
        return f"{self.name} ({self.proof})"


def find_role(record: RoleRecord, user: ProcessUser) -> str:
    """Return the highest role of a user; empty if the user has none."""
    # By name or by number: a container may run under a user id without a name.
    names = {user.name, f"uid:{user.uid}"}
    held = [role for role in ROLES if names & set(record.members.get(role, ()))]
    return held[-1] if held else ""


def is_permitted(role: str, needed: str) -> bool:
    """Return whether a role includes the needed one."""
    return role in ROLES and ROLES.index(role) >= ROLES.index(needed)


def is_same_person(described: str, identity: Identity) -> bool:
    """Return whether a recorded identity is the same person as another one, in any form."""
    return described == identity.describe() or described.rpartition(" (")[0] == identity.name


def add_member(members: Mapping[str, list[str]], user: str, role: str) -> dict[str, list[str]]:
    """Return the members with a user in one role, and in no other."""
    # A user has one role: otherwise a lower one would stay after the higher one was taken.
    after = remove_member(members, user)
    after[role] = sorted({*after.get(role, ()), user})
    return after


def remove_member(members: Mapping[str, list[str]], user: str) -> dict[str, list[str]]:
    """Return the members without a user."""
    return {role: [name for name in names if name != user] for role, names in members.items()}


def find_table_fault(record: RoleRecord) -> str:
    """Return why a table of roles cannot be stored; empty if it can."""
    users = sum(len(names) for names in record.members.values())
    if users + len(record.keys) + len(record.tokens) > MAX_MEMBERS:
        return f"a store has roles for up to {MAX_MEMBERS} users, keys and tokens"
    # Without a reviewer, the roles of the store could never be changed again. A token does not count: it
    # expires, and can be lost.
    has_reviewer = record.members.get(REVIEWER) or any(
        key["role"] == REVIEWER for key in record.keys.values()
    )
    return "" if has_reviewer else "a store with roles needs a reviewer; assign one first"
