"""Who may decide: `engine.roles`.

    engine.roles.assign("archivist", "reviewer", reason="head of the archive")     begins governed decisions
    engine.roles.assign("duty", "operator", reason="on call")
    engine.roles.identity()                                                    the identity that decides here
    engine.roles.add_key("archivist", "archivist.pub", "reviewer", reason="…")
    engine.roles.create_token("duty", "operator", expires=90 * 86_400, reason="dashboard")

Without roles, a decision records the name that its caller gives. Once a store has roles, every decision about
it is made by an identity of its table (`governance.identity`): the name given by the caller is recorded as a
remark and gives no rights. The table is in the store, and not in a settings file: a caller who chooses
another folder or another environment does not get around it. Each change is one entry with who, when and why.

A user who may write to the store's files or tables directly can change them without this program; signed
checkpoints (`oncemore ledger`) show that afterwards.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.control.moved_log import MAX_TRIES, append_if_not_moved
from oncemore.control.review import check_reason
from oncemore.errors import StaleDecision, UsageError
from oncemore.governance.identity import authorize_decider, load_roles, make_token, read_identity
from oncemore.governance.keys import load_verify_key
from oncemore.governance.role_model import (
    REVIEWER,
    ROLES,
    ROLES_ENTITY,
    Identity,
    RoleRecord,
    add_member,
    find_table_fault,
    remove_member,
)
from oncemore.log.entry_codec import build_write, load_head
from oncemore.log.record import RecordChange
from oncemore.log.store import Stored
from oncemore.policy.canonical_json import normalize_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from oncemore.steps.engine import Engine

    Update = Callable[[RoleRecord], RoleRecord]

#: The longest validity of a token: a year.
MAX_TOKEN_S = 366 * 86_400.0


class RegisteredKey(Value):
    """A key whose signatures count as decisions: its id, the name and role of its owner, and the key."""

    key_id: str
    name: str
    role: str
    key: str


class TokenState(Value):
    """A token without its secret: its id, the name and role of its holder, and when it expires."""

    token_id: str
    name: str
    role: str
    created_at: float
    expires_at: float


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

    def list_keys(self) -> tuple[RegisteredKey, ...]:
        """Return the registered keys, by the name of their owner."""
        record = load_roles(self._engine) or RoleRecord()
        keys = (
            RegisteredKey(key_id, key["name"], key["role"], key["key"]) for key_id, key in record.keys.items()
        )
        return tuple(sorted(keys, key=lambda key: (key.name, key.key_id)))

    def list_tokens(self) -> tuple[TokenState, ...]:
        """Return the tokens that were not revoked, by the name of their holder."""
        record = load_roles(self._engine) or RoleRecord()
        tokens = (
            TokenState(token_id, token["name"], token["role"], token["created_at"], token["expires_at"])
            for token_id, token in record.tokens.items()
        )
        return tuple(sorted(tokens, key=lambda token: (token.name, token.token_id)))

    def identity(self) -> Identity:
        """Return the identity that decides here; its role is empty if it has none."""
        return read_identity(load_roles(self._engine) or RoleRecord(), self._engine.now())

    # Users ------------------------------------------------------------------------------------------

    def assign(self, user: str, role: str, *, reason: str, by: str | None = None) -> None:
        """Give a user a role instead of the one that the user has; the first role of a store is a reviewer.

        user  the name of a user of the operating system, or `uid:N`
        """
        name = _check_name("user", user)
        details = {"user": name, "role": _check_role(role)}

        def add_user(table: RoleRecord) -> RoleRecord:
            return table._replace(members=add_member(table.members, name, role))

        self._change_roles("assign", details, add_user, reason, by)

    def remove(self, user: str, *, reason: str, by: str | None = None) -> None:
        """Take the role of a user; the last reviewer keeps it."""
        name = _check_name("user", user)

        def remove_user(table: RoleRecord) -> RoleRecord:
            return table._replace(members=remove_member(table.members, name))

        self._change_roles("remove", {"user": name, "role": ""}, remove_user, reason, by)

    # Keys -------------------------------------------------------------------------------------------

    def add_key(
        self, name: str, path: str | PathLike[str], role: str, *, reason: str, by: str | None = None
    ) -> RegisteredKey:
        """Register the public key of a person: decisions that it signs are made by that person.

        name  the name of the person; the same as the user's, if the person has a user with a role
        path  the file with the public key, in the format of OpenSSH
        """
        owner, key = _check_name("name", name), load_verify_key(str(path))
        record = {"name": owner, "role": _check_role(role), "key": key.format_openssh()}

        def add_key(table: RoleRecord) -> RoleRecord:
            known = table.keys.get(key.key_id)
            if known is not None and known["name"] != owner:
                raise UsageError(f"the key {key.key_id} is registered for {known['name']}; remove it first")
            return table._replace(keys={**table.keys, key.key_id: record})

        details = {"key": key.key_id, "name": owner, "role": role}
        self._change_roles("add_key", details, add_key, reason, by)
        return RegisteredKey(key.key_id, owner, role, record["key"])

    def remove_key(self, key_id: str, *, reason: str, by: str | None = None) -> None:
        """Remove a key: it signs no further decision. Decisions that it has signed stay valid."""

        def remove_key(table: RoleRecord) -> RoleRecord:
            if key_id not in table.keys:
                raise UsageError(f"no key {key_id!r} is registered; oncemore control roles shows the keys")
            return table._replace(keys={name: key for name, key in table.keys.items() if name != key_id})

        self._change_roles("remove_key", {"key": key_id}, remove_key, reason, by)

    # Tokens -----------------------------------------------------------------------------------------

    def create_token(
        self, name: str, role: str, *, expires: float, reason: str, by: str | None = None
    ) -> str:
        """Create a token for a person and return it; the store keeps its digest only.

        expires  how long the token is valid, in seconds
        """
        holder = _check_name("name", name)
        if isinstance(expires, bool) or not 0 < expires <= MAX_TOKEN_S:
            raise UsageError(
                f"expires is {expires!r}; it takes more than 0 and up to {MAX_TOKEN_S:g} seconds"
            )
        (token, token_id, digest), now = make_token(), self._engine.now()
        record = {"name": holder, "role": _check_role(role), "digest": digest, "created_at": now}
        record["expires_at"] = now + expires

        def add_token(table: RoleRecord) -> RoleRecord:
            # Expired tokens make room, so that a forgotten one does not count for ever.
            valid = {old: each for old, each in table.tokens.items() if each["expires_at"] > now}
            return table._replace(tokens={**valid, token_id: record})

        details = {"token": token_id, "name": holder, "role": role, "expires_at": record["expires_at"]}
        self._change_roles("create_token", details, add_token, reason, by)
        return token

    def revoke_token(self, token_id: str, *, reason: str, by: str | None = None) -> None:
        """Revoke a token: it identifies nobody any more."""

        def remove_token(table: RoleRecord) -> RoleRecord:
            if token_id not in table.tokens:
                raise UsageError(
                    f"there is no token {token_id!r}; oncemore control roles token list shows them"
                )
            return table._replace(
                tokens={other: record for other, record in table.tokens.items() if other != token_id}
            )

        self._change_roles("revoke_token", {"token": token_id}, remove_token, reason, by)

    # ------------------------------------------------------------------------------------------------

    def _change_roles(
        self, action: str, details: dict[str, Any], update: Update, reason: str, by: str | None
    ) -> None:
        """Apply a change to the table, again after each conflict."""
        engine, text = self._engine, check_reason(reason)
        for _ in range(MAX_TRIES):
            # The table is read first: a role that is taken after this read makes the write fail.
            head = load_head(engine.store, ROLES_ENTITY, engine.cipher, RoleRecord)
            decider = authorize_decider(engine, by, needed=REVIEWER)
            before: RoleRecord | None = head.record
            after = update(before or RoleRecord())
            if fault := find_table_fault(after):
                raise UsageError(fault)
            # Chosen once: signed decisions contain it, so that none is valid in another store.
            after = after._replace(store_id=after.store_id or secrets.token_hex(16))
            now = engine.now()
            decision = decider.make_decision(head, action, text, now, details)
            change = RecordChange(("CONTROL", "DECISION"), before, after, {"decision": decision})
            write = build_write(head.entity, head.version, head.hash, change, now, engine.cipher)
            if isinstance(append_if_not_moved(engine, "the roles", (write,)), Stored):
                return
        raise StaleDecision(f"nothing was changed: the roles changed {MAX_TRIES} times during the write")


def _check_role(role: str) -> str:
    if role not in ROLES:
        raise UsageError(f"role is {role!r}; the roles are {', '.join(ROLES)}")
    return role


def _check_name(field: str, name: Any) -> str:
    # A parenthesis begins the proof in a recorded identity, so that a name has none.
    if not isinstance(name, str) or not 1 <= len(name.strip()) <= 200 or "(" in name or ")" in name:
        raise UsageError(f"{field} is {name!r:.80}; it takes a name without parentheses, or uid:N for a user")
    return normalize_name(name.strip())
