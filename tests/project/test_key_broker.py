"""The reference broker's decisions: hardware evidence of our own hierarchies, each attack by name, configurations."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import shutil
import tracemalloc
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.binding import Build
from appliance.attestation.case.measurements import Measurements
from appliance.attestation.collect.release import BrokerSession, ReleaseAttestor
from appliance.attestation.evidence import Provider, ReportWithCollateral
from appliance.attestation.measured.first import PREDICTED_PCRS
from appliance.attestation.tpm import container
from appliance.attestation.tpm.chip.client import Tpm
from appliance.attestation.tpm.collecting.collector import TpmProvider
from appliance.attestation.tpm.judging import verify as tpm_verify
from appliance.attestation.trust.roots import Roots
from appliance.boot.placement import bind as placement
from appliance.codec import jwe as keyrelease_jwe
from appliance.keys import document as keydocument
from appliance.policy import load
from appliance.policy.digest import host_data
from examples.broker import challenges, server
from examples.broker.challenges import Challenges
from examples.broker.config import read
from examples.broker.rules import ConfigError
from examples.broker.server import Broker, _RefusedError
from tests.support import machine_lists, swtpm
from tests.support.brokers import Authority
from tests.support.expected import ROOT
from tests.support.fake_amd import CHIP, NOW, PATCHED, PATCHED_TCB, FakeAmd
from tests.support.fake_intel import FakeIntel

KEY = bytes(range(3, 35))
IMAGE, OTHER_IMAGE, BOOTED = b"\x21" * 48, b"\x22" * 48, b"\x23" * 48
ZERO = "00" * 32
HERE = BrokerSession(b"\5" * 32, b"\6" * 32)  # the connection that everybody asks on
PRODUCTION = (Path(__file__).parents[2] / "policies/sev-snp-production.hcl").read_text().replace(
    '["sev-snp"]', '["sev-snp", "tdx"]')
CONFIG = """
certificate = "server.pem"
private_key = "server.key"
log = "broker.jsonl"
[[release]]
resource = "acme/production/model"
key_file = "model.key"
version = 4
policy = "deployment.hcl"
platforms = ["sev-snp", "tdx"]
measurements = "measurements.json"
collateral = "collateral"
"""


def measurements(**change: Any) -> bytes:
    """An image's measurements: one SEV-SNP shape, one TD."""
    return Measurements.model_validate({
        "format": "appliance/measurements/v1", "image": {}, "policy_sha384": None, "tpm": None,
        "build": {"version": "0.1.0", "code_sha384": None, "kernels_sha384": None},
        "sev_snp": [{"vmm": "qemu", "vcpus": 4, "cpu_model": "EPYC-v4", "guest_features": "0x1",
                     "firmware_sha256": ZERO, "launch_digest": IMAGE.hex(), "id_block": None}],
        "tdx": [{"firmware_sha256": ZERO, "page_order": "page", "mrtd": IMAGE.hex(),
                 "rtmr": [None, BOOTED.hex(), BOOTED.hex(), None], "unverified": []}], **change}).to_json()


@dataclass
class Snp(Provider):
    """Reports of our own AMD-shaped hierarchy."""

    digest: bytes
    fake: FakeAmd = field(default_factory=lambda: FakeAmd("Genoa", tcb=PATCHED_TCB))
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def platform(self) -> str:
        """`sev-snp`."""
        return "sev-snp"

    def collect(self, report_data: bytes) -> ReportWithCollateral:
        """A report of the right image under the right policy, but for `fields`."""
        return ReportWithCollateral(self.fake.report(**{
            **PATCHED, "report_data": report_data, "measurement": IMAGE, "host_data": host_data(self.digest),
            **self.fields}))


@dataclass
class Tdx(Provider):
    """Quotes of our own Intel-shaped hierarchy."""

    digest: bytes
    fake: FakeIntel
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def platform(self) -> str:
        """`tdx`."""
        return "tdx"

    def collect(self, report_data: bytes) -> ReportWithCollateral:
        """A quote of the right image under the right policy, but for `fields`."""
        quote = self.fake.quote(**{"report_data": report_data, "mr_config_id": self.digest, "mr_td": IMAGE,
                                   "rtmr1": BOOTED, "rtmr2": BOOTED, **self.fields})
        return ReportWithCollateral(quote, (json.dumps(self.fake.document()).encode(),))


class Deployment:
    """A broker with one rule, and what asks it."""

    def __init__(self, folder: Path, *, config: str = CONFIG, policy: str | None = None) -> None:
        self.folder = folder
        Authority().write(folder)
        (folder / "collateral").mkdir()
        (folder / "model.key").touch(0o600)
        (folder / "model.key").write_text(KEY.hex())
        (folder / "deployment.hcl").write_text(policy or PRODUCTION)
        (folder / "measurements.json").write_bytes(measurements())
        (folder / "broker.toml").write_text(config)
        self.policy = load(folder / "deployment.hcl")
        self.intel = FakeIntel()

    def broker(self, amd: FakeAmd | None = None) -> Broker:
        """The broker, which believes our hierarchies at their time."""
        fake = amd or FakeAmd("Genoa", tcb=PATCHED_TCB)
        for number, each in enumerate(fake.collateral().certificates):
            (self.folder / f"collateral/{number}.der").write_bytes(each.public_bytes(
                Encoding.DER))
        (self.folder / "collateral/list.crl").write_bytes(fake.crl().public_bytes(Encoding.DER))
        pins = self.intel.pins
        roots = Roots(amd=fake.roots, intel=pins["root"], intel_der=pins["root_der"])
        return Broker(dataclasses.replace(read(self.folder / "broker.toml", roots), now=lambda: NOW))

    def ask(self, broker: Broker, provider: Provider, tee: str, policy: bytes | None = None,
            resource: str = "acme/production/model") -> bytes:
        """One handshake without HTTP: the key. _RefusedError otherwise."""
        key = keyrelease_jwe.new_key()
        name, challenge = broker.challenge({"version": "0.4.0", "tee": tee, "extra-params": ""})
        asker = ReleaseAttestor(provider, policy or self.policy.digest, b"\7" * 48, Build(version="0.1.0"))
        spki = hashlib.sha256(keyrelease_jwe.spki(key.public_key())).digest()
        made = asker.attest(base64.b64decode(challenge["nonce"]), spki, HERE)
        broker.attest(name, {
            "runtime-data": {"nonce": challenge["nonce"], "tee-pubkey": keyrelease_jwe.public_jwk(key.public_key())},
            "tee-evidence": {"primary_evidence": json.loads(made.to_json()), "additional_evidence": ""}},
                      lambda _: HERE)
        document = keyrelease_jwe.decrypt(broker.resource(name, resource), key)
        return bytes(keydocument.accept(document, "here", 4))

    def reason(self) -> str:
        """Why the broker said no, in its own log."""
        lines = (self.folder / "broker.jsonl").read_text().splitlines()
        return str(json.loads(lines[-1])["reason"])


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """One for each test."""
    return Deployment(tmp_path)


def test_snp_evidence(deployment: Deployment) -> None:
    """The right image on genuine hardware under the right policy gets the key."""
    assert KEY == deployment.ask(deployment.broker(), Snp(deployment.policy.digest), "snp")


ATTACKS: list[tuple[str, dict[str, Any], str]] = [
    ("another image", {"measurement": OTHER_IMAGE}, "measurement: found"),
    ("launched under another policy", {"host_data": bytes(32)}, "launch-policy: found"),
    ("a guest that may be debugged", {"policy": PATCHED["policy"] | 1 << 19}, "debug: "),
    ("older firmware", {"committed": bytes((10, 0, 0, 0, 0, 0, 26, 86))}, "tcb-committed: snp 26 is below 27"),
    ("another privilege level", {"vmpl": 1}, "vmpl: "),
    ("an older image", {"svn": 2}, "guest-svn: 2, at least 3"),
    ("an ID block of the operator's own", {"svn": 9, "id_key": b"\x24" * 48}, "id-key: found 2424"),
    ("no ID block", {"id_key": bytes(48)}, "id-key: found 0000"),
]


@pytest.mark.parametrize(("what", "fields", "reason"), ATTACKS, ids=[case[0] for case in ATTACKS])
def test_snp_attacks(deployment: Deployment, what: str, fields: dict[str, Any], reason: str) -> None:
    """Genuine hardware that is not what the rule wants: no key, and the broker's log names the rule."""
    with pytest.raises(_RefusedError) as caught:
        deployment.ask(deployment.broker(), Snp(deployment.policy.digest, fields=fields), "snp")
    assert (403, True) == (caught.value.status, reason in deployment.reason()), deployment.reason()
    assert "measurement" not in caught.value.detail


def test_a_revocation_list_is_needed_or_waived(deployment: Deployment) -> None:
    """Whoever brings the evidence could leave the list out: without one there is no key, unless the rule says so."""
    broker = deployment.broker()
    (deployment.folder / "collateral/list.crl").unlink()
    with pytest.raises(_RefusedError):
        deployment.ask(broker, Snp(deployment.policy.digest), "snp")
    assert "revocation: not checked" in deployment.reason()
    (deployment.folder / "broker.toml").write_text(CONFIG + "without_revocation = true\n")
    broker = deployment.broker()
    (deployment.folder / "collateral/list.crl").unlink()
    assert KEY == deployment.ask(broker, Snp(deployment.policy.digest), "snp")


def _second_rule(collateral: str) -> str:
    rule = CONFIG.partition("[[release]]")[2].replace("acme/production/model", "acme/other")
    return f"[[release]]{rule}".replace('"collateral"', f'"{collateral}"')


@pytest.mark.parametrize("folder", ["a", "b", "c", "d"])
def test_a_rule_is_decided_by_its_own_collateral(tmp_path: Path, folder: str) -> None:
    """What the list of one rule revokes gets no key by that rule, though another rule has an older list."""
    deployment, fake = Deployment(tmp_path, config=CONFIG + _second_rule(folder)), FakeAmd("Genoa", tcb=PATCHED_TCB)
    broker = deployment.broker(fake)
    shutil.copytree(tmp_path / "collateral", tmp_path / folder)
    (tmp_path / "collateral/list.crl").write_bytes(fake.crl(serial=7, of=fake.ask_name).public_bytes(Encoding.DER))
    with pytest.raises(_RefusedError) as caught:
        deployment.ask(broker, Snp(deployment.policy.digest), "snp")
    assert (403, True) == (caught.value.status, "not authentic by the rule's collateral" in deployment.reason())
    assert KEY == deployment.ask(broker, Snp(deployment.policy.digest), "snp", resource="acme/other")


@pytest.mark.parametrize("folder", ["a", "b", "c", "d"])
def test_a_rule_has_its_list_though_another_has_none(tmp_path: Path, folder: str) -> None:
    """Which rule's folder is looked at first makes no difference."""
    deployment = Deployment(tmp_path, config=CONFIG + _second_rule(folder))
    broker = deployment.broker()
    shutil.copytree(tmp_path / "collateral", tmp_path / folder, ignore=shutil.ignore_patterns("*.crl"))
    assert KEY == deployment.ask(broker, Snp(deployment.policy.digest), "snp")
    with pytest.raises(_RefusedError):
        deployment.ask(broker, Snp(deployment.policy.digest), "snp", resource="acme/other")
    assert "revocation: not checked" in deployment.reason()


def test_evidence_that_is_not_genuine(deployment: Deployment) -> None:
    """Another hierarchy of the same names, another policy in the statement, another platform than announced."""
    stranger = FakeAmd("Genoa", tcb=PATCHED_TCB, options={"leaf": {"signer": "stranger"}})
    with pytest.raises(_RefusedError, match="not accepted") as caught:
        deployment.ask(deployment.broker(stranger), Snp(deployment.policy.digest, stranger), "snp")
    assert 401 == caught.value.status
    with pytest.raises(_RefusedError) as denied:
        deployment.ask(deployment.broker(), Snp(deployment.policy.digest), "snp", policy=b"\1" * 48)
    assert (403, True) == (denied.value.status, "policy: found" in deployment.reason())
    with pytest.raises(_RefusedError, match="another kind of machine"):
        deployment.ask(deployment.broker(), Snp(deployment.policy.digest), "tdx")
    with pytest.raises(_RefusedError, match="tee is not known"):
        deployment.ask(deployment.broker(), Snp(deployment.policy.digest), "sgx")


def test_tdx_evidence(tmp_path: Path) -> None:
    """The same for TDX: the right TD gets the key, another MRTD, policy or attribute does not."""
    deployment = Deployment(tmp_path)
    digest, fake = deployment.policy.digest, deployment.intel
    assert KEY == deployment.ask(deployment.broker(), Tdx(digest, fake), "tdx")
    for fields, reason in (({"mr_td": OTHER_IMAGE}, "mrtd: found"), ({"rtmr1": OTHER_IMAGE}, "rtmr1: found"),
                           ({"rtmr2": OTHER_IMAGE}, "rtmr2: found"), ({"mr_config_id": bytes(48)}, "launch-policy: "),
                           ({"attributes": 1 << 28 | 1 << 27}, "td-attributes: "),
                           ({"version": 5, "td15": True, "service": b"\x05" * 48}, "service-td: bound to")):
        with pytest.raises(_RefusedError):
            deployment.ask(deployment.broker(), Tdx(digest, fake, fields), "tdx")
        assert reason in deployment.reason(), deployment.reason()


def test_tdx_fields_of_schema_2(tmp_path: Path) -> None:
    """Module, versions, features and service TD are what the policy names, or there is no key."""
    service = b"\x05" * 48
    policy = PRODUCTION.replace("  evidence {\n", f"""  evidence {{
    tdx {{
      mr_seam         = ["{"0a" * 48}"]
      min_tee_tcb_svn = "{"0301" + "00" * 14}"
      xfam            = "0x00000000000000e7"
      service_tds     = ["{service.hex()}"]
    }}
""", 1)
    deployment = Deployment(tmp_path, policy=policy)
    digest, fake = deployment.policy.digest, deployment.intel
    bound = {"version": 5, "td15": True, "service": service}
    for good in ({}, bound):
        assert KEY == deployment.ask(deployment.broker(), Tdx(digest, fake, good), "tdx")
    for fields, reason in (({"mr_seam": b"\x0b" * 48}, "mrseam: "), ({"xfam": 0xE7 | 1 << 9}, "xfam: "),
                           ({"tee_tcb_svn": b"\x02\x01" + bytes(14)}, "tee-tcb-svn: "),
                           ({**bound, "service": b"\x06" * 48}, "service-td: ")):
        with pytest.raises(_RefusedError):
            deployment.ask(deployment.broker(), Tdx(digest, fake, fields), "tdx")
        assert reason in deployment.reason(), deployment.reason()


def test_keys_are_for_listed_machines(tmp_path: Path) -> None:
    """Where the policy demands them: a chip that is listed gets the key, the same guest on another, and one whose host
    masks the chip, does not. Without the list the broker does not start."""
    policy = PRODUCTION.replace("  evidence {\n", f"  evidence {{\n    {machine_lists.DEMAND}\n", 1)
    deployment = Deployment(tmp_path, policy=policy)
    name, digest = deployment.policy.policy.appliance.name, deployment.policy.digest
    with pytest.raises(ConfigError, match="machines is absent"):
        deployment.broker()
    for entry, ours, reason in (
            (machine_lists.entry("chip-id", CHIP), {}, ""),
            (machine_lists.entry("chip-id", bytes(63) + b"\1"), {}, f"machine: chip-id {CHIP.hex()}: not among the 1"),
            (machine_lists.entry("chip-id", CHIP), {"chip_id": bytes(64)}, "machine: cannot be shown: the host masks"),
            (machine_lists.entry("chip-id", CHIP, not_after="2026-05-31T00:00:00Z"), {}, "its entry ended on 2026-05")):
        machine_lists.write(tmp_path, entry, name=name)
        broker = deployment.broker()
        if not reason:
            assert KEY == deployment.ask(broker, Snp(digest, fields=ours), "snp")
            continue
        with pytest.raises(_RefusedError):
            deployment.ask(broker, Snp(digest, fields=ours), "snp")
        assert reason in deployment.reason(), deployment.reason()
    machine_lists.write(tmp_path, machine_lists.entry("ppid", b"\1" * 16), name=name, file="other.json")
    (tmp_path / "broker.toml").write_text(CONFIG + 'machines = "other.json"\n')
    assert KEY == deployment.ask(deployment.broker(), Tdx(digest, deployment.intel), "tdx")
    with pytest.raises(_RefusedError):
        deployment.ask(deployment.broker(), Snp(digest), "snp")


def test_a_tpm_tells_a_policy_that_the_image_does_not_carry(tmp_path: Path) -> None:
    """An image without a policy, one for many deployments: PCR 15 has the policy given at launch, or no key."""
    with swtpm.running() as device:
        with closing(TpmProvider(device, tmp_path / "none")) as provider:
            key = tpm_verify.load_key(container.parse(provider.report(bytes(64))).key)
            config = CONFIG.replace('"sev-snp", "tdx"', '"tpm"') + (
                f'host_trusted = true\nattestation_keys = ["sha256:{hashlib.sha256(key.spki()).hexdigest()}"]\n')
            deployment = Deployment(tmp_path, config=config, policy=(ROOT / "examples/vm/deployment.hcl").read_text())
            (tmp_path / "measurements.json").write_bytes(measurements(tpm={
                "bank": "sha256", "pcrs": {str(number): (ZERO,) for number in PREDICTED_PCRS}, "events": (),
                "golden": ({"machine": "swtpm", "firmware_sha256": ZERO, "pcrs": {"0": ZERO, "7": ZERO}},)}))
            with pytest.raises(_RefusedError):
                deployment.ask(deployment.broker(), provider, "tpm")
            assert "pcr15: found" in deployment.reason()
        with closing(Tpm(device)) as tpm:
            placement.measure(deployment.policy, tpm)
        with closing(TpmProvider(device, tmp_path / "none")) as provider:
            assert KEY == deployment.ask(deployment.broker(), provider, "tpm")


def test_no_resource_without_its_own_rule(deployment: Deployment) -> None:
    """An attested asker gets the one key that a rule names, and no other; without rules nobody gets any."""
    broker = deployment.broker()
    with pytest.raises(_RefusedError):
        deployment.ask(broker, Snp(deployment.policy.digest), "snp", resource="acme/production/state")
    assert "no rule releases 'acme/production/state'" == deployment.reason()
    (deployment.folder / "broker.toml").write_text(CONFIG.partition("[[release]]")[0])
    with pytest.raises(_RefusedError):
        deployment.ask(deployment.broker(), Snp(deployment.policy.digest), "snp")


HELLO = {"version": "0.4.0", "tee": "snp", "extra-params": ""}


def test_challenges_fill_nothing(deployment: Deployment) -> None:
    """However many are asked for, and however many of them are wasted on attestations that fail: the broker keeps
    nothing of them, and a genuine asker gets its key."""
    broker = deployment.broker()
    broker.challenge(HELLO)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(3000):
            name, _ = broker.challenge(HELLO)
            assert len(name) <= 256
            if number % 3 == 0:
                with pytest.raises(_RefusedError, match="malformed"):
                    broker.attest(name, {}, lambda _: HERE)
        assert tracemalloc.get_traced_memory()[0] - before < 100_000
    finally:
        tracemalloc.stop()
    assert KEY == deployment.ask(broker, Snp(deployment.policy.digest), "snp")


def test_attested_sessions_make_room(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more ask than there is room for, the oldest session ends, and the newest gets its key."""
    monkeypatch.setattr(server, "MAX_SESSIONS", 2)
    broker = deployment.broker()
    for _ in range(5):
        assert KEY == deployment.ask(broker, Snp(deployment.policy.digest), "snp")
    assert 2 == len(broker._sessions)


def test_a_challenge_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a second time, not after its time, not with a changed byte, not by another broker, and not once as many
    others were made as the ring has bits."""
    made = Challenges()
    for _ in range(20):
        cookie, nonce = made.make("sev-snp", None)
        assert ("sev-snp", nonce, None) == dataclasses.astuple(made.take(cookie))
        assert made.take(cookie) is None
    cookie, nonce = made.make("tdx", None)
    assert made.make("tdx", None)[0] != cookie
    for place in range(len(cookie) - 1):  # the last character has bits that say nothing
        other = "A" if cookie[place] != "A" else "B"
        assert made.take(cookie[:place] + other + cookie[place + 1:]) is None
    for wrong in ("", "=", cookie[:-4], cookie + "AAAA", "\u00e4", "A" * 151):
        assert made.take(wrong) is None
    assert Challenges().take(cookie) is None
    assert made.take(cookie) is not None
    monkeypatch.setattr(challenges, "RING", 16)
    small = Challenges()
    old, _ = small.make("tdx", None)
    recent = [small.make("tdx", None)[0] for _ in range(16)]
    assert small.take(old) is None
    assert all(small.take(each) is not None for each in recent)
    assert all(small.take(each) is None for each in recent)
    monkeypatch.setattr(challenges, "SECONDS", -1)
    assert made.take(made.make("tdx", None)[0]) is None


def _without(line: str) -> Callable[[str], str]:
    return lambda text: "\n".join(each for each in text.splitlines() if not each.startswith(line))


CONFIGS: list[tuple[Callable[[str], str], str]] = [
    (lambda text: text + "\nany = true", "any: not known here"),
    (lambda text: text + "\n[[release]]\n", "policy is absent"),
    (lambda text: "x = [", "broker.toml: "),
    (_without("measurements"), "measurements is absent: which image may have the key"),
    (_without("version"), "version is absent"), (_without("platforms"), "platforms is absent"),
    (_without("key_file"), "key_file is absent"), (_without("certificate"), "certificate is absent"),
    (lambda text: text.replace("version = 4", "version = 0"), "a version from 1"),
    (lambda text: text.replace('"sev-snp", "tdx"', ""), "at least one platform"),
    (lambda text: text.replace('"tdx"', '"tpm"'), "'tpm' is none of the policy's"),
    (lambda text: text.replace('"model.key"', '"none.key"'), "cannot be opened"),
    (lambda text: text.replace('"measurements.json"', '"server.pem"'), "measurements: "),
    (lambda text: text + "\nuntil = 2026-12-01T12:00:00", "until has no offset"),
    (lambda text: text.replace("version = 4", 'version = 4\nself_test_sha384 = "xyz"'), "release 1: "),
]


@pytest.mark.parametrize(("change", "words"), CONFIGS, ids=[case[1] for case in CONFIGS])
def test_configurations_that_leave_something_open(tmp_path: Path, change: Callable[[str], str], words: str) -> None:
    """A rule says who, which image and which version, or the broker does not start."""
    deployment = Deployment(tmp_path)
    assert 1 == len(read(tmp_path / "broker.toml").rules)
    (tmp_path / "broker.toml").write_text(change(CONFIG))
    with pytest.raises(ConfigError) as caught:
        deployment.broker()
    assert words in str(caught.value)


@pytest.mark.parametrize(("seconds", "released"), [(1, True), (0, False)])
def test_a_rule_ends(tmp_path: Path, seconds: int, released: bool) -> None:
    """The rule for the policy before releases its key until the overlap is over, and says so from then on."""
    end = (NOW + timedelta(seconds=seconds)).isoformat()
    deployment = Deployment(tmp_path, config=f"{CONFIG}\nuntil = {end}\n")
    broker = deployment.broker()
    with nullcontext() if released else pytest.raises(_RefusedError):
        assert KEY == deployment.ask(broker, Snp(deployment.policy.digest), "snp")
    assert released or "the rule ended at" in deployment.reason()


def test_a_key_is_not_handed_out_under_another_version(tmp_path: Path) -> None:
    """A rule for version 4 with the file of version 3, by a slip in a rotation: the broker does not start."""
    deployment = Deployment(tmp_path)
    for version, starts in ((3, False), (4, True)):
        (tmp_path / "model.key").write_text(f"appliance/key/v1\nversion {version}\nkey {KEY.hex()}\n")
        with nullcontext() if starts else pytest.raises(ConfigError, match="the key has version 3, not 4"):
            deployment.broker()


def test_weak_platforms_are_spelt_out(tmp_path: Path) -> None:
    """Simulated evidence and a vTPM are taken only by a rule that says what they are worth."""
    demo = (Path(__file__).parents[2] / "examples/demo.hcl").read_text()
    weak = _without("measurements")(CONFIG).replace('["sev-snp", "tdx"]', '["simulated"]')
    deployment = Deployment(tmp_path, policy=demo, config=weak)
    with pytest.raises(ConfigError, match="needs proves_nothing = true"):
        deployment.broker()
    (tmp_path / "broker.toml").write_text(weak + "\nproves_nothing = true\n")
    deployment.broker()
