"""The production policies in force: a service boots by each on a machine that shows all that it demands, with a broker,
a state disk, a publisher and approvers; it is verified by it and answers."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from appliance.attestation.judge import verify
from appliance.attestation.judge.validate import Expectations, validate
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.attestation.x509.walks import fingerprint
from appliance.attestation.x509.walks import load as load_certificates
from appliance.policy import load
from tests.service.test_hardware_service import _any_certificate, _attested, _connect, _said, _start, running
from tests.support import hardware_server, server, waiting
from tests.support.fake_amd import NOW
from tests.support.production import MADE_UP, Production
from tests.support.require import absent

POLICIES = Path(__file__).parents[2] / "policies"


def _evidence(platform: str) -> str:
    """The block `evidence` of a production policy, without its braces."""
    text = (POLICIES / f"{platform}-production.hcl").read_text()
    found = re.search(r"^  evidence \{\n(.*?)^  \}\n", text, re.M | re.S)
    assert found is not None
    return f"\n{found[1]}  "


def _trust(platform: str, out: Path) -> tuple[Roots, Collateral]:
    if platform == "sev-snp":
        return Roots(amd=json.loads((out / "roots.json").read_text())), Collateral()
    der = (out / "root.der").read_bytes()
    roots = Roots(intel=fingerprint(load_certificates(der, "root")[0]), intel_der=der)
    return roots, Collateral(documents=[json.loads((out / "collateral.json").read_text())])


@pytest.mark.parametrize("platform", ["sev-snp", "tdx"])
def test_a_machine_that_shows_all_of_it_answers(platform: str, tiny_model: Path, tmp_path: Path) -> None:
    """No rule fails, and none that the policy asks for goes unchecked."""
    policy = hardware_server.write(tmp_path, platform, tiny_model, schema=2, evidence=_evidence(platform))
    loaded = load(policy)
    assert load(POLICIES / f"{platform}-production.hcl").policy.tee.evidence == loaded.policy.tee.evidence
    with running(f"patched-{platform}", policy, tiny_model, tmp_path) as url:
        connection, carried = _connect(url)
        nonce, (roots, collateral) = os.urandom(32), _trust(platform, tmp_path)
        claims = verify.verify(_attested(connection, nonce), collateral=collateral, at=NOW, roots=roots)
        connection.close()
        expected = Expectations(platforms=frozenset(loaded.policy.tee.platforms), nonce=nonce, at=NOW,
                            policy_sha384=loaded.digest, tls_spki_sha256=carried.spki_sha256,
                            hardware=loaded.policy.tee.evidence)
        outcomes = {each.rule: each.outcome for each in validate(claims, expected).findings}
        assert set() == {rule for rule, outcome in outcomes.items() if outcome == "fails"}
        asked = {"sev-snp": {"tcb-launch", "launch-mitigations", "current-mitigations", "committed-is-current", "smt",
                             "report-version", "id-key", "guest-svn", "ciphertext-hiding", "rapl", "alias-check"},
                 "tdx": {"tcb-status", "advisories", "evaluation-number", "collateral-age", "smt"}}[platform]
        assert {"holds"} == {outcomes[rule] for rule in asked | {"platform", "policy", "launch-policy"}}
        with httpx.Client(verify=_any_certificate()) as transport:
            client = openai.OpenAI(base_url=f"{url}/v1", api_key=server.KEY, max_retries=0, http_client=transport)
            answer = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "Hello"}], max_tokens=4)
    assert answer.choices[0].finish_reason in ("length", "stop")


@pytest.fixture
def disk() -> Iterator[Path]:
    """A state disk in memory: policies name devices below /dev."""
    path = Path(f"/dev/shm/appliance-production-{os.getpid()}")  # noqa: S108
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["sev-snp", "tdx"])
def test_the_whole_policy_boots_and_answers(platform: str, tmp_path: Path, disk: Path) -> None:
    """Sealed model, bundle, broker, approvals, list of tenants, state disk: all that a production policy says is
    carried out, and a chat is answered."""
    with socket.socket(socket.AF_VSOCK) as probe:
        try:
            probe.bind((socket.VMADDR_CID_ANY, socket.VMADDR_PORT_ANY))
        except OSError as error:
            absent(f"a kernel with vsock: {error.strerror}")
    deployment = Production(platform, tmp_path, disk)
    policy = deployment.write()
    lines = zip((POLICIES / f"{platform}-production.hcl").read_text().splitlines(), policy.read_text().splitlines(),
                strict=True)
    assert {old.split()[0] for old, new in lines if old != new} <= MADE_UP
    process = _start(f"patched-{platform}", policy, tmp_path / "plain.gguf", tmp_path, "broker")
    try:
        waiting.until(lambda: (tmp_path / "machine").exists(), "machine", lambda: waiting.processor_time(process.pid))
        with deployment.broker():
            (tmp_path / "broker").touch()
            said = _said(process, tmp_path)
        assert "ready" == said["event"], said
        port = next(place for place in said["listening"] if place.startswith("https:")).rpartition(":")[2]
        with httpx.Client(verify=_any_certificate()) as transport:
            client = openai.OpenAI(base_url=f"https://127.0.0.1:{port}/v1", api_key=server.KEY, max_retries=0,
                                   http_client=transport)
            answer = client.chat.completions.create(
                model="assistant", messages=[{"role": "user", "content": "Hello"}], max_tokens=4)
    finally:
        process.terminate()
        process.wait(60)
    assert answer.choices[0].finish_reason in ("length", "stop")
