"""Evidence of a TPM: a quote over all PCRs of the SHA-256 bank by a key that only quotes, with all
that shows it.

The key is the one that a cloud certified for this machine, if there is one, or else our own: a
primary key of the endorsement hierarchy, which is the same at each boot. Neither says that the host
is honest: a vTPM is the host's.
"""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

from appliance.attestation.collector import EVENT_LOG, Collector
from appliance.attestation.evidence import Provider, ReportWithCollateral, TpmEndorsement
from appliance.attestation.tpm import abi, container, credential
from appliance.attestation.tpm.chip import activate, device
from appliance.attestation.tpm.chip.client import DEVICE, Tpm
from appliance.attestation.tpm.collecting import td_quote
from appliance.attestation.tpm.container import AZURE_MAGIC, MAX_LOG_BYTES, TpmEvidence
from appliance.errors import AttestationError
from appliance.platforms import TPM

_ATTEMPTS = 5
_TRANSIENT = 0x80  # TPM_HT_TRANSIENT, Part 2, section 7.2


class TpmProvider(Provider):
    """A TPM, its attestation key loaded. Raises AttestationError if there is none or it refuses."""

    def __init__(self, path: Path = DEVICE, event_log: Path = EVENT_LOG,
                 quotes: tuple[str, int] = td_quote.SERVICE) -> None:
        self._tpm = Tpm(path)
        try:
            self._key = device.attestation_key(self._tpm)
            self._ek_certificate = device.ek_certificate(self._tpm)
            self._ek_chain = () if self._ek_certificate is None else device.ek_chain(self._tpm)
            self._azure = None if self._key.certificate is None else _azure_report(self._tpm)  # names that key
        except AttestationError:
            self._tpm.close()
            raise
        self._td_quote = None if self._azure is None else td_quote.of(self._azure, quotes)  # of this boot's report
        self._log = _read_log(event_log)
        self._ek: activate.LoadedEk | None = None  # made when it is first needed: with RSA that takes a while
        self._activating = threading.Lock()

    @property
    def platform(self) -> str:
        """`tpm`."""
        return TPM.name

    @property
    def device(self) -> Tpm:
        """The open TPM."""
        return self._tpm

    def collect(self, report_data: bytes) -> ReportWithCollateral:
        """TPM evidence (docs/formats/tpm-evidence.md) whose quote answers these 64 bytes."""
        if len(report_data) != 64:
            raise ValueError("report data is 64 bytes")
        data = container.qualifying_data(report_data)
        for _ in range(_ATTEMPTS):
            values = device.read_pcrs(self._tpm)
            message, signature = device.quote(self._tpm, self._key, data)
            together = b"".join(values.values())
            quote = abi.parse_quote(message)
            if quote.pcr_digest == hashlib.sha256(together).digest():  # no PCR changed between the two
                evidence = TpmEvidence(message, signature, self._key.public, together, self._log,
                                       self._key.certificate, self._certificate(), self._azure, self._td_quote)
                return ReportWithCollateral(evidence.to_bytes(), self._ek_chain)
        raise AttestationError("TPM: its PCRs change all the time, or its quotes are of others", code="tpm-race")

    def endorsement(self) -> TpmEndorsement | None:
        """The material from which a verifier makes a challenge; None without a certificate."""
        certificate = self._certificate()
        return None if certificate is None else TpmEndorsement(self._key.public, certificate, self._ek_chain)

    def activate(self, challenge: bytes) -> bytes:
        """The answer to a challenge (docs/formats/tpm-activation.md): 32 bytes, which show that the
        TPM opened it.

        Raises MalformedEvidenceError; AttestationError `tpm-ek-absent`, `tpm-ek-other`,
        `tpm-activation`.
        """
        credential.parse_challenge(challenge)
        if self._ek_certificate is None:
            raise AttestationError("TPM: no certificate of an endorsement key is in it", code="tpm-ek-absent")
        with self._activating:
            if self._ek is None:
                self._ek = activate.load(self._tpm, *self._ek_certificate)
            secret = activate.secret(self._tpm, self._key.handle, self._ek, challenge)
        return credential.answer(secret, challenge)

    def _certificate(self) -> bytes | None:
        return None if self._ek_certificate is None else self._ek_certificate.certificate

    def close(self) -> None:
        """Unload the keys and close the device."""
        if self._ek is not None and not self._ek.persistent:
            self._tpm.flush(self._ek.handle)
        if self._key.handle >> 24 == _TRANSIENT:
            self._tpm.flush(self._key.handle)
        self._tpm.close()


def _read_log(path: Path) -> bytes | None:
    """The firmware's event log; None where there is none, or one too large to carry."""
    try:
        with path.open("rb") as file:
            log = file.read(MAX_LOG_BYTES + 1)
    except OSError:
        return None
    return log if 0 < len(log) <= MAX_LOG_BYTES else None


def _azure_report(tpm: Tpm) -> bytes | None:
    """The record that an Azure confidential VM keeps beside its vTPM: a hardware report that binds
    the vTPM's key."""
    found = device.read_nv(tpm, device.AZURE_REPORT)
    return found.rstrip(b"\0") if found is not None and found.startswith(AZURE_MAGIC) else None


COLLECTOR = Collector(open=lambda places, _host_data: TpmProvider(places.tpm, places.event_log),
                      shortened=lambda report: container.parse(report).without_log().to_bytes())
