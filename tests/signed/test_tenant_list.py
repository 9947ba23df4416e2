"""The signed list of tenants: only the authority's word, for this deployment, no older than the policy accepts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from appliance.cli.main import main
from appliance.errors import PolicyError
from appliance.policy import Policy, load
from appliance.signed import desk
from appliance.signed import tenants as tenantlist
from tests.support import hardware_server, server
from tests.support.policies import BASE

AUTHORITY = Ed25519PrivateKey.generate()
HASHES = [server.sha256(str(number)) for number in range(4)]


def _tenant(name: str = "acme", **changes: Any) -> dict[str, Any]:
    return {"name": name, "role": "user", "models": ["tiny"], "api_key_sha256": [HASHES[0]], **changes}


def _list(**changes: Any) -> dict[str, Any]:
    return {"appliance": "hardware", "version": 7, "tenants": [_tenant()], **changes}


@pytest.fixture
def policy(tmp_path: Path, tiny_model: Path) -> Policy:
    """A policy whose authority is ours."""
    path = hardware_server.write(tmp_path, "sev-snp", tiny_model)
    text = path.read_text()
    start = text.index("ed25519:")
    path.write_text(text[:start] + f"ed25519:{AUTHORITY.public_key().public_bytes_raw().hex()}" + text[start + 72:])
    return load(path).policy


def test_a_signed_list_is_accepted(policy: Policy, tmp_path: Path) -> None:
    """Tenants and version come out; the signature is Ed25519 over domain and canonical list, as specified."""
    data = desk.sign_tenants(_list(), AUTHORITY)
    found = tenantlist.parse(data, policy)
    assert (7, ["acme"], (HASHES[0],)) == (
        found.version, [tenant.name for tenant in found.tenants], found.tenants[0].api_key_sha256)
    value = json.loads(data)
    canonical = json.dumps(value["list"], sort_keys=True, separators=(",", ":")).encode()
    raw = AUTHORITY.public_key().public_bytes_raw()
    Ed25519PublicKey.from_public_bytes(raw).verify(
        bytes.fromhex(value["signature"].removeprefix("ed25519:")), b"appliance/tenant-list/v1\n" + canonical)
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/tenants.json").write_bytes(data)
    assert found == tenantlist.tenants_of(policy, [tmp_path / "none", tmp_path / "disk"])


def test_every_flipped_byte_is_refused_or_says_the_same(policy: Policy) -> None:
    """No byte of the file can change what it says."""
    data = desk.sign_tenants(_list(), AUTHORITY)
    expected, accepted = tenantlist.parse(data, policy), 0
    for at in range(len(data)):
        try:
            found = tenantlist.parse(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1:], policy)
        except PolicyError:
            continue
        assert expected == found
        accepted += 1
    assert accepted <= 1  # the line feed at the end, as another white space


WRONG = [
    (_list(version=2), "tenants-version"), (_list(appliance="other"), "tenants-other"),
    (_list(tenants=[_tenant(models=["gone"])]), "tenants-other"),
]
MALFORMED = [
    _list(version=-1), _list(version="7"), _list(version=True), _list(appliance=7), _list(tenants={}), _list(more=1),
    _list(tenants=[_tenant(role="root")]), _list(tenants=[_tenant(name="")]), _list(tenants=["acme"]),
    _list(tenants=[{"name": "acme"}]), _list(tenants=[_tenant(api_key_sha256=["xyz"])]),
    _list(tenants=[_tenant("b"), _tenant("a", api_key_sha256=[HASHES[1]])]), _list(tenants=[_tenant(), _tenant()]),
    _list(tenants=[_tenant("a"), _tenant("b")]), _list(tenants=[_tenant()] * 4097),
]


@pytest.mark.parametrize(("listed", "code"), WRONG)
def test_what_is_signed_and_does_not_fit(listed: Any, code: str, policy: Policy, tmp_path: Path,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    """Rolled back, for another deployment, or about a model that is not there: for the boot and for the command."""
    (tmp_path / "tenants.json").write_bytes(desk.sign_tenants(listed, AUTHORITY))
    with pytest.raises(PolicyError) as caught:
        tenantlist.tenants_of(policy, [tmp_path])
    named = f"{tmp_path / 'tenants.json'}: tenant list: "
    assert (code, True) == (caught.value.code, caught.value.summary.startswith(named))
    assert 2 == main(["tenants", str(tmp_path / "tenants.json"), "--policy", str(tmp_path / "policy.hcl")])
    assert f"error[{code}]: {named}" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", json.dumps(_list(version=-1))])
def test_the_list_that_is_not_signed_is_named(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever signs several sees which one it was."""
    path, key = tmp_path / "list.json", tmp_path / "key.pem"
    path.write_text(text)
    key.write_bytes(AUTHORITY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    assert 2 == main(["tenants", str(path), "--key", str(key)])
    assert f"error[tenants-malformed]: {path}: tenant list: " in capsys.readouterr().err


@pytest.mark.parametrize("listed", MALFORMED)
def test_what_is_not_in_form_is_not_signed(listed: Any, policy: Policy) -> None:
    """The signer refuses it, and so does the reader, had somebody signed it all the same."""
    with pytest.raises(PolicyError) as caught:
        desk.sign_tenants(listed, AUTHORITY)
    assert "tenants-malformed" == caught.value.code
    signature = AUTHORITY.sign(tenantlist.message(listed)).hex()
    with pytest.raises(PolicyError):
        tenantlist.parse(json.dumps({"format": tenantlist.VERSIONS[0].name, "list": listed,
                                     "signature": f"ed25519:{signature}"}).encode(), policy)


def test_half_a_character_is_not_signed(policy: Policy) -> None:
    """It has no canonical form."""
    with pytest.raises(PolicyError) as caught:
        desk.sign_tenants(_list(appliance="\ud800"), AUTHORITY)
    assert "tenants-malformed" == caught.value.code


def test_a_policy_without_an_authority_accepts_no_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its tenants stand in it."""
    (tmp_path / "policy.hcl").write_text(BASE)
    (tmp_path / "tenants.json").write_bytes(desk.sign_tenants(_list(appliance="demo"), AUTHORITY))
    assert 2 == main(["tenants", str(tmp_path / "tenants.json"), "--policy", str(tmp_path / "policy.hcl")])
    said = f"error[tenants-signature]: {tmp_path / 'tenants.json'}: tenant list: the policy pins no authority"
    assert said in capsys.readouterr().err


def test_a_name_that_no_folder_can_have_is_nowhere(policy: Policy, tmp_path: Path) -> None:
    """Also where another reader of policies let it through: it ends in our error."""
    long = policy.tenants.model_copy(update={"list_file": "\U0001f999" * 255})
    with pytest.raises(PolicyError, match="is in none of"):
        tenantlist.tenants_of(policy.model_copy(update={"tenants": long}), [tmp_path])


@pytest.mark.parametrize("data", [
    b"", b"{}", b"[]", b"[" * 100_000, b'{"format":1,"list":{},"signature":""}', b"\xff", bytes((4 << 20) + 1),
    b'{"format":"appliance/tenants/v2","list":{},"signature":""}',
    b'{"format":"appliance/tenants/v1","format":"appliance/tenants/v1","list":{},"signature":""}',
    b'{"format":"appliance/tenants/v1","list":{"version":1.5},"signature":"ed25519:00"}',
])
def test_other_bytes_are_refused(data: bytes, policy: Policy) -> None:
    """Whatever it is, it ends in our error."""
    with pytest.raises(PolicyError):
        tenantlist.parse(data, policy)


def test_another_authority_is_refused(policy: Policy) -> None:
    """Only the pinned key's signature counts."""
    with pytest.raises(PolicyError) as caught:
        tenantlist.parse(desk.sign_tenants(_list(), Ed25519PrivateKey.generate()), policy)
    assert "tenants-signature" == caught.value.code


def test_a_list_that_is_nowhere_is_told(policy: Policy, tmp_path: Path) -> None:
    """The folders that were looked in are named."""
    with pytest.raises(PolicyError, match="is in none of") as caught:
        tenantlist.tenants_of(policy, [tmp_path / "empty"])
    assert "tenants-absent" == caught.value.code


def test_signing_and_checking_by_command(policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`appliance tenants` signs with a key in PEM, checks against the policy, and refuses another's signature."""
    pem = serialization.Encoding.PEM
    for name, key in (("ours.pem", AUTHORITY), ("other.pem", Ed25519PrivateKey.generate())):
        (tmp_path / name).write_bytes(key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    source, signed = tmp_path / "list.json", tmp_path / "signed.json"
    source.write_text(json.dumps(_list(), indent=2))
    assert 0 == main(["tenants", str(source), "--key", str(tmp_path / "ours.pem"), "-o", str(signed)])
    assert 0 == main(["tenants", str(signed), "--policy", str(tmp_path / "policy.hcl")])
    assert "version 7, 1 tenant" in capsys.readouterr().out
    assert 0 == main(["tenants", str(source), "--key", str(tmp_path / "ours.pem"), "-o", str(signed), "--json"])
    assert {"file": str(signed), "version": 7, "tenants": 1} == json.loads(capsys.readouterr().out)
    assert 0 == main(["tenants", str(signed), "--policy", str(tmp_path / "policy.hcl"), "--json"])
    assert {"version": 7, "tenants": 1} == json.loads(capsys.readouterr().out)
    assert 0 == main(["tenants", str(source), "--key", str(tmp_path / "other.pem")])
    signed.write_text(capsys.readouterr().out)
    assert 2 == main(["tenants", str(signed), "--policy", str(tmp_path / "policy.hcl")])
    assert "tenants-signature" in capsys.readouterr().err
    assert 2 == main(["tenants", str(signed), "--policy", str(tmp_path / "policy.hcl"), "-o", str(source)])
    assert "output-unused" in capsys.readouterr().err


def test_version_2_has_limits_of_each_tenant(policy: Policy) -> None:
    """A tenant with a weight or limits makes it version 2, whose other tenants have the defaults; neither version's
    signature is one of the other's, and neither form is."""
    data = desk.sign_tenants(_list(tenants=[
        _tenant(weight=3, concurrent_requests=2), _tenant("other", api_key_sha256=[HASHES[1]])]), AUTHORITY)
    found = tenantlist.parse(data, policy).tenants
    assert [(3, 2, None), (1, None, None)] == [
        (each.weight, each.concurrent_requests, each.context_length) for each in found]
    value = json.loads(data)
    assert "appliance/tenants/v2" == value["format"]
    plain = json.loads(desk.sign_tenants(_list(), AUTHORITY))
    assert "appliance/tenants/v1" == plain["format"]
    for each, code in ((value | {"format": plain["format"]}, "tenants-signature"),
                       (plain | {"format": value["format"]}, "tenants-signature"),
                       (value | {"format": "appliance/tenants/v4"}, "tenants-malformed")):
        with pytest.raises(PolicyError) as caught:
            tenantlist.parse(json.dumps(each).encode(), policy)
        assert code == caught.value.code
    for wrong in ({"weight": 0}, {"weight": 101}, {"weight": None}, {"concurrent_requests": 0}, {"context_length": 1},
                  {"weight": 1, "more": 1}):
        with pytest.raises(PolicyError) as caught:
            desk.sign_tenants(_list(tenants=[_tenant(**wrong)]), AUTHORITY)
        assert "tenants-malformed" == caught.value.code


TIERS = [{"name": "gold", "weight": 5, "tokens_per_day": 9000}, {"name": "small", "requests_per_minute": 6}]
END = {HASHES[0]: "2031-02-03T04:05:06Z"}


def test_version_3_has_quotas_tiers_and_ends_of_keys(policy: Policy) -> None:
    """A tenant has its tier's limits where it has none itself; a key has an end; versions differ in what they sign."""
    data = desk.sign_tenants(_list(tiers=TIERS, tenants=[
        _tenant(tier="gold", tokens_per_day=7000, answer_price=3, expires=END),
        _tenant("other", api_key_sha256=[HASHES[1]], tier="small"),
        _tenant("third", api_key_sha256=[HASHES[2]], role="metrics", models=[])]), AUTHORITY)
    found, value = tenantlist.parse(data, policy), json.loads(data)
    assert "appliance/tenants/v3" == value["format"]
    assert [(5, 7000, None, 3), (1, None, 6, 1), (1, None, None, 1)] == [
        (each.weight, each.tokens_per_day, each.requests_per_minute, each.answer_price) for each in found.tenants]
    assert {HASHES[0]: 1927857906} == found.ends
    assert "metrics" == found.tenants[2].role
    other = value | {"format": "appliance/tenants/v2"}
    with pytest.raises(PolicyError) as caught:
        tenantlist.parse(json.dumps(other).encode(), policy)
    assert "tenants-signature" == caught.value.code


@pytest.mark.parametrize("listed", [
    _list(tenants=[_tenant(tier="gold")]), _list(tiers=TIERS[::-1]), _list(tiers=[TIERS[0], TIERS[0]]),
    _list(tiers=[{"name": "gold", "weight": 0}]), _list(tiers=[{"name": "gold", "models": ["tiny"]}]),
    _list(tiers=[{"weight": 3}]), _list(tiers=[{"name": str(n).zfill(3)} for n in range(65)]),
    _list(tiers=TIERS, tenants=[_tenant(tier=7)]), _list(tiers=TIERS, tenants=[_tenant(tier=["gold"])]),
    _list(tenants=[_tenant(tokens_per_day=0)]), _list(tenants=[_tenant(answer_price=1001)]),
    _list(tenants=[_tenant(expires={HASHES[1]: "2031-02-03T04:05:06Z"})]),
    _list(tenants=[_tenant(expires={HASHES[0]: "2031-02-30T04:05:06Z"})]),
    _list(tenants=[_tenant(expires={HASHES[0]: 7})]), _list(tenants=[_tenant(expires=[])]),
])
def test_version_3_in_other_form_is_not_signed(listed: Any, policy: Policy) -> None:
    """Neither signed nor read: a tier that is not there, limits out of bounds, times that are none."""
    with pytest.raises(PolicyError) as caught:
        desk.sign_tenants(listed, AUTHORITY)
    assert "tenants-malformed" == caught.value.code
    filled = desk._form(listed)[1]
    signature = AUTHORITY.sign(tenantlist.message(filled, tenantlist.VERSIONS[2])).hex()
    with pytest.raises(PolicyError) as caught:
        tenantlist.parse(json.dumps({"format": "appliance/tenants/v3", "list": filled,
                                     "signature": f"ed25519:{signature}"}).encode(), policy)
    assert "tenants-malformed" == caught.value.code


def test_older_versions_have_no_role_for_metrics(policy: Policy) -> None:
    """Whoever reads them would not know what it may do."""
    listed = _list(tenants=[_tenant(role="metrics")])
    signature = AUTHORITY.sign(tenantlist.message(listed)).hex()
    with pytest.raises(PolicyError, match="role: allowed in this version: user, auditor, admin"):
        tenantlist.parse(json.dumps({"format": "appliance/tenants/v1", "list": listed,
                                     "signature": f"ed25519:{signature}"}).encode(), policy)


@pytest.mark.parametrize(("number", "name"), [(0, "models"), (1, "models"), (2, "models"), (2, "role"), (2, "name")])
def test_null_stands_for_nothing_but_absent_limits(number: int, name: str) -> None:
    """Members that every version has are not null in any."""
    form = tenantlist.VERSIONS[number]
    row = {"name": "x", "role": "user", "models": [], "api_key_sha256": ["ab" * 32], **form.more}
    tiers = {"tiers": []} if form.tiers else {}
    assert 1 == len(tenantlist.check({"appliance": "a", "version": 1, "tenants": [row], **tiers}, form).tenants)
    with pytest.raises(PolicyError, match=name):
        tenantlist.check({"appliance": "a", "version": 1, "tenants": [{**row, name: None}], **tiers}, form)
