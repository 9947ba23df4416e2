"""The guide of TDX on Google Cloud, followed command by command: on an image's folder, a TD whose registers are the
predicted ones, and Intel's and Google's services on the loopback. Step 3 needs the cloud."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.measured import events
from appliance.imaging.predict import predict
from appliance.policy import load
from tests.support import fake_appliance as fake
from tests.support import fake_google, fake_image, fake_services, guides, images
from tests.support.fake_appliance import FakeAppliance
from tests.support.fake_google import MRTD, FakeGoogle
from tests.support.fake_intel import FakeIntel
from tests.support.reader import Reader, Script

PAGE = "google-tdx.md"
URL = "https://203.0.113.7:8443"
TIME = "2026-06-01T00:00:00Z"


def _policy(folder: Path) -> Path:
    """A small policy of the fake appliance, with the page's block in place of its `tee`."""
    path = fake.write_policy(folder, "tdx", evidence="")
    [block] = guides.blocks(PAGE, "hcl")
    text = re.sub(r"^tee \{.*?^\}\n", lambda _: block, path.read_text().replace("schema = 1", "schema = 2"),
                  flags=re.MULTILINE | re.DOTALL)
    path.write_text(text)
    return path


def _registers(folder: Path) -> dict[str, bytes]:
    """What a TD shows that boots this folder's image on Google's machines: one separator in RTMR 1."""
    found = predict.boot(folder)
    _, first, second, third = events.rtmrs(found)
    return {"rtmr1": first, "rtmr2": second, "rtmr3": third}


@pytest.mark.slow
@pytest.mark.parametrize("forged", [False, True])
def test_from_a_policy_to_an_answer(tmp_path: Path, forged: bool) -> None:
    """Each command in its order ends with the exit code that the page says; a forged endorsement ends it at step 5."""
    images.need("openssl")
    intel, google = FakeIntel({"smt": True}), FakeGoogle()
    policy = _policy(tmp_path)
    folder = fake_image.write(tmp_path / "build/gce", policy=load(policy).digest.hex())
    source = fake.TdxSource(intel, bytes(48), {"mr_td": MRTD, **_registers(folder)})
    server = FakeAppliance(fake.attestor(source, load(policy)), tmp_path)
    document = google.endorsement(field6=b"", by="stranger" if forged else "gce-signer")
    answers = {**fake_services.intel(intel), f"/gce_tcb_integrity/ovmf_x64_csm/tdx/{MRTD.hex()}.binarypb": [
        fake_services.Answer(document)], "/cloud_integrity/GCE-cc-tcb-root_1.crt": [
            fake_services.Answer(google.root.public_bytes(Encoding.DER))]}
    (tmp_path / "intel.der").write_bytes(intel.pins["root_der"])
    (tmp_path / "google.der").write_bytes(google.root.public_bytes(Encoding.DER))
    reader = Reader(tmp_path, {URL: server.url})
    try:
        with fake_services.serving(answers) as (base, _):
            roots = f"--at {TIME} --unsafe-root intel.der"
            reader.added = {"appliance verify": roots,
                            "appliance image predict": f"--at {TIME} --unsafe-root google.der",
                            "appliance collateral fetch": f"{roots} --unsafe-root google.der --from {base}"}
            _follow(reader, forged=forged)
    finally:
        server.stop()


def _follow(reader: Reader, *, forged: bool) -> None:
    script = Script(PAGE)
    reader.ends(script.next("openssl genpkey"), 0)
    assert script.next("appliance image build").endswith("--format tar")
    reader.ends(script.next("appliance verify"), 2)
    fetch = script.next("appliance collateral fetch")
    if forged:
        reader.ends(fetch, 1, "not endorsed")
        return
    reader.ends(fetch, 0, "verdict: GENUINE", "endorsed by Google, security version 3")
    reader.ends(script.next("appliance image predict"), 0, MRTD.hex())
    said = reader.ends(script.next("appliance verify"), 0, "VERIFIED", "rtmr1", "rtmr2", "gce-svn")
    assert "zeros: the policy is in the measured image" in said
    assert ["appliance connect", "curl http:"] == [" ".join(each.split())[:len(begun)] for each, begun in zip(
        script.left, ("appliance connect", "curl http:"), strict=True)]


def test_the_block_of_the_page_is_a_policy(tmp_path: Path) -> None:
    """It loads, and demands Google's endorsement."""
    found = load(_policy(tmp_path)).policy
    assert found.tee.evidence.gce is not None
    assert found.tee.evidence.smt
    assert fake_google.MRTD == MRTD
