"""Fuzz target: disks with documents to pass on, which the host writes at any time."""

from __future__ import annotations

from appliance.boot.placement import staple
from tests.fuzz.launchdisk_fuzz import archive


def fuzz(data: bytes) -> None:
    """Read; what is passed on is within bounds, and lies in the disk as it is."""
    found = list(staple._documents(data))
    if sum(map(len, found)) > staple.MAX_DOCUMENTS or any(not 0 < len(each) <= staple.MAX_DOCUMENT for each in found):
        raise AssertionError("more than evidence has room for")
    if any(each not in data for each in found):
        raise AssertionError("a document that the host did not write")


def seeds() -> list[bytes]:
    """Archives with documents, with none, and with too much."""
    return [archive({"intel-tdx-tcb-00.json": b'{"tcbInfo":{}}', "intel-root.crl": b"\x30\x03abc"}), archive({}),
            archive({"a": bytes(staple.MAX_DOCUMENT + 1), "b": b"b"}),
            archive({"a": b"", "b": b"x" * 700}) + bytes(512)]
