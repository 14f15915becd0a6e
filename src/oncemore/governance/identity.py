"""Who makes a decision: the user of the process, the holder of a token, or the owner of a key.

    with decide_as(identify_token(engine, token)):          a dashboard, for the person at the browser
        engine.quarantine.release(item, by="", reason="seen")

    with decide_as(KeySigner(load_signing_key("archivist"))):     a signature over each decision
        engine.datasets.block("burials", reason="letter 17")

Every decision asks `authorize_decider` and builds its record with the `Decider` that it returns. In a store
without roles the record has the name that the caller gives. In a store with roles the name follows from the
identity, the role is the one that the table has now, and the given name is only a remark.
"""

from __future__ import annotations

import hmac
import os
import secrets
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore.control.permits import load_dataset
from oncemore.errors import NotPermitted, UsageError
from oncemore.governance.dataset_model import is_sensitive
from oncemore.governance.role_model import (
    OPERATOR,
    REVIEWER,
    ROLES_ENTITY,
    TOKEN,
    USER,
    Identity,
    ProcessUser,
    RoleRecord,
    find_role,
    is_permitted,
    is_same_person,
)
from oncemore.log.entry_codec import load_head
from oncemore.maintenance.tasks import resolve_actor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Protocol, TypeAlias

    from oncemore.log.record import LoadedHead
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.engine import Engine

    class Signer(Protocol):
        """What signs a decision: `KeySigner`, `StatementWriter` or `PresentedSignature`."""

        def identify(self, roles: RoleRecord, now: float) -> Identity:
            """Return the identity of the key."""

        def sign(self, subject: Any, decision: dict[str, Any], now: float) -> dict[str, Any]:
            """Return the record of the signature."""

    Credential: TypeAlias = "Identity | Signer | PresentedToken"

#: Why a decision is refused: the identity has not the role that it needs, has asked for it, or is not known.
ROLE_MISSING, OWN_REQUEST, IDENTITY_UNKNOWN = "role_missing", "own_request", "identity_unknown"
#: The first word of every token, by which scanners for leaked secrets can find one.
TOKEN_PREFIX = "oncemore"  # noqa: S105 - a word, not a secret
_CREDENTIAL: ContextVar[Credential | None] = ContextVar("oncemore_credential", default=None)


class Decider(NamedTuple):
    """The identity that makes a decision, after its role was checked.

    actor     the text that the decision records
    identity  None in a store without roles
    signer    what signs the decision; None: it is not signed
    """

    actor: str
    identity: Identity | None = None
    signer: Signer | None = None
    roles: RoleRecord | None = None

    def make_decision(
        self, head: LoadedHead, action: str, reason: str, now: float, details: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the record of a decision about an entity, with its signature if it is signed.

        head  the entity as it was read: the decision must be written on top of it
        """
        decision = {"action": action, "reason": reason, "actor": self.actor, **(details or {})}
        if self.signer is None:
            return decision
        from oncemore.governance.signed_decisions import make_subject

        assert self.roles is not None
        signature = self.signer.sign(make_subject(self.roles, head), decision, now)
        return {**decision, "signed": signature}

    def permits(self, needed: str) -> bool:
        """Return whether the identity has a role; a store without roles permits everything."""
        return self.identity is None or is_permitted(self.identity.role, needed)

    def find_signed_entity(self, kind: str) -> str:
        """Return the entity of a kind that a presented signature names; empty if none was presented.

        A decision that begins an entity takes its name from the signed statement: a random name would be
        another one than the person has signed.
        """
        entity: str = getattr(self.signer, "entity", "")
        return entity if entity.startswith(f"{kind}/") else ""

    def refuse_signature(self, decision: str) -> Decider:
        """Return this decider; raise `UsageError` if it signs, for a decision that has no signature."""
        if self.signer is not None:
            raise UsageError(f"{decision} cannot be signed; use a token, or the user of the process")
        return self


# Identities -----------------------------------------------------------------------------------------


@contextmanager
def decide_as(credential: Credential | None) -> Iterator[None]:
    """Make the decisions inside of the `with` block as the holder of a token, or sign them with a key."""
    before = _CREDENTIAL.set(credential)
    try:
        yield
    finally:
        _CREDENTIAL.reset(before)


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


def read_identity(roles: RoleRecord, now: float) -> Identity:
    """Return the identity that decides here: of the token or key in use, else of this process's user."""
    credential = _CREDENTIAL.get()
    if credential is None:
        user = read_process_user()
        return Identity(USER, user.name, f"uid {user.uid}", find_role(roles, user))
    if isinstance(credential, Identity):
        # Looked up again: the token may have been revoked or have expired since it was presented.
        return _identify_token_id(roles, credential.proof.removeprefix("token "), now)
    return credential.identify(roles, now)


def is_deciding_by_credential() -> bool:
    """Return whether a token or a key is in use here."""
    return _CREDENTIAL.get() is not None


# Tokens ---------------------------------------------------------------------------------------------


def make_token() -> tuple[str, str, str]:
    """Return a new token, its id and its digest; the digest is what is stored."""
    token_id = secrets.token_hex(4)
    token = f"{TOKEN_PREFIX}_{token_id}_{secrets.token_urlsafe(32)}"
    return token, token_id, hash_token(token)


def hash_token(token: str) -> str:
    """Return the digest of a token; its 256 random bits need no slow hash."""
    return sha256(token.encode()).hexdigest()


def identify_token(engine: Engine, token: str) -> Identity:
    """Return the identity of a token; raise `NotPermitted` if it is unknown, revoked or expired.

    The message is the same for a wrong secret and an unknown id, and never contains the token.
    """
    return _identify_token(load_roles(engine) or RoleRecord(), token, engine.now())


def _identify_token(roles: RoleRecord, token: str, now: float) -> Identity:
    token_id = token.partition("_")[2].partition("_")[0]
    record = roles.tokens.get(token_id, {"digest": ""})
    # Compared in constant time, so that the time of the answer says nothing about the digest.
    if not hmac.compare_digest(hash_token(token), record["digest"]):
        raise NotPermitted(
            "the token is not known here: it is mistyped, was revoked, or is of another store",
            IDENTITY_UNKNOWN,
        )
    return _identify_token_id(roles, token_id, now)


def _identify_token_id(roles: RoleRecord, token_id: str, now: float) -> Identity:
    record = roles.tokens.get(token_id)
    if record is None:
        raise NotPermitted(f"the token {token_id} was revoked", IDENTITY_UNKNOWN)
    if now >= record["expires_at"]:
        raise NotPermitted(
            f"the token {token_id} of {record['name']} has expired; a reviewer creates a new one "
            "(oncemore control roles token create)",
            IDENTITY_UNKNOWN,
        )
    return Identity(TOKEN, record["name"], f"token {token_id}", record["role"])


class PresentedToken:
    """A token that was not looked up yet: a command reads it before it opens the store."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __repr__(self) -> str:
        return "<PresentedToken>"

    def identify(self, roles: RoleRecord, now: float) -> Identity:
        """Return the identity of the token; raise `NotPermitted` if it is unknown, revoked or expired."""
        return _identify_token(roles, self._token, now)


# Authorisation --------------------------------------------------------------------------------------


def authorize_decider(engine: Engine, by: str | None, *, needed: str = OPERATOR) -> Decider:
    """Return who makes a decision; raise `NotPermitted` if that identity may not make it.

    by  the name that the caller gives; in a store with roles it is a remark
    """
    roles = load_roles(engine)
    if roles is None:
        if is_deciding_by_credential():
            raise NotPermitted(
                "this store has no roles, so that it knows no tokens and no keys; assign a reviewer first "
                "(oncemore control roles assign)",
                IDENTITY_UNKNOWN,
            )
        return Decider(resolve_actor(by))
    identity = read_identity(roles, engine.now())
    if not is_permitted(identity.role, needed):
        raise _role_missing(needed, identity)
    credential = _CREDENTIAL.get()
    # Only a key signs; a token and the operating system prove who is there, and not what was decided.
    signer: Any = credential if hasattr(credential, "sign") else None
    remark = "" if by in (None, "", identity.name) else f" for {by}"
    return Decider(identity.describe() + remark, identity, signer, roles)


def read_decider(engine: Engine) -> Decider:
    """Return who would decide, without asking for a role: for a preview, which decides nothing."""
    roles = load_roles(engine)
    return Decider("") if roles is None else Decider("", read_identity(roles, engine.now()))


def find_needed_role(engine: Engine, *datasets: str) -> str:
    """Return the role for decisions about data of some datasets: reviewer if one of them is sensitive."""
    names = sorted(set(datasets) - {""})
    return REVIEWER if any(is_sensitive(load_dataset(engine, name)[1]) for name in names) else OPERATOR


def check_data_role(engine: Engine, decider: Decider, dataset: str) -> None:
    """Raise `NotPermitted` if a decision is also about sensitive data, and the decider is not a reviewer."""
    if decider.identity is not None and not decider.permits(find_needed_role(engine, dataset)):
        raise _role_missing(REVIEWER, decider.identity)


def _role_missing(needed: str, identity: Identity) -> NotPermitted:
    return NotPermitted(
        f"this decision needs the role {needed}, and {identity.describe()} has "
        f"{identity.role or 'none'}; a reviewer assigns roles (oncemore control roles assign)",
        ROLE_MISSING,
    )


def authorize_call_decider(call: PreparedCall, actor: str) -> Decider:
    """Return who decides about a call; decisions on sensitive data need a reviewer.

    actor  the actor of the context, which is recorded as it is in a store without roles
    """
    engine, run = call.engine, call.head.record
    if load_roles(engine) is None and not is_deciding_by_credential():
        return Decider(actor)
    # The last run counts too: leaving `dataset=` out of the code does not make its data less sensitive.
    needed = find_needed_role(engine, call.dataset, "" if run is None else run.dataset)
    return authorize_decider(engine, actor, needed=needed)


def make_call_decision(
    call: PreparedCall, action: str, reason: str, actor: str, details: dict[str, Any] | None = None
) -> Callable[[LoadedHead, float], dict[str, Any]]:
    """Return the function that makes the record of a decision about a call; raise if it is not permitted."""
    decider = authorize_call_decider(call, actor)
    return lambda head, now: decider.make_decision(head, action, reason, now, details)


def authorize_run_decider(engine: Engine, by: str | None, run_entity: str) -> Decider:
    """Return who decides about something that belongs to a run: an event, or a resource."""
    run = load_head(engine.store, run_entity, engine.cipher).record if run_entity else None
    needed = find_needed_role(engine, "" if run is None else run.dataset)
    return authorize_decider(engine, by, needed=needed)


def describe_requester(engine: Engine) -> str:
    """Return the identity that asks for an approval, in a store with roles; empty in any other."""
    roles = load_roles(engine)
    return "" if roles is None else read_identity(roles, engine.now()).describe()


def check_not_requester(decider: Decider, requester: str | None) -> None:
    """Raise `NotPermitted` if the decider has asked for the approval, in a store with roles.

    requester  the identity that the waiting run names; None if no run waits
    """
    if decider.identity is None:
        return
    # Approved in advance, a call would be approved by the process that is about to make it.
    if requester is None:
        raise NotPermitted(
            "this store has roles: a call is approved after it was made and waits "
            "(oncemore control approvals)",
            OWN_REQUEST,
        )
    if is_same_person(requester, decider.identity):
        raise NotPermitted(f"{requester} asked for this approval; another reviewer gives it", OWN_REQUEST)
