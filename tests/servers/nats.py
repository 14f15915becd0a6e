"""The nats-servers of the tests, from `oncemore.testing.nats`."""

from __future__ import annotations

from oncemore.testing.nats import (
    TIMEOUT_S,
    NatsCluster,
    NatsNode,
    NatsUnavailable,
    cluster,
    find_binary,
    find_free_ports,
    node,
    read_address,
    running,
    stop_server,
)

__all__ = [
    "TIMEOUT_S",
    "NatsCluster",
    "NatsNode",
    "NatsUnavailable",
    "cluster",
    "find_binary",
    "find_free_ports",
    "node",
    "read_address",
    "running",
    "stop_server",
]
