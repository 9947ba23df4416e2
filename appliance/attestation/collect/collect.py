"""The source of evidence on this machine, chosen among the platforms that a policy allows.

A hardware TEE comes before a TPM, and simulation is used only where the policy says so; policies
cannot name it beside another. The interfaces are the kernel's, at fixed paths; a test may point at
others.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from appliance.attestation.collect.halves import COLLECTORS
from appliance.attestation.collect.tsm import TsmProvider
from appliance.attestation.collector import MACHINE, Interfaces, Opener
from appliance.attestation.evidence import SIMULATED, Provider
from appliance.errors import AttestationError
from appliance.platforms import PLATFORMS, TPM


def provider(platforms: Sequence[str], host_data: bytes, places: Interfaces = MACHINE) -> Provider:
    """The provider of the strongest platform that is both allowed and here.

    `host_data`: the 32 bytes that a simulated platform claims to have been launched with. Raises
    AttestationError `platform-absent` if the machine is none of `platforms`, or as the interface
    that it should have fails.
    """
    rows = [each for each in PLATFORMS if each.name in platforms and (each.name != SIMULATED or len(platforms) == 1)]
    if not rows:
        raise AttestationError(f"platforms: {', '.join(platforms)} cannot be collected", code="platform-absent")
    # A TPM is in other machines, too: it stands in for no TEE that a policy allows.
    *others, last = dict.fromkeys(COLLECTORS[each.name].open for each in [row for row in rows if row.tee] or rows[:1])
    for way in others:
        with suppress(AttestationError):
            return _opened(way, platforms, host_data, places)
    return _opened(last, platforms, host_data, places)


def _opened(way: Opener | None, platforms: Sequence[str], host_data: bytes, places: Interfaces) -> Provider:
    if way is not None:
        return way(places, host_data)
    found = TsmProvider(places.reports)
    if found.platform not in platforms:
        found.close()
        raise AttestationError(f"this machine is {found.platform}, the policy allows {', '.join(platforms)}",
                               code="platform-absent", hint="boot on another machine, or change tee.platforms")
    return found


def described(platform: str) -> str:
    """A platform's name for people, with the warning that it deserves."""
    return f"{platform} (measured boot, HOST TRUSTED)" if platform == TPM.name else platform
