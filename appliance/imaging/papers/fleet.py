"""The objects beside a fleet in a cluster: network policy, disruption budget, autoscaler, gateway.

Source: Kubernetes `networking.k8s.io/v1`, `policy/v1`, `autoscaling/v2`; Gateway API
`gateway.networking.k8s.io/v1`: Gateway, and TLSRoute, which has this version from 1.5 on. A gateway
that ended TLS would be refused by every client: evidence is of the connection to the appliance. So
there is no HTTPRoute, and nothing of KServe's, which reads requests to route them.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from appliance.errors import ImageError
from appliance.keys import policy_keys
from appliance.policy import Loaded

WAITING = 2  # requests in a machine's queue, from which on one more is started
_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)+")
_HTTPS, _DNS = 443, 53


@dataclass(frozen=True)
class FleetOptions:
    """The objects to render beside machines. `gateway`: a GatewayClass; `hostname`: the name in
    clients' URLs."""

    guarded: bool = False            # a NetworkPolicy, and a PodDisruptionBudget for several machines
    max_replicas: int | None = None  # an autoscaler starts up to so many
    gateway: str | None = None
    hostname: str | None = None


def check(options: FleetOptions, replicas: int, *, state: bool) -> None:
    """Raise ImageError on what no cluster could run."""
    if options.max_replicas is not None and options.max_replicas < replicas:
        raise ImageError(f"at most {options.max_replicas} machines, and {replicas} to begin with",
                         hint="--max-replicas is at least --replicas")
    if options.max_replicas is not None and state:
        raise ImageError("an autoscaler starts machines, and they cannot share a state disk",
                         hint="render one machine for each state disk, without --max-replicas")
    if (options.gateway is None) != (options.hostname is None):
        raise ImageError("a gateway needs a class and a host name", hint="give both: --gateway CLASS --hostname NAME")
    name = options.hostname
    if name is not None and (_HOST.fullmatch(name) is None or _block(name) is not None):
        raise ImageError(f"{name!r} is not a host name", hint="write it as llm.example.org; an address is not a name, "
                         "and clients do not name it in TLS")


def beside(loaded: Loaded, name: str, labels: dict[str, str], ports: list[int], options: FleetOptions,
           replicas: int) -> list[dict[str, Any]]:
    """Return the objects, in the order in which they are applied."""
    metadata = {"name": name, "labels": labels}
    found: list[dict[str, Any]] = []
    if options.guarded:
        found.append(_network(loaded, metadata, ports))
        if replicas > 1 or options.max_replicas is not None:
            found.append({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata,
                          "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}}})
    if options.max_replicas is not None:
        found.append(_scaler(metadata, replicas, options.max_replicas))
    if options.gateway is not None and options.hostname is not None and ports:
        found += _gateway(metadata, ports[0], options.gateway, options.hostname)
    return found


def _network(loaded: Loaded, metadata: dict[str, Any], ports: list[int]) -> dict[str, Any]:
    """In: the listeners' ports. Out: the brokers of the policy, and names to find them by."""
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": {
        "podSelector": {"matchLabels": metadata["labels"]}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"ports": [_port(each) for each in ports]}] if ports else [], "egress": _egress(loaded)}}


def _egress(loaded: Loaded) -> list[dict[str, Any]]:
    brokers = (each.broker for each in policy_keys.keys_of(loaded.policy).values())
    places = sorted({(place.hostname or "", place.port or _HTTPS) for place in (
        urlsplit(each.url) for each in brokers if each is not None)})
    found: list[dict[str, Any]] = []
    for host, port in places:
        block = _block(host)
        found.append({"ports": [_port(port)], **({} if block is None else {"to": [{"ipBlock": {"cidr": block}}]})})
    if any(_block(host) is None for host, _ in places):
        found.append({"ports": [_port(_DNS), {"port": _DNS, "protocol": "UDP"}]})
    return found


def _block(host: str) -> str | None:
    """The block of one address; None for a name, whose address a policy cannot tell."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return f"{address}/{address.max_prefixlen}"


def _port(number: int) -> dict[str, Any]:
    return {"port": number, "protocol": "TCP"}


def _scaler(metadata: dict[str, Any], least: int, most: int) -> dict[str, Any]:
    """By the queue: an adapter brings the metric from Prometheus, which reads it by `connect`."""
    metric = {"metric": {"name": "appliance_requests_waiting"},
              "target": {"type": "AverageValue", "averageValue": str(WAITING)}}
    return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata, "spec": {
        "scaleTargetRef": {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet",
                           "name": metadata["name"]},
        "minReplicas": least, "maxReplicas": most, "metrics": [{"type": "External", "external": metric}]}}


def _gateway(metadata: dict[str, Any], port: int, kind: str, hostname: str) -> list[dict[str, Any]]:
    listener = {"name": "appliance", "protocol": "TLS", "port": port, "hostname": hostname,
                "tls": {"mode": "Passthrough"}, "allowedRoutes": {"kinds": [{"kind": "TLSRoute"}]}}
    name = metadata["name"]
    return [{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": metadata,
             "spec": {"gatewayClassName": kind, "listeners": [listener]}},
            {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "TLSRoute", "metadata": metadata, "spec": {
                "parentRefs": [{"name": name}], "hostnames": [hostname],
                "rules": [{"backendRefs": [{"name": name, "port": port}]}]}}]
