"""Approvals of a policy: detached Ed25519 signatures over its digest, k of n. Spec:
docs/formats/approvals.md.

The policy names the approvers and how many must sign; the file of approvals comes from anywhere and
proves itself. Nothing secret is in it, and nothing in it but a signature that verifies is believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cryptography.exceptions import InvalidSignature
from pydantic import Field, StringConstraints, ValidationError

from appliance.attestation.binding import Frozen, Hex48, describe
from appliance.codec import filekind, strict
from appliance.codec.canonical import canonical
from appliance.errors import PolicyError, about
from appliance.policy import inputfile
from appliance.policy.schema import Policy
from appliance.transparency import ed25519

FORMAT = "appliance/approvals/v1"
DOMAIN = b"appliance/policy-approval/v1\n"
SUFFIX = ".approvals"  # beside the policy: deployment.hcl.approvals
DIGEST_BYTES, SIGNATURE_BYTES = 48, 64
MAX_BYTES, MAX_APPROVALS = 1 << 16, 64

Name = Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Signature = Annotated[str, StringConstraints(strict=True, pattern=r"^ed25519:[0-9a-f]{128}$")]


class Approval(Frozen):
    """One person's signature, under the name that the policy gives them."""

    approver: Name
    signature: Signature


class Approvals(Frozen):
    """The file: which policy, and who signed its digest."""

    format: Literal["appliance/approvals/v1"] = "appliance/approvals/v1"
    policy_sha384: Hex48
    approvals: tuple[Approval, ...] = Field(max_length=MAX_APPROVALS)

    def to_json(self) -> bytes:
        """Canonical JSON and a line feed."""
        return canonical(self.model_dump(mode="json")) + b"\n"


@dataclass(frozen=True)
class Tally:
    """The approvers who signed. `wrong` are names whose signature does not verify, or that the
    policy does not know."""

    required: int
    valid: tuple[str, ...]
    wrong: tuple[str, ...]

    @property
    def enough(self) -> bool:
        """Whether as many signed as must."""
        return len(self.valid) >= self.required

    def __str__(self) -> str:
        said = f"{len(self.valid)} of {self.required} needed: {', '.join(self.valid) or 'nobody'}"
        return said + (f"; not counted: {', '.join(self.wrong)}" if self.wrong else "")


def message(policy_sha384: bytes) -> bytes:
    """The bytes that an approver signs: a domain and the 48 bytes of the policy digest."""
    if len(policy_sha384) != DIGEST_BYTES:
        raise ValueError(f"a policy digest has {DIGEST_BYTES} bytes, not {len(policy_sha384)}")
    return DOMAIN + policy_sha384


def beside(policy: Path) -> Path:
    """Where the approvals of a policy file are kept: its own name with `.approvals` behind it."""
    return policy.with_name(policy.name + SUFFIX)


def parse(data: bytes) -> Approvals:
    """The approvals in a file. Raises PolicyError `approvals-malformed` on anything that is not
    exactly the format."""
    problem = f"{len(data)} bytes, at most {MAX_BYTES}" if len(data) > MAX_BYTES else None
    if problem is None:
        try:
            found = Approvals.model_validate(strict.json_value(data))
            names = [each.approver for each in found.approvals]
            if names == sorted(set(names)):
                return found
            problem = "approvers are not in ascending order, each once"
        except ValidationError as error:
            problem = describe(error)
        except ValueError:
            problem = f"not JSON, or a key stands twice{filekind.instead(data)}"
    raise PolicyError(f"approvals: {problem}", code="approvals-malformed", hint="write them with `appliance approve`")


def read(path: Path) -> Approvals | None:
    """The approvals in a file, None if there is no file. Raises PolicyError."""
    try:
        data = inputfile.read(path, MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PolicyError(f"approvals: {path} cannot be read: {error.strerror}", code="approvals-unreadable") from None
    with about(path):
        return parse(data)


def verifies(public_key: str, signature: str, policy_sha384: bytes) -> bool:
    """Whether a signature over the digest is by a public key; both as `ed25519:` and hex."""
    try:
        ed25519.verify(bytes.fromhex(public_key.removeprefix("ed25519:")),
                       bytes.fromhex(signature.removeprefix("ed25519:")), message(policy_sha384))
    except (InvalidSignature, ValueError):
        return False
    return True


def tally(policy: Policy, policy_sha384: bytes, found: Approvals | None) -> Tally:
    """Count the policy's approvers whose signature over its digest verifies; each counts once."""
    wanted = policy.approvals
    keys = {} if wanted is None else {each.name: each.public_key for each in wanted.approvers}
    valid: list[str] = []
    wrong: list[str] = []
    for each in () if found is None else found.approvals:
        good = (found is not None and found.policy_sha384 == policy_sha384.hex() and each.approver in keys
                and verifies(keys[each.approver], each.signature, policy_sha384))
        (valid if good else wrong).append(each.approver)
    return Tally(0 if wanted is None else wanted.required, tuple(valid), tuple(wrong))


def require(policy: Policy, policy_sha384: bytes, name: str, folders: Sequence[Path]) -> Tally:
    """The tally, with the approvals in the first file of this name that `folders` have. Raises
    PolicyError `approvals-missing` unless as many signed as the policy requires."""
    files = (read(folder / name) for folder in folders) if policy.approvals is not None else ()
    counted = tally(policy, policy_sha384, next((found for found in files if found is not None), None))
    if not counted.enough:
        raise PolicyError(f"approvals: {counted}", code="approvals-missing",
                          hint=f"approvers sign with `appliance approve`; {name} is looked for in "
                               f"{', '.join(map(str, folders))}")
    return counted
