"""Signed documents at a desk: people sign them, and a verifier judges approvals.

The modules beside this one read them, and ship.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import ValidationError

from appliance.attestation.binding import describe
from appliance.attestation.findings import Finding, judged
from appliance.codec.canonical import canonical
from appliance.errors import PolicyError
from appliance.policy.schema import Policy
from appliance.signed import approvals, publisher, successor, tenants
from appliance.signed.approvals import Approval, Approvals


def approve(private_key: Ed25519PrivateKey, approver: str, policy_sha384: bytes) -> Approval:
    """One approval by a private key. Raises PolicyError `approvals-malformed` for a name that is no
    Unicode."""
    return from_signature(approver, private_key.sign(approvals.message(policy_sha384)))


def from_signature(approver: str, signature: bytes) -> Approval:
    """An approval whose 64 bytes were made elsewhere. Raises PolicyError `approvals-malformed`."""
    try:
        return Approval(approver=approver, signature=f"ed25519:{signature.hex()}")
    except ValidationError as error:
        raise PolicyError(f"approval: {describe(error)}", code="approvals-malformed",
                          hint=f"a signature has {approvals.SIGNATURE_BYTES} raw bytes, a name is text in UTF-8"
                          ) from None


def approver_of(policy: Policy, public_key: bytes) -> str:
    """The approver who holds a key. Raises PolicyError `approver-unknown`."""
    approvers = () if policy.approvals is None else policy.approvals.approvers
    for each in approvers:
        if each.public_key == f"ed25519:{public_key.hex()}":
            return each.name
    raise PolicyError(f"approval: no approver of the policy has the key ed25519:{public_key.hex()}",
                      code="approver-unknown", hint="approvers stand in the policy's `approvals` block")


def check_approval(policy: Policy, policy_sha384: bytes, approval: Approval) -> None:
    """Raise PolicyError `approver-unknown` unless the approval would count."""
    alone = Approvals(policy_sha384=policy_sha384.hex(), approvals=(approval,))
    if not approvals.tally(policy, policy_sha384, alone).valid:
        raise PolicyError(f"approval: not by the key that the policy gives to {approval.approver}",
                          code="approver-unknown", hint="approvers stand in the policy's `approvals` block")


def with_approval(found: Approvals | None, policy_sha384: bytes, approval: Approval) -> Approvals:
    """The approvals with one more, which replaces an older one of the same name. PolicyError for
    another policy's."""
    if found is not None and found.policy_sha384 != policy_sha384.hex():
        raise PolicyError(
            f"approvals: the file is about the policy {found.policy_sha384}, not {policy_sha384.hex()}",
            code="approvals-other-policy", hint="the policy changed since: collect approvals anew, in a new file")
    others = [] if found is None else [each for each in found.approvals if each.approver != approval.approver]
    ordered = sorted([*others, approval], key=lambda each: each.approver)
    return Approvals(policy_sha384=policy_sha384.hex(), approvals=tuple(ordered))


def finding(policy: Policy, policy_sha384: bytes, found: Approvals | None) -> Finding:
    """The rule `approvals` for a verifier. Without the file it is not checked: the appliance checks
    it at boot."""
    if policy.approvals is None:
        return Finding("approvals", "not checked", "the policy requires none")
    if found is None:
        return Finding("approvals", "not checked", "no file of approvals at hand")
    counted = approvals.tally(policy, policy_sha384, found)
    return judged("approvals", counted.enough, str(counted))


def sign_tenants(listed: Any, key: Ed25519PrivateKey) -> bytes:
    """The file for a list, signed: of version 1 where that suffices. Tenants of a later one may
    leave out what has a default. Raises PolicyError if the list is not in form."""
    form, listed = _form(listed)
    tenants.check(listed, form)
    try:
        signature = f"ed25519:{key.sign(tenants.message(listed, form)).hex()}"
    except ValueError:
        raise tenants.wrong("a text in it has half a character") from None
    return canonical({"format": form.name, "list": listed, "signature": signature}) + b"\n"


def _form(listed: Any) -> tuple[tenants.ListVersion, Any]:
    """The first version that has all keys of a list's tenants, and the list with all of that one's.
    """
    found, tiers = _rows(listed, "tenants"), _rows(listed, "tiers")
    first, second, third = tenants.VERSIONS
    asked = {name for each in found for name in each}
    if tiers or asked & third.more.keys() - second.more.keys() or any(each.get("role") == "metrics" for each in found):
        return third, {**listed, "tenants": [{**third.more, **each} for each in found],
                       "tiers": [{**tenants.TIER, **each} for each in tiers]}
    if not asked & second.more.keys():
        return first, listed
    return second, {**listed, "tenants": [{**second.more, **each} for each in found]}


def _rows(listed: Any, name: str) -> list[dict[str, Any]]:
    """The objects of a list's array; none where it is not one."""
    found = listed.get(name) if isinstance(listed, dict) else None
    return found if isinstance(found, list) and all(isinstance(each, dict) for each in found) else []


def sign_successor(name: str, pcrs: Mapping[int, bytes], key: Ed25519PrivateKey) -> bytes:
    """Make the file for the appliance of a name; `pcrs` has the values of the SHA-256 bank."""
    named = {"appliance": name, "pcrs": {str(number): value.hex() for number, value in pcrs.items()}}
    return canonical({"format": successor.FORMAT, "signature": f"ed25519:{key.sign(successor.message(named)).hex()}",
                      "successor": named}) + b"\n"


def sign_model(private_key: bytes | bytearray, sha256: bytes,
               header_sha256: bytes | None = None) -> tuple[bytes, bytes]:
    """The public key (32 bytes) and the signature (64 bytes) by a private key of 32 random bytes.
    """
    key = Ed25519PrivateKey.from_private_bytes(private_key)
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return public, key.sign(publisher.message(sha256, header_sha256))
