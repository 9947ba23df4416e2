"""What `appliance plan` predicts is what then happens: with pinned clients, a broker, lists, approvals and images."""

from __future__ import annotations

import functools
import json
import random
import shlex
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.attestation.case.measurements import Measurements
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.cli.main import main
from appliance.client import Reference
from appliance.client.judge import Question, judge
from appliance.client.reference import KnownImage
from appliance.client.rollout import plan
from appliance.client.rollout.images import OTHER_IMAGE
from appliance.client.rollout.plan import Materials
from appliance.client.rollout.refusals import OTHER_KEY
from appliance.errors import ApplianceError, PolicyError
from appliance.keys import document as keydocument
from appliance.keys.providers import Secret
from appliance.policy import Loaded, load, policy_digest
from appliance.policy.digest import host_data
from appliance.policy.hcl.diagnostics import SourceText
from appliance.policy.loading import Positions, loaded
from appliance.policy.schema import Policy
from appliance.policy.schema.kinds import Kind, Version
from appliance.signed import approvals, desk, tenants
from appliance.state.disk import StateDisk
from examples.broker import __main__ as broker_command
from tests.project.test_key_broker import Deployment, Snp, _RefusedError
from tests.state.test_state_disk import _used
from tests.support import fake_appliance as fake
from tests.support.fake_amd import NOW, FakeAmd
from tests.support.fake_intel import FakeIntel
from tests.support.policies import every_field, leaves, two_values
from tests.support.server import KEY, sha256

INTEL = FakeIntel()
AMD = FakeAmd("Genoa", tcb={"snp": 27})
ROOT = Path(__file__).parents[2]
LEAVES = [(place, kind) for place, kind in leaves() if not isinstance(kind, Version) and place != "tenants.commitment"]


def _loaded(policy: Policy, name: str = "policy.hcl") -> Loaded:
    return loaded(policy, Positions(SourceText("", name), {}), bytes(48), Path(name))


def _evidence(policy: Loaded, launch: bytes = fake.LAUNCH) -> bytes:
    """A machine's evidence under a policy, in JSON."""
    source = fake.SnpSource(AMD, host_data(policy.digest), {"measurement": launch})
    models = {each.name: each.sha256 for each in policy.policy.models if each.load != "demand"}
    return fake.attestor(source, policy, models=models).attest(bytes(32)).to_json()


def _quote(policy: Loaded, **fields: Any) -> bytes:
    """A TDX machine's."""
    models = {each.name: each.sha256 for each in policy.policy.models}
    source = fake.TdxSource(INTEL, policy.digest, fields)
    return fake.attestor(source, policy, models=models).attest(bytes(32)).to_json()


def _failed(client: Loaded, evidence: bytes, known: Measurements | None = None) -> set[str]:
    """The rules that fail for a client which is pinned to a policy and an image."""
    reference = Reference(client, KnownImage(known or fake.measured(), b"\1" * 32), roots=Roots(amd=AMD.roots),
                          collateral=Collateral(crls=[AMD.crl()]))
    verdict = judge(evidence, reference, Question("machine", NOW, bytes(32)))
    return {each.rule for each in verdict.findings if each.outcome == "fails"}


def _pinned(made: plan.RolloutPlan) -> set[str]:
    """The rules on which the plan says that a client with OLD refuses a machine under NEW."""
    return {rule for each in made.refusals if each.who.startswith("clients ") and each.who.endswith(
        ("with OLD", "OLD's measurements")) for rule in each.rules}


@pytest.mark.parametrize(("place", "kind"), LEAVES, ids=lambda each: each if isinstance(each, str) else "")
def test_a_pinned_client_refuses_each_field_as_predicted(place: str, kind: Kind) -> None:
    """By the judge's own verdict on genuine evidence. What the client asks of hardware beside that is alike before and
    after, so that these rules are all that is new."""
    old, new = (_loaded(every_field(override=(place, kind.parse(value)))) for value in two_values(kind))
    made = plan.make(Materials(old, new))
    own, other = _failed(old, _evidence(old)), _failed(old, _evidence(new))
    assert not {"policy", "launch-policy"} & own
    assert other - own == _pinned(made)
    assert made.risk != "none"


def test_a_pinned_client_stays_where_nothing_changes(tmp_path: Path) -> None:
    """Comments and defaults: no refusal, exit code 0."""
    path = fake.write_policy(tmp_path, "sev-snp")
    other = tmp_path / "other.hcl"
    other.write_text("# a comment\n" + path.read_text())
    made = plan.make(Materials(load(path), load(other)))
    assert ("none", ()) == (made.risk, made.refusals)
    assert set() == _failed(load(path), _evidence(load(other)))
    assert 0 == main(["plan", str(path), str(other)])


EDITS = ["", 'privacy { token_count_rounding = 8 }', 'limits { prompt_tokens = 1024 }',
         'limits { generation_tokens = 99 }', 'audit { receipts = true }', "# a comment",
         'limits { prompt_tokens = 2048 }', 'privacy { size_padding = "1KiB" }', "audit { }",
         'limits { request_size = "64KiB" }']
IMAGES = [(fake.LAUNCH,), (b"\x12" * 48,), (fake.LAUNCH, b"\x12" * 48), (b"\x13" * 48, b"\x14" * 48)]


@pytest.mark.slow
def test_no_will_pass_is_wrong_in_a_fleet_of_a_thousand(tmp_path: Path) -> None:
    """Machines and clients that hold any of ten policies and four images: where the plan names no refusal, the client's
    verdict has none; and where it names some, the verdict has them."""
    policies = [load(fake.write_policy(tmp_path, "sev-snp", more=each, name=f"{number}.hcl"))
                for number, each in enumerate(EDITS)]
    known = [fake.measured(launch=each) for each in IMAGES]
    draw, passes = random.Random(7), 0

    @functools.cache
    def evidence(policy: int, launch: bytes) -> bytes:
        return _evidence(policies[policy], launch)

    @functools.cache
    def predicted(client: int, image: int, policy: int, machine: int) -> set[str]:
        return _pinned(plan.make(Materials(policies[client], policies[policy], measured=(
            known[image], known[machine]))))

    @functools.cache
    def failed(client: int, image: int, policy: int, launch: bytes) -> set[str]:
        return _failed(policies[client], evidence(policy, launch), known[image])

    for _ in range(1000):
        client, policy = draw.randrange(10), draw.choice((draw.randrange(10), 0, 5, 6, 8))
        image, machine = draw.randrange(4), draw.randrange(4)
        launch = draw.choice(IMAGES[machine])
        said, happened = predicted(client, image, policy, machine), failed(client, image, policy, launch)
        if not said:
            assert set() == happened
            passes += 1
        assert happened <= said
        assert said - happened <= {"measurement"}  # a shape of the new image that the old one has as well
    assert passes >= 30


def test_an_image_with_another_policy_in_it_breaks(tmp_path: Path) -> None:
    """By the judge's rule on measurements; the right one does not."""
    old = load(fake.write_policy(tmp_path, "sev-snp"))
    new = load(fake.write_policy(tmp_path, "sev-snp", more="audit { receipts = true }", name="new.hcl"))
    for inside, rules in ((old, {"measured-policy"}), (new, set[str]())):
        known = fake.measured(policy=inside.digest.hex())
        made = plan.make(Materials(old, new, measured=(fake.measured(policy=old.digest.hex()), known)))
        assert rules == _failed(new, _evidence(new), known)
        assert rules == {rule for each in made.refusals if each.of == OTHER_IMAGE for rule in each.rules}
        assert ("breaks" == made.risk) == bool(rules)


def test_shapes_of_one_image_that_come_and_go(tmp_path: Path) -> None:
    """Further shapes break nothing that runs; machines of a shape that is gone are refused by new clients."""
    policy = load(fake.write_policy(tmp_path, "sev-snp", evidence=""))
    few, more = fake.measured(), fake.measured(launch=(fake.LAUNCH, b"\x21" * 48))
    for measured, who, breaks in (((few, more), "OLD", False), ((more, few), "NEW", True)):
        made = plan.make(Materials(policy, policy, measured=measured))
        assert [(f"clients and brokers with {who}'s measurements", ("measurement",), breaks)] == [
            (each.who, each.rules, each.breaks) for each in made.refusals]


IMAGE_CHANGES: dict[str, dict[str, Any]] = {
    "firmware": {"mrtd": b"\x77" * 48}, "kernel": {"rtmrs": (None, b"\x78" * 48, fake.RTMRS[2], None)},
    "initrd": {"rtmrs": (None, fake.RTMRS[1], b"\x79" * 48, None)}, "nothing": {},
    "both": {"mrtd": b"\x77" * 48, "rtmrs": (None, b"\x78" * 48, b"\x79" * 48, None)},
}


@pytest.mark.parametrize("name", IMAGE_CHANGES)
def test_each_change_of_an_image_is_refused_as_predicted(name: str, tmp_path: Path) -> None:
    """On TDX, register by register, by a client with the old measurements."""
    change = IMAGE_CHANGES[name]
    policy = load(fake.write_policy(tmp_path, "tdx", evidence=""))
    made = plan.make(Materials(policy, policy, measured=(fake.measured(), fake.measured(**change))))
    rtmrs = {f"rtmr{number}": value for number, value in enumerate(change.get("rtmrs", ())) if value is not None}
    evidence = _quote(policy, **({"mr_td": change["mrtd"]} if "mrtd" in change else {}), **rtmrs)
    reference = Reference(policy, KnownImage(fake.measured(), b"\1" * 32), collateral=INTEL.collateral(),
                          roots=Roots(intel=INTEL.pins["root"], intel_der=INTEL.pins["root_der"]))
    verdict = judge(evidence, reference, Question("machine", NOW, bytes(32)))
    assert _pinned(made) == {each.rule for each in verdict.findings if each.outcome == "fails"}
    assert {each.rule for each in made.images} == _pinned(made)


def test_a_broker_refuses_until_it_has_both_rules(tmp_path: Path) -> None:
    """Its reason names the rules that the plan names; with a rule for NEW beside the one for OLD, both get the key."""
    deployment = Deployment(tmp_path)
    text = (tmp_path / "deployment.hcl").read_text()
    new = tmp_path / "new.hcl"
    new.write_text(text.replace("generation_tokens   = 512", "generation_tokens   = 99"))
    made = plan.make(Materials(deployment.policy, load(new)))
    refused, _state = [each for each in made.refusals if each.who.startswith("the broker")]
    with pytest.raises(_RefusedError):
        deployment.ask(deployment.broker(), Snp(load(new).digest), "snp", policy=load(new).digest)
    assert all(f"{rule}: " in deployment.reason() for rule in refused.rules), deployment.reason()
    step = next(each for each in made.steps if "examples.broker overlap" in each)
    words = shlex.split(step.partition("examples.broker ")[2].replace("TIME", "2099-01-01T00:00:00Z"))
    assert ["overlap", "broker.toml"] == words[:2]
    assert 0 == broker_command.main(["overlap", str(tmp_path / "broker.toml"), *words[2:]])
    assert any("kill -HUP" in each for each in made.steps)
    for digest in (deployment.policy.digest, load(new).digest):
        assert deployment.ask(deployment.broker(), Snp(digest), "snp", policy=digest)


def _signed(key: Ed25519PrivateKey, name: str, version: int, *listed: dict[str, Any]) -> bytes:
    return desk.sign_tenants({"appliance": name, "version": version, "tenants": list(listed)}, key)


AUTHORITY, SECOND = (Ed25519PrivateKey.from_private_bytes(bytes([each]) * 32) for each in (1, 2))


def _public(key: Ed25519PrivateKey) -> str:
    return f"ed25519:{key.public_key().public_bytes_raw().hex()}"


LISTS = {  # change of the policy's text; the code by which the boot refuses the old list
    "another name": (('name   = "hard"', 'name   = "soft"'), "tenants-other"),
    "another authority": ((_public(AUTHORITY), _public(SECOND)), "tenants-signature"),
    "a later version": (('"t.json"', '"t.json"\n  min_version = 9'), "tenants-version"),
    "another model": (('model "demo"', 'model "other"'), "tenants-other"),
    "a limit": (("privacy { }", "privacy { token_count_rounding = 8 }"), None),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_refused_as_predicted(name: str, tmp_path: Path) -> None:
    """By the function that the boot calls: for the old list where it is not given, and for it where it is."""
    (there, instead), code = LISTS[name]
    old, new = fake.write_policy(tmp_path, "sev-snp", more="privacy { }"), tmp_path / "new.hcl"
    old.write_text(old.read_text().replace(fake.AUTHORITY, _public(AUTHORITY)))
    assert there in old.read_text()
    new.write_text(old.read_text().replace(there, instead))
    data = _signed(AUTHORITY, "hard", 3, {"name": "a", "role": "user", "models": ["demo"],
                                          "api_key_sha256": [sha256(KEY)]})
    happened = None
    try:
        tenants.parse(data, load(new).policy)
    except PolicyError as error:
        happened = error.code
    assert code == happened
    made = plan.make(Materials(load(old), load(new)))
    told = {rule for each in made.refusals if "tenant list" in each.of for rule in each.rules}
    assert told == ({code} if code else set())
    given = plan.make(Materials(load(old), load(new), (data, data)))
    assert (code is not None) == any(each.of == "this tenant list" for each in given.refusals)
    assert ("breaks" == given.risk) == (code is not None)


def test_tenants_are_compared(tmp_path: Path) -> None:
    """Who comes, goes, and may ask more; a list that is not newer is refused by push."""
    path = fake.write_policy(tmp_path, "sev-snp")
    path.write_text(path.read_text().replace(fake.AUTHORITY, _public(AUTHORITY)))
    one = {"name": "a", "role": "user", "models": ["demo"], "api_key_sha256": [sha256("k1")]}
    lists = (_signed(AUTHORITY, "hard", 3, one, {**one, "name": "b", "api_key_sha256": [sha256("k2")]}),
             _signed(AUTHORITY, "hard", 3, {**one, "role": "admin"},
                     {**one, "name": "c", "api_key_sha256": ["0b" * 32]}))
    made = plan.make(Materials(load(path), load(path), lists))
    assert [('tenants.tenant "a".role', "loosens"), ('tenants.tenant "b"', "tightens"),
            ('tenants.tenant "c"', "loosens")] == [(each.path, each.direction) for each in made.tenants]
    (refused,) = made.refusals
    assert ("tenants-version",) == refused.rules
    assert "version 4" in refused.mended_by
    with pytest.raises(PolicyError) as raised:
        tenants.newer(lists[1], load(path).policy, tenants.parse(lists[0], load(path).policy))
    assert "tenants-version" == raised.value.code
    assert "looser" == made.risk


def test_ends_of_keys_are_compared(tmp_path: Path) -> None:
    """Of keys that both lists have: none or a later one is looser."""
    path = fake.write_policy(tmp_path, "sev-snp")
    path.write_text(path.read_text().replace(fake.AUTHORITY, _public(AUTHORITY)))
    key, early, late = sha256("k1"), "2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z"
    one = {"name": "a", "role": "user", "models": ["demo"], "api_key_sha256": [key]}
    for before, after, direction in ((None, early, "tightens"), (early, late, "loosens"), (late, early, "tightens"),
                                     (early, None, "loosens")):
        lists = tuple(_signed(AUTHORITY, "hard", version, {**one, "expires": {key: end} if end else {}})
                      for version, end in ((3, before), (4, after)))
        made = plan.make(Materials(load(path), load(path), lists))  # type: ignore[arg-type]
        assert [(f'tenants.tenant "a".expires "{key}"', before, after, direction)] == [
            (each.path, each.before, each.after, each.direction) for each in made.tenants]


def test_approvals_of_the_old_policy_do_not_count(tmp_path: Path) -> None:
    """By the function that the boot calls, and its code."""
    quorum = f'approvals {{\n required = 1\n approver "p" {{\n public_key = "{_public(AUTHORITY)}"\n }}\n }}'
    old = load(fake.write_policy(tmp_path, "sev-snp", more=quorum))
    new = load(fake.write_policy(tmp_path, "sev-snp", more=quorum + "\naudit { receipts = true }", name="new.hcl"))
    given = approvals.Approvals(format="appliance/approvals/v1", policy_sha384=old.digest.hex(),
                                approvals=(desk.approve(AUTHORITY, "p", old.digest),))
    (tmp_path / "a").write_bytes(given.to_json())
    approvals.require(old.policy, old.digest, "a", [tmp_path])
    with pytest.raises(PolicyError) as raised:
        approvals.require(new.policy, new.digest, "a", [tmp_path])
    told = [each for each in plan.make(Materials(old, new)).refusals if each.of == "approvals of OLD"]
    assert [(raised.value.code,)] == [each.rules for each in told]


def test_a_disk_does_not_open_under_another_key(tmp_path: Path) -> None:
    """With the code that the plan names; and a key of another version is not taken."""
    text = (ROOT / "examples/deployments/hospital/deployment.hcl").read_text()
    (tmp_path / "old.hcl").write_text(text)
    for there, instead, happens in (
            ('"hospital/state"', '"hospital/other"', lambda: StateDisk(_used(tmp_path), Secret(bytearray(b"k" * 32)))),
            ("version  = 2", "version  = 3", lambda: keydocument.accept(keydocument.make(bytes(32), 2), "here", 3))):
        (tmp_path / "new.hcl").write_text(text.replace(there, instead))
        with pytest.raises(ApplianceError) as raised:
            happens()
        made = plan.make(Materials(load(tmp_path / "old.hcl"), load(tmp_path / "new.hcl")))
        assert [(raised.value.code,)] == [each.rules for each in made.refusals if each.of == OTHER_KEY]


def test_a_state_disk_whose_key_comes_from_elsewhere_breaks(tmp_path: Path) -> None:
    """And one whose key stays does not."""
    text = (ROOT / "examples/deployments/hospital/deployment.hcl").read_text()
    old, new = tmp_path / "old.hcl", tmp_path / "new.hcl"
    old.write_text(text)
    for there, instead, risk in (('"hospital/state"', '"hospital/other"', "breaks"),
                                 ("prompt_tokens       = 6000", "prompt_tokens = 5000", "same or tighter"),
                                 ("prompt_tokens       = 6000", "prompt_tokens = 7000", "looser")):
        new.write_text(text.replace(there, instead))
        assert risk == plan.make(Materials(load(old), load(new))).risk


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text and JSON say the same, with an exit code by risk; a policy that is not valid cannot be planned."""
    source = ROOT / "examples/deployments/bank/deployment.hcl"
    new, image = tmp_path / "new.hcl", tmp_path / "measurements.json"
    new.write_text(source.read_text().replace("required = 2", "required = 1").replace("smt = false", "smt = true"))
    assert 3 == main(["plan", str(source), str(new)])
    out = capsys.readouterr().out
    assert "risk: looser" == out.splitlines()[0]
    assert "  - tee.evidence.smt: false -> true" in out
    assert "  - approvals.required: 2 -> 1" in out
    assert "the key bank/assistant, for machines under NEW (policy, launch-policy)" in out
    assert "1 approval: appliance approve" in out
    assert 3 == main(["plan", str(source), str(new), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (policy_digest(load(source).policy).hex(), policy_digest(load(new).policy).hex(), 3) == (
        found["old_sha384"], found["new_sha384"], found["exit_code"])
    assert 1 == main(["plan", str(new), str(source)])
    capsys.readouterr()
    image.write_bytes(fake.measured().to_json())
    other = tmp_path / "other.json"
    other.write_bytes(fake.measured(launch=(b"\x12" * 48,), mrtd=b"\x13" * 48).to_json())
    assert 1 == main(["plan", str(source), str(source), "--measurements", str(image), str(other)])
    out = capsys.readouterr().out
    assert "sev-snp measurement: 1 new, 0 kept" in out
    assert "tdx mrtd: 1 new, 0 kept" in out
    new.write_text("limits {")
    assert 2 == main(["plan", str(source), str(new)])
