"""The source of evidence on this machine, chosen among the platforms that a policy allows.

A hardware TEE comes before a TPM, and simulation is used only where the policy says so; policies
cannot name it beside another. The interfaces are the kernel's, at fixed paths; a test may point at
others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance import platforms as all_platforms
from appliance.attestation.collect import tpm as collect_tpm
from appliance.attestation.collect import tsm as collect_tsm
from appliance.attestation.collect.tpm import TpmProvider
from appliance.attestation.collect.tsm import TsmProvider
from appliance.attestation.evidence import SIMULATED, Provider, SimulatedProvider
from appliance.attestation.tpm.chip import client as tpm_client
from appliance.attestation.trust import intel
from appliance.errors import AttestationError

TPM = all_platforms.TPM.name


@dataclass(frozen=True)
class Places:
    """Where this machine's interfaces are. A process that gives up its rights must keep read and
    write access to `reports`, and opens the others before it does. `intel_root`: SHA-256 of the
    root above a TDX machine's quotes."""

    reports: Path = collect_tsm.REPORTS
    tpm: Path = tpm_client.DEVICE
    event_log: Path = collect_tpm.EVENT_LOG
    intel_root: str = intel.ROOT


MACHINE = Places()


def provider(platforms: Sequence[str], host_data: bytes, places: Places = MACHINE) -> Provider:
    """The provider of the strongest platform that is both allowed and here.

    `host_data`: the 32 bytes that a simulated platform claims to have been launched with. Raises
    AttestationError `platform-absent` if the machine is none of `platforms`, or as the interface
    that it should have fails.
    """
    if tuple(platforms) == (SIMULATED,):
        return SimulatedProvider(host_data)
    if any(name in all_platforms.TEES for name in platforms):
        return _hardware(platforms, places)
    if TPM in platforms:
        return TpmProvider(places.tpm, places.event_log)
    raise AttestationError(f"platforms: {', '.join(platforms)} cannot be collected", code="platform-absent")


def _hardware(platforms: Sequence[str], places: Places) -> Provider:
    found = TsmProvider(places.reports)
    if found.platform not in platforms:
        found.close()
        raise AttestationError(f"this machine is {found.platform}, the policy allows {', '.join(platforms)}",
                               code="platform-absent", hint="boot on another machine, or change tee.platforms")
    return found


def described(platform: str) -> str:
    """A platform's name for people, with the warning that it deserves."""
    return f"{platform} (measured boot, HOST TRUSTED)" if platform == TPM else platform
