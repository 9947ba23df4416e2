"""Tokens of RFC 3161 by `openssl ts`: accepted as openssl accepts them, and nothing that is altered."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import NoteError
from appliance.signed import timestamps
from tests.support.timestamping import Authority, run

DATA = b"appliance/audit/00\n13\nWGaU\n"
DIGEST = hashlib.sha256(DATA).digest()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tsa") / "a")


@pytest.fixture(scope="module")
def token(authority: Authority) -> bytes:
    return timestamps.token_of(authority.answer(timestamps.request(DIGEST)))


@pytest.fixture(scope="module")
def root(authority: Authority) -> str:
    """The authority's root, as it is pinned."""
    return authority.fingerprint()


def test_the_request_is_openssls(authority: Authority, tmp_path: Path) -> None:
    """Byte for byte the query that openssl makes for the data."""
    (tmp_path / "data").write_bytes(DATA)
    theirs = run("ts", "-query", "-data", tmp_path / "data", "-sha256", "-cert", "-no_nonce")
    ours = timestamps.request(DIGEST)
    assert theirs == ours
    assert authority.accepted(authority.answer(ours), DATA)


@pytest.mark.parametrize(("kind", "ess"), [("ec", "sha256"), ("rsa", "sha256"), ("rsa", "sha1"), ("ec", "sha512")])
def test_tokens_hold(kind: str, ess: str, tmp_path: Path) -> None:
    """Of both kinds of keys, and signers named by each hash; by root or by the authority below it; as openssl says."""
    authority = Authority(tmp_path / "tsa", kind, ess)
    response = authority.answer(timestamps.request(DIGEST))
    assert authority.accepted(response, DATA)
    token = timestamps.token_of(response)
    found = timestamps.verify(token, DIGEST, authority.fingerprint())
    assert (1_500_000, "Example tsa") == (found.accuracy_us, found.authority)
    assert 60 > abs((datetime.now(UTC) - found.time).total_seconds())
    again = timestamps.verify(found.token, DIGEST, authority.fingerprint())
    assert (found.time, found.token) == (again.time, again.token)
    below = timestamps.verify(token, DIGEST, authority.fingerprint("middle"))
    assert len(below.token) < len(found.token)
    (tmp_path / "token").write_bytes(found.token)  # what is kept holds for openssl, too
    (tmp_path / "data").write_bytes(DATA)
    run("ts", "-verify", "-data", tmp_path / "data", "-in", tmp_path / "token", "-token_in", "-CAfile",
        authority.folder / "root.pem")


def test_other_facts_are_refused(authority: Authority, token: bytes, tmp_path: Path) -> None:
    """Another digest, another root, a refusal."""
    with pytest.raises(NoteError, match="does not hold"):
        timestamps.verify(token, bytes(32), authority.fingerprint())
    with pytest.raises(NoteError, match="not pinned"):
        timestamps.verify(token, DIGEST, "00" * 32)
    refused = authority.answer(timestamps.request(DIGEST)[:-1])  # not DER: the authority says so
    with pytest.raises(NoteError, match="refused"):
        timestamps.token_of(refused)
    other = Authority(tmp_path / "other")
    with pytest.raises(NoteError, match="not pinned"):
        timestamps.verify(token, DIGEST, other.fingerprint())


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_altered_token_holds(root: str, token: bytes, data: st.DataObject) -> None:
    """A changed, dropped or added byte: refused, or gone in what is kept."""
    whole = timestamps.verify(token, DIGEST, root)
    place = data.draw(st.integers(0, len(token) - 1))
    altered = data.draw(st.sampled_from([
        token[:place] + bytes((token[place] ^ data.draw(st.integers(1, 255)),)) + token[place + 1:],
        token[:place] + token[place + 1:], token[:place] + b"\x00" + token[place:]]))
    if altered == token:
        return
    try:
        found = timestamps.verify(altered, DIGEST, root)
    except NoteError:
        return
    assert (whole.time, whole.token) == (found.time, found.token)
