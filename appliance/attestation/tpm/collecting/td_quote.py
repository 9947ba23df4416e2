"""The quote of a TDREPORT, from the quoting service of a host on Azure.

Source: Microsoft, "Azure confidential VM guest attestation": POST /acc/tdquote at 169.254.169.254,
with the report in base64url, gives the quote in base64url. The host's answer is untrusted bytes,
which a verifier judges; without one the evidence has no quote.
"""

from __future__ import annotations

import contextlib
import json
import socket

from appliance.bounded import Bounded
from appliance.codec import strict

SERVICE = ("169.254.169.254", 80)
TDREPORT_BYTES, REPORT_AT, KIND_AT, TDX = 1024, 32, 1224, 4  # in an Azure report: Microsoft's HCL layout
MAX_ANSWER_BYTES, MAX_QUOTE_BYTES = 1 << 15, 1 << 14
_STATUS = (b"HTTP/1.0 200", b"HTTP/1.1 200")


def of(azure_report: bytes, service: tuple[str, int] = SERVICE, seconds: float = 10.0) -> bytes | None:
    """The quote of the TDREPORT in an Azure report; None where that is of other hardware, or the
    service gives no quote."""
    if azure_report[KIND_AT:KIND_AT + 4] != TDX.to_bytes(4, "little"):
        return None
    report = azure_report[REPORT_AT:REPORT_AT + TDREPORT_BYTES]
    with contextlib.suppress(OSError):
        return _quote(_asked(json.dumps({"report": strict.to_base64url(report)}).encode(), service, seconds))
    return None


def _asked(body: bytes, service: tuple[str, int], seconds: float) -> bytes:
    """The whole answer to one request, which ends with the connection. Raises OSError if it is
    late or too long."""
    head = f"POST /acc/tdquote HTTP/1.0\r\nHost: {service[0]}\r\nContent-Type: application/json\r\n"
    with socket.create_connection(service, seconds) as connection:
        stream = Bounded(connection)
        stream.allow(MAX_ANSWER_BYTES, seconds)
        stream.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        with stream.makefile() as answer:
            return answer.read()


def _quote(answer: bytes) -> bytes | None:
    """The quote in an answer; None for any other."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(_STATUS):
        return None
    try:
        found = strict.json_value(body)
        quote = strict.base64url(found["quote"].rstrip("="))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return quote if 0 < len(quote) <= MAX_QUOTE_BYTES else None
