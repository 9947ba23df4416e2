"""configfs-tsm: reports of both vendors are collected and verify; races, failures and lies of the machine are named."""

from __future__ import annotations

import errno
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation import binding
from appliance.attestation.case.reading import parse
from appliance.attestation.collect.attestor import Attestor, BoundFacts
from appliance.attestation.collect.collect import provider
from appliance.attestation.collect.tsm import TsmProvider
from appliance.attestation.collector import Interfaces
from appliance.attestation.evidence import Provider
from appliance.attestation.judge import verify
from appliance.attestation.judge.examine import examine
from appliance.attestation.judge.material import Material
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.attestation.snp.collecting.collector import certificates
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.errors import AttestationError, ForgedEvidenceError, UncheckedEvidenceError
from appliance.policy.digest import host_data
from tests.support.fake_amd import NOW, FakeAmd
from tests.support.fake_intel import FakeIntel
from tests.support.fake_tsm import FakeTsm, certificate_table

POLICY, NONCE = b"\x07" * 48, bytes(range(32))
DATA = bytes(range(64))


def _amd() -> FakeAmd:
    return FakeAmd("Genoa")


def _snp(amd: FakeAmd, *, table: bool = True, **changes: Any) -> FakeTsm:
    aux = certificate_table({name: each.public_bytes(Encoding.DER) for name, each in (
        ("ARK", amd.ark), ("VCEK", amd.leaf), ("ASK", amd.ask))}) if table else b""
    return FakeTsm(lambda data: amd.report(report_data=data, host_data=host_data(POLICY)), aux=aux, **changes)


def _tdx(intel: FakeIntel, **changes: Any) -> FakeTsm:
    return FakeTsm(lambda data: intel.quote(report_data=data, mr_config_id=POLICY), provider="tdx_guest", **changes)


def _provider(tsm: FakeTsm) -> TsmProvider:
    return TsmProvider(cast(Any, tsm))


def _attestor(source: Provider) -> Attestor:
    return Attestor(source, BoundFacts(POLICY, b"\x02" * 48, binding.Build(version="0.1.0")))


def test_snp_evidence_verifies_with_what_it_carries() -> None:
    """From the kernel's files to authentic claims: the table's certificates are all that a verifier needs."""
    amd = _amd()
    evidence = parse(_attestor(_provider(_snp(amd))).attest(NONCE).to_json())
    assert ("sev-snp", 3) == (evidence.platform, len(evidence.collateral))
    claims = verify.verify(evidence, at=NOW, roots=Roots(amd=amd.roots))
    assert (NONCE, host_data(POLICY)) == (claims.nonce, claims.host_data)
    with pytest.raises(ForgedEvidenceError, match="not the pinned root"):
        verify.verify(evidence, at=NOW, roots=Roots(amd={"Genoa": "00" * 32}))


def test_tdx_evidence_verifies_with_collateral_beside_it() -> None:
    """A TDX guest has no collateral of its own; a verifier brings it."""
    intel = FakeIntel()
    evidence = parse(_attestor(_provider(_tdx(intel))).attest(NONCE).to_json())
    roots = Roots(intel=intel.pins["root"], intel_der=intel.pins["root_der"])
    claims = verify.verify(evidence, collateral=intel.collateral(), at=NOW, roots=roots)
    assert ("tdx", POLICY) == (claims.platform, claims.host_data)
    with pytest.raises(UncheckedEvidenceError):
        verify.verify(evidence, at=NOW, roots=roots)


def test_without_a_table_the_chain_is_brought_along() -> None:
    """A host that gives no certificates only makes the verifier look for them."""
    amd = _amd()
    evidence = _attestor(_provider(_snp(amd, table=False))).attest(NONCE)
    assert () == evidence.collateral
    with pytest.raises(UncheckedEvidenceError, match="VCEK"):
        verify.verify(evidence, at=NOW, roots=Roots(amd=amd.roots))
    assert NONCE == verify.verify(evidence, collateral=amd.collateral(), at=NOW, roots=Roots(amd=amd.roots)).nonce


def test_spliced_evidence_is_forged() -> None:
    """A report of hardware under another statement is named as what it is."""
    amd = _amd()
    attestor = _attestor(_provider(_snp(amd)))
    old = attestor.attest(NONCE)
    attestor.bind_tls_key(bytes(32))
    spliced = attestor.attest(NONCE).model_copy(update={"report": old.report})
    with pytest.raises(ForgedEvidenceError) as caught:
        verify.verify(spliced, at=NOW, roots=Roots(amd=amd.roots))
    assert "report-data-mismatch" == caught.value.code


def test_examination_of_hardware_evidence() -> None:
    """`appliance evidence` judges the JSON form too."""
    amd = _amd()
    data = _attestor(_provider(_snp(amd))).attest(NONCE).to_json()
    found = examine(Material(data, cast(Any, None), roots=Roots(amd=amd.roots)), at=NOW)
    assert ("genuine", "appliance evidence, platform sev-snp") == (found.verdict, found.kind)
    assert "not genuine" == examine(Material(data, cast(Any, None)), at=NOW).verdict
    intel = FakeIntel()
    data = _attestor(_provider(_tdx(intel))).attest(NONCE).to_json()
    roots = Roots(intel=intel.pins["root"], intel_der=intel.pins["root_der"])
    found = examine(Material(data, cast(Any, None), Collateral(), roots=roots), at=NOW)
    assert "cannot tell" == found.verdict
    assert "genuine" == examine(Material(data, cast(Any, None), intel.collateral(), roots=roots), at=NOW).verdict


def test_a_nonce_that_is_given_is_compared() -> None:
    """The nonce that evidence names for itself is anyone's: whoever says which was asked hears whether it was that."""
    amd = _amd()
    data = _attestor(_provider(_snp(amd))).attest(NONCE).to_json()

    def found(nonce: bytes | None) -> tuple[str, str, str]:
        seen = examine(Material(data, cast(Any, None), nonce=nonce, roots=Roots(amd=amd.roots)), at=NOW)
        return seen.verdict, seen.code, " ".join(seen.proved)

    assert ("genuine", "") == found(NONCE)[:2]
    assert found(NONCE)[2].endswith(f"it answers the nonce {NONCE.hex()}")
    assert found(None)[2].endswith("which the file names: was it yours?")
    for other in (bytes(len(NONCE)), NONCE[:-1], b""):
        assert ("not genuine", "nonce-other") == found(other)[:2]
        assert "it answers" not in found(other)[2]


def test_a_race_is_noticed_and_the_report_made_again() -> None:
    """Someone else's input is never taken for ours; who always interferes is named."""
    amd = _amd()
    tsm = _snp(amd, race=2)
    assert DATA == _provider(tsm).report(DATA)[0x50:0x90]
    with pytest.raises(AttestationError) as caught:
        _provider(_snp(amd, race=1000)).report(DATA)
    assert "tsm-race" == caught.value.code


def test_the_folder_is_one_of_its_own_and_goes_with_its_provider() -> None:
    """Two providers never share a folder; a closed one leaves nothing."""
    tsm = _snp(_amd())
    first, second = _provider(tsm), _provider(tsm)
    assert 2 == len(tsm.entries)
    first.close()
    second.close()
    assert {} == tsm.entries


def test_below_an_svsm_reports_are_asked_for_at_its_level() -> None:
    """The kernel names the lowest level that may be asked for; the provider takes it."""
    tsm = _snp(_amd(), floor=2)
    assert DATA == _provider(tsm).report(DATA)[0x50:0x90]
    assert [2] == [entry.privlevel for entry in tsm.entries.values()]
    assert DATA == _provider(_snp(_amd(), floor=None)).report(DATA)[0x50:0x90]


@pytest.mark.parametrize(("name", "code", "words"), [
    ("mkdir", errno.ENXIO, "No such device or address"), ("provider", errno.EACCES, "Permission denied"),
    ("inblob", errno.EBUSY, "busy"), ("outblob", errno.EIO, "Input/output"), ("generation", errno.EINTR, "Interrupted"),
])
def test_what_the_kernel_refuses_is_told(name: str, code: int, words: str) -> None:
    """Each failing file is named with the kernel's own word."""
    with pytest.raises(AttestationError, match=words) as caught:
        _provider(_snp(_amd(), fail={name: code})).report(DATA)
    assert "tsm-absent" == caught.value.code


def test_an_unknown_provider_is_named() -> None:
    """A platform that the kernel supports and we do not is not guessed at; the folder does not stay."""
    tsm = _snp(_amd())
    tsm.provider = "arm_cca_guest"
    with pytest.raises(AttestationError, match="'arm_cca_guest' is not known"):
        _provider(tsm)
    assert {} == tsm.entries


def test_other_report_data_than_ours_is_never_handed_on() -> None:
    """A machine whose reports are about something else gives none."""
    amd = _amd()
    with pytest.raises(AttestationError) as caught:
        _provider(FakeTsm(lambda data: amd.report(report_data=bytes(64)))).report(DATA)
    assert "tsm-race" == caught.value.code
    with pytest.raises(ValueError, match="64 bytes"):
        _provider(_snp(amd)).report(bytes(63))


@pytest.mark.parametrize("table", [b"", b"\x01" * 10, bytes(4096), b"\xff" * 4096])
def test_a_broken_table_is_no_table(table: bytes) -> None:
    """The host writes the table; whatever it is, the report stands for itself."""
    assert () == certificates(table)


def test_the_strongest_allowed_platform_is_chosen() -> None:
    """Policy and machine must meet: the wrong hardware is refused by name, simulation only where it stands alone."""
    amd = _amd()
    places = Interfaces(reports=cast(Any, _snp(amd)))
    assert "sev-snp" == provider(("sev-snp", "tdx"), bytes(32), places).platform
    with pytest.raises(AttestationError, match="this machine is sev-snp, the policy allows tdx"):
        provider(("tdx",), bytes(32), places)
    assert isinstance(provider(("simulated",), bytes(32), places), SimulatedProvider)
    with pytest.raises(AttestationError, match="cannot be collected"):
        provider((), bytes(32), places)
    assert "sev-snp" == provider(("simulated", "sev-snp"), bytes(32), places).platform


def test_a_machine_without_the_interface_is_told(tmp_path: Any) -> None:
    """On an ordinary machine there is nothing to collect from."""
    places = Interfaces(reports=tmp_path / "none", tpm=tmp_path / "tpm")
    for platforms, code in ((("sev-snp",), "tsm-absent"), (("tpm",), "tpm-absent")):
        with pytest.raises(AttestationError) as caught:
            provider(platforms, bytes(32), places)
        assert code == caught.value.code
