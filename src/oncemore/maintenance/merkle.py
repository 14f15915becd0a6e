"""The root of a list of digests, as RFC 6962 has it: one digest that stands for all of them and their order.

Leaves and nodes are hashed apart, so that neither can pass for the other. It is made as the list is read, and
keeps no more than one digest for each time the list has doubled.
"""

from __future__ import annotations

from oncemore.policy.canonical_json import fingerprint


class Tree:
    """A list that grows, as far as its root needs it."""

    __slots__ = ("_count", "_whole")

    def __init__(self) -> None:
        self._count = 0
        self._whole: list[bytes] = []  # the roots of whole trees, each larger than the next

    def add(self, leaf: bytes) -> None:
        """Add the next of the list."""
        node, size = fingerprint(b"\x00" + leaf), self._count
        while size & 1:
            node, size = fingerprint(b"\x01" + self._whole.pop() + node), size >> 1
        self._whole.append(node)
        self._count += 1

    @property
    def count(self) -> int:
        """How many there are."""
        return self._count

    @property
    def root(self) -> bytes:
        """The root of all that were added."""
        if not self._whole:
            return fingerprint(b"")
        node = self._whole[-1]
        for left in reversed(self._whole[:-1]):
            node = fingerprint(b"\x01" + left + node)
        return node
