"""The bytes of SEV-SNP reports: every field at its place, and nothing but our errors for anything else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.attestation.snp.judging import abi as snp_abi
from appliance.attestation.snp.judging.abi import GuestPolicy, PlatformInfo, SnpTcb
from appliance.errors import AttestationError, MalformedEvidenceError, UnsupportedEvidenceError
from tests.fuzz import driver, snp_fuzz
from tests.support.fake_amd import FakeAmd


def test_every_field_is_read_at_its_place() -> None:
    """Fields written by an independent description of the layout come back as they went in."""
    report = snp_abi.parse(FakeAmd("Turin").report(
        version=5, sign=False, svn=9, policy=1 << 17 | 0x0137, family_id=b"f" * 16, image_id=b"i" * 16, vmpl=2,
        platform=0b100101, flags=0b00101, report_data=b"r" * 64, measurement=b"m" * 48, host_data=b"h" * 32,
        id_key=b"k" * 48, author_key=b"a" * 48, report_id_ma=b"g" * 32, chip_id=b"c" * 64, current=b"1" * 8,
        reported=b"2" * 8, committed=b"3" * 8, launch=b"4" * 8, current_version=(40, 55, 1),
        committed_version=(39, 54, 1), tail=b"\x05" + bytes(7) + b"\x06" + bytes(0xA8 - 9)))
    assert (5, 9, (1, 0x37), b"f" * 16, b"i" * 16, 2) == (
        report.version, report.guest_svn, report.policy.abi, report.family_id, report.image_id, report.vmpl)
    assert (b"r" * 64, b"m" * 48, b"h" * 32, b"k" * 48, b"a" * 48, b"g" * 32, b"c" * 64) == (
        report.report_data, report.measurement, report.host_data, report.id_key_digest, report.author_key_digest,
        report.report_id_ma, report.chip_id)
    assert (b"1" * 8, b"2" * 8, b"3" * 8, b"4" * 8) == (
        report.current_tcb, report.reported_tcb, report.committed_tcb, report.launch_tcb)
    assert ((1, 55, 40), (1, 54, 39), (0x1A, 2, 1), 5, 6) == (
        report.current_version, report.committed_version, report.cpuid, report.launch_mit_vector,
        report.current_mit_vector)
    assert (True, False, snp_abi.VLEK) == (
        report.key_info.author_key, report.key_info.mask_chip_key, report.key_info.signing_key)
    assert (True, False, True, True) == (
        report.platform_info.smt, report.platform_info.tsme, report.platform_info.ecc,
        report.platform_info.alias_check_complete)


@pytest.mark.parametrize(("bit", "field"), [
    (16, "smt"), (18, "migration_agent"), (19, "debug"), (20, "single_socket"), (21, "cxl"), (22, "aes256_xts"),
    (23, "rapl_disabled"), (24, "ciphertext_hiding"), (25, "page_swap_disabled")])
def test_each_guest_policy_bit_is_its_own(bit: int, field: str) -> None:
    """One bit sets one field."""
    policy = GuestPolicy.decode(1 << 17 | 1 << bit)
    fields = ("smt", "migration_agent", "debug", "single_socket", "cxl", "aes256_xts", "rapl_disabled",
              "ciphertext_hiding", "page_swap_disabled")
    assert [field] == [name for name in fields if getattr(policy, name)]
    assert 0 == policy.unknown


@pytest.mark.parametrize("raw", [0, 1 << 17 | 1 << 26, 1 << 17 | 1 << 63])
def test_policy_bits_that_are_not_known_are_kept(raw: int) -> None:
    """Bit 17 must be one and the bits from 26 on zero; what is otherwise is not forgotten."""
    assert GuestPolicy.decode(raw).unknown


def test_platform_bits_that_are_not_known_are_kept() -> None:
    """Bit 6 and those above 7 have no name here."""
    assert 1 << 8 == PlatformInfo.decode(0xFF | 1 << 8).unknown
    assert PlatformInfo.decode(1 << 6).iommu_write_safe


def test_tcb_layouts_differ_by_product() -> None:
    """The same eight bytes are other components on Turin."""
    raw = bytes(range(1, 9))
    assert {"bootloader": 1, "tee": 2, "snp": 7, "microcode": 8} == SnpTcb.decode(raw, "Milan").components()
    assert {"fmc": 1, "bootloader": 2, "tee": 3, "snp": 4, "microcode": 8} == SnpTcb.decode(raw, "Turin").components()


@pytest.mark.parametrize("version", [0, 1, 6, 1 << 31])
def test_unknown_versions_are_named(version: int) -> None:
    """A version outside of 2 to 5 is unsupported, with its number."""
    with pytest.raises(UnsupportedEvidenceError, match=f"version {version} "):
        snp_abi.parse(FakeAmd().report(version=version, sign=False))


def test_unknown_algorithm_is_named() -> None:
    """A signature algorithm other than ECDSA P-384 is unsupported, with its number."""
    with pytest.raises(UnsupportedEvidenceError, match="algorithm 2"):
        snp_abi.parse(FakeAmd().report(algorithm=2, sign=False))


@pytest.mark.parametrize("size", [0, 1, 0x2A0, 0x49F, 0x4A1])
def test_another_size_is_malformed(size: int) -> None:
    """A report has 1,184 bytes, no more and no less."""
    with pytest.raises(MalformedEvidenceError):
        snp_abi.parse((FakeAmd().report(sign=False) * 2)[:size])


@pytest.mark.parametrize("fields", [{"vmpl": 4}, {"flags": 2 << 2}, {"flags": 1 << 5},
                                    {"tail": b"\x01" + bytes(0xA7)}])
def test_reserved_values_are_malformed(fields: dict[str, int]) -> None:
    """Privilege levels, key selectors and fields that do not exist in the version are refused."""
    with pytest.raises(MalformedEvidenceError):
        snp_abi.parse(FakeAmd().report(version=4, sign=False, **fields))


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=0x4A0, max_size=0x4A0), st.integers(0, 7))
def test_any_bytes_raise_only_our_errors(data: bytes, version: int) -> None:
    """Random bytes of the right size, with a plausible version, parse or are refused."""
    head = version.to_bytes(4, "little")
    try:
        snp_abi.parse(head + data[4:])
    except AttestationError:
        return


def test_reports_and_certificates_survive_mutations() -> None:
    """Hundreds of mutated reports and certificates raise nothing else, and nothing false verifies."""
    for seed in snp_fuzz.seeds():  # makes the keys, which takes seconds
        snp_fuzz.fuzz(seed)
    _, finding = driver.run(snp_fuzz.fuzz, snp_fuzz.seeds(), seconds=0, seed=1, least=800)
    assert None is finding
