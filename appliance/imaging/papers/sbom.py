"""The bill of materials of an image and its models: CycloneDX 1.6 (ECMA-424), the same bytes for
the same image.

It has every Debian package and wheel by the SHA-256 of its archive and by its package URL (purl
specification), with what these carry inside, as far as it is known. It has the appliance itself and
the kernel, too, and each model that the policy names, by its pins. Each component has what NTIA's
"The Minimum Elements For a Software Bill of Materials" (2021) asks for.

The bill never says that it is complete: no package is searched for what its maker does not tell.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from appliance.errors import ImageError
from appliance.imaging.papers import materials
from appliance.imaging.papers.materials import Materials, Supply, VendoredPart
from appliance.imaging.predict.predict import entry
from appliance.imaging.recipe.recipe import FOLDER
from appliance.policy import Loaded, Policy

NAME = "sbom.cdx.json"
_DOMAIN = b"appliance/sbom/v1\n"
_PROJECT = Supply("the appliance project", "Apache-2.0")
_NO_VEX = "not assessed: nobody compared these components with lists of vulnerabilities, and there is no VEX"
UNNAMED = "urn:appliance:builder:unnamed"
Component = dict[str, Any]


def deb_purl(name: str, version: str) -> str:
    """Return the package URL of a Debian package."""
    return f"pkg:deb/debian/{quote(name, safe='')}@{quote(version, safe=':')}?arch=amd64"


def wheel_purl(name: str, version: str) -> str:
    """Return the package URL of a Python package: names in lower case, with hyphens."""
    return f"pkg:pypi/{quote(name.lower().replace('_', '-'), safe='')}@{quote(version, safe=':')}"


def _generic_purl(name: str, version: str) -> str:
    return f"pkg:generic/{quote(name, safe='')}@{quote(version, safe=':')}"


def _sourced(source: Supply) -> Component:
    """Return the supplier and the licence of a component."""
    supplier = {"name": source.supplier, **({"url": [source.url]} if source.url else {})}
    return {"supplier": supplier, **({"licenses": [{"expression": source.licence}]} if source.licence else {})}


def _package(item: Mapping[str, str], purl: str, source: Supply, parts: Sequence[VendoredPart]) -> Component:
    inside = [_part(each, purl) for each in parts]
    return {"type": "library", "bom-ref": purl, "name": item["name"], "version": item["version"], "purl": purl,
            "hashes": [{"alg": "SHA-256", "content": item["sha256"]}], **_sourced(source),
            **({"components": inside} if inside else {}),
            **({"properties": [{"name": "appliance:role", "value": item["role"]}]} if "role" in item else {})}


def _part(part: VendoredPart, carrier: str) -> Component:
    """Return a part inside a package. Two packages may carry the same one."""
    hashes = {"hashes": [{"alg": "SHA-256", "content": part.sha256}]} if part.sha256 else {}
    return {"type": "library", "bom-ref": f"{carrier}#{part.purl}", "name": part.name, "version": part.version,
            "purl": part.purl, **hashes, **_sourced(part.source)}


def packages(manifest: Mapping[str, Any], known: Materials) -> list[Component]:
    """Debian packages and wheels of the manifest, in order of their references, each once."""
    found = []
    for item in entry(manifest, "packages"):
        name, version = item["name"], item["version"]
        found.append(_package(item, deb_purl(name, version), known.package(name),
                              known.parts(f"deb/{name}", version)))
    for item in entry(manifest, "wheels"):
        name, version = item["name"].lower().replace("_", "-"), item["version"]
        found.append(_package(item, wheel_purl(name, version), known.wheel(name), known.parts(f"pypi/{name}", version)))
    return [component for _, component in sorted({each["bom-ref"]: each for each in found}.items())]


def models(policy: Policy) -> list[Component]:
    """Return the models that a policy names: they come on a disk of their own, and the pins
    decide."""
    found = []
    for model in policy.models:
        by = model.publisher
        properties = [("appliance:file", model.file),
                      ("appliance:sealed-header-sha256", model.sealed_header_sha256),
                      ("appliance:publisher", by.public_key if by else None)]
        supplier = materials.UNKNOWN if by is None else by.identity or by.public_key
        found.append({
            "type": "machine-learning-model", "bom-ref": f"model:{model.name}", "name": model.name,
            "version": f"sha256:{_digits(model.sha256)}", "supplier": {"name": supplier},
            "purl": _generic_purl(model.name, f"sha256:{_digits(model.sha256)}"),
            "hashes": [{"alg": "SHA-256", "content": _digits(model.sha256)}],
            "properties": [{"name": name, "value": value} for name, value in properties if value is not None]})
    return sorted(found, key=lambda component: str(component["bom-ref"]))


def _digits(pin: str) -> str:
    return pin.rpartition(":")[2]


def _subject(manifest: Mapping[str, Any], policy: Policy | None, builder: str) -> Component:
    """Return the image: what all else is a part of. Its builder supplies it."""
    digest = entry(manifest, "files", "disk.raw", "sha256")
    version = entry(manifest, "build", "version")
    properties = [("appliance:policy-sha384", entry(manifest, "policy", "sha384")),
                  ("appliance:policy-name", policy.appliance.name if policy else None),
                  ("appliance:root-hash", entry(manifest, "verity", "root_hash"))]
    return {"type": "operating-system", "bom-ref": "image", "name": "appliance-image", "version": version,
            "purl": _generic_purl("appliance-image", version), "supplier": {"name": builder},
            "hashes": [{"alg": "SHA-256", "content": digest}],
            "properties": [{"name": name, "value": value} for name, value in properties if value]}


def _own(manifest: Mapping[str, Any], known: Materials) -> list[Component]:
    """Return the appliance's own code, the kernel, and the gate before it."""
    version, release = entry(manifest, "build", "version"), entry(manifest, "kernel", "release")
    code = entry(manifest, "build", "code_sha384")
    linux = entry(manifest, "files", "vmlinuz", "sha256"), known.package(f"linux-image-{release}")
    gate = entry(manifest, "files", "gate.bin", "sha256"), _PROJECT
    return [_made("application", "appliance", "appliance", version, "SHA-384", code, _PROJECT),
            _made("operating-system", "kernel", "linux", release, "SHA-256", *linux),
            _made("firmware", "gate", "appliance-gate", version, "SHA-256", *gate)]


def _made(kind: str, reference: str, name: str, version: str, algorithm: str, digest: str | None, source: Supply
          ) -> Component:
    return {"type": kind, "bom-ref": reference, "name": name, "version": version,
            "purl": _generic_purl(name, version), **_sourced(source),
            **({"hashes": [{"alg": algorithm, "content": digest}]} if digest else {})}


def make(manifest: Mapping[str, Any], loaded: Loaded | None = None, builder: str = UNNAMED, *, recipe: Path = FOLDER
         ) -> bytes:
    """Return the document, of which `builder` is the author. Raises ImageError if the manifest
    lacks something, or is of an image with another policy."""
    policy, baked = loaded.policy if loaded else None, entry(manifest, "policy", "sha384")
    if loaded is not None and baked is not None and baked != loaded.digest.hex():
        raise ImageError(f"{loaded.path}: its digest is {loaded.digest.hex()}, the image's policy has {baked}",
                         hint="name the policy that the image was built with")
    known = materials.load(recipe)
    parts = [*_own(manifest, known), *packages(manifest, known), *(models(policy) if policy else [])]
    made = datetime.fromtimestamp(entry(manifest, "source_date_epoch"), UTC)
    tool = {"type": "application", "name": "appliance", "version": entry(manifest, "build", "version")}
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", "bomFormat": "CycloneDX", "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": f"{made:%Y-%m-%dT%H:%M:%SZ}", "lifecycles": [{"phase": "build"}],
                     "authors": [{"name": builder}], "tools": {"components": [tool]},
                     "component": _subject(manifest, policy, builder),
                     "properties": [{"name": "appliance:vulnerabilities", "value": _NO_VEX}]},
        "components": parts, "dependencies": _dependencies(parts), "compositions": _compositions(parts)}
    digest = hashlib.sha256(_DOMAIN + _text(document)).digest()
    return _text({**document, "serialNumber": f"urn:uuid:{uuid.UUID(bytes=digest[:16], version=5)}"})


def _dependencies(parts: Sequence[Component]) -> list[dict[str, Any]]:
    """The image has all parts, and a part what it carries inside."""
    return [{"ref": "image", "dependsOn": _references(parts)},
            *({"ref": part["bom-ref"], "dependsOn": _references(part["components"])}
              for part in parts if "components" in part)]


def _compositions(parts: Sequence[Component]) -> list[dict[str, Any]]:
    """How far the contents of each part are known: some of them, or none."""
    some = [part["bom-ref"] for part in parts if "components" in part]
    none = [part["bom-ref"] for part in parts if "components" not in part]
    return [{"aggregate": "incomplete", "assemblies": ["image", *some]},
            {"aggregate": "unknown", "assemblies": none}]


def _references(parts: Sequence[Component]) -> list[str]:
    return sorted(str(part["bom-ref"]) for part in parts)


def _text(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"
