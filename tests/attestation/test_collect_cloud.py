"""Attestation keys that a cloud provisioned: an Azure confidential VM, made on a software TPM as Azure documents it."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.tpm import abi as tpm_abi
from appliance.attestation.tpm import container
from appliance.attestation.tpm.chip import client as tpm_client
from appliance.attestation.tpm.chip import device as tpm_device
from appliance.attestation.tpm.chip.client import OWNER, Command, Tpm, sized
from appliance.attestation.tpm.collecting.collector import TpmProvider
from appliance.attestation.tpm.judging import origin as tpm_origin
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509 import walks
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.errors import AttestationError, ForgedEvidenceError
from tests.support import fake_tpm, swtpm
from tests.support.fake_amd import NOW, FakeAmd
from tests.support.tpm_maker import NV_ATTRIBUTES, NV_DEFINE, write_nv

# TPM 2.0 Library, Part 3: what only whoever sets a machine up needs
EVICT_CONTROL = Command("TPM2_EvictControl", 0x120, "28.5", authorised=1)
DATA = bytes(range(64))
RSA_TEMPLATE = (struct.pack(">HHI", tpm_abi.RSA, 0x000B, 1 << 1 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 16 | 1 << 18)
                + sized(b"") + struct.pack(">HHHHI", 0x10, 0x14, 0x000B, 2048, 0) + sized(b""))


def _number(value: int) -> str:
    return base64.urlsafe_b64encode(value.to_bytes((value.bit_length() + 7) // 8, "big")).rstrip(b"=").decode()


def _hcl(amd: FakeAmd, key: rsa.RSAPublicKey) -> bytes:
    """NV index 0x01400001: header, SNP report, and runtime data that name the vTPM's key."""
    numbers = key.public_numbers()
    runtime = json.dumps({"keys": [{"kid": "HCLAkPub", "kty": "RSA", "n": _number(numbers.n),
                                    "e": _number(numbers.e)}]}).encode()
    report = amd.report(report_data=hashlib.sha256(runtime).digest() + bytes(32))
    return b"HCLA" + bytes(28) + report + bytes(8) + struct.pack("<III", 2, 1, len(runtime)) + runtime + bytes(16)


class Azure:
    """A confidential VM's TPM: a certified key at its handle, and the hardware report beside it."""

    def __init__(self, path: Path, *, certified: str = "ak") -> None:
        self.path, self.amd = path, FakeAmd()
        tpm = Tpm(path)
        made = tpm_device.create_primary(tpm, RSA_TEMPLATE)
        tpm.require(EVICT_CONTROL, (OWNER, made.handle), struct.pack(">I", 0x81000003))
        tpm.flush(made.handle)
        key = tpm_abi.parse_public(made.public).key
        assert isinstance(key, rsa.RSAPublicKey)
        self.root = fake_tpm.certificate(fake_tpm.rsa_key("root"), "Root", "Root", fake_tpm.rsa_key("root"), ca=True)

        class Public:
            def public_key(self) -> rsa.RSAPublicKey:
                return key if certified == "ak" else fake_tpm.rsa_key("other").public_key()

        certificate = fake_tpm.certificate(Public(), "AK", "Root", fake_tpm.rsa_key("root"))
        write_nv(tpm, 0x01C101D0, certificate.public_bytes(Encoding.DER) + bytes(100))  # padded, as clouds do
        write_nv(tpm, tpm_device.AZURE_REPORT, _hcl(self.amd, key))
        tpm.close()

    @property
    def roots(self) -> Roots:
        """Both hierarchies."""
        return Roots(amd=self.amd.roots, tpm={walks.fingerprint(self.root): "A Cloud"})

    def collateral(self, *, amd: bool = True) -> Collateral:
        """The chains' certificates; without `amd` only the cloud's."""
        found = list(self.amd.collateral().certificates) if amd else []
        return Collateral(certificates=[*found, x509.load_der_x509_certificate(self.root.public_bytes(Encoding.DER))])


@pytest.fixture(scope="module")
def azure() -> Iterator[Azure]:
    """A machine whose certificate is for its key."""
    with swtpm.running() as path:
        yield Azure(path)


@pytest.fixture(scope="module")
def evidence(azure: Azure) -> container.TpmEvidence:
    """What our provider collects there."""
    source = TpmProvider(azure.path, azure.path.with_name("none"))
    found = container.parse(source.report(DATA))
    source.close()
    return found


def test_a_clouds_key_is_used_and_leads_to_its_root(azure: Azure, evidence: container.TpmEvidence) -> None:
    """The provisioned key quotes; its certificate is unpadded and carried; the hardware report binds the key."""
    assert evidence.key_certificate is not None
    assert evidence.azure_report is not None
    claims = tpm_origin.verify(evidence.to_bytes(), DATA, azure.collateral(), at=NOW, roots=azure.roots)
    assert isinstance(claims.key.key, rsa.RSAPublicKey)
    assert ("A Cloud", "Milan") == (claims.root, claims.bound_by.product if claims.bound_by else None)


def test_without_the_chips_certificates_nothing_is_bound(azure: Azure, evidence: container.TpmEvidence) -> None:
    """What cannot be checked is not believed: the claims are then those of a vTPM."""
    claims = tpm_origin.verify(evidence.to_bytes(), DATA, azure.collateral(amd=False), at=NOW, roots=azure.roots)
    assert ("A Cloud", None) == (claims.root, claims.bound_by)
    assert None is tpm_origin.verify(evidence.to_bytes(), DATA, azure.collateral(), at=None).bound_by


def _without_padding(data: bytes) -> bytes:
    return data.rstrip(b"\0")


def test_a_report_that_names_another_key_is_forged(azure: Azure, evidence: container.TpmEvidence) -> None:
    """Another machine's hardware report beside this quote; altered runtime data; an altered report."""
    other = _without_padding(_hcl(azure.amd, fake_tpm.rsa_key("other").public_key()))
    mine = evidence.azure_report or b""
    for report, code in ((other, "tpm-ak-binding"), (mine.replace(b"HCLAkPub", b"HCLBkPub"), "azure-runtime-data"),
                         (mine[:0x20 + 0x90] + b"\x01" + mine[0x20 + 0x91:], "report-signature")):
        with pytest.raises(ForgedEvidenceError) as caught:
            tpm_origin.verify(replace(evidence, azure_report=report).to_bytes(), DATA, azure.collateral(), at=NOW,
                              roots=azure.roots)
        assert code == caught.value.code


def test_a_certificate_for_another_key_is_left_aside() -> None:
    """Where the provisioned certificate does not fit, our own key quotes, and no certificate is carried."""
    with swtpm.running() as path:
        machine = Azure(path, certified="other")
        source = TpmProvider(path, path.with_name("none"))
        found = container.parse(source.report(DATA))
        source.close()
        assert (None, None) == (found.key_certificate, found.azure_report)
        claims = tpm_origin.verify(found.to_bytes(), DATA, machine.collateral(), at=NOW, roots=machine.roots)
        assert (None, None) == (claims.root, claims.bound_by)


def test_nv_that_is_not_there_or_not_written(azure: Azure) -> None:
    """An index that is undefined, or defined and never written, holds nothing."""
    tpm = Tpm(azure.path)
    assert None is tpm_device.read_nv(tpm, 0x01C00002)
    area = struct.pack(">IHI", 0x01500000, 0x000B, NV_ATTRIBUTES) + sized(b"") + struct.pack(">H", 8)
    tpm.require(NV_DEFINE, (OWNER,), sized(b"") + sized(area))
    assert None is tpm_device.read_nv(tpm, 0x01500000)
    with pytest.raises(AttestationError, match="TPM2_ReadPublic was refused"):
        tpm.require(tpm_client.READ_PUBLIC, (0x81000009,))
    tpm.close()
