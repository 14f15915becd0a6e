"""The Merkle tree: the published vectors, a second implementation, and forged proofs."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemore.governance.merkle import (
    EMPTY_ROOT,
    TreeFrontier,
    compute_root,
    hash_leaf,
    is_consistent,
    is_included,
    prove_consistency,
    prove_inclusion,
)

#: The leaves of the test vectors of Certificate Transparency (RFC 6962), and the roots of their prefixes.
LEAVES = [
    bytes.fromhex(text)
    for text in (
        *("", "00", "10", "2021", "3031", "40414243"),
        *("5051525354555657", "606162636465666768696a6b6c6d6e6f"),
    )
]
ROOTS = {
    0: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    4: "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    5: "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    6: "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    7: "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
}
#: Proofs of the same vectors: index, size, hashes.
INCLUSION = [
    (0, 1, []),
    (
        *(0, 8),
        [
            "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
        ],
    ),
    (
        *(5, 8),
        [
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ],
    ),
    (2, 3, ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"]),
]
#: Old size, new size, hashes.
CONSISTENCY = [
    (1, 1, []),
    (
        *(1, 8),
        [
            "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
        ],
    ),
    (
        *(6, 8),
        [
            "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ],
    ),
]
HASHES = [hash_leaf(leaf) for leaf in LEAVES]


def compute_root_naively(hashes: list[bytes]) -> bytes:
    """Return the root straight from the definition in RFC 6962, section 2.1."""
    if not hashes:
        return sha256(b"").digest()
    if len(hashes) == 1:
        return hashes[0]
    split = 1
    while split * 2 < len(hashes):
        split *= 2
    left, right = compute_root_naively(hashes[:split]), compute_root_naively(hashes[split:])
    return sha256(b"\x01" + left + right).digest()


def make_hashes(count: int) -> list[bytes]:
    return [hash_leaf(str(number).encode()) for number in range(count)]


def test_the_roots_are_those_of_the_published_vectors() -> None:
    assert {size: compute_root(HASHES[:size]).hex() for size in ROOTS} == ROOTS
    assert EMPTY_ROOT.hex() == ROOTS[0]


def test_the_proofs_are_those_of_the_published_vectors() -> None:
    for index, size, hashes in INCLUSION:
        proof = prove_inclusion(HASHES[:size], index)
        assert [node.hex() for node in proof] == hashes
        assert is_included(HASHES[index], index, size, proof, bytes.fromhex(ROOTS[size]))
    for old, new, hashes in CONSISTENCY:
        proof = prove_consistency(HASHES[:new], old)
        assert [node.hex() for node in proof] == hashes
        assert is_consistent(old, new, bytes.fromhex(ROOTS[old]), bytes.fromhex(ROOTS[new]), proof)


def test_every_proof_of_every_size_verifies_and_no_altered_one_does() -> None:
    all_hashes = make_hashes(40)
    for size in range(41):
        hashes = all_hashes[:size]
        root = compute_root(hashes)
        assert root == compute_root_naively(hashes)
        for index in range(size):
            proof = prove_inclusion(hashes, index)
            assert is_included(hashes[index], index, size, proof, root)
            assert not is_included(hashes[index], (index + 1) % size, size, proof, root) or size == 1
            assert not is_included(hashes[index], index, size, [*proof, root], root)
            assert not proof or not is_included(hashes[index], index, size, proof[:-1], root)
            assert not is_included(hash_leaf(b"forged"), index, size, proof, root)
        for old in range(size + 1):
            proof, old_root = prove_consistency(hashes, old), compute_root(hashes[:old])
            assert is_consistent(old, size, old_root, root, proof)
            assert not is_consistent(old, size, hash_leaf(b"forged"), root, proof)
            assert not is_consistent(old, size, old_root, hash_leaf(b"forged"), proof) or old == 0
            assert not is_consistent(old, size, old_root, root, [*proof, root])


@given(st.lists(st.integers(0, 60), max_size=8))
def test_a_tree_grows_to_the_same_roots_in_steps_of_any_size(steps: list[int]) -> None:
    hashes = make_hashes(sum(steps))
    tree, one_by_one, start = TreeFrontier(), TreeFrontier(), 0
    for step in steps:
        tree.add_leaf_hashes(hashes[start : start + step])
        for leaf_hash in hashes[start : start + step]:
            one_by_one.add_leaf_hash(leaf_hash)
        start += step
        # As a checkpoint does: the tree is stored and restored between two steps.
        tree = TreeFrontier(tree.size, tree.subtree_roots)
        assert tree.subtree_roots == one_by_one.subtree_roots
        assert tree.compute_root() == one_by_one.compute_root() == compute_root_naively(hashes[:start])


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="3 leaves has 2 complete subtrees, not 1"):
        TreeFrontier(3, [EMPTY_ROOT])
    with pytest.raises(ValueError, match="has no leaf 8"):
        prove_inclusion(HASHES, 8)
    with pytest.raises(ValueError, match="has no prefix of 9"):
        prove_consistency(HASHES, 9)
    assert not is_included(HASHES[0], -1, 8, [], EMPTY_ROOT)
    assert not is_included(HASHES[0], 8, 8, [], EMPTY_ROOT)
    assert not is_consistent(9, 8, EMPTY_ROOT, EMPTY_ROOT, [])
    assert not is_consistent(3, 8, EMPTY_ROOT, EMPTY_ROOT, [])
