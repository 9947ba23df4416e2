"""Documents of the host's: passed on with evidence as they are, within bounds, and read anew when the host writes."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from appliance.attestation.evidence import MAX_COLLATERAL, ReportWithCollateral
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.attestation.tdx.judging import verify
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.boot.placement import staple
from appliance.boot.placement.staple import StapledProvider
from appliance.errors import AttestationError, UncheckedEvidenceError
from tests.fuzz import driver, staple_fuzz
from tests.fuzz.launchdisk_fuzz import archive
from tests.support.vectors import need

AT = datetime(2025, 6, 20, tzinfo=UTC)


class Reports(SimulatedProvider):
    """Reports with some collateral of their own."""

    own: tuple[bytes, ...] = (b"own",)
    closed = False

    def collect(self, report_data: bytes) -> ReportWithCollateral:
        """The same report each time."""
        return ReportWithCollateral(b"report", self.own)

    def close(self) -> None:
        """Remember it."""
        self.closed = True


def _provider(disk: Path, data: bytes) -> StapledProvider:
    disk.write_bytes(data)
    found = staple.stapled(Reports(bytes(32)), disk)
    assert isinstance(found, StapledProvider)
    return found


def _passed_on(provider: StapledProvider) -> tuple[bytes, ...]:
    return provider.collect(bytes(64)).collateral


def test_documents_go_with_a_report(tmp_path: Path) -> None:
    """Behind the report's own collateral, in the order of the archive; a disk may be larger than its archive."""
    made = _provider(tmp_path / "disk", archive({"tcb.json": b"{}", "list.crl": b"\x30"}) + bytes(99999))
    assert (b"own", b"{}", b"\x30") == _passed_on(made)
    assert b"report" == made.report(bytes(64))
    assert "simulated" == made.platform
    assert made.endorsement() is None
    with pytest.raises(AttestationError):
        made.activate(b"")


def test_without_a_disk_nothing_changes(tmp_path: Path) -> None:
    """No device, a folder, or what cannot be opened: the provider as it was."""
    provider = Reports(bytes(32))
    assert provider is staple.stapled(provider, tmp_path / "absent")
    assert provider is staple.stapled(provider, tmp_path)


def test_a_new_archive_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host overwrites the disk while the appliance runs: once in a while it is read anew, and not each time."""
    disk = tmp_path / "disk"
    made = _provider(disk, archive({"a": b"old"}))
    assert (b"own", b"old") == _passed_on(made)
    with disk.open("r+b") as file:
        file.write(archive({"a": b"new"}))
    assert (b"own", b"old") == _passed_on(made)
    made._due = 0.0
    assert (b"own", b"new") == _passed_on(made)


@pytest.mark.parametrize(("data", "kept"), [
    (b"", ()), (bytes(4096), ()), (b"x" * 4096, ()),
    (archive({"a": b"1", "b": b"2"})[:1024], (b"1",)),  # half written
    (archive({"a": b"", "b": b"2"}), (b"2",)),  # evidence has no place for nothing
    (archive({"a": bytes(staple.MAX_DOCUMENT + 1), "b": b"2"}), (b"2",)),
    (archive({str(number): bytes(staple.MAX_DOCUMENT) for number in range(3)}), (bytes(staple.MAX_DOCUMENT),) * 2)])
def test_bounds(tmp_path: Path, data: bytes, kept: tuple[bytes, ...]) -> None:
    """An empty disk, noise, an archive that ends early, and documents that are too large."""
    assert (b"own", *kept) == _passed_on(_provider(tmp_path / "disk", data))


def test_no_more_than_evidence_holds(tmp_path: Path) -> None:
    """Sixteen items, of which the report's own come first."""
    found = _passed_on(_provider(tmp_path / "disk", archive({str(number): b"x" for number in range(40)})))
    assert (MAX_COLLATERAL, b"own") == (len(found), found[0])


def test_a_disk_that_went_away(tmp_path: Path) -> None:
    """Nothing is passed on, and evidence is as without a disk."""
    made = _provider(tmp_path / "disk", archive({"a": b"1"}))
    reader, writer = os.pipe()
    os.close(writer)
    os.dup2(reader, made._descriptor)
    os.close(reader)
    assert (b"own",) == _passed_on(made)
    made.close()
    assert made._provider.closed  # type: ignore[attr-defined]


def test_real_documents_of_intel_pass_through(tmp_path: Path) -> None:
    """Collateral of a real quote, from the disk to the verdict on that quote; without it there is none."""
    quote, data = need("tdx/quote_v4.bin").read_bytes(), need("tdx/quote_v4_collateral.json").read_bytes()
    items = _passed_on(_provider(tmp_path / "disk", archive({"intel.json": data})))
    assert data == items[1]
    claims = verify.verify(quote, Collateral().with_items(items, "evidence"), at=AT)
    assert "UpToDate" == claims.tcb.status
    with pytest.raises(UncheckedEvidenceError):
        verify.verify(quote, Collateral().with_items(items[:1], "evidence"), at=AT)


def test_fuzzing_finds_nothing() -> None:
    """Whatever a host writes: bounded documents, or none."""
    _, finding = driver.run(staple_fuzz.fuzz, staple_fuzz.seeds(), seconds=0, seed=1, least=2000)
    assert finding is None
