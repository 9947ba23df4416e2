"""Merkle trees over nonces, against published roots and a plain recursion."""

from __future__ import annotations

import hashlib

import pytest

from appliance.attestation import merkle

# Leaves and roots of the Certificate Transparency test vectors (google/certificate-transparency,
# merkletree/merkle_tree_test.cc): root number n is over the first n leaves.
LEAVES = [bytes.fromhex(leaf) for leaf in (
    "", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")]
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)


def _recursive_root(leaves: list[bytes]) -> bytes:
    """RFC 6962's definition, word for word."""
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + _recursive_root(leaves[:k]) + _recursive_root(leaves[k:])).digest()


@pytest.mark.parametrize("count", range(1, 9))
def test_root_equals_published_root(count: int) -> None:
    """The first n leaves of the published vectors have the published root."""
    assert ROOTS[count - 1] == merkle.HashTree(LEAVES[:count]).root.hex()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 31, 32, 33, 100])
def test_every_leaf_has_a_proof_that_holds(count: int) -> None:
    """Each leaf's proof holds against the root that RFC 6962's recursion gives, at its own index alone."""
    leaves = [bytes([index]) * 16 for index in range(count)]
    root = _recursive_root(leaves)
    tree = merkle.HashTree(leaves)
    for index, leaf in enumerate(leaves):
        path = tree.proof(index)
        assert merkle.included(leaf, index, count, path, root)
        others = [at for at in range(count) if at != index and merkle.included(leaf, at, count, path, root)]
        assert [] == others


def test_altered_proofs_do_not_hold() -> None:
    """A proof with a bit flipped, a step more or less, another size or another leaf does not hold."""
    leaves = [bytes([index]) * 16 for index in range(7)]
    tree = merkle.HashTree(leaves)
    path = list(tree.proof(5))
    flipped = [bytes([path[0][0] ^ 1]) + path[0][1:], *path[1:]]
    cases = [
        (leaves[5], 5, 7, flipped), (leaves[5], 5, 7, path[:-1]), (leaves[5], 5, 7, [*path, path[0]]),
        (leaves[5], 5, 7, [path[0][:-1], *path[1:]]), (leaves[4], 5, 7, path), (leaves[5], 7, 7, path),
        (leaves[5], -1, 7, path), (leaves[5], 5, merkle.MAX_LEAVES + 1, path), (leaves[5], 5, 70, path),
    ]
    held = [number for number, case in enumerate(cases) if merkle.included(*case, tree.root)]
    assert [] == held


def test_a_node_is_no_leaf() -> None:
    """The two children of the root, taken as one leaf, do not prove themselves in a tree of one."""
    tree = merkle.HashTree(LEAVES[:2])
    children = merkle.leaf_hash(LEAVES[0]) + merkle.leaf_hash(LEAVES[1])
    assert not merkle.included(children, 0, 1, [], tree.root)


@pytest.mark.parametrize("count", [0, merkle.MAX_LEAVES + 1])
def test_a_tree_has_a_bounded_number_of_leaves(count: int) -> None:
    """No tree is made over nothing or over too much."""
    with pytest.raises(ValueError, match="leaves"):
        merkle.HashTree([b""] * count)


def test_no_proof_of_a_leaf_that_is_not_there() -> None:
    """An index outside of the tree has no proof."""
    with pytest.raises(ValueError, match="no leaf 3"):
        merkle.HashTree(LEAVES[:3]).proof(3)
