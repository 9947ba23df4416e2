"""Claims about the image: whose prediction its measurements are, what is in it, how it was made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature

from appliance.auditor.archive.members import BY_NAME
from appliance.auditor.claims.case import Case, LackingError
from appliance.auditor.claims.claim import Answer, Claim, asked, either, fails, holds, open_
from appliance.codec import strict
from appliance.codec.printable import quantity
from appliance.errors import AuditError, PinError
from appliance.policy.schema import Model, Publisher
from appliance.receipts import dsse
from appliance.signed import bundle, publisher
from appliance.signed.bundle import PublishedModel
from appliance.transparency import ed25519

_IN_TOTO, _SLSA = "application/vnd.in-toto+json", "https://slsa.dev/provenance/v1"
_STATEMENT = "https://in-toto.io/Statement/v1"


def _signed(case: Case) -> Answer:
    known = case.known
    if known.signed_by is None:
        return open_("the judge vouches for them: the image was rebuilt")
    return holds(f"by ed25519:{known.signed_by.hex()}")


def _baked(case: Case) -> Answer:
    baked = case.known.measurements.policy_sha384
    if baked is None:
        return open_("the image takes its policy at launch; evidence shows which")
    return either(baked == case.policy.digest.hex(), "it is part of the image", f"the image has the policy {baked}")


def _components(case: Case) -> list[dict[str, Any]]:
    """Return the components of the bill of materials. Raises AuditError for another form."""
    document = case.document("sbom")
    found = document.get("components")
    if document.get("bomFormat") != "CycloneDX" or not isinstance(found, list) or not all(
            isinstance(each, dict) and isinstance(each.get("type"), str) for each in found):
        raise AuditError("the bill of materials is not in the form of CycloneDX", code="pack-member")
    return found


def _hashes(component: dict[str, Any]) -> Iterator[str]:
    """Yield the hex digests of a component."""
    found = component.get("hashes", [])
    for each in found if isinstance(found, list) else ():
        if isinstance(each, dict) and isinstance(each.get("content"), str):
            yield each["content"]


def _materials(case: Case) -> Answer:
    parts = _components(case)
    bare = [str(each.get("name")) for each in parts if not list(_hashes(each))]
    if bare:
        return fails(f"components without a digest: {', '.join(bare[:3])}")
    name, digest = BY_NAME["sbom"].place.rpartition("/")[2], hashlib.sha256(case.one("sbom")).hexdigest()
    if digest not in [each["digest"].get("sha256") for each in _statement(case)["subject"] if each["name"] == name]:
        return fails("the provenance is of another bill of materials")
    listed = {digest for each in parts for digest in _hashes(each)}
    made_of = {digest for each in _dependencies(case) for digest in each}
    if gone := made_of - listed:
        return fails(f"{quantity(len(gone), 'thing')} of which the image was made, and which it does not have")
    more = {digest for each in parts if each["type"] == "library" for digest in _hashes(each)} - made_of
    return either(not more, f"{quantity(len(parts), 'component')}, the libraries among them as the provenance has them",
                  f"{quantity(len(more), 'library', 'libraries')} unknown to the provenance")


def _nested(parts: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield components, with the components inside them, whatever a stranger wrote there."""
    left = parts[::-1]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            yield each
            left += _list(each.get("components"))[::-1]


def _minimum(case: Case) -> Answer:
    """The minimum elements of NTIA (2021). An older bill may lack some of them."""
    document, parts = case.document("sbom"), list(_nested(_components(case)))
    about = document.get("metadata")
    about = about if isinstance(about, dict) else {}
    authors = [str(each["name"]) for each in _nested([about.get("manufacturer"), *_list(about.get("authors"))])
               if each.get("name")]
    if not authors or not about.get("timestamp"):
        return open_("the bill names no author, or no time")
    placed = {ref for each in _nested(_list(document.get("dependencies"))) for ref in map(str, _list(
        each.get("dependsOn")))}
    for each in parts:
        if lacks := _lacks(each, placed):
            return open_(f"{each.get('name')} has no {lacks}")
    return holds(f"components: {len(parts)}; author: {', '.join(authors)}; time: {about['timestamp']}")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _lacks(component: dict[str, Any], placed: set[str]) -> str:
    """Return the first element that a component lacks, in words; empty if it lacks none."""
    supplier = component.get("supplier")
    name = supplier.get("name") if isinstance(supplier, dict) else None
    there = {"supplier": name and name != "unknown", "name": component.get("name"),
             "version": component.get("version"), "identifier": component.get("purl") or component.get("cpe"),
             "place in the image": str(component.get("bom-ref")) in placed}
    return next((word for word, value in there.items() if not value), "")


def _models(case: Case) -> Answer:
    found = {str(each.get("name")): set(_hashes(each)) for each in _components(case)
             if each["type"] == "machine-learning-model"}
    wanted = {each.name: {each.sha256.rpartition(":")[2]} for each in case.policy.policy.models}
    return either(found == wanted, ", ".join(wanted), "the models in it are not those that the policy pins")


def _published(case: Case) -> Answer:
    """A raw signature stands in the policy. A bundle of the pack must hold for each other model, by
    the policy's key, root and name."""
    told, bare, wrong = [], [], []
    left, bundles = set(case.many("bundle")), case.many("bundle")
    for model in case.policy.policy.models:
        by = model.publisher
        if by is None:
            bare.append(model.name)
            continue
        if by.bundle is None:
            _raw(by, model)
            told.append(f"{model.name}: {by.public_key}")
            continue
        found, error = _bundled(bundles, by, model)
        if found is None:
            wrong.append((model.name, error))
            continue
        left.discard(found[0])
        names = ", ".join(found[1].identities)
        told.append(f"{model.name}: {found[1].model}/{found[1].resource} by {by.public_key}"
                    + (f", whose certificate is for {names}" if names else ""))
    if wrong and left:
        return fails(f"{wrong[0][0]}: {wrong[0][1]}")
    if wrong:
        return open_(f"the pack has no bundle of {', '.join(name for name, _ in wrong)}")
    return asked(not bare and bool(told), "; ".join(told), f"models without a publisher: {', '.join(bare) or 'all'}")


def _raw(by: Publisher, model: Model) -> None:
    """Raises PinError unless the signature in the policy is the publisher's."""
    header = model.sealed_header_sha256
    publisher.check(bytes.fromhex(by.public_key.rpartition(":")[2]), bytes.fromhex((by.signature or "").rpartition(
        ":")[2]), bytes.fromhex(model.sha256), None if header is None else bytes.fromhex(header))


def _bundled(bundles: Mapping[str, bytes], by: Publisher, model: Model
             ) -> tuple[tuple[str, PublishedModel] | None, str]:
    """Return the bundle that holds for a model with all its shards; else why the last that was
    tried does not."""
    said = ""
    for name, content in bundles.items():
        try:
            found = [bundle.check(content, by.public_key, bytes.fromhex(digest), root_sha256=by.root_sha256,
                                  identity=by.identity) for digest in model.shards or (model.sha256,)]
            return (name, found[0]), ""
        except PinError as error:
            said = f"{name}: {error.summary}"
    return None, said


def _envelope(case: Case) -> tuple[bytes, dict[str, Any]]:
    """Payload and signature line of the provenance. Raises AuditError for another form."""
    try:
        found = strict.json_value(case.one("provenance"))
        (line,) = found["signatures"]
        if found["payloadType"] != _IN_TOTO:
            raise ValueError("another payload")
        return strict.base64(found["payload"]), line
    except (ValueError, LookupError, TypeError):
        raise AuditError("the provenance is not a DSSE envelope with one signature", code="pack-member") from None


def _statement(case: Case) -> dict[str, Any]:
    """Return the statement in the provenance, whoever signed it. Raises AuditError for another
    form."""
    payload, _ = _envelope(case)
    try:
        found = strict.json_value(payload)
        if (found["_type"], found["predicateType"]) != (_STATEMENT, _SLSA):
            raise ValueError("another statement")
        for each in found["subject"]:
            str(each["name"]), dict(each["digest"])
        list(found["predicate"]["buildDefinition"]["resolvedDependencies"])
    except (ValueError, LookupError, TypeError):
        raise AuditError("the provenance is not an in-toto statement by SLSA's terms", code="pack-member") from None
    return dict(found)


def _dependencies(case: Case) -> list[list[str]]:
    """Return the digests of each thing that the image was made of."""
    found = _statement(case)["predicate"]["buildDefinition"]["resolvedDependencies"]
    try:
        return [list(map(str, each["digest"].values())) for each in found]
    except (LookupError, TypeError, AttributeError):
        raise AuditError("the provenance names a dependency without a digest", code="pack-member") from None


def _provenance(case: Case) -> Answer:
    payload, line = _envelope(case)
    _statement(case)
    if case.given.builder_key is None:
        raise LackingError("the judge named no builder's key")
    try:
        signature = strict.base64(line["sig"])
        ed25519.verify(case.given.builder_key, signature, dsse.encoding(payload, _IN_TOTO))
    except (InvalidSignature, ValueError, LookupError, TypeError, AttributeError):
        return fails("the signature does not verify by the builder's key")
    return holds(f"by ed25519:{case.given.builder_key.hex()}")


def _subjects(case: Case) -> Answer:
    """Every file that the measurements are predicted from is a subject of the provenance."""
    found = {each["name"]: each["digest"].get("sha256") for each in _statement(case)["subject"]}
    wanted = case.known.measurements.image
    wrong = [name for name, digest in wanted.items() if found.get(name) != digest]
    return either(bool(wanted) and not wrong, quantity(len(wanted), "file"),
                  f"other files: {', '.join(wrong) or 'the measurements name none'}")


def _told(case: Case) -> Answer:
    """Whether the boot's own report agrees with evidence."""
    report = case.document("health")
    try:
        said = (str(report["policy_sha384"]), str(report["self_test_sha384"]))
        steps = {str(each["step"]): str(each["verdict"]) for each in report["boot"]}
    except (LookupError, TypeError):
        raise AuditError("the boot's report is not in form", code="pack-member") from None
    if failed := [name for name, verdict in steps.items() if verdict == "failed"]:
        return fails(f"steps that failed: {', '.join(failed)}")
    bound = {(each.statement.policy_sha384, each.statement.self_test_sha384) for each in case.verdicts.values()
             if each.statement is not None}
    tolerated = [name for name, verdict in steps.items() if verdict == "tolerated"]
    told = quantity(len(steps), "step") + (f"; tolerated: {', '.join(tolerated)}" if tolerated else "")
    return either(said in bound, told, "its policy and self-test are not those that evidence binds")


def described(case: Case) -> list[tuple[str, str, str]]:
    """Kind, name and version of each component of the bill of materials, parts inside included."""
    try:
        return [(str(each.get("type", "")), str(each.get("name")), str(each.get("version", "")))
                for each in _nested(_components(case))]
    except (LackingError, AuditError, json.JSONDecodeError):
        return []


CLAIMS = (
    Claim("measurements-signed", "The predicted measurements are the builder's.", _signed),
    Claim("measurements-policy", "The policy is part of the measured image.", _baked),
    Claim("sbom-materials", "The bill of materials names each archive that the image was made of, by its digest.",
          _materials),
    Claim("sbom-minimum", "Each part in the bill of materials has a supplier, a version and an identifier.", _minimum),
    Claim("sbom-models", "The bill of materials names the models that the policy pins.", _models),
    Claim("publisher-signed", "The publisher of each model signed its weights, as the policy pins them.", _published),
    Claim("provenance-signed", "The builder says how the image was made.", _provenance),
    Claim("provenance-image", "The provenance is of the image that the measurements are of.", _subjects),
    Claim("boot-report", "The boot's report agrees with what evidence binds.", _told),
)
