"""The certificate of an RA-TLS connection: in its time, signed by its own key, unaltered.

No authority stands behind it: what is believed of its key comes from evidence. A certificate that
is not self-signed belongs to a `tls` listener, whose key the operator has; policies allow that on
the simulated platform alone.
"""

from __future__ import annotations

from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.findings import Finding
from appliance.attestation.x509 import walks
from appliance.errors import ForgedEvidenceError, MalformedEvidenceError


def check(der: bytes, *, at: datetime, foreign: bool = False) -> Finding:
    """The rule `certificate`: valid at `at` and self-signed, or with `foreign` perhaps issued by
    somebody.

    Raises MalformedEvidenceError; ForgedEvidenceError `certificate-signature`;
    UncheckedEvidenceError `certificate-expired`.
    """
    certificate = walks.load(der, "the connection's certificate")[0]
    if certificate.public_bytes(Encoding.DER) != der:  # PEM inside of DER would be another certificate
        raise MalformedEvidenceError("the connection's certificate: not one certificate in DER")
    if foreign and certificate.issuer != certificate.subject:
        walks.check_valid(certificate, at)
        return Finding("certificate", "not checked", "an authority's, which nobody asks: the key counts")
    try:
        walks.check_issued(certificate, certificate)
    except ForgedEvidenceError:
        raise ForgedEvidenceError("the connection's certificate: it is not signed by its own key",
                                  code="certificate-signature") from None
    walks.check_valid(certificate, at)
    return Finding("certificate", "holds", f"until {_end(certificate)}")


def _end(certificate: x509.Certificate) -> str:
    return f"{certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}"
