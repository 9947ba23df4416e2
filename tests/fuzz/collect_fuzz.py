"""Fuzz target: what a host's interfaces answer while evidence is collected. The first byte says which interface.

0: a TPM's answer to PCR_Read, 1: to Quote, 2: to CreatePrimary, 3: to NV_ReadPublic; 4: a certificate table; 5: a file
of configfs-tsm.
"""

from __future__ import annotations

import functools
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from appliance.attestation.collect.halves import COLLECTORS
from appliance.attestation.tpm.chip import device as tpm_device
from appliance.attestation.tpm.chip.client import Tpm
from appliance.errors import AttestationError
from tests.support import fake_tpm
from tests.support.fake_amd import FakeAmd
from tests.support.fake_tsm import certificate_table


@contextmanager
def _answering(data: bytes) -> Iterator[Tpm]:
    """A TPM that gives one answer, and then hangs up."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        theirs.send(data[:60_000])
        theirs.shutdown(socket.SHUT_WR)
        tpm = object.__new__(Tpm)
        tpm._path, tpm._lock, tpm._file = Path("fuzz"), threading.Lock(), ours.fileno()
        yield tpm


_CALLS: tuple[Callable[[Tpm], Any], ...] = (
    lambda tpm: tpm_device.read_pcrs(tpm, (0, 1)),
    lambda tpm: tpm_device.quote(tpm, tpm_device.LoadedKey(0, b""), bytes(32)),
    lambda tpm: tpm_device.create_primary(tpm, tpm_device.own_template()),
    lambda tpm: tpm_device.read_nv(tpm, 0x01C00002),
)


@functools.cache
def _report() -> bytes:
    return FakeAmd().report()


def fuzz(data: bytes) -> None:
    """One answer of one interface; it ends well or in our error."""
    which, rest = data[0] % 6 if data else 0, data[1:]
    try:
        if which < len(_CALLS):
            with _answering(rest) as tpm:
                _CALLS[which](tpm)
        elif which == 4:
            COLLECTORS["sev-snp"].certificates(rest)
        else:
            COLLECTORS["sev-snp" if len(rest) % 2 else "tdx"].reported(rest)
    except AttestationError:
        pass


def seeds() -> list[bytes]:
    """Answers in form: of a TPM, a table, a report."""
    def answer(parameters: bytes, *, handle: bytes = b"", sessions: bool = True) -> bytes:
        body = handle + (struct.pack(">I", len(parameters)) if sessions else b"") + parameters
        return struct.pack(">HII", 0x8002 if sessions else 0x8001, 10 + len(body), 0) + body

    digests = b"".join(fake_tpm.sized(bytes((number,)) * 32) for number in range(2))
    pcrs = bytes(4) + struct.pack(">IHB", 1, 0x000B, 3) + b"\x03\0\0" + struct.pack(">I", 2) + digests
    message = fake_tpm.quote()
    quoted = fake_tpm.sized(message) + fake_tpm.sign(message)
    area = struct.pack(">IHI", 0x01C00002, 0x000B, 1 << 29 | 1 << 18) + fake_tpm.sized(b"") + struct.pack(">H", 700)
    return [b"\0" + answer(pcrs, sessions=False), b"\1" + answer(quoted),
            b"\2" + answer(fake_tpm.public(), handle=b"\x80\0\0\0"),
            b"\3" + answer(fake_tpm.sized(area), sessions=False),
            b"\4" + certificate_table({"VCEK": b"\x30\0", "ASK": b"\x30\0"}), b"\5" + _report()]
