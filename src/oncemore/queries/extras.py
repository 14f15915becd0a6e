"""The optional parts of the package, and which of them are installed.

`oncemore --version` prints them. The names come from the metadata of installed packages: nothing is imported,
so that the command stays quick and a damaged optional package cannot break it.
"""

from __future__ import annotations

from importlib import metadata
from typing import NamedTuple


class OptionalPart(NamedTuple):
    """An extra of the package: its name, the package that it needs, and what it is for."""

    extra: str
    package: str
    purpose: str

    def find_version(self) -> str | None:
        """Return the installed version of the package; None if it is not installed."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return None


#: The extras for users, as in pyproject.toml; a test compares them. Those for development are left out.
OPTIONAL_PARTS = (
    OptionalPart("postgres", "psycopg", "a store in PostgreSQL"),
    OptionalPart("mysql", "pymysql", "a store in MySQL or MariaDB"),
    OptionalPart("nats", "nats-py", "a store, events and messages in NATS JetStream"),
    OptionalPart("aws", "boto3", "events and messages in SQS"),
    OptionalPart("rabbitmq", "pika", "events and messages in RabbitMQ"),
    OptionalPart("kafka", "confluent-kafka", "events in Kafka"),
    OptionalPart("django", "django", "idempotent endpoints in Django"),
    OptionalPart("http", "httpx2", "an HTTP client for oncemore.http.Transport"),
    OptionalPart("cron", "cronsim", "schedules as cron expressions"),
    OptionalPart("otel", "opentelemetry-api", "traces and metrics for OpenTelemetry"),
    OptionalPart("prometheus", "prometheus-client", "metrics for Prometheus"),
    OptionalPart("sentry", "sentry-sdk", "breadcrumbs and failed runs in Sentry"),
    OptionalPart("fits", "astropy", "spectra of the nova-cat profile"),
    OptionalPart("sign", "cryptography", "signed policies and checkpoints"),
    OptionalPart("sigstore", "sigstore", "policies signed with Sigstore"),
    OptionalPart("object-store", "obstore", "artifacts in object storage"),
    OptionalPart("web", "jinja2", "the dashboard"),
    OptionalPart("migrate", "libcst", "oncemore migrate"),
    OptionalPart("supply-chain", "packaging", "version ranges in oncemore check supply-chain"),
)


def describe_parts(parts: tuple[OptionalPart, ...] = OPTIONAL_PARTS) -> list[str]:
    """Return a line for each optional part: its extra, the installed version or none, and its purpose."""
    found = [(part, part.find_version()) for part in parts]
    cells = [f"{part.package} {version}" if version else "not installed" for part, version in found]
    wide_extra = max(len(part.extra) for part in parts)
    wide_cell = max(map(len, cells))
    lines = [
        f"  {part.extra:<{wide_extra}}  {cell:<{wide_cell}}  {part.purpose}"
        for part, cell in zip(parts, cells, strict=True)
    ]
    if all(version for _, version in found):
        return lines
    return [*lines, "Install a part by its name: pip install 'oncemore[NAME]'"]
