"""KubeVirt manifests: valid by the schemas that clusters publish, and refused where no machine could run."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from appliance.errors import ImageError
from appliance.imaging.papers import kubevirt
from appliance.imaging.papers.fleet import FleetOptions
from appliance.imaging.papers.kubevirt import Options
from appliance.policy import Loaded, load
from tests.support.expected import ROOT
from tests.support.require import absent

CONTAINER = "registry.example/team/appliance@sha256:" + "ab" * 32
HARDWARE = """
appliance {
  name   = "fleet"
  schema = 1
}
tee {
  platforms     = [PLATFORMS]
  memory_budget = "4GiB"
}
model "chat" {
  file   = "chat.gguf"
  sha256 = "PIN"
}
tenants {
  authority = "ed25519:KEY"
  list      = "tenants.json"
}
service {
  listen "api" {
    kind    = "ra-tls"
    address = "0.0.0.0"
    port    = 8443
  }
  listen "local" {
    kind      = "ra-tls"
    transport = "vsock"
    port      = 9000
  }
}
"""


def _policy(folder: Path, *platforms: str) -> Loaded:
    names = ", ".join(f'"{each}"' for each in platforms)
    path = folder / "fleet.hcl"
    path.write_text(HARDWARE.replace("PLATFORMS", names).replace("PIN", "cd" * 32).replace(
        "KEY", "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"))
    return load(path)


@cache
def _schemas() -> dict[str, Any]:
    """The definitions, closed: what a schema does not name is refused (a cluster would drop it in silence)."""
    found = sorted((ROOT / "build/kubevirt").glob("schema-2-*.json"))
    if not found:
        absent("KubeVirt's schemas: python tests/support/fetch_kubevirt_schema.py")
    text = found[0].read_text("utf-8").replace("#/components/schemas/", "#/definitions/")
    return _closed(json.loads(text))  # type: ignore[no-any-return]


def _closed(value: Any) -> Any:
    if isinstance(value, list):
        return [_closed(each) for each in value]
    if not isinstance(value, dict):
        return value
    closed = {key: _closed(each) for key, each in value.items()}
    if isinstance(value.get("properties"), dict) and value.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


@cache
def _kubernetes() -> dict[str, Any]:
    """Definitions of one release of Kubernetes, closed by their publisher."""
    found = sorted((ROOT / "build/kubernetes").glob("schema-*.json"))
    if not found:
        absent("Kubernetes' schemas: python tests/support/fetch_kubernetes_schema.py")
    return json.loads(found[0].read_text("utf-8"))  # type: ignore[no-any-return]


_NAME = {"type": "string", "minLength": 1, "maxLength": 253}
_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
_HOSTNAME = {"type": "string", "minLength": 1, "maxLength": 253,
             "pattern": r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"}


def _object(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": required.split(), "properties": properties}


def _array(items: dict[str, Any], least: int, most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


# Written from the published definition: kubernetes-sigs/gateway-api at 4564255a, of 2026-08-21,
# config/crd/standard/gateway.networking.k8s.io_tlsroutes.yaml. Its names and limits; its rules in CEL are not here.
TLS_ROUTE = _object(
    "apiVersion kind metadata spec", apiVersion={"const": "gateway.networking.k8s.io/v1"}, kind={"const": "TLSRoute"},
    metadata={"type": "object"}, spec=_object(
        "hostnames rules", hostnames=_array(_HOSTNAME, 1, 1024),
        parentRefs=_array(_object("name", group=_NAME, kind=_NAME, name=_NAME, namespace=_NAME, port=_PORT,
                                  sectionName=_NAME), 0, 32),
        rules=_array(_object("backendRefs", name=_NAME, backendRefs=_array(
            _object("name port", group=_NAME, kind=_NAME, name=_NAME, namespace=_NAME, port=_PORT,
                    weight={"type": "integer", "minimum": 0, "maximum": 1000000}), 1, 16)), 1, 1)))


def _schema(name: str) -> dict[str, Any]:
    """The schema of a kind, by whoever publishes it."""
    if name == "gateway.networking.k8s.io/v1/TLSRoute":
        return TLS_ROUTE
    found = _kubernetes()
    if name in found["kinds"]:
        return {"$ref": f"#/$defs/{found['kinds'][name]}", "$defs": found["$defs"]}
    return {"$ref": f"#/definitions/{name.replace('/', '~1')}", **_schemas()}


def _problems(item: dict[str, Any]) -> list[str]:
    validator = Draft202012Validator(_schema(f"{item['apiVersion']}/{item['kind']}"))
    return [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(item)]


def _rendered(loaded: Loaded, **options: Any) -> list[dict[str, Any]]:
    document = json.loads(kubevirt.render(loaded, Options(CONTAINER, **{"models_claim": "m", **options})))
    assert ("v1", "List") == (document["apiVersion"], document["kind"])
    items: list[dict[str, Any]] = document["items"]
    return items


@pytest.mark.parametrize("options", [
    {"platform": "sev-snp"}, {"platform": "tdx", "cpus": 4, "memory_mib": 8192}, {"platform": "tpm", "replicas": 3},
    {"platform": "sev-snp", "models_claim": "models", "state_claim": "state", "name": "one"}])
def test_a_manifest_is_valid(tmp_path: Path, options: dict[str, Any]) -> None:
    """Every object by its published schema; an unknown field is found, so the schema is in force."""
    allowed = ("tpm",) if options["platform"] == "tpm" else ("sev-snp", "tdx")
    items = _rendered(_policy(tmp_path, *allowed), **options)
    assert [[], []] == [_problems(item) for item in items]
    spec = items[0]["spec"]["template"]["spec"]
    spec["domain"]["devices"]["kernel"] = {}
    assert [True] == [bool(_problems(items[0]))]


FLEET = FleetOptions(guarded=True, max_replicas=5, gateway="istio", hostname="llm.example.org")


def test_a_fleet_is_valid(tmp_path: Path) -> None:
    """Each object by its published schema; a field that it does not know is found in each."""
    items = _rendered(_policy(tmp_path, "tdx"), replicas=2, fleet=FLEET)
    assert ["VirtualMachineInstanceReplicaSet", "Service", "NetworkPolicy", "PodDisruptionBudget",
            "HorizontalPodAutoscaler", "Gateway", "TLSRoute"] == [each["kind"] for each in items]
    assert [] == [problem for each in items for problem in _problems(each)]
    for each in items:
        each["spec"]["misspelt"] = 1
        assert _problems(each), each["kind"]


def test_a_route_is_of_the_version_that_every_channel_serves(tmp_path: Path) -> None:
    """The standard channel of the Gateway API serves no alpha of TLSRoute."""
    items = _rendered(_policy(tmp_path, "tdx"), replicas=2, fleet=FLEET)
    assert ["gateway.networking.k8s.io/v1"] * 2 == [each["apiVersion"] for each in items[-2:]]
    port = items[-1]["spec"]["rules"][0]["backendRefs"][0].pop("port")
    assert [8443, True] == [port, bool(_problems(items[-1]))]


def test_a_fleet_says_what_the_policy_says(tmp_path: Path) -> None:
    """Only the listener's port is reached; nothing goes out of a policy without a broker; TLS goes through whole; the
    metric is one that an appliance has."""
    items = {each["kind"]: each["spec"] for each in _rendered(_policy(tmp_path, "tdx"), replicas=2, fleet=FLEET)}
    network = items["NetworkPolicy"]
    assert ([{"ports": [{"port": 8443, "protocol": "TCP"}]}], []) == (network["ingress"], network["egress"])
    assert ["Ingress", "Egress"] == network["policyTypes"]
    assert network["podSelector"] == items["VirtualMachineInstanceReplicaSet"]["selector"] == items[
        "PodDisruptionBudget"]["selector"]
    assert {"mode": "Passthrough"} == items["Gateway"]["listeners"][0]["tls"]
    assert (2, 5) == tuple(items["HorizontalPodAutoscaler"][f"{end}Replicas"] for end in ("min", "max"))
    metric = items["HorizontalPodAutoscaler"]["metrics"][0]["external"]["metric"]["name"]
    assert f"`{metric}`" in (ROOT / "docs/reference/api.md").read_text()


def test_the_way_to_a_broker_is_open() -> None:
    """A production policy has a broker by its name: its port, and names."""
    loaded = load(ROOT / "policies/tdx-production.hcl")
    options = {"platform": "tdx", "state_claim": "s", "fleet": FleetOptions(guarded=True)}
    network = next(each for each in _rendered(loaded, **options) if each["kind"] == "NetworkPolicy")
    ports = [port["port"] for rule in network["spec"]["egress"] for port in rule["ports"]]
    assert 53 in ports
    assert len(ports) > 2


@pytest.mark.parametrize(("options", "said"), [
    (FleetOptions(max_replicas=1), "at most 1"), (FleetOptions(gateway="istio"), "a class and a host name"),
    (FleetOptions(gateway="istio", hostname="LLM_1"), "not a host name"),
    (FleetOptions(gateway="istio", hostname="192.0.2.7"), "an address is not a name")])
def test_a_fleet_that_could_not_run_is_refused(tmp_path: Path, options: FleetOptions, said: str) -> None:
    """Fewer machines than to begin with, half of a gateway, a name that DNS does not have."""
    with pytest.raises(ImageError, match=said):
        _rendered(_policy(tmp_path, "tdx"), replicas=2, fleet=options)


def test_machines_with_a_state_disk_do_not_scale(tmp_path: Path) -> None:
    """They cannot share it."""
    with pytest.raises(ImageError, match="share a state disk"):
        _rendered(_policy(tmp_path, "tdx"), state_claim="s", fleet=FleetOptions(max_replicas=3))


def test_a_manifest_says_what_the_policy_says(tmp_path: Path) -> None:
    """Digest, memory beyond the budget, the network listener's port and vsock; disks by the serials of their roles."""
    loaded = _policy(tmp_path, "sev-snp")
    machine, service = _rendered(loaded, models_claim="m", state_claim="s", cpus=2)
    instance = machine["spec"]["template"]["spec"]
    assert loaded.digest.hex() == machine["metadata"]["annotations"]["appliance/policy-sha384"]
    assert ("4352Mi", 2, {"snp": {}}) == (instance["domain"]["memory"]["guest"], instance["domain"]["cpu"]["cores"],
                                         instance["domain"]["launchSecurity"])
    devices = instance["domain"]["devices"]
    assert ["appliance-root", "appliance-models", "appliance-state"] == [disk["serial"] for disk in devices["disks"]]
    assert [True, True, None] == [disk["disk"].get("readonly") for disk in devices["disks"]]
    assert devices["autoattachVSOCK"] is True
    assert [8443] == [port["port"] for port in service["spec"]["ports"]]
    assert service["spec"]["selector"] == machine["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize("platform", ["sev-snp", "tdx", "tpm"])
def test_each_platform_starts_as_it_is_measured(tmp_path: Path, platform: str) -> None:
    """SEV-SNP takes the kernel beside the firmware, the others boot from the disk; only a TPM policy gets a TPM."""
    instance = _rendered(_policy(tmp_path, platform))[0]["spec"]["template"]["spec"]
    kernel = instance["domain"]["firmware"].get("kernelBoot")
    assert (platform == "sev-snp") == (kernel is not None) == ("bootOrder" not in instance["domain"]["devices"][
        "disks"][0])
    assert (platform == "tpm") == ("tpm" in instance["domain"]["devices"])
    assert "kernelArgs" not in (kernel or {})


def test_loopback_gets_no_service() -> None:
    """The demo policy listens on loopback only: one machine and nothing that leads to it."""
    assert ["VirtualMachine"] == [item["kind"] for item in _rendered(load(ROOT / "examples/demo.hcl"))]


@pytest.mark.parametrize(("container", "options", "said"), [
    ("registry.example/appliance:latest", {}, "digest"), ("registry.example/appliance@sha256:ab", {}, "digest"),
    (CONTAINER, {"platform": "simulated"}, "platform"), (CONTAINER, {"platform": None}, "platform"),
    (CONTAINER, {"name": "Bad_Name"}, "name"), (CONTAINER, {"cpus": 0}, "CPU"), (CONTAINER, {"replicas": 0}, "replica"),
    (CONTAINER, {"models_claim": None}, "--models-claim"),
    (CONTAINER, {"models_claim": "a\nb: c"}, "volume claim"), (CONTAINER, {"models_claim": ""}, "volume claim"),
    (CONTAINER, {"state_claim": "Disk"}, "volume claim"), (CONTAINER, {"state_claim": "a..b"}, "volume claim"),
    (CONTAINER, {"replicas": 2, "state_claim": "s"}, "share")])
def test_what_could_not_run_is_refused(tmp_path: Path, container: str, options: dict[str, Any], said: str) -> None:
    """Containers by tag, platforms that the policy does not allow, names that Kubernetes refuses, shared state, a
    machine without its models."""
    with pytest.raises(ImageError, match=said):
        kubevirt.render(_policy(tmp_path, "sev-snp", "tdx"),
                        Options(container, **{"platform": "tdx", "models_claim": "models", **options}))


def test_rendering_is_always_the_same(tmp_path: Path) -> None:
    """The same policy, the same bytes."""
    loaded = _policy(tmp_path, "tdx")
    options = Options(CONTAINER, models_claim="models")
    assert kubevirt.render(loaded, options) == kubevirt.render(loaded, options)
