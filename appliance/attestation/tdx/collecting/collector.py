"""The collecting half of TDX: quotes come through configfs-tsm."""

from __future__ import annotations

from datetime import datetime

from appliance.attestation.collector import Collector, LaunchField
from appliance.attestation.tdx import abi, signatures


def _launched(report: bytes, at: datetime, root: str | None) -> tuple[bytes, bytes]:
    """The quote passes through the host, so that its signatures are verified, at the host's time.
    """
    quote = abi.parse(report)
    signatures.verify_signatures(quote, at=at, root=root or signatures.ROOT)
    return quote.body.report_data, quote.body.mr_config_id


def _measured(report: bytes) -> bytes:
    """MRTD, then the four RTMRs: 240 bytes."""
    body = abi.parse(report).body
    return b"".join((body.mr_td, *body.rtmr))


LAUNCH = LaunchField("MRCONFIGID", bytes, _launched)
COLLECTOR = Collector(reported=lambda report: abi.parse(report).body.report_data,
                      launch=LAUNCH, measurement=_measured)
