"""What each outage means: one table, which the tests hold against real clients and the page is made from.

    python tools/outages.py           say whether docs/reference/outages.md is up to date
    python tools/outages.py --write   write it

`tests/classifiers/test_outages.py` provokes every fault below with every client that is listed for it, and
`tests/profiles/test_outages.py` runs durable steps with them under every policy that ships.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "outages.md"

R, F, Q = "retried", "fails", "quarantined"

#: The columns of the table, and the packaged policies that each stands for.
COLUMNS = {
    "standard": ("standard/default",),
    "kfm-rules": ("kfm-rules/default",),
    "kfm-loop": (
        "kfm-loop/default", "kfm-loop-default/default", "p0-storm-nowcast/default",
        "p2-batch-reporting/default",
    ),
    "lit": ("lit/default",),
    "lit/persistence": ("lit/persistence",),
    "nova-cat": ("nova-cat/default", "nova-cat/acquisition"),
    "exoarmur": ("exoarmur/*",),
}  # fmt: skip


class Fault(NamedTuple):
    """One fault: in words, its usual code, its outcome per column, and whether the breaker counts it.

    counts  "yes", "no", or "deferred": only when the operation is put off or ends by it
    """

    words: str
    code: str
    outcomes: tuple[str, ...]
    counts: str


_OUTAGE = (R, R, R, R, F, R, R)
_ANSWER = (F, Q, F, F, F, F, R)

FAULTS = {
    "refused": Fault("connection refused", "CONNECTION_REFUSED", _OUTAGE, "yes"),
    "reset": Fault("connection reset", "CONNECTION_RESET", _OUTAGE, "yes"),
    "dns": Fault("name does not resolve", "DNS", _OUTAGE, "yes"),
    "timeout": Fault("timeout", "TIMEOUT_READ", _OUTAGE, "yes"),
    "429": Fault("429 Too Many Requests", "HTTP_429", (R, R, R, F, F, R, R), "deferred"),
    "500": Fault("500 Internal Server Error", "HTTP_500", _OUTAGE, "yes"),
    "502": Fault("502 Bad Gateway", "HTTP_502", _OUTAGE, "yes"),
    "503": Fault("503 Service Unavailable", "HTTP_503", _OUTAGE, "yes"),
    "504": Fault("504 Gateway Timeout", "HTTP_504", _OUTAGE, "yes"),
    "slowdown": Fault("503 with SlowDown", "STAC_SLOWDOWN", _OUTAGE, "deferred"),
    "neo4j-transient": Fault(
        "Neo4j TransientError", "NEO4J:TransientError.Transaction.DeadlockDetected",
        (R, R, R, F, F, R, R), "yes",
    ),
    "sqlite-busy": Fault("SQLite database is locked", "SQLITE_BUSY", (R, R, R, F, R, R, R), "yes"),
    "tls": Fault("TLS handshake or certificate refused", "TLS", (F, Q, F, R, F, F, R), "no"),
    "400": Fault("400 Bad Request", "HTTP_400", _ANSWER, "no"),
    "401": Fault("401 Unauthorized", "HTTP_401", _ANSWER, "no"),
    "403": Fault("403 Forbidden", "HTTP_403", _ANSWER, "no"),
    "404": Fault("404 Not Found", "HTTP_404", _ANSWER, "no"),
    "409": Fault("409 Conflict", "HTTP_409", _ANSWER, "no"),
    "422": Fault("422 Unprocessable Content", "HTTP_422", _ANSWER, "no"),
    "schema": Fault("data that breaks its schema", "SCHEMA_INVALID", (F, Q, F, F, F, F, F), "no"),
}  # fmt: skip

_WIRE = ("refused", "reset", "dns", "timeout", "tls")
_STATUSES = ("429", "500", "502", "503", "504", "400", "401", "403", "404", "409", "422")


def _usual(*faults: str, **codes: str) -> dict[str, str]:
    """Return the codes of a client's faults: the usual ones, and its own."""
    return {**{fault: FAULTS[fault].code for fault in faults}, **codes}


_HTTP = _usual(*_WIRE, *_STATUSES)
_SQLSTATES = {
    "400": "SQLSTATE_42601", "401": "SQLSTATE_28P01", "403": "SQLSTATE_42501", "404": "SQLSTATE_42P01",
    "409": "SQLSTATE_23505", "422": "SQLSTATE_22P02", "500": "SQLSTATE_58000", "503": "SQLSTATE_57P03",
    "timeout": "SQLSTATE_57014",
}  # fmt: skip
_SCHEMA = _usual("schema")

#: The code of every fault that a client can raise. A client without HTTP has its own name for an answer.
CLIENTS: dict[str, dict[str, str]] = {
    "Python sockets": _usual(*_WIRE, timeout="TIMEOUT"),
    "urllib": _HTTP,
    "http.client": _usual(*_WIRE),
    "httpx": _HTTP,
    "httpx2": _HTTP,
    "requests": _HTTP,
    "urllib3": _usual(*_WIRE),
    "aiohttp": _HTTP,
    "botocore": {
        **_HTTP, "slowdown": "AWS_SlowDown", "429": "AWS_TooManyRequestsException",
        "400": "AWS_ValidationException", "401": "AWS_UnrecognizedClientException",
        "403": "AWS_AccessDeniedException", "404": "AWS_ResourceNotFoundException",
        "409": "AWS_ResourceInUseException", "422": "AWS_Unprocessable",
    },
    "azure-core": _HTTP,
    "google-api-core": _HTTP,
    "openai": _HTTP,
    "anthropic": _HTTP,
    "pystac-client": {**_HTTP, **_usual("slowdown")},
    "grpc": {
        "refused": "GRPC_UNAVAILABLE", "timeout": "GRPC_DEADLINE_EXCEEDED", "tls": "GRPC_UNAVAILABLE",
        "429": "GRPC_RESOURCE_EXHAUSTED", "500": "GRPC_INTERNAL", "503": "GRPC_UNAVAILABLE",
        "400": "GRPC_INVALID_ARGUMENT", "401": "GRPC_UNAUTHENTICATED", "403": "GRPC_PERMISSION_DENIED",
        "404": "GRPC_NOT_FOUND", "409": "GRPC_ALREADY_EXISTS",
    },
    "nats-py": {
        "refused": "CONNECTION_FAILED", "reset": "CONNECTION_CLOSED", "dns": "CONNECTION_FAILED",
        "timeout": "TIMEOUT_READ", "500": "NATS_10500", "503": "NATS_10503", "400": "NATS_10400",
        "403": "NATS_10403", "404": "NATS_10404",
    },
    "neo4j": {
        **_usual("refused", "dns", "tls", "neo4j-transient", "reset", timeout="TIMEOUT_CONNECT"),
        "503": "NEO4J:TransientError.General.DatabaseUnavailable",
        "400": "NEO4J:ClientError.Statement.SyntaxError",
        "401": "NEO4J:ClientError.Security.Unauthorized",
        "403": "NEO4J:ClientError.Security.Forbidden",
        "409": "NEO4J:ClientError.Schema.ConstraintValidationFailed",
    },
    "psycopg": {**_usual("refused", "dns", "tls", reset="CONNECTION_CLOSED"), **_SQLSTATES},
    "asyncpg": {**_usual("refused", "dns", "tls", reset="CONNECTION_CLOSED"), **_SQLSTATES},
    "redis": {
        **_usual(*_WIRE, reset="CONNECTION_ERROR"),
        "503": "REDIS_LOADING", "400": "REDIS_ERR", "401": "REDIS_AUTHENTICATION", "403": "REDIS_NOPERM",
    },
    "SQLAlchemy": {
        **_usual("refused", "dns", "sqlite-busy", reset="CONNECTION_CLOSED"), **_SQLSTATES,
        "400": "SQLITE_ERROR",
    },
    "sqlite3": {**_usual("sqlite-busy"), "400": "SQLITE_ERROR"},
    "apsw": {**_usual("sqlite-busy"), "400": "SQLITE_ERROR"},
    "pydantic": _SCHEMA,
    "msgspec": _SCHEMA,
    "jsonschema-rs": _SCHEMA,
    "pystac": _SCHEMA,
}  # fmt: skip


class Exemption(NamedTuple):
    """Where a fault has another outcome through some clients, and why."""

    clients: tuple[str, ...]
    faults: tuple[str, ...]
    outcomes: dict[str, str]
    counts: str | None
    why: str


EXEMPTIONS = (
    Exemption(
        ("grpc", "nats-py", "neo4j", "psycopg", "asyncpg", "redis", "SQLAlchemy"),
        ("500", "503", "timeout"),
        {"lit": F},
        None,
        "LIT retries HTTP 5xx and lost connections; an answer of a protocol without HTTP statuses is "
        "neither, unless it says that the connection or the server is gone (`GRPC_UNAVAILABLE`, "
        "`SQLSTATE_57P03`) or that time ran out on the way (`GRPC_DEADLINE_EXCEEDED`, `TIMEOUT_*`).",
    ),
    Exemption(
        ("openai", "anthropic"),
        ("409",),
        {"standard": R, "kfm-rules": R, "kfm-loop": R, "nova-cat": R},
        "yes",
        "These services answer 409 when a lock was not got in time.",
    ),
    Exemption(
        ("grpc",),
        ("tls",),
        dict.fromkeys(("standard", "kfm-rules", "kfm-loop", "nova-cat"), R),
        "yes",
        "gRPC reports a refused handshake as UNAVAILABLE, and nothing in the error tells it from an outage.",
    ),
)

#: Codes to which the first exemption does not apply: the connection is gone, or time ran out on the way.
_LOST = ("GRPC_UNAVAILABLE", "GRPC_DEADLINE_EXCEEDED", "SQLSTATE_57P03", "TIMEOUT_READ", "TIMEOUT_CONNECT")


def expect_outcome(client: str, fault: str, column: str) -> tuple[str, str]:
    """Return what happens to a client's fault under the policies of a column, and whether it counts."""
    row = FAULTS[fault]
    outcome, counts = row.outcomes[list(COLUMNS).index(column)], row.counts
    for one in EXEMPTIONS:
        lost = one is EXEMPTIONS[0] and CLIENTS[client][fault] in _LOST
        if client in one.clients and fault in one.faults and not lost:
            outcome, counts = one.outcomes.get(column, outcome), one.counts or counts
    return outcome, counts if outcome == R else "no"


# The page -------------------------------------------------------------------------------------------

_COUNTS = {"yes": "yes", "no": "no", "deferred": "if it is put off or ends by it"}

HEAD = (
    "# What an outage means\n\n"
    "*Made by `python tools/outages.py --write`; the tests hold every row against real client libraries.*\n\n"
    "A failure is read twice. The "
    "[classifiers](../how-to/choose-what-to-retry.md#known-errors) say what happened, as a code "
    "and a kind; the [policy](policy-files.md) says what follows. This page has the result for every profile "
    "that ships:\n\n"
    "* **retried**: tried again, within the policy's attempts.\n"
    "* **fails**: not tried again; a durable run ends as `HARD_FAIL`.\n"
    "* **quarantined**: not tried again; a durable run [waits for a person]"
    "(../how-to/handle-quarantine.md). With `retry`, which has no store, the error is raised.\n\n"
    "The [breaker](../how-to/stop-hammering-a-provider.md) counts a failure only under a policy that retries "
    "it: each operation once, at its first failed call. What is not retried says nothing about the health of "
    "a provider.\n\n"
    "A schema error, a [violation](errors.md) and an error that needs review are not retried with "
    "`on=Exception` either; nor is anything in a policy's `non_retryable`, nor, under a governed policy, a "
    "known failure outside of its `retryable`.\n"
)


def _table(rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], f"|{' --- |' * len(rows[0])}", *lines[1:]]) + "\n"


def render_page() -> str:
    """Return the page."""
    rows = [["fault", "usual code", *(f"`{name}`" for name in COLUMNS), "counts for the breaker"]]
    rows += [[row.words, f"`{row.code}`", *row.outcomes, _COUNTS[row.counts]] for row in FAULTS.values()]
    also = [
        f"`{column}` stands for {', '.join(f'`{name}`' for name in names)}."
        for column, names in COLUMNS.items()
        if len(names) > 1
    ]
    also.append("`exoarmur` stands for all of its categories.")
    notes = [
        f"* {', '.join(one.clients)}: {', '.join(FAULTS[fault].words for fault in one.faults)}. {one.why} "
        + "; ".join(f"`{column}`: {outcome}" for column, outcome in one.outcomes.items())
        + "."
        for one in EXEMPTIONS
    ]
    codes = [["client", "tested faults", "codes of its own"]]
    for client, found in CLIENTS.items():
        own = [f"{fault}: `{code}`" for fault, code in found.items() if code != FAULTS[fault].code]
        codes.append([client, ", ".join(found), "; ".join(own) or "none"])
    return "\n".join(
        [
            HEAD,
            "## By profile\n",
            _table(rows),
            " ".join(also) + "\n",
            "## Where a client differs\n",
            "\n".join(notes) + "\n",
            "## By client\n",
            "A client without HTTP has its own name for an answer: 503 is what it says when its server "
            "cannot serve now, 401 when a password is wrong, 409 when a row is there already.\n",
            _table(codes),
        ]
    )


def main(arguments: list[str]) -> int:
    """Say whether the page is up to date, or write it."""
    page = render_page()
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page:
        return 0
    if "--write" not in arguments:
        print(f"out of date: {PAGE.relative_to(ROOT)}; run python tools/outages.py --write")
        return 1
    PAGE.write_text(page, encoding="utf-8")
    print(f"written: {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
