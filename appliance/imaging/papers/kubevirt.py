"""A policy's deployment as KubeVirt objects: one virtual machine, or a replica set of them, and a
service.

Source: KubeVirt API `kubevirt.io/v1` (VirtualMachine, VirtualMachineInstanceReplicaSet), Kubernetes
`v1` (Service). The cluster is the operator: nothing here is trusted by a client, who verifies
evidence. A wrong manifest can keep a machine from booting or from being accepted, and nothing else.
Rendered as JSON, which `kubectl apply -f` takes.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from appliance.errors import ImageError
from appliance.imaging.papers import fleet
from appliance.imaging.papers.fleet import FleetOptions
from appliance.platforms import NITRO, PLATFORMS, SNP, TPM
from appliance.policy import Loaded
from appliance.policy.schema.service import Listener

MIB = 1 << 20
DEFAULT_MEMORY_MIB, BESIDE_BUDGET_MIB = 768, 256
_REFERENCE = re.compile(r"[a-z0-9][a-z0-9._:/-]{0,254}@sha256:[0-9a-f]{64}")  # OCI distribution, only by digest
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")                    # RFC 1123
Object = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """The settings that the policy does not have. `image`: the container that holds the disk,
    pinned by digest."""

    image: str
    platform: str | None = None   # where the policy allows several
    name: str | None = None       # default: the policy's
    cpus: int = 1
    memory_mib: int | None = None
    models_claim: str | None = None
    state_claim: str | None = None
    replicas: int = 1
    fleet: FleetOptions = field(default_factory=FleetOptions)


def render(loaded: Loaded, options: Options) -> bytes:
    """Return the manifest, a Kubernetes List. Raises ImageError on what no cluster could run or no
    client would accept."""
    name, platform = _name(loaded, options), _platform(loaded, options)
    _check(loaded, options)
    labels = {"app.kubernetes.io/name": "appliance", "app.kubernetes.io/instance": name}
    template = {"metadata": {"labels": labels, "annotations": _annotations(loaded, platform)},
                "spec": _instance(loaded, options, platform)}
    metadata = {"name": name, "labels": labels, "annotations": _annotations(loaded, platform)}
    if options.replicas == 1 and options.fleet.max_replicas is None:
        machine: Object = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": metadata,
                           "spec": {"runStrategy": "Always", "template": template}}
    else:
        machine = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet", "metadata": metadata,
                   "spec": {"replicas": options.replicas, "selector": {"matchLabels": labels}, "template": template}}
    items = [machine, *_service(loaded, name, labels),
             *fleet.beside(loaded, name, labels, _ports(loaded), options.fleet, options.replicas)]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2, sort_keys=True).encode() + b"\n"


def _name(loaded: Loaded, options: Options) -> str:
    name = options.name or loaded.policy.appliance.name
    if _LABEL.fullmatch(name) is None:
        raise ImageError(f"{name!r} is not a valid name for a Kubernetes object",
                         hint="--name takes a-z, 0-9 and hyphens")
    return name


def _platform(loaded: Loaded, options: Options) -> str:
    allowed = loaded.policy.tee.platforms
    chosen = options.platform or (allowed[0] if len(allowed) == 1 else None)
    if chosen not in allowed:
        raise ImageError(f"platform {chosen or 'not chosen'}, the policy allows {', '.join(allowed)}",
                         hint="choose one with --platform")
    if chosen == NITRO.name:
        raise ImageError(f"platform {chosen} is of EC2, and KubeVirt has none", hint="for a TPM of the host's: tpm")
    return chosen


def _check(loaded: Loaded, options: Options) -> None:
    if _REFERENCE.fullmatch(options.image) is None:
        raise ImageError(f"container image {options.image!r} is not pinned by its digest",
                         hint="name it as registry.example/appliance@sha256:…")
    if options.cpus < 1 or options.replicas < 1:
        raise ImageError("at least one CPU and one replica")
    if options.models_claim is None:
        raise ImageError("the policy's models are on a disk of their own", hint="name its volume claim: --models-claim")
    for claim in (options.models_claim, options.state_claim):
        if claim is not None and (len(claim) > 253 or not all(map(_LABEL.fullmatch, claim.split(".")))):
            raise ImageError(f"{claim!r} is not a valid name for a volume claim",
                             hint="it has a-z, 0-9, hyphens and dots")
    if options.replicas > 1 and options.state_claim is not None:
        raise ImageError("replicas cannot share a state disk", hint="render one machine for each state disk")
    fleet.check(options.fleet, options.replicas, state=options.state_claim is not None)
    if loaded.policy.state is not None and options.state_claim is None:
        raise ImageError("the policy has a state disk", hint="name its volume claim with --state-claim")


def _annotations(loaded: Loaded, platform: str) -> dict[str, str]:
    """For people and inventories; clients take the digest from evidence."""
    return {"appliance/policy-sha384": loaded.digest.hex(), "appliance/platform": platform}


def _instance(loaded: Loaded, options: Options, platform: str) -> Object:
    """VirtualMachineInstanceSpec: virtio disks, one network card, a serial console, no more."""
    memory = options.memory_mib or _memory(loaded)
    disks, volumes = _disks(options, platform)
    devices: Object = {
        "disks": disks, "interfaces": [{"name": "default", "masquerade": {}, "model": "virtio"}], "rng": {},
        "autoattachGraphicsDevice": False, "autoattachInputDevice": False, "autoattachMemBalloon": False,
        "autoattachSerialConsole": True, "disableHotplug": True}
    if platform == TPM.name:
        devices["tpm"] = {}
    if any(each.kind == "vsock" or each.transport == "vsock" for each in loaded.policy.service.listeners):
        devices["autoattachVSOCK"] = True
    domain: Object = {
        "machine": {"type": "q35"}, "cpu": {"cores": options.cpus, "sockets": 1, "threads": 1},
        "memory": {"guest": f"{memory}Mi"}, "firmware": _firmware(options, platform), "devices": devices}
    security = next(each.kubevirt for each in PLATFORMS if each.name == platform)
    if security is not None:
        domain["launchSecurity"] = {security: {}}
    return {"domain": domain, "networks": [{"name": "default", "pod": {}}], "volumes": volumes,
            "evictionStrategy": "None", "terminationGracePeriodSeconds": 60}


def _memory(loaded: Loaded) -> int:
    budget = loaded.policy.tee.memory_budget_bytes
    return DEFAULT_MEMORY_MIB if budget is None else max(DEFAULT_MEMORY_MIB, -(-budget // MIB) + BESIDE_BUDGET_MIB)


def _firmware(options: Options, platform: str) -> Object:
    """SEV-SNP: the kernel goes in beside the firmware, where the launch digest covers it; else from
    the disk."""
    efi = {"bootloader": {"efi": {"secureBoot": False, "persistent": False}}}
    if platform == SNP.name:
        return {**efi, "kernelBoot": {"container": {"image": options.image, "kernelPath": "/boot/appliance.efi"}}}
    return efi


def _disks(options: Options, platform: str) -> tuple[list[Object], list[Object]]:
    """Serial numbers are the roles that the guest looks for; it takes none of the disks on trust.
    """
    disks: list[Object] = [{"name": "root", "serial": "appliance-root", "disk": {"bus": "virtio", "readonly": True}}]
    if platform != "sev-snp":
        disks[0]["bootOrder"] = 1
    volumes: list[Object] = [{"name": "root", "containerDisk": {"image": options.image, "path": "/disk/disk.qcow2"}}]
    for name, claim in (("models", options.models_claim), ("state", options.state_claim)):
        if claim is not None:
            read_only = {"readonly": True} if name == "models" else {}
            disks.append({"name": name, "serial": f"appliance-{name}", "disk": {"bus": "virtio", **read_only}})
            source: Object = {"claimName": claim, **({"readOnly": True} if name == "models" else {})}
            volumes.append({"name": name, "persistentVolumeClaim": source})
    return disks, volumes


def _reachable(listener: Listener) -> bool:
    """Whether the listener is for a network: neither vsock nor a socket file, nor loopback."""
    over_tcp = listener.kind in ("tcp", "tls") or (listener.kind == "ra-tls" and listener.transport != "vsock")
    return over_tcp and listener.port is not None and not listener.host.startswith("127.") and listener.host != "::1"


def _ports(loaded: Loaded) -> list[int]:
    return [each.port for each in loaded.policy.service.listeners if _reachable(each) and each.port is not None]


def _service(loaded: Loaded, name: str, labels: dict[str, str]) -> list[Object]:
    ports = [{"name": f"port-{port}", "port": port, "targetPort": port, "protocol": "TCP"} for port in _ports(loaded)]
    if not ports:
        return []
    return [{"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": labels},
             "spec": {"selector": labels, "ports": ports, "type": "ClusterIP"}}]
