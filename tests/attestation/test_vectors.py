"""Every public vector, judged at the command line as its README says. Dates matter: documents are of their time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.main import main
from tests.support.vectors import VECTORS, need

NOW, JUNE = "2026-07-01", "2026-06-10"
CA = "snp/milan_ask_ark_asvk.pem"

# file, time, collateral besides the file's own folder ("" is the folder alone), exit code, what is said
JUDGED: list[tuple[str, str, tuple[str, ...], int, str]] = [
    ("snp/milan_report.bin", NOW, (), 0, "the VCEK signed the report"),
    ("snp/milan_report.bin", "2025-12-01", (), 2, "valid from"),
    ("snp/milan_report.bin", "2034-01-01", (), 2, "valid from"),
    ("snp/genoa_report.bin", NOW, (), 0, "root ARK-Genoa"),
    ("snp/debug_policy_report.bin", NOW, (), 0, "DEBUG: the guest policy lets the host decrypt this guest"),
    ("snp/milan_v2_report.bin", NOW, (), 0, "root ARK-Milan"),
    ("snp/milan_v2_report.bin", "2026-05-11", (), 0, "no certificate is revoked as of 2025-05-06"),
    ("snp/milan_v2_report.bin", "2026-05-13", (), 0, "one ended on 2026-05-12"),
    ("snp/genoa_report_with_pem_table.bin", NOW, (), 0, "root ARK-Genoa"),
    ("snp/tsm_base64url.json", NOW, (), 0, "root ARK-Genoa"),
    ("snp/turin_attestation_report.bin", NOW, (), 0, "root ARK-Turin"),
    ("snp/genoa_v5_mit01_report.bin", NOW, (), 0, '"CURRENT_MIT_VECTOR": "0x1"'),
    ("snp/genoa_v5_mit01_report.bin", NOW, (), 0, '"LAUNCH_MIT_VECTOR": "0x1"'),
    ("snp/genoa_v5_mit0b_report.bin", NOW, (), 0, '"CURRENT_MIT_VECTOR": "0xb"'),
    ("snp/genoa_v5_mit0b_report.bin", NOW, (), 0, '"LAUNCH_MIT_VECTOR": "0xb"'),
    ("snp/trustee-test-report.bin", NOW, (), 0, "the VCEK signed the report"),
    ("snp/trustee-test-report.bin", NOW, ("snp/trustee-test-vcek-invalid-legacy.der", CA), 2, "is absent"),
    ("snp/trustee-test-report.bin", NOW, ("snp/trustee-test-vcek-invalid-new.der", CA), 2, "is absent"),
    ("snp/trustee-test-vlek-report.bin", "2025-06-01", (), 0, "the VLEK signed the report"),
    ("snp/trustee-test-vlek-report.bin", NOW, (), 2, "certificate-expired"),
    ("tdx/quote_v4.bin", "2025-06-20T10:16:03Z", (), 0, "TCB UpToDate"),
    ("tdx/quote_v4.bin", NOW, (), 2, "tdx-collateral-time"),
    ("tdx/quote_v4_trailing_bytes.bin", NOW, (), 2, "TAIL: 39 bytes"),
    ("tdx/quote_service_td.bin", NOW, (), 2, "the attestation key signed the quote"),
    ("tdx/quote_v5_outdated.bin", "2026-02-19T10:58:51Z", (), 2, "the attestation key signed the quote"),
    ("tdx/gce_quote.bin", NOW, (), 2, "the attestation key signed the quote"),
    ("tpm", NOW, (), 2, "AK CERTIFICATE REFUSED"),
    ("tpm/quote.msg", NOW, (), 2, "the key in ak.pub signed the quote"),
    ("tpm/gce2021/quote.msg", NOW, (), 2, "does not explain PCR 10 (sha256)"),
    ("tpm/gce2021/quote_sha1.msg", NOW, (), 2, "SHA-1 BANK"),
    ("tpm/trustee_tpm_evidence.json", NOW, (), 2, "the key in the envelope signed the quote"),
    ("azure/hcl-report.bin", NOW, (), 0, "the runtime data is bound in the report"),
    ("azure/tpm-quote.msg", NOW, (), 2, "AZURE REPORT PASSED OVER"),  # it is by another machine's key
    ("azure/padded_ak", NOW, (), 0, "the pinned root Azure Virtual TPM Root Certificate Authority 2023"),
    ("azure/padded_ak/q.msg", NOW, (), 0, "the key in a certificate signed the quote"),
    ("azure/tdx_folder", JUNE, (), 0, "a TDX quote of Intel hardware names the AK"),
    ("azure/tdx_folder/q.msg", JUNE, (), 0, "Azure Virtual TPM Root Certificate Authority 2023, who issued"),
    ("azure/tdx_folder/q.msg", "2026-07-09", (), 2, "tdx-collateral-time"),
    ("azure/tdx_folder/hcl.bin", JUNE, (), 0, "signed by Intel hardware, and names the keys of the virtual TPM"),
    ("azure/tdx_folder/tdquote.bin", JUNE, (), 0, "TCB UpToDate"),
    ("ra-tls/gramine-cert.pem", NOW, (), 2, "evidence-sgx"),
    ("ra-tls/intel-sgxsdk-cert.pem", NOW, (), 2, "evidence-sgx"),
    ("ra-tls/rats-tls-cert.pem", NOW, (), 2, "evidence-sgx"),
]
# what the files above are judged with
BESIDE = {
    "azure": {"vcek.pem", "tpm-quote.sig"},
    "azure/padded_ak": {"akcert.der", "azure_tpm_intermediate_03.pem", "azure_tpm_root_2023.pem", "q.pcrs", "q.sig"},
    "azure/tdx_folder": {"ak.pem", "c.json", "i0.pem", "i1.pem", "q.pcrs", "q.sig"},
    "tdx": {"quote_v4_collateral.json", "quote_v5_outdated_collateral.json"},
    "snp": {"amd_milan_crl.pem", "debug_policy_vcek.der", "genoa_ark.pem", "genoa_ask.pem", "genoa_vcek.pem",
            "genoa_v5_mit01_vcek.der", "genoa_v5_mit0b_vcek.der",
            "milan_ark.pem", "milan_ask.pem", "milan_ask_ark_asvk.pem", "milan_v2_vcek.der", "milan_vcek.pem",
            "trustee-test-vcek-invalid-legacy.der", "trustee-test-vcek-invalid-new.der", "trustee-test-vcek.der",
            "trustee-test-vlek.der", "turin_ark.pem", "turin_ask.pem", "turin_vcek.pem"},
    "tpm": {"ak.pub", "akcert_0x01C101D0.der", "nonce.hex", "pcrs.bin", "quote.sig", "tpmt_public_ak.pub"},
    "tpm/gce2021": {"ak.pub", "akcert.der", "eventlog", "nonce", "quote.pcrs", "quote.sig", "quote_sha1.pcrs",
                    "quote_sha1.sig"},
    "eventlog": {"ccel_short_end_mark.bin", "gce_ccel.bin.gz"},
}


def _run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    code = main(["evidence", *words, "--json"])
    text = capsys.readouterr().out
    return code, json.loads(text)[0], text


@pytest.mark.parametrize(("file", "at", "collateral", "code", "says"), JUDGED)
def test_each_vector_is_judged(capsys: pytest.CaptureFixture[str], tmp_path: Path, file: str, at: str,
                               collateral: tuple[str, ...], code: int, says: str) -> None:
    """The exit code, and what stands out."""
    path = need(file)
    for each in collateral:
        shutil.copy(need(each), tmp_path)
    where = ["--collateral", str(tmp_path)] if collateral else []
    found, outcome, text = _run(capsys, str(path), "--at", at, *where)
    assert (code, True) == (found, says in text), outcome
    assert "not genuine" != outcome["verdict"]


@pytest.mark.parametrize(("log", "says"), [
    ("gce_ccel.bin.gz", "the event log (43 events) gives the quoted values of RTMR 0, 1, 2 (sha384)"),
    ("ccel_short_end_mark.bin", "it does not explain RTMR 0, 1, 2 (sha384)")])
def test_each_log_is_replayed(capsys: pytest.CaptureFixture[str], log: str, says: str) -> None:
    """A log of the quote's machine explains it; another machine's is read and explains nothing."""
    code, _, text = _run(capsys, str(need("tdx/gce_quote.bin")), "--event-log", str(need(f"eventlog/{log}")),
                         "--at", NOW)
    assert (2, True) == (code, says in text), text
    assert "cannot be read" not in text


def test_a_quote_is_refused_for_another_machines_key(capsys: pytest.CaptureFixture[str]) -> None:
    """Of two keys at hand only the one that signed makes it genuine."""
    quote = str(need("tpm/quote.msg"))
    assert 0 == _run(capsys, quote, "--ak", str(need("tpm/ak.pub")))[0]
    assert 1 == _run(capsys, quote, "--ak", str(need("tpm/akcert_0x01C101D0.der")))[0]


def test_no_vector_is_left_out() -> None:
    """Each file is judged, or is what another is judged with. Those of `jcs` are in `test_policy_canonical`."""
    need("README.md")
    named = {file for file, *_ in JUDGED} | {f"{folder}/{name}" for folder, names in BESIDE.items() for name in names}
    there = {str(path.relative_to(VECTORS)) for path in VECTORS.rglob("*") if path.is_file()}
    assert set() == {name for name in there - named
                     if name != "README.md" and name.split("/")[0] not in ("licences", "jcs")}
