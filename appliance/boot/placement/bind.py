"""Which policy is in force, and what binds it to this boot. docs/concepts/boot.md has the table.

A policy is *baked* into the verity root, which the launch measurement covers, or *given* at launch
on a disk of the host's. A given one must be the one that the hardware was told of: HOST_DATA of
SEV-SNP, MRCONFIGID of TDX. Verifiers of evidence check the same field; the boot checks it so that
no other policy ever sees a model or a key. A TPM has no such field: there the policy goes into PCR
15, and verifiers judge it.
"""

from __future__ import annotations

import os
import secrets
import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from appliance.attestation.collect.halves import COLLECTORS
from appliance.attestation.evidence import ReportWithCollateral
from appliance.attestation.nitro.collecting.collector import NitroProvider
from appliance.attestation.tpm.chip import client, device
from appliance.attestation.tpm.chip.client import Tpm
from appliance.attestation.tpm.collecting.collector import TpmProvider
from appliance.boot.placement import launchdisk
from appliance.errors import ApplianceError, BootError
from appliance.policy import Loaded
from appliance.policy.digest import POLICY_PCR, pcr_event, policy_pcr

BAKED: Final = Path("/etc/appliance/deployment.hcl")
GIVEN: Final = Path("/run/appliance/policy")  # on tmpfs


class Reporter(Protocol):
    """The reporter of what the platform was launched with: a provider of evidence."""

    @property
    def platform(self) -> str:
        """The platform's name as policies spell it."""
        ...

    def collect(self, report_data: bytes) -> ReportWithCollateral:
        """A report over 64 bytes."""
        ...


def find_policy(*, baked: Path = BAKED, launch: Path | None = None, given: Path = GIVEN) -> Path:
    """The policy file. A baked one is in force whatever else there is; else that of the launch
    disk, copied to the folder `given`, so that the host cannot change it between two reads.
    BootError when there is none."""
    if baked.is_file():
        return baked
    if launch is None:
        raise BootError(f"no policy: none at {baked}, and no launch disk", code="policy-absent",
                        hint="attach a launch disk (docs/formats/launch-disk.md), or build the image with a policy")
    files = launchdisk.read(launch)
    try:
        given.mkdir(mode=0o700, parents=True)
        for name, content in files.items():
            descriptor = os.open(given / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
    except OSError as error:
        raise BootError(f"launch disk: {given}: {error.strerror}", code="launch-disk") from None
    return given / launchdisk.POLICY


def launch_policy_binding(reporter: Reporter, *, at: datetime | None = None, root: str | None = None) -> bytes | None:
    """The value that the platform was told at launch: 32 bytes of HOST_DATA, 48 of MRCONFIGID; None
    where nothing tells.

    The report answers bytes of ours. Signatures are verified where it passes through the host, at
    the host's time `at`. Raises AttestationError.
    """
    launch = COLLECTORS[reporter.platform].launch
    if launch is None:
        return None
    challenge = secrets.token_bytes(64)
    answered, told = launch.read(reporter.collect(challenge).report, at or datetime.now(UTC), root)
    if answered != challenge:
        raise BootError("the platform's report answers another question than ours", code="policy-binding")
    return told


def require(loaded: Loaded, reporter: Reporter, *, baked: bool, at: datetime | None = None,
            root: str | None = None) -> str:
    """Compare the policy with what the platform was told; how it is bound, in words. BootError when
    it is not."""
    launch = COLLECTORS[reporter.platform].launch
    try:
        told = launch_policy_binding(reporter, at=at, root=root)
    except ApplianceError as error:
        raise BootError(f"policy binding: {error.summary}", code="policy-binding", hint=error.hint) from None
    if launch is None or told is None:
        return "baked" if baked else "given"
    expected = launch.value(loaded.digest)
    if told == expected:
        return f"bound by {launch.name}"
    if baked and not any(told):
        return "baked"  # the launch measurement covers it
    raise BootError(f"policy binding: {launch.name} is {told.hex()}, but the policy in force needs {expected.hex()}",
                    code="policy-binding",
                    hint="launch the guest with that value, or with the policy that it stands for")


def measure(loaded: Loaded, tpm: Tpm, bank: str = "sha256") -> str:
    """Extend PCR 15 of a bank with the policy, unless this boot has done so; what was done, in
    words. Raises AttestationError, or BootError when the PCR holds anything else: then no verifier
    could read it."""
    algorithm, expected = device.BANKS[bank], policy_pcr(loaded.digest, bank)
    before = device.read_pcrs(tpm, (POLICY_PCR,), algorithm)[POLICY_PCR]
    if not any(before):
        # TPML_DIGEST_VALUES: one, of this bank
        digests = struct.pack(">IH", 1, algorithm) + pcr_event(loaded.digest, bank)
        tpm.require(client.PCR_EXTEND, (POLICY_PCR,), digests)
        before = device.read_pcrs(tpm, (POLICY_PCR,), algorithm)[POLICY_PCR]
    if before != expected:
        raise BootError(f"policy binding: PCR {POLICY_PCR} is {before.hex()}, expected {expected.hex()}",
                        code="policy-binding", hint="something else extended it: restart the machine")
    return f"measured in PCR {POLICY_PCR}"


def bind(loaded: Loaded, reporter: Reporter, *, baked_at: Path = BAKED, root: str | None = None) -> str:
    """Bind the policy before anything else looks at it: `require`, or `measure` where a TPM is all
    there is. BootError when the policy is not the one that this boot is bound to."""
    if isinstance(reporter, TpmProvider):
        return measure(loaded, reporter.device)
    if isinstance(reporter, NitroProvider):
        measure(loaded, reporter.device)
        return measure(loaded, reporter.device, "sha384")  # the bank that AWS signs
    return require(loaded, reporter, baked=loaded.path == baked_at, root=root)
