"""A software TPM that is made ahead of its machine, so that a broker can know its maker before it starts."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from cryptography import x509

from appliance.attestation.judge import collateral_folder
from appliance.cli.main import main
from appliance.imaging.qemu.softtpm import SoftTpm
from tests.support.require import tools


def test_its_maker_is_known_before_it_boots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder has the authority's certificates, which a broker takes as roots; the machine gets that very TPM."""
    tools("swtpm", "swtpm_setup", "swtpm_localca", package="swtpm swtpm-tools")
    folder = tmp_path / "tpm"
    assert 0 == main(["image", "tpm", str(folder)])
    assert f"{folder / 'authority'}: the TPM's maker" in capsys.readouterr().out
    given = (folder / "authority/certserial").read_text()  # another one with each TPM that it certifies
    shown = x509.load_pem_x509_certificates((folder / "authority/issuercert.pem").read_bytes())
    assert collateral_folder.ek_roots(folder / "authority")
    assert 0 == main(["image", "tpm", str(folder), "--json"])
    assert {"ek_roots": str(folder / "authority")} == json.loads(capsys.readouterr().out)
    with contextlib.closing(SoftTpm(folder)):
        assert given == (folder / "authority/certserial").read_text()
    assert shown == x509.load_pem_x509_certificates((folder / "authority/issuercert.pem").read_bytes())
