"""The build that runs here, in its own words, and the names that the audit log may use."""

from __future__ import annotations

import hashlib
import importlib.resources
from collections.abc import Iterable, Iterator
from importlib.resources.abc import Traversable
from pathlib import Path

from appliance import __version__
from appliance.attestation.binding import Build
from appliance.audit.log import AuditLog
from appliance.codec.canonical import canonical
from appliance.kernels.runtime.table import KernelTable
from appliance.policy.schema import Policy, Tenant

_LEFT_OUT = ("__pycache__", "prebuilt")  # kernel libraries have a digest of their own
_SUFFIXES = (".py", ".json", ".lark")


def _files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    """Every source and data file below `folder`, as (path, bytes)."""
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name not in _LEFT_OUT:
            yield from _files(entry, f"{prefix}{entry.name}/")
        elif entry.is_file() and entry.name.endswith(_SUFFIXES):
            yield prefix + entry.name, entry.read_bytes()


def code_digest(folder: Path | None = None) -> bytes:
    """SHA-384 over the canonical map from each of the package's files (or a copy's) to its SHA-256:
    48 bytes."""
    root = folder or importlib.resources.files("appliance")
    digests = {path: hashlib.sha256(data).hexdigest() for path, data in _files(root)}
    return hashlib.sha384(canonical(digests)).digest()


def build(table: KernelTable) -> Build:
    """The build's identity: version, its files, and the kernel library that is in use, if one is.
    """
    return Build(version=__version__, code_sha384=code_digest().hex(), kernels_sha384=table.library_sha384)


def name_things(audit: AuditLog, policy: Policy, tenants: Iterable[Tenant]) -> None:
    """Tell the audit log the policy's names: from here on they can be written, and no other."""
    audit.words.models.admit(model.name for model in policy.models)
    audit.words.tenants.admit(tenant.name for tenant in tenants)
    audit.words.listeners.admit(listener.name for listener in policy.service.listeners)
    audit.words.witnesses.admit(witness.name for witness in policy.audit.witnesses)
    if policy.approvals is not None:
        audit.words.approvers.admit(approver.name for approver in policy.approvals.approvers)
