"""Who may decide: `engine.roles`.

    engine.roles.assign("archivist", "reviewer", reason="head of the archive")     begins governed decisions
    engine.roles.assign("duty", "operator", reason="on call")
    engine.roles.identity()                                                    this process's user and role

Without roles, a decision records the name that its caller gives. Once a store has roles, every decision about
it is made by the user that the process runs as: the name given by the caller is recorded as a remark and
gives no rights. The table is in the store, and not in a settings file: a caller who chooses another folder or
another environment does not get around it. Each change is one entry with who, when and why.

A user who may write to the store's files or tables directly can change them without this program; signed
checkpoints (`oncemore ledger`) show that afterwards.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from oncemore.control.moved_log import MAX_TRIES, append_if_not_moved
from oncemore.control.permits import load_dataset
from oncemore.control.review import check_reason
from oncemore.errors import NotPermitted, StaleDecision, UsageError
from oncemore.governance.dataset_model import is_sensitive
from oncemore.governance.role_model import (
    MAX_MEMBERS,
    OPERATOR,
    REVIEWER,
    ROLES,
    ROLES_ENTITY,
    ProcessUser,
    RoleRecord,
    add_member,
    find_role,
    is_permitted,
    remove_member,
)
from oncemore.log.entry_codec import build_write, load_head
from oncemore.log.record import RecordChange
from oncemore.log.store import Stored
from oncemore.maintenance.tasks import resolve_actor
from oncemore.policy.canonical_json import normalize_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.steps.engine import Engine

#: Why a decision is refused: the user has not the role that it needs, or has asked for it.
ROLE_MISSING, OWN_REQUEST = "role_missing", "own_request"


def read_process_user() -> ProcessUser:
    """Return the user that this process runs as; environment variables do not count."""
    uid = os.geteuid() if hasattr(os, "geteuid") else -1
    try:
        import pwd

        return ProcessUser(pwd.getpwuid(uid).pw_name, uid)
    except (ImportError, KeyError):
        # A container may run under a user id without a name.
        return ProcessUser(f"uid:{uid}", uid)


def load_roles(engine: Engine) -> RoleRecord | None:
    """Return the roles of a store; None if it has none."""
    record: RoleRecord | None = load_head(engine.store, ROLES_ENTITY, engine.cipher, RoleRecord).record
    return record


def resolve_decider(engine: Engine, by: str | None, *, needed: str = OPERATOR) -> str:
    """Return the actor of a decision; raise `NotPermitted` if the user of this process may not make it.

    by  the name that the caller gives; in a store with roles it is a remark
    """
    roles = load_roles(engine)
    if roles is None:
        return resolve_actor(by)
    user = read_process_user()
    role = find_role(roles, user)
    if not is_permitted(role, needed):
        raise NotPermitted(
            f"this decision needs the role {needed}, and {user.describe()} has {role or 'none'}; a reviewer "
            "assigns roles (oncemore control roles assign)",
            ROLE_MISSING,
        )
    return user.describe() if by in (None, "", user.name) else f"{user.describe()} for {by}"


def authorize_actor(engine: Engine, actor: str, dataset: str) -> str:
    """Return the actor of a decision about a call; decisions on a sensitive dataset need a reviewer.

    actor  the actor of the context, which is recorded as it is in a store without roles
    """
    if load_roles(engine) is None:
        return actor
    record = load_dataset(engine, dataset)[1] if dataset else None
    return resolve_decider(engine, actor, needed=REVIEWER if is_sensitive(record) else OPERATOR)


def describe_requester(engine: Engine) -> str:
    """Return the user that asks for an approval, in a store with roles; empty in any other."""
    return "" if load_roles(engine) is None else read_process_user().describe()


def check_not_requester(engine: Engine, requester: str | None) -> None:
    """Raise `NotPermitted` if the user of this process has asked for the approval, in a store with roles.

    requester  the user that the waiting run names; None if no run waits
    """
    if load_roles(engine) is None:
        return
    # Approved in advance, a call would be approved by the process that is about to make it.
    if requester is None:
        raise NotPermitted(
            "this store has roles: a call is approved after it was made and waits "
            "(oncemore control approvals)",
            OWN_REQUEST,
        )
    if requester == read_process_user().describe():
        raise NotPermitted(f"{requester} asked for this approval; another reviewer gives it", OWN_REQUEST)


class Roles:
    """The roles of an engine's store: `engine.roles`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return f"<oncemore.Roles of {self._engine.url}>"

    def list(self) -> dict[str, tuple[str, ...]]:
        """Return the users by role; empty if the store has no roles."""
        record = load_roles(self._engine)
        return {} if record is None else {role: tuple(record.members.get(role, ())) for role in ROLES}

    def identity(self) -> tuple[ProcessUser, str]:
        """Return the user of this process and the user's role; the role is empty if there is none."""
        record, user = load_roles(self._engine), read_process_user()
        return user, "" if record is None else find_role(record, user)

    def assign(self, user: str, role: str, *, reason: str, by: str | None = None) -> None:
        """Give a user a role instead of the one that the user has; the first role of a store is a reviewer.

        user  the name of a user of the operating system, or `uid:N`
        """
        if role not in ROLES:
            raise UsageError(f"role is {role!r}; the roles are {', '.join(ROLES)}")
        name = _check_user(user)
        self._change_roles("assign", name, role, lambda members: add_member(members, name, role), reason, by)

    def remove(self, user: str, *, reason: str, by: str | None = None) -> None:
        """Take the role of a user; the last reviewer keeps it."""
        name = _check_user(user)
        self._change_roles("remove", name, "", lambda members: remove_member(members, name), reason, by)

    def _change_roles(
        self,
        action: str,
        user: str,
        role: str,
        update: Callable[[dict[str, Any]], dict[str, Any]],
        reason: str,
        by: str | None,
    ) -> None:
        engine, text = self._engine, check_reason(reason)
        actor = resolve_decider(engine, by, needed=REVIEWER)
        for _ in range(MAX_TRIES):
            head = load_head(engine.store, ROLES_ENTITY, engine.cipher, RoleRecord)
            before: RoleRecord | None = head.record
            members = update({} if before is None else before.members)
            # Without a reviewer, the roles of the store could never be changed again.
            if not members.get(REVIEWER):
                raise UsageError("a store with roles needs a reviewer; assign one first")
            if sum(len(names) for names in members.values()) > MAX_MEMBERS:
                raise UsageError(f"a store has roles for up to {MAX_MEMBERS} users")
            after = RoleRecord(members=members)
            decision = {"action": action, "user": user, "role": role, "reason": text, "actor": actor}
            change = RecordChange(("CONTROL", "DECISION"), before, after, {"decision": decision})
            write = build_write(head.entity, head.version, head.hash, change, engine.now(), engine.cipher)
            if isinstance(append_if_not_moved(engine, "the roles", (write,)), Stored):
                return
        raise StaleDecision(f"nothing was changed: the roles changed {MAX_TRIES} times during the write")


def _check_user(user: Any) -> str:
    if not isinstance(user, str) or not 1 <= len(user.strip()) <= 200:
        raise UsageError(f"user is {user!r:.80}; it takes the name of a user, or uid:N")
    return normalize_name(user.strip())
