"""Merkle trees of growing logs: the tree's shape, its proofs, and that every other proof is refused."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.transparency import proofs, tree
from appliance.transparency.tree import EMPTY_ROOT, LeafRange, consistency, leaf_hash, node_hash

# Certificate Transparency's reference tree: https://github.com/google/certificate-transparency, merkletree tests
LEAVES = [bytes.fromhex(text) for text in (
    "", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")]
ROOTS = {
    0: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"}
HASHES = [leaf_hash(bytes([number])) for number in range(130)]


def _plain_root(leaves: list[bytes]) -> bytes:
    """RFC 6962, section 2.1, as it is written there."""
    if not leaves:
        return EMPTY_ROOT
    if len(leaves) == 1:
        return leaves[0]
    middle = 1
    while 2 * middle < len(leaves):
        middle *= 2
    return node_hash(_plain_root(leaves[:middle]), _plain_root(leaves[middle:]))


def test_known_roots() -> None:
    """The roots that Certificate Transparency's own tests have."""
    for size, root in ROOTS.items():
        assert bytes.fromhex(root) == proofs.root([leaf_hash(leaf) for leaf in LEAVES[:size]])


def test_a_growing_range_has_the_root_of_each_size() -> None:
    """And the path of the next leaf, before that is added."""
    tree = LeafRange()
    for size in range(len(HASHES)):
        assert _plain_root(HASHES[:size]) == tree.root
        path = tree.path
        tree.append(HASHES[size])
        assert proofs.path(HASHES[:size + 1], size) == path
        assert len(tree.nodes) <= 8


@settings(deadline=None, max_examples=300)
@given(size=st.integers(1, 130), data=st.data())
def test_proofs_hold_and_altered_ones_do_not(size: int, data: st.DataObject) -> None:
    """Inclusion and consistency, for any place and size; with one bit turned over, or a hash left out, neither."""
    index, old = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size))
    leaves, root = HASHES[:size], _plain_root(HASHES[:size])
    path, growth = list(proofs.path(leaves, index)), list(proofs.grown(leaves, old))
    assert tree.included(leaves[index], index, size, path, root)
    assert proofs.follows(old, _plain_root(leaves[:old]), size, root, growth)
    for proof, holds in ((path, lambda: tree.included(leaves[index], index, size, path, root)),
                         (growth, lambda: proofs.follows(old, _plain_root(leaves[:old]), size, root, growth))):
        if proof:
            place = data.draw(st.integers(0, len(proof) - 1))
            kept = proof[place]
            proof[place] = bytes([kept[0] ^ 1]) + kept[1:]
            assert not holds()
            proof[place] = kept
            last = proof.pop()
            assert not holds()
            proof.append(last)
    assert not tree.included(leaves[index], index, size, [*path, bytes(32)], root)
    assert not proofs.follows(old, bytes(32), size, root, growth)


@settings(deadline=None, max_examples=200)
@given(old=st.integers(0, 60), new=st.integers(0, 60))
def test_growth_needs_no_leaves(old: int, new: int) -> None:
    """Two ranges prove what all leaves prove."""
    before, since = proofs.over(HASHES, 0, old), proofs.over(HASHES, old, old + new)
    assert proofs.grown(HASHES[:old + new], old) == consistency(before, since)
