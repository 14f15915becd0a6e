"""The Merkle tree of RFC 6962 over a growing list: roots, inclusion proofs and consistency proofs.

    hash of a leaf      SHA-256(0x00 ‖ data)
    hash of a node      SHA-256(0x01 ‖ left ‖ right)
    tree of n leaves    split at the largest power of two below n

Leaves and nodes have different prefixes, so that a node cannot be passed off as a leaf. A tree is never
stored: the roots of its complete subtrees (`TreeFrontier`), one for each 1 in the binary form of its size,
are enough to append leaves and to compute the root. A proof needs the hashes of all leaves.

The checks of proofs follow the algorithms of RFC 9162, sections 2.1.3.2 and 2.1.4.2.
"""

from __future__ import annotations

from hashlib import sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: The root of a tree without leaves.
EMPTY_ROOT = sha256(b"").digest()
HASH_SIZE = 32


def hash_leaf(data: bytes) -> bytes:
    """Return the hash of a leaf."""
    return sha256(b"\x00" + data).digest()


def hash_node(left: bytes, right: bytes) -> bytes:
    """Return the hash of the node above two subtrees."""
    return sha256(b"\x01" + left + right).digest()


class TreeFrontier:
    """A tree that can grow: its number of leaves, and the roots of its complete subtrees, largest first."""

    __slots__ = ("_size", "_subtree_roots")

    def __init__(self, size: int = 0, subtree_roots: Iterable[bytes] = ()) -> None:
        self._size, self._subtree_roots = size, list(subtree_roots)
        if len(self._subtree_roots) != size.bit_count():
            raise ValueError(
                f"a tree of {size} leaves has {size.bit_count()} complete subtrees, "
                f"not {len(self._subtree_roots)}"
            )

    @property
    def size(self) -> int:
        """The number of leaves."""
        return self._size

    @property
    def subtree_roots(self) -> tuple[bytes, ...]:
        """The roots of the complete subtrees, largest first."""
        return tuple(self._subtree_roots)

    def add_leaf_hash(self, node: bytes) -> None:
        """Append a leaf, given as its hash."""
        size, roots = self._size, self._subtree_roots
        self._size = size + 1
        # Every 1 at the end of the size is a complete subtree that the new leaf completes to a larger one.
        while size & 1:
            node = sha256(b"\x01" + roots.pop() + node).digest()
            size >>= 1
        roots.append(node)

    def add_leaf_hashes(self, leaf_hashes: list[bytes]) -> None:
        """Append many leaves, given as their hashes: level by level, at two thirds of the time."""
        size, nodes, digest = self._size, leaf_hashes, sha256
        self._size = size + len(leaf_hashes)
        new_roots: list[bytes] = []
        while nodes:
            # A complete subtree of this level at the end of the tree is the left neighbour of the new nodes.
            if size & 1:
                nodes = [self._subtree_roots.pop(), *nodes]
            if len(nodes) & 1:
                new_roots.append(nodes[-1])
            nodes = [
                digest(b"\x01" + left + right).digest()
                for left, right in zip(nodes[::2], nodes[1::2], strict=False)
            ]
            size >>= 1
        self._subtree_roots += reversed(new_roots)

    def compute_root(self) -> bytes:
        """Return the root of all leaves added so far."""
        if not self._subtree_roots:
            return EMPTY_ROOT
        node = self._subtree_roots[-1]
        for left in reversed(self._subtree_roots[:-1]):
            node = hash_node(left, node)
        return node


def compute_root(leaf_hashes: Iterable[bytes]) -> bytes:
    """Return the root of a tree, given the hashes of its leaves."""
    frontier = TreeFrontier()
    frontier.add_leaf_hashes(list(leaf_hashes))
    return frontier.compute_root()


def _split_size(size: int) -> int:
    """Return the largest power of two below a size of at least 2."""
    return 1 << (size - 1).bit_length() - 1


# Proofs ---------------------------------------------------------------------------------------------


def prove_inclusion(leaf_hashes: Sequence[bytes], index: int) -> list[bytes]:
    """Return the proof that a leaf is in the tree: the siblings on its way to the root, lowest first."""
    if not 0 <= index < len(leaf_hashes):
        raise ValueError(f"a tree of {len(leaf_hashes)} leaves has no leaf {index}")
    siblings: list[bytes] = []
    start, end = 0, len(leaf_hashes)
    while end - start > 1:
        middle = start + _split_size(end - start)
        if index < middle:
            siblings.append(compute_root(leaf_hashes[middle:end]))
            end = middle
        else:
            siblings.append(compute_root(leaf_hashes[start:middle]))
            start = middle
    return siblings[::-1]


def prove_consistency(leaf_hashes: Sequence[bytes], old_size: int) -> list[bytes]:
    """Return the proof that the tree of the first `old_size` leaves is a prefix of the tree of all."""
    if not 0 <= old_size <= len(leaf_hashes):
        raise ValueError(f"a tree of {len(leaf_hashes)} leaves has no prefix of {old_size}")
    if old_size in (0, len(leaf_hashes)):
        return []
    nodes: list[bytes] = []
    start, end, is_old_root = 0, len(leaf_hashes), True
    while end != old_size:
        middle = start + _split_size(end - start)
        if old_size <= middle:
            nodes.append(compute_root(leaf_hashes[middle:end]))
            end = middle
        else:
            nodes.append(compute_root(leaf_hashes[start:middle]))
            start, is_old_root = middle, False
    # A verifier knows the old root, so it is left out if it is one of the nodes.
    if not is_old_root:
        nodes.append(compute_root(leaf_hashes[start:end]))
    return nodes[::-1]


# Checks ---------------------------------------------------------------------------------------------


def is_included(leaf_hash: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether a proof shows that a leaf is at an index of the tree with this size and root."""
    if not 0 <= index < size:
        return False
    # On each level `position` is the node on the way to the root, `last` the last node.
    position, last, node = index, size - 1, leaf_hash
    for sibling in proof:
        if last == 0:
            return False
        if position & 1 or position == last:
            node = hash_node(sibling, node)
            # The last leaf of an incomplete tree has no sibling on some levels: they are skipped.
            while not position & 1 and position:
                position, last = position >> 1, last >> 1
        else:
            node = hash_node(node, sibling)
        position, last = position >> 1, last >> 1
    return last == 0 and node == root


def is_consistent(
    old_size: int, new_size: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]
) -> bool:
    """Whether a proof shows that the old tree is a prefix of the new tree."""
    if not 0 <= old_size <= new_size:
        return False
    if old_size == new_size:
        return not proof and old_root == new_root
    if old_size == 0:
        return not proof and old_root == EMPTY_ROOT
    nodes = list(proof)
    # A tree with a power of two of leaves is itself a node of the new tree, so the proof leaves it out.
    if old_size.bit_count() == 1:
        nodes.insert(0, old_root)
    if not nodes:
        return False
    position, last = old_size - 1, new_size - 1
    # The largest complete subtree at the end of the old tree is the first node of the proof.
    while position & 1:
        position, last = position >> 1, last >> 1
    old_node = new_node = nodes[0]
    for node in nodes[1:]:
        if last == 0:
            return False
        if position & 1 or position == last:
            old_node, new_node = hash_node(node, old_node), hash_node(node, new_node)
            while not position & 1 and position:
                position, last = position >> 1, last >> 1
        else:
            new_node = hash_node(new_node, node)
        position, last = position >> 1, last >> 1
    return last == 0 and old_node == old_root and new_node == new_root
