"""Fuzz target: what takes evidence from the front of a file, and logs. The first byte says which reader it is for."""

from __future__ import annotations

import gzip

from appliance.attestation.case import event_log as tpm_log
from appliance.attestation.snp import table as snp_table
from appliance.attestation.tdx import abi as tdx_abi
from appliance.attestation.tpm import abi as tpm_abi
from appliance.attestation.tpm.judging import azure as azure_abi
from appliance.attestation.tpm.judging import files as tpm_files
from appliance.errors import AttestationError
from tests.support import envelopes, fake_tpm
from tests.support.envelopes import AMD, INTEL

_QUOTED = {"sha256": {number: bytes(32) for number in range(24)}, "sha384": {1: b"\1" * 48}}


def _table(data: bytes) -> None:
    report, table, tail = snp_table.split(data)
    _apart(data, report, tail)
    if sum(map(len, table.values())) > snp_table.MAX_ENTRIES * len(data):
        raise AssertionError("more certificates than the file could have")


def _azure(data: bytes) -> None:
    report, tail = azure_abi.split(data)
    _apart(data, report, tail)
    azure_abi.parse(report).attestation_key()


def _tdx(data: bytes) -> None:
    quote, tail = tdx_abi.split(data)
    _apart(data, quote, tail)
    tdx_abi.parse(quote)


def _tpm(data: bytes) -> None:
    quote, tail = tpm_abi.split_quote(data)
    if quote + tail != data or tpm_abi.parse_quote(quote).signed != quote:
        raise AssertionError("the quote and its tail are not the file")


def _log(data: bytes) -> None:
    events = tpm_log.parse(tpm_files.unpack(data))
    explanation = tpm_log.explain(events, _QUOTED)
    assert isinstance(tpm_log.told(tpm_log.shifted(explanation, -1)), list)


def _unpack(data: bytes) -> None:
    if len(tpm_files.unpack(data)) > max(tpm_log.MAX_LOG_BYTES + 1, len(data)):
        raise AssertionError("unpacked to more than a log may have")


def _apart(data: bytes, evidence: bytes, tail: bytes) -> None:
    if not data.startswith(evidence) or not data.endswith(tail) or len(evidence) + len(tail) > len(data):
        raise AssertionError("the evidence and its tail are not the file's")


_READERS = (_table, _azure, _tdx, _tpm, _log, _unpack)


def fuzz(data: bytes) -> None:
    """Split or read what the first byte says."""
    try:
        _READERS[data[0] % len(_READERS) if data else 0](data[1:])
    except AttestationError:
        return


def seeds() -> list[bytes]:
    """Each kind whole, with a tail, and padded."""
    report, quote, message = AMD.report(), INTEL.quote(), fake_tpm.quote()
    logs = [fake_tpm.event_log([(0, 1, b"x"), (9, 1, b"kernel")], locality=3) + b"\xff" * 8,
            envelopes.ccel([(0, b"x"), (1, b"y")])[0]]
    rows = {0: [report, report + bytes(16), report + envelopes.table(envelopes.der()), report + b"tail"],
            1: [envelopes.azure(), envelopes.azure(4) + b"tail"],
            2: [quote, quote + b"tail", INTEL.quote(5, td15=True)], 3: [message, message + b"tail"],
            4: [*logs, *map(gzip.compress, logs)], 5: [gzip.compress(bytes(1 << 20)), b"\x1f\x8b"]}
    return [bytes((number,)) + data for number, row in rows.items() for data in row]
