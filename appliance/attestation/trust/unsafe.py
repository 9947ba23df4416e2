"""Roots that a caller names, beside the vendors': for tests, by an explicit flag alone."""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.trust.roots import VENDORS, Roots
from appliance.attestation.x509 import walks


def with_roots(certificates: Sequence[bytes]) -> Roots:
    """The vendors' roots and these (PEM or DER): `ARK-<product>` stands for AMD's of that product,
    a name that begins with `Intel` for Intel's, `GCE-cc-tcb-root` for the one above Google's
    endorsements, any other above attestation keys of TPMs. Raises MalformedEvidenceError."""
    amd, tpm, intel, intel_der = dict(VENDORS.amd), dict(VENDORS.tpm), VENDORS.intel, VENDORS.intel_der
    others = dict(VENDORS.others)
    for data in certificates:
        certificate = walks.load(data, "root")[0]
        name, fingerprint = walks.name_of(certificate), walks.fingerprint(certificate)
        if name.startswith("ARK-"):
            amd[name.removeprefix("ARK-")] = fingerprint
        elif name.startswith("Intel"):
            intel, intel_der = fingerprint, certificate.public_bytes(Encoding.DER)
        elif name.startswith("GCE-cc-tcb-root"):
            others["gce"] = fingerprint
        else:
            tpm[fingerprint] = name
    return Roots(amd, intel, intel_der, tpm, others)
