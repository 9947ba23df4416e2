"""Intel's root of SGX and TDX attestation, pinned by the SHA-256 of its DER certificate.

Intel serves it at https://certificates.trustedservices.intel.com, and its revocation list there as
`IntelSGXRootCA.der`. The value was compared with the copies that google/go-tdx-guest and
flashbots/attested-tls ship, and with the chains inside of quotes.
"""

from __future__ import annotations

ROOT = "44a0196b2b99f889b8e149e95b807a350e7424964399e885a7cbb8ccfab674d3"  # Intel SGX Root CA, until 2049-12-31
