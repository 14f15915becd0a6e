"""The address of a store in NATS: which servers, which namespace, and how to be let in.

    nats://[user:password@]host[:port][,host[:port]…][/namespace][?parameter=value&…]

    replicas   on how many servers each message is kept, for a stream that is made: 1, 3 or 5
    monitor    the address of a server's monitoring port, which alone tells how it syncs
    unsafe_ok  true: take a server that acknowledges before it syncs
    creds      a file with the credentials of a user
    ca         a file with certificates of authorities to be trusted, besides those of the system
    cert, key  files with our own certificate and its key, for servers that ask for one

A name without a password is a token. Passwords and tokens are shown nowhere.
"""

from __future__ import annotations

import re
import ssl
from urllib.parse import parse_qsl, unquote, urlsplit

from oncemore._values import Value
from oncemore.errors import UsageError

_NAME = re.compile(r"[a-z0-9_]{1,32}")
_PARAMETERS = ("ca", "cert", "creds", "key", "monitor", "replicas", "unsafe_ok")


class Address(Value):
    """Where a store is; `shown` is what people may see of it."""

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
        return f"Address({self.shown})"

    def trust(self) -> ssl.SSLContext | None:
        """Return whom to trust and how to show ourselves; None: nothing was said about it."""
        if not (self.ca or self.cert or self.servers[0].startswith("tls://")):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None)
        except OSError as error:  # an SSLError is one
            raise UsageError(
                f"{self.shown}: the certificates of ca, cert or key cannot be read ({error})"
            ) from None
        return context


def address(url: str) -> Address:
    """Read an address, and refuse one that cannot be meant; its secrets are in no error."""
    scheme, _, rest = url.partition("://")
    if scheme not in ("nats", "tls"):
        raise UsageError("the address of a store in NATS begins with nats:// or tls://")
    before, _, query = rest.partition("?")
    netloc, _, path = before.partition("/")
    who, at, hosts = netloc.rpartition("@")
    user, colon, password = who.partition(":")
    namespace = unquote(path.strip("/")) or "oncemore"
    named = f"{user}@" if colon else "…@" if at else ""
    shown = f"{scheme}://{named}{hosts}/{namespace}"
    servers = tuple(f"{scheme}://{host}" for host in hosts.split(","))
    if not hosts or not all(_names_a_server(server) for server in servers):
        raise UsageError(f"{shown} names no server; it looks like nats://host:4222/namespace")
    if not _NAME.fullmatch(namespace):
        raise UsageError(
            f"{shown}: {namespace!r} is no namespace: lower-case letters, digits and _, up to 32"
        )
    given = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(given.keys() - set(_PARAMETERS)):
        raise UsageError(f"{shown} has no parameter {unknown[0]!r}; there are {', '.join(_PARAMETERS)}")
    replicas = _choice(shown, given, "replicas", ("1", "3", "5"))
    unsafe = _choice(shown, given, "unsafe_ok", ("false", "true"))
    if given.get("key") and not given.get("cert"):
        raise UsageError(f"{shown} has a key without its cert")
    files = {name: given.get(name, "") for name in ("monitor", "creds", "ca", "cert", "key")}
    return Address(
        servers,
        shown,
        namespace,
        unquote(user),
        unquote(password),
        replicas=int(replicas),
        unsafe_ok=unsafe == "true",
        **files,
    )


def _names_a_server(server: str) -> bool:
    try:
        split = urlsplit(server)
        return bool(split.hostname) and split.port != 0
    except ValueError:
        return False


def _choice(shown: str, given: dict[str, str], name: str, choices: tuple[str, ...]) -> str:
    told = given.get(name, choices[0])
    if told not in choices:
        raise UsageError(f"{shown}: {name} is {told!r}; it can be {' or '.join(choices)}")
    return told
