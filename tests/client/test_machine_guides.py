"""The guides of SEV-SNP and TDX, followed command by command as far as a machine without them can: steps 1 and 5 to 8
on the real service, booted on a machine that is faked below the kernel, whose vendor is one of our own. Step 2 builds
and predicts: in the soak, with a firmware of our own. Steps 3 and 4 need the hardware."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from appliance.attestation import keyfile
from appliance.attestation.case import measurements
from tests.client.test_verify_guide import amd_services
from tests.service.test_hardware_service import running
from tests.support import fake_appliance, fake_firmware, fake_services, guides, hardware_server, images
from tests.support.pages import ROOT
from tests.support.reader import Reader, Script

URL = "https://127.0.0.1:8443"
TDX_SECTIONS = ((0, 0x1000, 0xFFFFF000, 0x2000, 0, 1), (0, 0, 0x800000, 0x1000, 3, 0))


@dataclass(frozen=True)
class Guide:
    """A guide: its page, the folder that its image is built in, and what step 5 says that is absent."""

    page: str
    built: str
    absent: str


GUIDES = {"sev-snp": Guide("sev-snp.md", "build/snp", "no revocation list was at hand"),
          "tdx": Guide("tdx.md", "build/tdx", "tdx-collateral")}


@contextmanager
def _intel_services(machine: Path) -> Iterator[str]:
    with fake_services.serving(fake_services.intel(json.loads((machine / "collateral-today.json").read_text()))) as (
            base, _):
        yield base


SERVICES = {"sev-snp": amd_services, "tdx": _intel_services}


@pytest.fixture
def reader(request: pytest.FixtureRequest, tmp_path: Path, tiny_model: Path) -> Iterator[Reader]:
    """Who follows a page from step 5 on, with what steps 1 to 4 gave; an appliance listens."""
    platform, guide = request.param, GUIDES[request.param]
    machine, folder = tmp_path / "machine", tmp_path / "reader"
    machine.mkdir()
    (folder / guide.built).mkdir(parents=True)
    evidence = hardware_server.EVIDENCE.format(tcb='"genoa" ')
    policy = hardware_server.write(machine, platform, tiny_model, schema=2, evidence=evidence)
    with running(platform, policy, tiny_model, machine) as url, SERVICES[platform](machine) as services:
        shutil.copy(machine / "policy.hcl", folder / "deployment.hcl")
        shutil.copy(machine / "root.der", folder / "root.der")
        data = fake_appliance.measured(
            launch=(hardware_server.MEASUREMENT,), mrtd=hardware_server.MRTD,
            rtmrs=(None, *hardware_server.RTMRS[1:], None)).to_json()
        (folder / guide.built / "measurements.json").write_bytes(data)
        found = Reader(folder, {URL: url, "127.0.0.1:9000": f"127.0.0.1:{images.free_port()}"})
        root = "--unsafe-root root.der"
        found.added = {"appliance verify": root, "appliance connect": root,
                       "appliance collateral fetch": f"{root} --from {services}"}
        yield found


@pytest.mark.slow
@pytest.mark.parametrize(("reader", "guide"), list(GUIDES.items()), indirect=["reader"],
                         ids=GUIDES)
def test_from_the_first_question_to_an_answer(reader: Reader, guide: Guide) -> None:
    """Each command in its order ends with the exit code that the page says."""
    script = Script(guide.page)
    assert ["dpkg-deb"] == [each.split()[0] for each in script.until("openssl")]  # a package of another release
    reader.ends(script.next("openssl genpkey"), 0)
    _signed(reader.folder, guide)
    assert ["build", "predict", "boot"] == [each.split()[2] for each in script.until("appliance verify")]
    reader.ends(script.next("appliance verify"), 2, guide.absent)
    for fetch in script.until("appliance verify"):
        reader.ends(fetch, 0)
    reader.ends(script.next("appliance verify"), 0, "VERIFIED")
    with reader.keeps(script.next("appliance connect"), reader.here("ready: http://127.0.0.1:9000")):
        reader.ends(script.next("curl"), 0, '"status": "ready"')
    reader.ends(f"curl -s {URL}/health", 60)  # as the page says
    assert [] == script.left


def _signed(folder: Path, guide: Guide) -> None:
    """Step 2's last act: measurements are signed with the page's key."""
    path = folder / guide.built / "measurements.json"
    key = keyfile.ed25519_private_key(folder / "builder.pem")
    path.with_name("measurements.json.sig").write_bytes(measurements.sign(path.read_bytes(), key))


@pytest.mark.guests
@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("guide", GUIDES.values(), ids=GUIDES)
def test_an_image_of_the_pages_policy_is_predicted(guide: Guide, tmp_path: Path) -> None:
    """Steps 1 and 2: the page's block in place of the example's `tee`, a key, an image, its measurements. A firmware of
    our own stands where the page unpacks Debian's."""
    images.need("mkfs.erofs", "openssl")
    example, [block] = (ROOT / "examples/vm/deployment.hcl").read_text(), guides.blocks(guide.page, "hcl")[:1]
    policy = re.sub(r"^tee \{.*?^\}\n", lambda _: block, example, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "deployment.hcl").write_text(policy)
    firmware = tmp_path / "firmware/usr/share/ovmf"
    firmware.mkdir(parents=True)
    (firmware / "OVMF.amdsev.fd").write_bytes(fake_firmware.firmware())
    (firmware / "OVMF.fd").write_bytes(fake_firmware.firmware(tdx=TDX_SECTIONS))
    reader, script = Reader(tmp_path), Script(guide.page)
    reader.ends("appliance check deployment.hcl", 0, "this version boots it")
    script.until("openssl")
    for command in script.until("appliance image boot"):
        reader.ends(command, 0)
    known = json.loads((tmp_path / guide.built / "measurements.json").read_text())
    assert known["sev_snp" if guide.built == "build/snp" else "tdx"]
    assert (tmp_path / guide.built / "measurements.json.sig").exists()
