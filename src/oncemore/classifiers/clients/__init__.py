"""One module of rules per client library; a table names exception classes and never imports them.

To add a library, write its module here, with `TABLES` (top-level module name -> class name -> rule; see
`classifiers.rules`), and add it to the import and to `CLIENTS` below. Nothing else has to change.

Imports `classifiers` and the values of `policy`.
"""

from __future__ import annotations

from oncemore.classifiers.clients import (
    aiohttp,
    asyncpg,
    aws,
    azure,
    google,
    grpc,
    httpx,
    kafka,
    nats,
    neo4j,
    openai,
    pika,
    postgres,
    python,
    redis,
    requests,
    sqlalchemy,
    sqlite,
    validators,
)

#: The modules whose tables `classify` searches; of two rules for the same class, the later module's counts.
CLIENTS = (
    aiohttp,
    asyncpg,
    aws,
    azure,
    google,
    grpc,
    httpx,
    kafka,
    nats,
    neo4j,
    openai,
    pika,
    postgres,
    python,
    redis,
    requests,
    sqlalchemy,
    sqlite,
    validators,
)
