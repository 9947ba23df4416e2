"""SBOM and provenance: valid by the published schemas, complete, and the same bytes for the same image."""

from __future__ import annotations

import base64
import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cyclonedx.model.bom import Bom
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement
from jsonschema import Draft7Validator
from lib4sbom.parser import SBOMParser
from packageurl import PackageURL
from referencing import Registry, Resource

from appliance.errors import ImageError
from appliance.imaging.packages import lockfile
from appliance.imaging.papers import provenance, sbom
from appliance.imaging.predict import predict
from appliance.imaging.recipe import manifest
from appliance.policy import Loaded, load
from tests.support import fake_image
from tests.support.expected import ROOT

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def _manifest(folder: Path) -> dict[str, Any]:
    return manifest.read(fake_image.write(folder / "out", policy=_demo().digest.hex()))


@cache
def _demo() -> Loaded:
    return load(ROOT / "examples/demo.hcl")


@cache
def _schema() -> Draft7Validator:
    """CycloneDX 1.6 as its Python library carries it."""
    folder = resources.files("cyclonedx.schema") / "_res"
    found = {name: json.loads((folder / f"{name}.SNAPSHOT.schema.json").read_text("utf-8"))
             for name in ("bom-1.6", "spdx", "jsf-0.82")}
    registry: Registry[Any] = Registry().with_resources(
        (schema["$id"], Resource.from_contents(schema)) for schema in found.values())
    return Draft7Validator(found["bom-1.6"], registry=registry)


@pytest.mark.parametrize("policy", [None, _demo()], ids=["alone", "with models"])
def test_the_sbom_is_valid(tmp_path: Path, policy: Loaded | None) -> None:
    """By the schema of CycloneDX 1.6; a change that the schema forbids is found, so the schema is in force."""
    document = json.loads(sbom.make(_manifest(tmp_path), policy))
    assert [] == [error.message for error in _schema().iter_errors(document)]
    assert [*_schema().iter_errors({**document, "components": [{"type": "brick", "name": "x"}]})]


def _locked(folder: Path) -> dict[str, Any]:
    """A manifest of all that is locked for an image."""
    _, debs = lockfile.read_packages(ROOT / "image/packages.lock")
    wheels = lockfile.read_wheels(ROOT / "image/wheels.lock")
    return _manifest(folder) | {
        "packages": [{"name": each.name, "version": each.version, "sha256": each.sha256, "role": each.role}
                     for each in debs],
        "wheels": [{"name": each.name, "version": each.version, "sha256": each.sha256} for each in wheels]}


def _everything(document: dict[str, Any]) -> list[dict[str, Any]]:
    found, left = [], [document["metadata"]["component"], *document["components"]]
    while left:
        found.append(left.pop(0))
        left += found[-1].get("components", [])
    return found


def test_each_component_has_the_minimum_elements(tmp_path: Path) -> None:
    """NTIA, 2021: supplier, name, version, identifier, place among the others, author, time. Vendored ones, too."""
    document = json.loads(sbom.make(_locked(tmp_path), None, "https://example.com/b/1"))
    parts = _everything(document)
    assert len(parts) > 300
    references = [each["bom-ref"] for each in parts]
    assert len(set(references)) == len(references)
    placed = {ref for each in document["dependencies"] for ref in each["dependsOn"]}
    for each in parts:
        assert each["supplier"]["name"] not in ("", "unknown"), each["bom-ref"]
        assert each["name"], each
        assert each["version"], each
        assert PackageURL.from_string(each["purl"]), each["bom-ref"]
        assert each["bom-ref"] in placed | {"image"}
        assert each.get("licenses") or each["bom-ref"] == "image", each["bom-ref"]
    about = document["metadata"]
    assert ([{"name": "https://example.com/b/1"}], True) == (about["authors"], bool(about["timestamp"]))
    assert {"openssl", "OpenBLAS", "libgfortran", "toktrie", "pyo3", "libffi", "libmpdec"} <= {
        each["name"] for each in parts}


def test_the_bill_does_not_say_that_it_is_complete(tmp_path: Path) -> None:
    """Each part's contents are known in part, or not at all; and there is a word in the place of VEX."""
    document = json.loads(sbom.make(_locked(tmp_path)))
    said = {each["aggregate"]: each["assemblies"] for each in document["compositions"]}
    assert {"incomplete", "unknown"} == set(said)
    assert sorted([*said["incomplete"], *said["unknown"]]) == sorted(
        ["image", *(each["bom-ref"] for each in document["components"])])
    assert "no VEX" in document["metadata"]["properties"][0]["value"]
    assert "vulnerabilities" not in document


def test_other_tools_read_the_bill(tmp_path: Path) -> None:
    """CycloneDX's own library, strictly, with as many components; lib4sbom as well, if it is installed."""
    data = sbom.make(_locked(tmp_path))
    document = json.loads(data)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(data.decode()) is None
    read = Bom.from_json(document)
    found, left = [], [*read.components]
    while left:
        found.append(left.pop())
        left += found[-1].components
    assert len(_everything(document)) - 1 == len(found)
    assert {each["purl"] for each in _everything(document)[1:]} == {str(each.purl) for each in found}
    assert all(each.supplier and each.supplier.name for each in found)
    parser = SBOMParser()
    parser.parse_string(data.decode())
    names = {each["name"] for each in parser.get_packages()}
    assert {"openssl", "OpenBLAS", "libc6", "numpy"} <= names


def test_the_sbom_names_everything_by_its_digest(tmp_path: Path) -> None:
    """Each package and wheel, the kernel, the code, the gate, and the policy's model by its pin."""
    facts, policy = _manifest(tmp_path), _demo()
    document = json.loads(sbom.make(facts, policy))
    components = {each["bom-ref"]: each for each in document["components"]}
    for item in facts["packages"] + facts["wheels"]:
        found = [each for each in components.values() if each["name"] == item["name"]]
        assert [item["sha256"]] == [each["hashes"][0]["content"] for each in found]
    model = components["model:demo"]
    assert ("machine-learning-model", policy.policy.models[0].sha256.rpartition(":")[2]) == (
        model["type"], model["hashes"][0]["content"])
    assert sorted(components) == document["dependencies"][0]["dependsOn"]
    assert {"linux", "appliance"} < {each["name"] for each in components.values()}
    assert facts["files"]["gate.bin"]["sha256"] == components["gate"]["hashes"][0]["content"]


@pytest.mark.parametrize(("name", "version"), [
    ("libc6", "2.41-12"), ("libstdc++6", "14.2.0-19+b1"), ("passwd", "1:4.17.4-2"), ("base-files", "13.8~rc1+deb13u1")])
def test_package_urls_are_those_of_the_specification(name: str, version: str) -> None:
    """The purl project's own library reads them back, and writes them alike."""
    deb = PackageURL.from_string(sbom.deb_purl(name, version))
    assert ("deb", "debian", name, version, {"arch": "amd64"}) == (
        deb.type, deb.namespace, deb.name, deb.version, deb.qualifiers)
    assert deb.to_string() == sbom.deb_purl(name, version)
    wheel = PackageURL("pypi", None, "Typing_Extensions", version)
    assert wheel.to_string() == sbom.wheel_purl("Typing_Extensions", version)


def test_the_sbom_is_the_same_twice_and_another_for_another_image(tmp_path: Path) -> None:
    """No clock and no chance in it; the serial number is of the content."""
    facts = _manifest(tmp_path)
    assert sbom.make(facts) == sbom.make(json.loads(json.dumps(facts)))
    other = json.loads(sbom.make(facts | {"source_date_epoch": 1}))
    assert json.loads(sbom.make(facts))["serialNumber"] != other["serialNumber"]
    assert "1970-01-01T00:00:01Z" == other["metadata"]["timestamp"]


def _statement(tmp_path: Path) -> bytes:
    facts = _manifest(tmp_path)
    return provenance.statement(facts, predict.checked_files(tmp_path / "out", facts), "https://example.com/b/1")


def test_provenance_is_a_valid_statement(tmp_path: Path) -> None:
    """in-toto's own library takes it, with SLSA's predicate; an unknown field in either is refused by it."""
    value = json.loads(_statement(tmp_path))
    parsed = json_format.ParseDict(value, statement_pb2.Statement())
    Statement.copy_from_pb(parsed).validate()
    predicate = json_format.ParseDict(value["predicate"], provenance_pb2.Provenance())
    assert ("https://slsa.dev/provenance/v1", "https://example.com/b/1") == (
        parsed.predicate_type, predicate.run_details.builder.id)
    assert {"appliance", "gate", "libc6", "cryptography"} < {
        each.name for each in predicate.build_definition.resolved_dependencies}
    assert set(manifest.FILES) == {each.name for each in parsed.subject}
    with pytest.raises(json_format.ParseError):
        json_format.ParseDict({**value["predicate"], "more": 1}, provenance_pb2.Provenance())


def test_provenance_has_no_time_and_is_the_same_twice(tmp_path: Path) -> None:
    """The same image, the same bytes."""
    assert _statement(tmp_path / "a") == _statement(tmp_path / "b")


def test_the_envelope_is_dsse(tmp_path: Path) -> None:
    """DSSE's own example of the encoding; the signature is over it and nothing less."""
    assert b"DSSEv1 29 http://example.com/HelloWorld 11 hello world" == provenance.encoded(
        "http://example.com/HelloWorld", b"hello world")
    value = json.loads(provenance.envelope(_statement(tmp_path), KEY))
    payload, signature = base64.b64decode(value["payload"]), base64.b64decode(value["signatures"][0]["sig"])
    assert _statement(tmp_path) == payload
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(value["signatures"][0]["keyid"].removeprefix("ed25519:")))
    key.verify(signature, b"DSSEv1 28 application/vnd.in-toto+json %d %s" % (len(payload), payload))
    with pytest.raises(InvalidSignature):
        key.verify(signature, payload)


def test_what_cannot_be_said_is_refused(tmp_path: Path) -> None:
    """A builder that is no URI; a manifest that lacks something; a policy that is not the image's."""
    facts = _manifest(tmp_path)
    with pytest.raises(ImageError, match="the image's policy"):
        sbom.make(facts | {"policy": {"placement": "baked", "sha384": "ab" * 48}}, _demo())
    assert sbom.make(facts | {"policy": {"placement": "launch", "sha384": None}}, _demo())
    with pytest.raises(ImageError, match="URI"):
        provenance.statement(facts, {}, "me")
    for name in ("packages", "wheels", "policy", "build", "kernel", "source_date_epoch"):
        with pytest.raises(ImageError, match=name):
            sbom.make({key: value for key, value in facts.items() if key != name})
