"""Envelopes as services of confidential computing write them, around evidence of the fake hierarchies."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding

from tests.support import envelopes
from tests.support.envelopes import AMD, INTEL, b64, b64url

TINFOIL = "https://tinfoil.sh/predicate/"


def chat(**changes: Any) -> dict[str, Any]:
    """A chat service's report: dstack's quote and log, a GPU's evidence, and whose key signs answers."""
    inner = envelopes.dstack_json()
    return {"signing_address": "0x" + "ab" * 20, "signing_algo": "ecdsa", "intel_quote": inner["quote"],
            "event_log": inner["event_log"], "nvidia_payload": '{"nonce": "00"}', "info": {"app_id": "1"}, **changes}


def gateway() -> dict[str, Any]:
    """A gateway's report with those of its models beside it."""
    return {"gateway_attestation": chat(request_nonce="00" * 32), "model_attestations": [chat(), chat()]}


def tinfoil(kind: str = "sev-snp-guest/v2", report: bytes | None = None) -> dict[str, Any]:
    """Tinfoil's evidence; version 1 is not packed."""
    body = AMD.report() if report is None else report
    packed = gzip.compress(body, mtime=0) if kind.endswith("v2") else body
    return {"format": TINFOIL + kind, "body": b64(packed)}


def snp_report() -> dict[str, Any]:
    """An SEV-SNP report with its chain in PEM, as Microsoft's containers carry it."""
    chain = b"".join(each.public_bytes(Encoding.PEM) for each in (AMD.leaf, AMD.ask, AMD.ark))
    return {"SnpReport": b64url(AMD.report()).rstrip("="), "VcekCertChain": b64url(chain).rstrip("="),
            "Endorsements": b64url(b'{"Uvm": []}').rstrip("=")}


def maa(*, tdx: bool = False) -> dict[str, Any]:
    """A request to Microsoft's attestation service."""
    beside = {"runtimeData": {"data": "e30", "dataType": "JSON"}}
    if tdx:
        return {"quote": b64url(INTEL.quote()).rstrip("="), **beside}
    return {"report": b64url(json.dumps(snp_report()).encode()).rstrip("="), **beside}


def trust_authority(*, inner: bool = False) -> dict[str, Any]:
    """A request to Intel's Trust Authority."""
    found = {"quote": b64(INTEL.quote()), "runtime_data": "e30=",
             "verifier_nonce": {"val": "AA==", "iat": "AA==", "signature": "AA=="}}
    return found if inner else {"tdx": found, "policy_ids": ["1"]}


def token(issuer: str = "https://sharedeus.eus.attest.azure.net", **claims: Any) -> bytes:
    """A token of an attestation service, signed by nobody."""
    parts = ({"alg": "RS256"}, {"iss": issuer, **claims})
    return b".".join([*(base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in parts), b"c2ln"])


def every() -> tuple[dict[str, Any], ...]:
    """One of each, in JSON."""
    return (chat(), gateway(), tinfoil(), tinfoil("tdx-guest/v1", INTEL.quote()), snp_report(), maa(), maa(tdx=True),
            trust_authority(), trust_authority(inner=True))
