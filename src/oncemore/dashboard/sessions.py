"""Sessions of signed-in users: in memory, with a limit on their number and their age.

A user signs in with a one-time link, with a token that `identify` knows, or through the application that the
dashboard is mounted into. Tokens and session ids are compared by their SHA-256, so that the time of a lookup
says nothing about them. A restart ends all sessions.
"""

from __future__ import annotations

import secrets
import threading
import time
from hashlib import sha256
from hmac import compare_digest

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.governance.role_model import ROLES, VIEWER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.governance.role_model import Identity

#: How long a session lasts after its last request, and how long a one-time link can be used, in seconds.
SESSION_S, LINK_S = 12 * 3600.0, 24 * 3600.0
MAX_SESSIONS, MAX_LINKS = 1000, 100
MAX_NOTICES = 5


class DashboardUser(Value):
    """A signed-in user: the name that decisions record, and the role viewer, operator or reviewer.

    identity  of a token of the store (`governance.identity`); None for the user of this process
    """

    name: str
    role: str = VIEWER
    identity: Identity | None = None


class PageNotice(Value):
    """A message that the next page of a session shows once; `is_error` if something was refused."""

    text: str
    is_error: bool = False


class Session:
    """One signed-in browser.

    form_token  must be in every form and every changing request of this session
    """

    def __init__(self, user: DashboardUser, expires_at: float) -> None:
        self.user = user
        self.form_token = secrets.token_urlsafe(32)
        self.expires_at = expires_at
        self._notices: list[PageNotice] = []

    def accepts_token(self, token: str) -> bool:
        """Return whether a form token is the one of this session."""
        return compare_digest(token.encode(), self.form_token.encode())

    def add_notice(self, text: str, *, is_error: bool = False) -> None:
        """Keep a message for the next page."""
        self._notices = [*self._notices, PageNotice(text, is_error)][-MAX_NOTICES:]

    def take_notices(self) -> list[PageNotice]:
        """Return the messages that no page has shown yet, and forget them."""
        notices, self._notices = self._notices, []
        return notices


class SessionTable:
    """The sessions and the unused one-time links of one dashboard."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._sessions: dict[bytes, Session] = {}
        self._links: dict[bytes, tuple[DashboardUser, float]] = {}
        # Cookies are shared by all ports of a host: two dashboards must not overwrite each other's.
        self.cookie_name = f"oncemore_{secrets.token_hex(4)}"

    def create_link(self, user: DashboardUser) -> str:
        """Return a token that signs in a user once."""
        check_role(user.role)
        token = secrets.token_urlsafe(32)
        with self._lock:
            # The oldest links give way, so that their number stays small.
            self._links = dict(list(self._links.items())[-MAX_LINKS + 1 :])
            self._links[_hash_token(token)] = user, self._clock() + LINK_S
        return token

    def redeem_link(self, token: str) -> DashboardUser | None:
        """Return the user of a one-time token, and make the token useless; None if it is unknown or old."""
        with self._lock:
            user, usable_until = self._links.pop(_hash_token(token), (None, 0.0))
        return user if self._clock() <= usable_until else None

    def open_session(self, user: DashboardUser) -> str:
        """Begin a session, and return its id for the cookie."""
        check_role(user.role)
        session_id, now = secrets.token_urlsafe(32), self._clock()
        with self._lock:
            live = {key: each for key, each in self._sessions.items() if each.expires_at > now}
            # The sessions that were used longest ago give way, so that sign-ins cannot fill the memory.
            newest = sorted(live.items(), key=lambda pair: pair[1].expires_at)[-MAX_SESSIONS + 1 :]
            self._sessions = dict(newest)
            self._sessions[_hash_token(session_id)] = Session(user, now + SESSION_S)
        return session_id

    def find_session(self, session_id: str) -> Session | None:
        """Return the session of a cookie, and prolong it; None if it is unknown or has ended."""
        now = self._clock()
        with self._lock:
            session = self._sessions.get(_hash_token(session_id))
            if session is None or session.expires_at <= now:
                return None
            session.expires_at = now + SESSION_S
            return session

    def end_session(self, session_id: str) -> None:
        """End a session; its cookie is worth nothing from now on."""
        with self._lock:
            self._sessions.pop(_hash_token(session_id), None)


def check_role(role: str) -> None:
    """Raise `UsageError` for a role that does not exist."""
    if role not in ROLES:
        raise UsageError(f"role is {role!r}; the roles are {', '.join(ROLES)}")


def _hash_token(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()
