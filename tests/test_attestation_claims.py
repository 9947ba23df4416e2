"""Claims in the vendors' own terms, and limits of the small decoders below them."""

from __future__ import annotations

import pytest

from appliance.attestation import cbor, der, snp_abi, snp_claims, tdx_abi, tdx_claims, tdx_verify
from appliance.attestation.collateral import Collateral
from appliance.errors import MalformedEvidenceError
from tests.support.fake_amd import FakeAmd
from tests.support.fake_intel import NOW, FakeIntel

TDX_NAMES = [
    "version", "TEE_TCB_SVN", "MRSEAM", "MRSIGNERSEAM", "SEAMATTRIBUTES", "TDATTRIBUTES", "TDATTRIBUTES.DEBUG",
    "TDATTRIBUTES.SEPT_VE_DISABLE", "TDATTRIBUTES.MIGRATABLE", "TDATTRIBUTES.PKS", "TDATTRIBUTES.KL",
    "TDATTRIBUTES.PERFMON", "XFAM", "MRTD", "MRCONFIGID", "MROWNER", "MROWNERCONFIG", "RTMR0", "RTMR1", "RTMR2",
    "RTMR3", "REPORTDATA", "QE vendor id", "QE MRENCLAVE", "QE MRSIGNER", "QE ISVSVN"]
TCB_NAMES = ["FMSPC", "TCB status", "SMT", "advisories", "tcbEvaluationDataNumber", "TCB information issued",
             "TCB information valid until", "PCK, SHA-256", "root, SHA-256"]


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
    cbor.decode(opening * 7 + b"\x00")
    with pytest.raises(MalformedEvidenceError, match="more than 8 levels"):
        cbor.decode(opening * 8 + b"\x00")


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
