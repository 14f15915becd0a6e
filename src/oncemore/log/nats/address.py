"""The address of a store in NATS: servers, namespace, credentials and options.

    nats://[user:password@]host[:port][,host[:port]…][/namespace][?parameter=value&…]

    replicas   the number of servers that store each message, for a stream that is created: 1, 3 or 5
    monitor    the URL of a server's monitoring port, the only source of its sync setting
    unsafe_ok  true: accept a server that acknowledges before it syncs
    creds      a file with the credentials of a user
    ca         a file with trusted CA certificates, in addition to those of the system
    cert, key  files with the client's certificate and key, for servers that require one

A user without a password is a token. Passwords and tokens never appear in messages.
"""

from __future__ import annotations

import re
import ssl
from urllib.parse import parse_qsl, unquote, urlsplit

from oncemore._values import Value
from oncemore.errors import UsageError

_NAMESPACE = re.compile(r"[a-z0-9_]{1,32}")
_PARAMETERS = ("ca", "cert", "creds", "key", "monitor", "replicas", "unsafe_ok")


class NatsAddress(Value):
    """A parsed address; `shown` is the address without its secrets."""

    servers: tuple[str, ...]
    shown: str
    namespace: str = "oncemore"
    user: str = ""
    password: str = ""
    replicas: int = 1
    monitor: str = ""
    creds: str = ""
    unsafe_ok: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""

    def __repr__(self) -> str:
        # The default repr would print the password.
        return f"NatsAddress({self.shown})"

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS settings; None if the address asks for none."""
        if not (self.ca or self.cert or self.servers[0].startswith("tls://")):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None)
        except OSError as error:  # ssl.SSLError is a subclass
            raise UsageError(
                f"{self.shown}: the certificates of ca, cert or key cannot be read ({error})"
            ) from None
        return context


def parse_address(url: str) -> NatsAddress:
    """Parse an address; raise `UsageError`, without its secrets, for an invalid one."""
    scheme, _, rest = url.partition("://")
    if scheme not in ("nats", "tls"):
        raise UsageError("the address of a store in NATS begins with nats:// or tls://")
    before, _, query = rest.partition("?")
    netloc, _, path = before.partition("/")
    login, has_login, hosts = netloc.rpartition("@")
    user, has_password, password = login.partition(":")
    namespace = unquote(path.strip("/")) or "oncemore"
    # A user without a password is a token, which is a secret.
    shown_user = f"{user}@" if has_password else "…@" if has_login else ""
    shown = f"{scheme}://{shown_user}{hosts}/{namespace}"
    # nats-py takes the credentials separately, so the server addresses do not contain them.
    servers = tuple(f"{scheme}://{host}" for host in hosts.split(","))
    if not hosts or not all(_has_server(server) for server in servers):
        raise UsageError(f"{shown} names no server; it looks like nats://host:4222/namespace")
    if not _NAMESPACE.fullmatch(namespace):
        raise UsageError(
            f"{shown}: {namespace!r} is not a namespace; use lower-case letters, digits and _, up to 32"
        )
    options = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(options.keys() - set(_PARAMETERS)):
        raise UsageError(f"{shown} has no parameter {unknown[0]!r}; there are {', '.join(_PARAMETERS)}")
    if options.get("key") and not options.get("cert"):
        raise UsageError(f"{shown} has a key without its cert")
    return NatsAddress(
        servers=servers,
        shown=shown,
        namespace=namespace,
        user=unquote(user),
        password=unquote(password),
        replicas=int(_read_choice(shown, options, "replicas", ("1", "3", "5"))),
        unsafe_ok=_read_choice(shown, options, "unsafe_ok", ("false", "true")) == "true",
        **{name: options.get(name, "") for name in ("monitor", "creds", "ca", "cert", "key")},
    )


def _has_server(server: str) -> bool:
    try:
        # Reading `port` raises ValueError for one that is not a number.
        parts = urlsplit(server)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _read_choice(shown: str, options: dict[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = options.get(name, choices[0])
    if value not in choices:
        raise UsageError(f"{shown}: {name} is {value!r}; it can be {' or '.join(choices)}")
    return value
