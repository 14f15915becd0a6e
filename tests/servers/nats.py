"""The nats-servers of the tests are those of `oncemore.testing.nats`."""

from __future__ import annotations

from oncemore.testing.nats import (
    PATIENCE,
    Cluster,
    Node,
    NoNats,
    address_of,
    binary,
    cluster,
    free_ports,
    node,
    running,
    stop,
)

__all__ = [
    "PATIENCE",
    "Cluster",
    "NoNats",
    "Node",
    "address_of",
    "binary",
    "cluster",
    "free_ports",
    "node",
    "running",
    "stop",
]
