"""Statements and report data, against vectors that a script made with nothing but SHA-2 and JSON."""

from __future__ import annotations

import base64
import copy
import hashlib
import hmac
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance import tls
from appliance.attestation import binding
from appliance.attestation.case import reading
from appliance.errors import MalformedEvidenceError
from appliance.policy.digest import host_data

FORMATS = Path(__file__).parents[2] / "docs" / "formats"
VECTORS: list[dict[str, Any]] = json.loads((FORMATS / "report-data-vectors.json").read_text())
SERVE = VECTORS[1]["statement"]
KEY = VECTORS[2]["statement"]
SECOND = json.loads((FORMATS / "key-release-2-vectors.json").read_text())
GOOD = [each for each in SECOND["vectors"] if each["expect"] == "success"]
CONNECTED = GOOD[1]["statement"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_report_data_equals_vector(vector: dict[str, Any]) -> None:
    """Each published statement has the published report data and is over the published nonces."""
    statement = reading.parse_statement(vector["statement"])
    assert vector["report_data"] == binding.report_data(statement).hex()
    nonces = [bytes.fromhex(nonce) for nonce in vector["nonces"]]
    assert vector["statement"]["nonces"] == binding.Nonces.over(nonces).model_dump()


def test_specification_shows_the_first_vector() -> None:
    """The worked example at the end of the specification is the first vector, with its host data."""
    text = (FORMATS / "report-data.md").read_text()
    shown = re.search(r"report_data  ([0-9a-f]+)\s+([0-9a-f]+)\nhost_data    ([0-9a-f]+)", text)
    assert shown is not None
    assert VECTORS[0]["report_data"] == shown[1] + shown[2]
    assert shown[3] == host_data(hashlib.sha384(b"policy").digest()).hex()


def _expanded(name: str, secret: bytes, label: bytes, context: bytes, length: int) -> bytes:
    """HKDF-Expand-Label of RFC 8446, section 7.1, by its definition; one block is enough here."""
    full = b"tls13 " + label
    info = length.to_bytes(2) + bytes([len(full)]) + full + bytes([len(context)]) + context
    return hmac.digest(secret, info + b"\1", name)[:length]


@pytest.mark.parametrize("vector", GOOD, ids=lambda vector: vector["name"])
def test_statements_of_a_connection_to_a_broker(vector: dict[str, Any]) -> None:
    """Each has the published report data, is over the published nonce, and names the exporter that RFC 8446, section
    7.5, makes of the connection's secret."""
    statement, name, nonce = vector["statement"], vector["hash"], bytes.fromhex(vector["nonce"])
    assert vector["report_data"] == binding.report_data(reading.parse_statement(statement)).hex()
    assert statement["nonces"] == binding.Nonces.over([nonce]).model_dump()
    secret, size = bytes.fromhex(vector["exporter_master_secret"]), hashlib.new(name).digest_size
    derived = _expanded(name, secret, SECOND["label"].encode(), hashlib.new(name).digest(), size)
    exporter = _expanded(name, derived, b"exporter", hashlib.new(name, nonce).digest(), 32).hex()
    assert vector["exporter"] == statement["session"] == exporter
    assert tls.RELEASE_LABEL == SECOND["label"].encode()


def test_the_specification_shows_the_first_of_them() -> None:
    """Secret, nonce, exporter and report data."""
    text = (FORMATS / "key-release.md").read_text().replace("\n                        ", "")
    shown = re.findall(r"^(exporter_master_secret|nonce|session|report_data)  +([0-9a-f]{64,128})\b", text, re.M)
    first = {**GOOD[0], "session": GOOD[0]["exporter"]}
    assert {name: first[name] for name in ("exporter_master_secret", "nonce", "session", "report_data")} == dict(shown)


@pytest.mark.parametrize("vector", [each for each in SECOND["vectors"] if each["expect"] == "malformed"],
                         ids=lambda vector: vector["name"])
def test_what_is_no_such_statement(vector: dict[str, Any]) -> None:
    """A connection that is not named whole, or is in the older statement."""
    with pytest.raises(MalformedEvidenceError):
        reading.parse_statement(vector["statement"])


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to every value inside a JSON value that is not itself a container."""
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in _leaves(inner, (*path, key))]
    if isinstance(value, list):
        return [leaf for index, inner in enumerate(value) for leaf in _leaves(inner, (*path, index))]
    return [path]


def _set(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    changed = copy.deepcopy(value)
    inner = changed
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = new
    return changed


def _delete(value: Any, path: tuple[Any, ...]) -> Any:
    changed = copy.deepcopy(value)
    inner = changed
    for step in path[:-1]:
        inner = inner[step]
    del inner[path[-1]]
    return changed


CHANGES: dict[str, Any] = {
    "size": 4, "root": "ab" * 32, "policy_sha384": "ab" * 48, "self_test_sha384": "ab" * 48,
    "tls_spki_sha256": None, "generation": 8, "name": "aa", "sha256": "ab" * 32, "sealed_header_sha256": "ab" * 32,
    "audit_key_ed25519": None, "version": "0.1.1", "code_sha384": "ab" * 48, "kernels_sha384": "ab" * 48,
    "release_spki_sha256": "ab" * 32, "broker_spki_sha256": "ab" * 32, "session": "ab" * 32}


@pytest.mark.parametrize("statement", [SERVE, KEY, CONNECTED], ids=["serve", "key-release", "key-release-2"])
def test_every_field_is_bound(statement: dict[str, Any]) -> None:
    """Changing any one field changes the report data: all are different from the original and from each other."""
    seen = [binding.report_data(reading.parse_statement(statement))]
    for path in _leaves(statement):
        if path == ("type",):
            continue
        changed = _set(statement, path, CHANGES[path[-1]])
        seen.append(binding.report_data(reading.parse_statement(changed)))
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("statement", [SERVE, KEY, CONNECTED], ids=["serve", "key-release", "key-release-2"])
def test_no_field_may_be_absent_or_of_another_type(statement: dict[str, Any]) -> None:
    """Leaving out any key, at any depth, or giving it a wrong value is refused; so is a key too many."""
    accepted = []
    candidates = [_delete(statement, path) for path in _leaves(statement) if isinstance(path[-1], str)]
    for path in _leaves(statement):
        candidates += [_set(statement, path, wrong) for wrong in (True, 1.5, [], {}, "", "AB" * 48, -1, "x\n")]
    candidates += [{**statement, "more": None}, {**statement, "nonces": {**statement["nonces"], "more": 1}}]
    for candidate in candidates:
        try:
            reading.parse_statement(candidate)
        except MalformedEvidenceError:
            continue
        accepted.append(candidate)
    assert [] == [candidate for candidate in accepted if candidate != statement]


@pytest.mark.parametrize("value", [None, [], "serve", 3, {}, {"type": "appliance/serve/v2"}, {"type": []}])
def test_unknown_statements_are_refused(value: Any) -> None:
    """What is not a statement of a known type is refused by name."""
    with pytest.raises(MalformedEvidenceError, match="type is missing or unknown"):
        reading.parse_statement(value)


@pytest.mark.parametrize("names", [["b", "a"], ["a", "a"]])
def test_models_stand_in_one_order(names: list[str]) -> None:
    """A set of models has one form: ascending, each once."""
    models = [{"name": name, "sha256": "ab" * 32, "sealed_header_sha256": None} for name in names]
    with pytest.raises(MalformedEvidenceError, match="ascending order"):
        reading.parse_statement({**SERVE, "models": models})


def test_types_separate_domains() -> None:
    """The report data begins with the type: the same canonical bytes under another type give another digest."""
    statement = reading.parse_statement(KEY)
    canonical = json.dumps(KEY, sort_keys=True, separators=(",", ":")).encode()
    assert canonical == binding.statement_bytes(statement)
    assert hashlib.sha512(b"appliance/key-release/v1\n" + canonical).digest() == binding.report_data(statement)
    assert hashlib.sha512(b"appliance/serve/v1\n" + canonical).digest() != binding.report_data(statement)


@given(st.binary(min_size=16, max_size=64))
def test_nonce_texts_round_trip(nonce: bytes) -> None:
    """Hex in either case and base64url both read back as the nonce."""
    text = base64.urlsafe_b64encode(nonce).rstrip(b"=").decode()
    assert nonce == binding.parse_nonce(nonce.hex())
    assert nonce == binding.parse_nonce(nonce.hex().upper())
    if not re.fullmatch(r"[0-9a-f]+|[0-9A-F]+", text):
        assert nonce == binding.parse_nonce(text)


@pytest.mark.parametrize(("text", "code"), [
    ("", "nonce-encoding"),
    ("aa" * 12, "nonce-length"),                         # hex, though it would read as 18 bytes of base64url
    ("z" * 20, "nonce-length"),                          # 15 bytes of base64url
    ("00" * 65, "nonce-encoding"),                       # longer than any nonce
    ("!" * 32, "nonce-encoding"),
    ("é" * 32, "nonce-encoding"),
    ("z" * 22, "nonce-encoding"),                        # base64url with unused bits set
    ("z" * 21 + "w==", "nonce-encoding"),                # padded
    (" " + "00" * 16, "nonce-encoding"),
    ("00" * 16 + "\n", "nonce-encoding"),
    ("z" * 25, "nonce-encoding"),                        # no base64url text has this length
])
def test_other_nonce_texts_are_refused(text: str, code: str) -> None:
    """Text in no encoding, malleable text and nonces of a wrong length are told apart and refused."""
    with pytest.raises(MalformedEvidenceError) as caught:
        binding.parse_nonce(text)
    assert code == caught.value.code


def test_hex_wins_over_base64url() -> None:
    """32 hex digits are 16 bytes, though they would read as 24 bytes of base64url too."""
    assert bytes(16) == binding.parse_nonce("0" * 32)
