"""PEM text (RFC 7468): where its blocks are, and the bytes in one."""

from __future__ import annotations

import binascii
import re

_BEGIN = re.compile(rb"^-----BEGIN (CERTIFICATE|X509 CRL)-----[ \r]*$", re.MULTILINE)
_END_OF = {kind: re.compile(rb"^-----END " + kind + rb"-----", re.MULTILINE) for kind in (b"CERTIFICATE", b"X509 CRL")}


def blocks(data: bytes) -> list[tuple[bytes, bytes]]:
    """The blocks of PEM text and their kinds, in time linear in its length."""
    found: list[tuple[bytes, bytes]] = []
    place, endless = 0, set[bytes]()  # kinds that end nowhere behind `place`
    while (begin := _BEGIN.search(data, place)) is not None and len(endless) < len(_END_OF):
        kind, place = begin[1], begin.end()
        end = None if kind in endless else _END_OF[kind].search(data, place)
        if end is None:
            endless.add(kind)
        else:
            found.append((kind, data[begin.start():end.end()]))
            place = end.end()
    return found


def body(block: bytes) -> bytes:
    """The bytes in a block. Raises ValueError if they are not in base64."""
    lines = block.split(b"\n")[1:-1]
    return binascii.a2b_base64(b"".join(line.strip() for line in lines), strict_mode=True)
