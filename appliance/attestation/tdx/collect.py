"""The collecting half of TDX: quotes come through configfs-tsm."""

from __future__ import annotations

from datetime import datetime

from appliance.attestation.collector import Collector, LaunchField
from appliance.attestation.tdx import abi, verify
from appliance.attestation.trust import Roots


def _launched(report: bytes, at: datetime, roots: Roots) -> tuple[bytes, bytes]:
    """The quote passes through the host, so that its signatures are verified, at the host's time.
    """
    quote = abi.parse(report)
    verify.verify_signatures(quote, at=at, root=roots.intel)
    return quote.body.report_data, quote.body.mr_config_id


LAUNCH = LaunchField("MRCONFIGID", bytes, _launched)
COLLECTOR = Collector(reported=lambda report: abi.parse(report).body.report_data, launch=LAUNCH)
