"""The guide of verifiers, followed command by command: on the real service, booted on a machine that is faked below the
kernel, whose vendor is one of our own, and on a simulated one. What it says of a client's installation and of TPMs is
followed in a booted guest: tests/imaging/test_guides_in_a_guest.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from appliance.attestation.case import measurements
from tests.service.test_hardware_service import running
from tests.support import fake_appliance, fake_services, fake_tpm, guides, hardware_server, images, server
from tests.support import machine_lists as lists
from tests.support.fake_amd import FakeAmd
from tests.support.fake_services import Answer
from tests.support.packs import BUILDER
from tests.support.pages import ROOT
from tests.support.reader import Reader, Script
from tests.support.tpm_maker import Maker

PAGE = "verify.md"
URL = "https://10.0.0.7:8443"
DEMAND = lists.DEMAND.replace("min_version = 3", "min_version = 1")


@contextmanager
def amd_services(machine: Path) -> Iterator[str]:
    """AMD's service for that machine's chip, with a list of today."""
    fake = FakeAmd("Genoa")
    fake.__dict__["ark"] = x509.load_der_x509_certificate((machine / "root.der").read_bytes())
    today = datetime.now(UTC).replace(microsecond=0)
    answers = fake_services.amd(fake)
    revoked = fake.crl(start=today - timedelta(days=1), end=today + timedelta(days=30))
    answers["/vcek/v1/Genoa/crl"] = [Answer(revoked.public_bytes(Encoding.DER))]
    with fake_services.serving(answers) as (base, _):
        yield base


def _handed_over(folder: Path, machine: Path) -> None:
    """What the deployment's owner and the builder give, and the key of the list's authority."""
    data = fake_appliance.measured(launch=(hardware_server.MEASUREMENT,)).to_json()
    (folder / "deployment.hcl").write_bytes((machine / "policy.hcl").read_bytes())
    (folder / "measurements.json").write_bytes(data)
    (folder / "measurements.json.sig").write_bytes(measurements.sign(data, BUILDER))
    builder = BUILDER.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / "builder.pub").write_bytes(builder)
    (folder / "root.der").write_bytes((machine / "root.der").read_bytes())
    tpm = Maker().certify(fake_tpm.rsa_key("edge box").public_key())
    (folder / "ek.der").write_bytes(tpm.public_bytes(Encoding.DER))
    (folder / "collateral").mkdir()
    lists.key_file(folder)


@pytest.fixture
def reader(tmp_path: Path, tiny_model: Path) -> Iterator[Reader]:
    """Who follows the page, while an appliance listens."""
    machine, folder = tmp_path / "machine", tmp_path / "reader"
    machine.mkdir()
    folder.mkdir()
    evidence = hardware_server.EVIDENCE.format(tcb='"genoa" ')
    policy = hardware_server.write(machine, "sev-snp", tiny_model, schema=2, evidence=f"{evidence}\n{DEMAND}\n")
    with running("sev-snp", policy, tiny_model, machine) as url, amd_services(machine) as services:
        _handed_over(folder, machine)
        found = Reader(folder, {URL: url, "llm-prod": "hardware", "127.0.0.1:9000": f"127.0.0.1:{images.free_port()}",
                                "127.0.0.1:8080": f"127.0.0.1:{images.free_port()}"})
        root = "--unsafe-root root.der"
        found.added = {"appliance verify https": root, "appliance connect": root,
                       "appliance machines add list.json --appliance": root,
                       "appliance collateral fetch": f"{root} --from {services}"}
        yield found


@pytest.mark.slow
def test_the_guide_is_followed_to_the_letter(reader: Reader) -> None:
    """Each command on the page, in its order. While something is absent the exit code is 2, as the page says; with the
    documents fetched and the list of machines signed it is 0, and a local port leads to the appliance."""
    script = Script(PAGE)
    assert ["python3", "pip"] == [each.split()[0] for each in script.until("appliance verify")]
    once = script.next("appliance verify https")
    reader.ends(once, 2, "no revocation list was at hand")
    options = once.partition(URL)[2]
    reader.ends(script.next("appliance verify https").replace(" …", options), 2, "no revocation list was at hand")
    fetch = script.next("appliance collateral fetch")
    reader.ends(fetch.replace("-o collateral", "--print"), 0, "https://kdsintf.amd.com/vcek/v1/Genoa/crl")
    reader.ends(fetch, 0)
    reader.ends(f"{fetch} --if-due", 0)
    _simulated(reader, script.next("appliance verify http://"))
    assert ["--ak", "--ek-roots"] == [each.split(" … ")[1].split()[0] for each in script.until("appliance machines")]
    reader.ends(once, 2, "unchecked-machine")
    for _ in range(2):
        reader.ends(script.next("appliance machines add"), 0, "added: ")
    reader.ends(script.next("appliance machines sign"), 0)
    reader.ends(once, 0, "VERIFIED")
    with reader.keeps(script.next("appliance connect"), reader.here("ready: http://127.0.0.1:9000")):
        asked = re.search(r"`(curl [^`]*)`\.", (guides.GUIDES / PAGE).read_text())
        assert asked is not None
        reader.ends(asked[1], 0, '"status": "ready"')
    reader.ends(f"curl -s {URL}/health", 60)  # as the page says
    assert 2 == script.next("appliance connect").count("https://")  # tests/client/test_fleet.py has several machines
    _in_python(reader)
    assert [] == script.left


def _simulated(reader: Reader, command: str) -> None:
    """The demo, on another port if its own is taken: it proves nothing."""
    (reader.folder / "examples").mkdir()
    port = reader.here("127.0.0.1:8080").rpartition(":")[2]
    (reader.folder / "examples/demo.hcl").write_text((ROOT / "examples/demo.hcl").read_text().replace("8080", port))
    with reader.keeps(f"appliance serve examples/demo.hcl --models {images.MODELS}", "ready on"):
        reader.ends(command, 5, "SIMULATED")


def _in_python(reader: Reader) -> None:
    """The page's program, with our vendor's root: it prints a verdict, and a request by the SDK is answered."""
    [program] = guides.blocks(PAGE, "python")
    program = program.replace('"…"', f'"{server.KEY}"').replace(
        'collateral="collateral")', 'collateral="collateral", roots=roots([Path("root.der")]))')
    (reader.folder / "client.py").write_text("\n".join((
        "from pathlib import Path", "from appliance.cli.verifying import roots", reader.here(program),
        "print([each.id for each in client.models.list()])", "")))
    reader.ends("python client.py", 0, "VERIFIED", "['tiny']")
