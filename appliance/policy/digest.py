"""The policy digest: SHA-384 over the canonical form of the validated policy. Spec:
docs/formats/policy-digest.md.

The digest goes into hardware evidence. Formatting, comments, the order of blocks, labels and lists,
and a default written out or left out change nothing; any value does. Tenants in the policy itself
enter by a commitment, so that a copy without them has the same digest.
"""

from __future__ import annotations

import hashlib
from typing import Any

from appliance.codec.canonical import canonical
from appliance.policy.schema import Policy, frozen
from appliance.policy.schema.base import Block, fields

POLICY_DOMAIN = b"appliance/policy-digest/v1\n"
TENANTS_DOMAIN = b"appliance/policy-tenants/v1\n"
_TENANT = "tenants.tenant."
HOST_DATA_DOMAIN = b"appliance/policy-host-data/v1\n"
POLICY_PCR = 15  # of a TPM, which the boot extends with `host_data`; nothing else of ours or of the boot chain does


def document(block: Block, version: int) -> dict[str, Any]:
    """Return the fields that a version has as plain values under HCL names: labelled blocks as
    objects by label."""
    result: dict[str, Any] = {}
    for shape in fields(type(block), version):
        value = getattr(block, shape.attribute)
        if shape.block is None or value is None:
            result[shape.name] = list(value) if isinstance(value, tuple) else value
        elif shape.labelled:
            result[shape.name] = {getattr(item, item.LABEL): document(item, version) for item in value}
        else:
            result[shape.name] = document(value, version)
    return result


def tenants_commitment(inline: dict[str, Any]) -> str:
    """Return what stands for the inline tenants (a `tenant` object of the document) in the digest.

    Fields that schema 1 does not have count where they are not what they are by default: a copy
    without tenants, which cannot be upgraded, keeps its commitment.
    """
    first, newest = frozen.table(1), frozen.table(frozen.LATEST)
    later = {path.removeprefix(_TENANT): entry["default"] for path, entry in newest.items()
             if path.startswith(_TENANT) and path not in first}
    said = {name: {field: value for field, value in tenant.items() if field not in later or value != later[field]}
            for name, tenant in inline.items()}
    return "sha384:" + hashlib.sha384(TENANTS_DOMAIN + canonical(said)).hexdigest()


def digested(policy: Policy) -> dict[str, Any]:
    """Return the document that is hashed: the policy's, with a commitment in place of inline
    tenants."""
    result = document(policy, policy.appliance.schema_version)
    tenants = result["tenants"]
    inline = tenants.pop("tenant")
    if inline:
        tenants["commitment"] = tenants_commitment(inline)
    return result


def policy_digest(policy: Policy) -> bytes:
    """Return the 48 bytes of the policy digest; TDX carries them whole in MRCONFIGID."""
    return hashlib.sha384(POLICY_DOMAIN + canonical(digested(policy))).digest()


def host_data(digest: bytes) -> bytes:
    """Return the 32 bytes that stand for a policy digest in SEV-SNP's HOST_DATA."""
    if len(digest) != 48:
        raise ValueError(f"a policy digest has 48 bytes, not {len(digest)}")
    return hashlib.sha256(HOST_DATA_DOMAIN + digest).digest()


def pcr_event(digest: bytes, bank: str = "sha256") -> bytes:
    """Return what a boot extends PCR 15 of a bank with: `host_data`, or in the SHA-384 bank the
    policy's digest as it is."""
    return digest if bank == "sha384" else host_data(digest)


def policy_pcr(digest: bytes, bank: str = "sha256") -> bytes:
    """Return what PCR 15 of a TPM's bank holds once a boot has measured the policy."""
    return hashlib.new(bank, bytes(hashlib.new(bank).digest_size) + pcr_event(digest, bank)).digest()
