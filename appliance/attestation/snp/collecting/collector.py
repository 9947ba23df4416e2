"""The collecting half of SEV-SNP: reports come through configfs-tsm."""

from __future__ import annotations

from datetime import datetime

from appliance.attestation.collector import Collector, LaunchField
from appliance.attestation.snp import layout, table
from appliance.errors import AttestationError
from appliance.policy.digest import host_data

_CARRIED = ("VCEK", "VLEK", "ASK", "ARK", "CRL")  # entries of the table that a verifier has use for


def _field(report: bytes, place: tuple[int, int]) -> bytes:
    """Return a field of a report of this machine's. Raises as `layout.check_shape` does."""
    layout.check_shape(report)
    return layout.cut(report, place)


def _launched(report: bytes, _at: datetime, _root: str | None) -> tuple[bytes, bytes]:
    """The report comes from the security processor through a channel that the host cannot enter, so
    that no signature is checked."""
    return _field(report, layout.REPORT_DATA_AT), _field(report, layout.HOST_DATA_AT)


def certificates(blob: bytes) -> tuple[bytes, ...]:
    """The certificates of an SNP certificate table, in the order leaf to root, and the list of
    revoked ones; empty if there is none.

    The table is the host's: one that is malformed is as good as none, since a verifier can find
    certificates itself.
    """
    try:
        _, found, _ = table.split(bytes(layout.REPORT_BYTES) + blob)
    except AttestationError:
        return ()
    return tuple(found[name] for name in _CARRIED if found.get(name))


LAUNCH = LaunchField("HOST_DATA", host_data, _launched)
COLLECTOR = Collector(reported=lambda report: _field(report, layout.REPORT_DATA_AT), certificates=certificates,
                      launch=LAUNCH,
                      measurement=lambda report: _field(report, layout.MEASUREMENT_AT))
