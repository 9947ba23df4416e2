"""How an image was made: an in-toto statement with SLSA provenance v1, and the builder's signature
around it.

Sources: in-toto Attestation Framework, Statement v1; SLSA v1.0, "Provenance"; DSSE v1 (envelope,
pre-authentication encoding). No time, machine or invocation stands in it: the same sources, locks
and policy give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.codec.canonical import canonical
from appliance.errors import ImageError
from appliance.imaging.papers.sbom import UNNAMED, deb_purl, wheel_purl
from appliance.imaging.predict.predict import entry

STATEMENT_NAME, ENVELOPE_NAME = "provenance.intoto.json", "provenance.intoto.jsonl"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
BUILD_TYPE = "urn:appliance:image-build:v1"
DEFAULT_BUILDER = UNNAMED


def _dependency(item: Mapping[str, str], uri: str) -> dict[str, Any]:
    return {"uri": uri, "name": item["name"], "digest": {"sha256": item["sha256"]}}


def _resolved(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all that went in: the appliance's code and the gate by their digests, packages,
    wheels."""
    code = entry(manifest, "build", "code_sha384")
    found = [{"uri": "urn:appliance:code", "name": "appliance", "digest": {"sha384": code}}] if code else []
    found += [{"uri": "urn:appliance:gate", "name": "gate",
               "digest": {"sha256": entry(manifest, "files", "gate.bin", "sha256")}}]
    found += [_dependency(item, deb_purl(item["name"], item["version"])) for item in entry(manifest, "packages")]
    found += [_dependency(item, wheel_purl(item["name"], item["version"])) for item in entry(manifest, "wheels")]
    return sorted(found, key=lambda item: (item["uri"], str(item["digest"])))


def statement(manifest: Mapping[str, Any], files: Mapping[str, str], builder: str = DEFAULT_BUILDER) -> bytes:
    """Return the statement over `files` (name → SHA-256 in hex). Raises ImageError on a builder
    that is no URI."""
    if ":" not in builder or any(char <= " " for char in builder):
        raise ImageError(f"builder {builder!r} is no URI", hint="such as https://example.com/builders/1")
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"policy": entry(manifest, "policy"), "cmdline": entry(manifest, "cmdline")},
            "internalParameters": {"sourceDateEpoch": str(entry(manifest, "source_date_epoch"))},
            "resolvedDependencies": _resolved(manifest)},
        "runDetails": {"builder": {"id": builder,
                                   "version": {"appliance": entry(manifest, "build", "version")}}}}
    subjects = [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(files.items())]
    return canonical({"_type": STATEMENT_TYPE, "subject": subjects, "predicateType": PREDICATE_TYPE,
                      "predicate": predicate})


def encoded(payload_type: str, payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding: what is signed."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def envelope(payload: bytes, key: Ed25519PrivateKey) -> bytes:
    """Return a DSSE envelope in one line; the key id is `ed25519:` and the public key."""
    public = key.public_key().public_bytes_raw()
    signature = key.sign(encoded(PAYLOAD_TYPE, payload))
    return json.dumps({"payload": base64.b64encode(payload).decode("ascii"), "payloadType": PAYLOAD_TYPE,
                       "signatures": [{"keyid": f"ed25519:{public.hex()}",
                                       "sig": base64.b64encode(signature).decode("ascii")}]}).encode() + b"\n"


def digest(data: bytes) -> str:
    """SHA-256 in hex, as subjects carry it."""
    return hashlib.sha256(data).hexdigest()
