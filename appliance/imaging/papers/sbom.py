"""The bill of materials of an image and its models: CycloneDX 1.6 (ECMA-424), the same bytes for
the same image.

Every Debian package and wheel with the SHA-256 of the archive that was unpacked, and its package
URL (purl specification); the appliance itself; the kernel; and each model that the policy names, by
its pins.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from appliance.errors import ImageError
from appliance.imaging.predict.predict import entry
from appliance.policy import Loaded, Policy

NAME = "sbom.cdx.json"
_DOMAIN = b"appliance/sbom/v1\n"
Component = dict[str, Any]


def deb_purl(name: str, version: str) -> str:
    """The package URL of a Debian package."""
    return f"pkg:deb/debian/{quote(name, safe='')}@{quote(version, safe=':')}?arch=amd64"


def wheel_purl(name: str, version: str) -> str:
    """The package URL of a Python package: names in lower case, with hyphens."""
    return f"pkg:pypi/{quote(name.lower().replace('_', '-'), safe='')}@{quote(version, safe=':')}"


def _package(item: Mapping[str, str], purl: str) -> Component:
    return {"type": "library", "bom-ref": purl, "name": item["name"], "version": item["version"], "purl": purl,
            "hashes": [{"alg": "SHA-256", "content": item["sha256"]}],
            **({"properties": [{"name": "appliance:role", "value": item["role"]}]} if "role" in item else {})}


def packages(manifest: Mapping[str, Any]) -> list[Component]:
    """Debian packages and wheels of the manifest, in order of their references, each once."""
    found = [_package(item, deb_purl(item["name"], item["version"])) for item in entry(manifest, "packages")]
    found += [_package(item, wheel_purl(item["name"], item["version"])) for item in entry(manifest, "wheels")]
    return [component for _, component in sorted({each["bom-ref"]: each for each in found}.items())]


def models(policy: Policy) -> list[Component]:
    """The models that a policy names: they come on a disk of their own, and the pins decide."""
    found = []
    for model in policy.models:
        properties = [("appliance:file", model.file),
                      ("appliance:sealed-header-sha256", model.sealed_header_sha256),
                      ("appliance:publisher", model.publisher.public_key if model.publisher else None)]
        found.append({
            "type": "machine-learning-model", "bom-ref": f"model:{model.name}", "name": model.name,
            "version": f"sha256:{_digits(model.sha256)}",
            "hashes": [{"alg": "SHA-256", "content": _digits(model.sha256)}],
            "properties": [{"name": name, "value": value} for name, value in properties if value is not None]})
    return sorted(found, key=lambda component: str(component["bom-ref"]))


def _digits(pin: str) -> str:
    return pin.rpartition(":")[2]


def _subject(manifest: Mapping[str, Any], policy: Policy | None) -> Component:
    """The image: what all else is a part of."""
    digest = entry(manifest, "files", "disk.raw", "sha256")
    version = entry(manifest, "build", "version")
    properties = [("appliance:policy-sha384", entry(manifest, "policy", "sha384")),
                  ("appliance:policy-name", policy.appliance.name if policy else None),
                  ("appliance:root-hash", entry(manifest, "verity", "root_hash"))]
    return {"type": "operating-system", "bom-ref": "image", "name": "appliance-image", "version": version,
            "hashes": [{"alg": "SHA-256", "content": digest}],
            "properties": [{"name": name, "value": value} for name, value in properties if value]}


def _own(manifest: Mapping[str, Any]) -> list[Component]:
    """The appliance's own code, the kernel, and the gate before it."""
    code = entry(manifest, "build", "code_sha384")
    own = {"type": "application", "bom-ref": "appliance", "name": "appliance",
           "version": entry(manifest, "build", "version"),
           **({"hashes": [{"alg": "SHA-384", "content": code}]} if code else {})}
    kernel = {"type": "operating-system", "bom-ref": "kernel", "name": "linux",
              "version": entry(manifest, "kernel", "release"),
              "hashes": [{"alg": "SHA-256", "content": entry(manifest, "files", "vmlinuz", "sha256")}]}
    gate = {"type": "firmware", "bom-ref": "gate", "name": "appliance-gate",
            "version": entry(manifest, "build", "version"),
            "hashes": [{"alg": "SHA-256", "content": entry(manifest, "files", "gate.bin", "sha256")}]}
    return [own, kernel, gate]


def make(manifest: Mapping[str, Any], loaded: Loaded | None = None) -> bytes:
    """The document. Raises ImageError if the manifest lacks something, or is of an image with
    another policy."""
    policy, baked = loaded.policy if loaded else None, entry(manifest, "policy", "sha384")
    if loaded is not None and baked is not None and baked != loaded.digest.hex():
        raise ImageError(f"{loaded.path}: its digest is {loaded.digest.hex()}, the image's policy has {baked}",
                         hint="name the policy that the image was built with")
    parts = [*_own(manifest), *packages(manifest), *(models(policy) if policy else [])]
    made = datetime.fromtimestamp(entry(manifest, "source_date_epoch"), UTC)
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", "bomFormat": "CycloneDX", "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": f"{made:%Y-%m-%dT%H:%M:%SZ}", "lifecycles": [{"phase": "build"}],
                     "component": _subject(manifest, policy)},
        "components": parts,
        "dependencies": [{"ref": "image", "dependsOn": _references(parts)}],
        "compositions": [{"aggregate": "complete", "assemblies": ["image"]}]}
    digest = hashlib.sha256(_DOMAIN + _text(document)).digest()
    return _text({**document, "serialNumber": f"urn:uuid:{uuid.UUID(bytes=digest[:16], version=5)}"})


def _references(parts: Sequence[Component]) -> list[str]:
    return sorted(str(part["bom-ref"]) for part in parts)


def _text(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"
