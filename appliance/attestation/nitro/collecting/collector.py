"""Documents of a NitroTPM: AWS's hypervisor signs the registers, and 64 bytes of report data as the
guest's own."""

from __future__ import annotations

import threading
from pathlib import Path

from appliance import platforms
from appliance.attestation.collector import Collector
from appliance.attestation.evidence import Provider, ReportWithCollateral
from appliance.attestation.nitro import request
from appliance.attestation.tpm.chip.client import Tpm
from appliance.platforms import NITRO

DEVICE = Path(platforms.NITRO.device or "")  # not the resource manager's: it passes no command of a vendor


class NitroProvider(Provider):
    """A NitroTPM. Raises AttestationError if there is no TPM."""

    def __init__(self, path: Path = DEVICE) -> None:
        self._tpm = Tpm(path)
        self._turn = threading.Lock()  # one index serves one request

    @property
    def platform(self) -> str:
        """The name `aws-nitrotpm`."""
        return NITRO.name

    @property
    def device(self) -> Tpm:
        """The open TPM."""
        return self._tpm

    def collect(self, report_data: bytes) -> ReportWithCollateral:
        """A document whose user data are these 64 bytes. Its certificates are in it."""
        if len(report_data) != 64:
            raise ValueError("report data is 64 bytes")
        with self._turn:
            return ReportWithCollateral(request.collect(self._tpm, report_data))

    def close(self) -> None:
        """Close the device."""
        self._tpm.close()


COLLECTOR = Collector(open=lambda places, _host_data: NitroProvider(places.nitro))
