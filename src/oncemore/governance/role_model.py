"""Roles as values, and the rules for them; no I/O.

    viewer     reads; decides nothing
    operator   decides about runs, switches and datasets that are not sensitive
    reviewer   the same for sensitive data, for approvals and for runs that the gate holds; assigns roles

A user of the operating system has the role in which the table of the store lists the user's name, or
`uid:N`.
"""

from __future__ import annotations

from oncemore._values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

#: The entity that holds all roles of a store.
ROLES_ENTITY = "roles/table"
VIEWER, OPERATOR, REVIEWER = "viewer", "operator", "reviewer"
#: From the least to the most permitted; a role includes those before it.
ROLES: Final = (VIEWER, OPERATOR, REVIEWER)
MAX_MEMBERS = 1000


class RoleRecord(Value):
    """The roles of a store: `members` has the users by role.

    state  always ACTIVE: a store with roles keeps them
    """

    state: str = "ACTIVE"
    members: dict[str, list[str]] = {}  # noqa: RUF012 - never changed in place


class ProcessUser(Value):
    """The user that a process runs as, by the operating system and not by what the caller typed."""

    name: str
    uid: int

    def describe(self) -> str:
        """Return the user as it is recorded with decisions."""
        return f"{self.name} (uid {self.uid})"


def find_role(record: RoleRecord, user: ProcessUser) -> str:
    """Return the highest role of a user; empty if the user has none."""
    # By name or by number: a container may run under a user id without a name.
    names = {user.name, f"uid:{user.uid}"}
    held = [role for role in ROLES if names & set(record.members.get(role, ()))]
    return held[-1] if held else ""


def is_permitted(role: str, needed: str) -> bool:
    """Return whether a role includes the needed one."""
    return role in ROLES and ROLES.index(role) >= ROLES.index(needed)


def add_member(members: Mapping[str, list[str]], user: str, role: str) -> dict[str, list[str]]:
    """Return the members with a user in one role, and in no other."""
    # A user has one role: otherwise a lower one would stay after the higher one was taken.
    after = remove_member(members, user)
    after[role] = sorted({*after.get(role, ()), user})
    return after


def remove_member(members: Mapping[str, list[str]], user: str) -> dict[str, list[str]]:
    """Return the members without a user."""
    return {role: [name for name in names if name != user] for role, names in members.items()}
