"""The collecting half of the simulated platform. SIMULATED: PROVES NOTHING."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.attestation.collector import Collector
from appliance.attestation.evidence import SIMULATED, Provider, ReportWithCollateral
from appliance.attestation.simulated import abi


class SimulatedProvider(Provider):
    """Signs with a throw-away Ed25519 key made at start. SIMULATED: PROVES NOTHING."""

    def __init__(self, host_data: bytes) -> None:
        """`host_data`: the 32 bytes that real hardware would have been given at launch."""
        self._key = Ed25519PrivateKey.generate()
        self._host_data = host_data

    @property
    def platform(self) -> str:
        """`simulated`."""
        return SIMULATED

    def collect(self, report_data: bytes) -> ReportWithCollateral:
        """A report of 228 bytes, as `abi` lays it out."""
        head = abi.unsigned(report_data, self._host_data, self._key.public_key().public_bytes_raw())
        return ReportWithCollateral(head + self._key.sign(head))


COLLECTOR = Collector(open=lambda _places, host_data: SimulatedProvider(host_data))
