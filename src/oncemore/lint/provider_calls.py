"""The libraries that reach other systems: which calls do, which of them need a timeout, which change data.

A provider is a system outside of the process, such as an HTTP service, a mail server or an object store.
Only names that resolve to an imported library count.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

from oncemore.lint.facts import enclosing_function
from oncemore.lint.names import last_part
from oncemore.lint.retry_settings import find_keyword

if TYPE_CHECKING:
    from oncemore.lint.facts import ModuleFacts, Place

_METHODS = "get|post|put|patch|delete|head|options|request|send|stream"
#: Resolved names of calls that reach a provider.
_PROVIDER = re.compile(
    rf"""(?x)
    requests\.(api\.)?({_METHODS})$
    | requests\.(sessions\.)?(Session|session)\(\)\.({_METHODS})$
    | httpx2?\.({_METHODS})$
    | httpx2?\.(Client|AsyncClient)\(\)\.({_METHODS})$
    | aiohttp\.(request|ClientSession\(\)\.(\w+))$
    | urllib\.request\.(urlopen|urlretrieve)$
    | urllib2\.urlopen$
    | urllib3\.(request|(PoolManager|ProxyManager|HTTPConnectionPool|HTTPSConnectionPool)\(\)\.\w+)$
    | http\.client\.HTTPS?Connection(\(\)\.\w+)?$
    | (smtplib\.SMTP(_SSL)?|ftplib\.FTP(_TLS)?|imaplib\.IMAP4(_SSL)?|poplib\.POP3(_SSL)?)(\(\)\.\w+)?$
    | socket\.create_connection$
    | (boto3|botocore\.session\.get_session\(\))\.(client|resource)\(\)\.[\w.]+$
    | boto3\.(session\.)?Session\(\)\.(client|resource)\(\)\.[\w.]+$
    | (openai|anthropic|stripe|twilio\.rest|slack_sdk|sendgrid)\.[\w.]*(\(\))?[\w.]*
      \.(create|send|generate|\w+_\w+)$
    | (redis|psycopg|psycopg2|pymongo|asyncpg)\.\w*\(\)\.\w+$
    | google\.cloud\.[\w.]+Client\(\)\.\w+$
    """
)
_NETWORK_EXCEPTION = re.compile(
    r"(?i)(connection|connect|http|url|network|socket|requests?|transport|api|server|gateway|protocol|client)"
    r"\w*(error|exception|timeout)$|^(os|io|environment|socket\.)error$|unavailable|operationalerror"
    r"|ratelimit|toomanyrequests|throttl|remotedisconnected|brokenpipe|incompleteread|timedout|^(socket\.)?error$"
)
_NETWORK_LIBRARIES = {
    *("requests", "httpx", "httpx2", "aiohttp", "urllib", "urllib3", "http", "botocore", "grpc", "redis"),
    *("socket", "ssl", "smtplib", "psycopg", "psycopg2", "pymongo", "openai", "anthropic", "paramiko"),
}


class TimeoutRule(NamedTuple):
    """How a call takes its timeout.

    position     the number of the positional argument; -1 if it is a keyword only
    has_default  whether the library has a timeout of its own, so that only `timeout=None` removes it
    needs_host   whether the call connects only if it is given a host or an address
    """

    position: int = -1
    has_default: bool = False
    needs_host: bool = False


#: Calls that take a timeout, by resolved name.
TIMEOUT_RULES: dict[str, TimeoutRule] = {
    **{
        f"requests.{prefix}{method}": TimeoutRule(needs_host=True)
        for prefix in ("", "api.", "Session().", "session().", "sessions.Session().")
        for method in ("get", "post", "put", "patch", "delete", "head", "options", "request")
    },
    **{
        f"{library}.{prefix}{method}": TimeoutRule(has_default=True)
        for library in ("httpx", "httpx2")
        for prefix in ("", "Client().", "AsyncClient().")
        for method in ("get", "post", "put", "patch", "delete", "head", "options", "request", "stream")
    },
    **{f"{library}.{name}": TimeoutRule(has_default=True)
       for library in ("httpx", "httpx2") for name in ("Client", "AsyncClient")},
    "urllib.request.urlopen": TimeoutRule(2, needs_host=True),
    "http.client.HTTPConnection": TimeoutRule(2, needs_host=True),
    "http.client.HTTPSConnection": TimeoutRule(4, needs_host=True),
    "socket.create_connection": TimeoutRule(1, needs_host=True),
    "smtplib.SMTP": TimeoutRule(3, needs_host=True),
    "smtplib.SMTP_SSL": TimeoutRule(5, needs_host=True),
    "ftplib.FTP": TimeoutRule(4, needs_host=True),
    "ftplib.FTP_TLS": TimeoutRule(4, needs_host=True),
    "imaplib.IMAP4": TimeoutRule(2, needs_host=True),
    "imaplib.IMAP4_SSL": TimeoutRule(-1, needs_host=True),
    "poplib.POP3": TimeoutRule(2, needs_host=True),
    "poplib.POP3_SSL": TimeoutRule(-1, needs_host=True),
    "aiohttp.ClientSession": TimeoutRule(has_default=True),
}  # fmt: skip


def is_provider_call(facts: ModuleFacts, call: ast.Call, place: Place | None) -> bool:
    """Return whether a call reaches another system."""
    name = facts.resolve(call.func, place)
    return bool(name) and _PROVIDER.match(name) is not None


def is_network_exception(facts: ModuleFacts, node: ast.expr, place: Place | None) -> bool:
    """Return whether an exception class reports a failure of the network or of a remote service."""
    resolved = facts.resolve(node, place)
    if resolved.partition(".")[0] in _NETWORK_LIBRARIES:
        return True
    return _NETWORK_EXCEPTION.search(last_part(node)) is not None


#: The methods that a server may apply twice if a request is sent twice.
_CREATING = {"post", "patch"}
_HTTP_CLIENT = re.compile(
    r"(requests|httpx2?)\.(api\.)?(?P<plain>post|patch|request)$"
    r"|(requests\.(sessions\.)?(Session|session)|httpx2?\.(Async)?Client|aiohttp\.ClientSession)\(\)\."
    r"(?P<method>post|patch|request)$"
)
#: Words in a URL or the name of a function that show a request which only reads, infers or logs in.
_READING = re.compile(
    r"(?i)search|query|graphql|token|oauth|login|auth|session|sparql|select|lookup|rpc|embed|complet|chat|infer"
    r"|generat|predict|rerank|detect|ocr|parse|convert|translat|llm|get_|list_|fetch"
)
#: Words that show an idempotency key.
_KEY = re.compile(r"(?i)idempot|dedup|request_?id|transaction_?id|client_?token")


def describe_creating_call(facts: ModuleFacts, call: ast.Call, place: Place | None) -> str:
    """Return the name of a call that can be applied twice, such as a POST; empty for every other call."""
    name = facts.resolve(call.func, place)
    if not name:
        return ""
    found = _HTTP_CLIENT.match(name)
    if found:
        method = found["plain"] or found["method"]
        if method == "request":
            first = call.args[0] if call.args else find_keyword(call, "method")
            method = str(first.value).lower() if isinstance(first, ast.Constant) else ""
        if method not in _CREATING or _only_reads(facts, call, place):
            return ""
        return "" if _has_key(facts, call, place) else f"{method.upper()} request"
    if name.startswith("stripe.") and name.endswith((".create", ".capture", ".confirm")):
        return "" if _has_key(facts, call, place) else name
    if re.match(r"smtplib\.SMTP(_SSL)?\(\)\.(sendmail|send_message)$", name):
        return name
    return ""


def _only_reads(facts: ModuleFacts, call: ast.Call, place: Place | None) -> bool:
    """Return whether the URL of a request or the function around it has a word for reading."""
    function = enclosing_function(place)
    if function is not None and _READING.search(function.name):
        return True
    urls = [*call.args[:2], find_keyword(call, "url")]
    texts = [ast.get_source_segment(facts.source, url) or "" for url in urls if url is not None]
    return any(_READING.search(text) for text in texts)


def _has_key(facts: ModuleFacts, call: ast.Call, place: Place | None) -> bool:
    """Return whether the function around a call has a word for an idempotency key."""
    around = enclosing_function(place) or call
    return _KEY.search(ast.get_source_segment(facts.source, around) or "") is not None
