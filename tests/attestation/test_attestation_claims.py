"""Claims in the vendors' own terms, and limits of the small decoders below them."""

from __future__ import annotations

import struct
from datetime import timedelta

import pytest

from appliance.attestation.snp.judging import abi as snp_abi
from appliance.attestation.snp.judging import describe as snp_claims
from appliance.attestation.tdx import abi as tdx_abi
from appliance.attestation.tdx.judging import describe as tdx_claims
from appliance.attestation.tdx.judging import verify as tdx_verify
from appliance.attestation.tpm import abi as tpm_abi
from appliance.attestation.x509 import walks
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.codec import cborreader, der
from appliance.errors import MalformedEvidenceError, UncheckedEvidenceError, UnsupportedEvidenceError
from tests.support.fake_amd import FakeAmd
from tests.support.fake_intel import NOW, FakeIntel

TDX_NAMES = [
    "version", "TEE_TCB_SVN", "MRSEAM", "MRSIGNERSEAM", "SEAMATTRIBUTES", "TDATTRIBUTES", "TDATTRIBUTES.DEBUG",
    "TDATTRIBUTES.SEPT_VE_DISABLE", "TDATTRIBUTES.MIGRATABLE", "TDATTRIBUTES.PKS", "TDATTRIBUTES.KL",
    "TDATTRIBUTES.PERFMON", "XFAM", "MRTD", "MRCONFIGID", "MROWNER", "MROWNERCONFIG", "RTMR0", "RTMR1", "RTMR2",
    "RTMR3", "REPORTDATA", "QE vendor id", "QE MRENCLAVE", "QE MRSIGNER", "QE ISVSVN"]
TCB_NAMES = [
    "FMSPC", "PPID", "platform instance id", "TCB status", "SMT", "advisories", "tcbEvaluationDataNumber",
    "TCB information issued", "TCB information valid until", "PCK, SHA-256", "root, SHA-256"]


def test_every_claim_of_a_tdx_quote_has_intel_s_name() -> None:
    """An unverified quote shows its own fields, a verified one also what Intel says of the platform."""
    fake = FakeIntel()
    raw = fake.quote()
    quote = tdx_abi.parse(raw)
    assert TDX_NAMES == [name for name, _ in tdx_claims.describe(quote, None)]
    claims = tdx_verify.verify(raw, fake.collateral(), at=NOW, **fake.pins)
    shown = tdx_claims.describe(quote, claims)
    assert TDX_NAMES + TCB_NAMES == [name for name, _ in shown]
    assert "none" == dict(shown)["advisories"]
    assert quote.body.mr_td.hex() == dict(shown)["MRTD"]


@pytest.mark.parametrize("version", [2, 3, 5])
def test_newer_fields_of_an_snp_report_show_where_they_exist(version: int) -> None:
    """The CPU's identity is there from version 3, mitigation vectors from version 5: what is absent is not shown."""
    names = {name for name, _ in snp_claims.describe(snp_abi.parse(FakeAmd().report(version=version)), None)}
    assert (version >= 3) == ({"CPUID_FAM_ID", "CPUID_MOD_ID", "CPUID_STEP"} <= names)
    assert (version >= 5) == ({"LAUNCH_MIT_VECTOR", "CURRENT_MIT_VECTOR"} <= names)


@pytest.mark.parametrize("opening", [b"\x81", b"\xa1\x00", b"\xc1"])
def test_cbor_of_eight_levels_is_read_and_of_nine_refused(opening: bytes) -> None:
    """Lists, maps and tags count alike towards the limit; the innermost value is a level too."""
    cborreader.decode(opening * 7 + b"\x00")
    with pytest.raises(MalformedEvidenceError, match="more than 8 levels"):
        cborreader.decode(opening * 8 + b"\x00")


@pytest.mark.parametrize("data", [b"", b"\x02\x01\x05", b"\x30\x00\x30\x00", b"\x30\x00\x02\x01\x05"])
def test_one_der_element_is_one_and_of_its_kind(data: bytes) -> None:
    """Nothing, another tag, and two elements are all refused."""
    with pytest.raises(MalformedEvidenceError):
        der.only(data, 0x30)


@pytest.mark.parametrize("data", [b"{}", b"[1]", b'{"tcb_info": "x"}', b"{", b"[" * 100_000])
def test_other_json_is_no_collateral(data: bytes) -> None:
    """A JSON file that is no TDX collateral is left aside."""
    known = Collateral()
    known.add(data, "other.json")
    assert [] == known.documents


SNP_NAMES = """VERSION GUEST_SVN POLICY POLICY.ABI POLICY.SMT POLICY.MIGRATE_MA POLICY.DEBUG POLICY.SINGLE_SOCKET
POLICY.CXL_ALLOW POLICY.MEM_AES_256_XTS POLICY.RAPL_DIS POLICY.CIPHERTEXT_HIDING_DRAM POLICY.PAGE_SWAP_DISABLE FAMILY_ID
IMAGE_ID VMPL SIGNATURE_ALGO PLATFORM_INFO PLATFORM_INFO.SMT_EN PLATFORM_INFO.TSME_EN PLATFORM_INFO.ECC_EN
PLATFORM_INFO.RAPL_DIS PLATFORM_INFO.CIPHERTEXT_HIDING_DRAM_EN PLATFORM_INFO.ALIAS_CHECK_COMPLETE
PLATFORM_INFO.IOMMU_WRITE_SAFE PLATFORM_INFO.TIO_EN AUTHOR_KEY_EN MASK_CHIP_KEY
SIGNING_KEY REPORT_DATA MEASUREMENT HOST_DATA ID_KEY_DIGEST AUTHOR_KEY_DIGEST REPORT_ID
REPORT_ID_MA CURRENT_TCB REPORTED_TCB COMMITTED_TCB LAUNCH_TCB CPUID_FAM_ID CPUID_MOD_ID CPUID_STEP LAUNCH_MIT_VECTOR
CURRENT_MIT_VECTOR CHIP_ID CURRENT_VERSION COMMITTED_VERSION""".split()  # noqa: SIM905 - a list of words


def test_every_claim_of_an_snp_report_has_amd_s_name() -> None:
    """The newest report shows all fields of the firmware ABI specification, in its order and by its names."""
    shown = snp_claims.describe(snp_abi.parse(FakeAmd().report(version=5)), None)
    assert SNP_NAMES == [name for name, _ in shown if "unknown" not in name]


@pytest.mark.parametrize(("name", "offset", "size"), [
    ("TEE_TCB_SVN", 0, 16), ("MRSEAM", 16, 48), ("MRSIGNERSEAM", 64, 48), ("SEAMATTRIBUTES", 112, 8),
    ("TDATTRIBUTES", 120, 8), ("XFAM", 128, 8), ("MRTD", 136, 48), ("MRCONFIGID", 184, 48), ("MROWNER", 232, 48),
    ("MROWNERCONFIG", 280, 48), ("RTMR0", 328, 48), ("RTMR1", 376, 48), ("RTMR2", 424, 48), ("RTMR3", 472, 48),
    ("REPORTDATA", 520, 64),
])
def test_a_cut_tdx_report_names_the_field_that_is_cut(name: str, offset: int, size: int) -> None:
    """The offsets are those of Intel's TD report; what is short of a byte is named with what it needs."""
    body = FakeIntel().quote()[48:48 + 584]
    with pytest.raises(MalformedEvidenceError, match=f": {name} needs {size} bytes at offset {offset}, "):
        tdx_abi._body(body[:offset + size - 1], tdx_abi.TD10)


def test_a_certificate_is_valid_in_its_first_and_last_second() -> None:
    """Both ends of the validity belong to it (RFC 5280, 4.1.2.5); a second beyond either does not."""
    certificate = FakeAmd().ark
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    walks.check_valid(certificate, first)
    walks.check_valid(certificate, last)
    for at in (first - timedelta(seconds=1), last + timedelta(seconds=1)):
        with pytest.raises(UncheckedEvidenceError) as caught:
            walks.check_valid(certificate, at)
        assert "certificate-expired" == caught.value.code


def test_der_lengths_have_one_form() -> None:
    """128 bytes take one more length byte, 256 take two; a longer form of the same length is refused (X.690, 10.1)."""
    for head, size in ((b"\x30\x7f", 127), (b"\x30\x81\x80", 128), (b"\x30\x82\x01\x00", 256)):
        assert size == len(der.only(head + bytes(size), 0x30).content)
    for head, size in ((b"\x30\x81\x7f", 127), (b"\x30\x82\x00\x80", 128), (b"\x30\x80", 0)):
        with pytest.raises(MalformedEvidenceError):
            der.only(head + bytes(size), 0x30)


def test_a_tpm_key_on_another_curve_is_named() -> None:
    """TPMT_PUBLIC with TPM_ECC_BN_P256 (0x0010): not supported, by its number."""
    # type ECC, name algorithm SHA-256, attributes, no auth policy, then symmetric, scheme, curve, kdf: 0x10 is NULL
    public = struct.pack(">HHIHHHHH", 0x0023, 0x000B, 0x00050072, 0, 0x0010, 0x0010, 0x0010, 0x0010) + bytes(4)
    with pytest.raises(UnsupportedEvidenceError, match="curve 0x0010 is not known"):
        tpm_abi.parse_public(struct.pack(">H", len(public)) + public)
