"""A machine with faked SEV-SNP or TDX, as `appliance accept --boot-command` starts one: it measures the EFI program of
the image that it is given, and boots the whole service.

`prepare` makes a folder first: the hierarchy of the machine's vendor, which all machines of a trial share. `host`
starts the machines for `tests.support.acceptance_boot`, the command: that would take six seconds to import them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
)

from appliance.attestation.collector import Interfaces
from appliance.attestation.x509.walks import fingerprint
from appliance.boot.checks import Operator
from appliance.boot.sequence import boot
from appliance.policy import Loaded, load
from appliance.service import server as service
from tests.support import fake_amd, fake_intel, forked, hardware_server
from tests.support.fake_amd import FakeAmd
from tests.support.fake_intel import FakeIntel
from tests.support.fake_tsm import FakeTsm, certificate_table

ROOT_IMAGE = b"root file system"  # that of tests/support/fake_image
PROGRAM_AT = "appliance.efi"
Make = Callable[[str], ec.EllipticCurvePrivateKey]


def measured(image: Path) -> bytes:
    """What the faked firmware measures of an image."""
    return hashlib.sha384((image / PROGRAM_AT).read_bytes()).digest()


def prepare(platform: str, folder: Path) -> None:
    """Make a vendor: its keys, its root, and its documents in the folder `collateral`."""
    (folder / "collateral").mkdir()
    made = dict[str, ec.EllipticCurvePrivateKey]()
    with _keys(lambda name, make: made.setdefault(name, make(name))):
        (_make_amd if platform == "sev-snp" else _make_intel)(folder)
    for name, key in made.items():
        (folder / f"{name}.key").write_bytes(key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()))


@contextlib.contextmanager
def _keys(choose: Callable[[str, Make], ec.EllipticCurvePrivateKey]) -> Iterator[None]:
    """Choose the keys of both hierarchies, which otherwise each process makes for itself."""
    amd, intel = fake_amd.ec_key, fake_intel.key
    fake_amd.ec_key = lambda name: choose(name, amd)  # type: ignore[assignment]
    fake_intel.key = lambda name: choose(name, intel)  # type: ignore[assignment]
    try:
        yield
    finally:
        fake_amd.ec_key, fake_intel.key = amd, intel  # as they were


def _make_amd(folder: Path) -> None:
    amd, today = FakeAmd("Genoa"), datetime.now(UTC).replace(microsecond=0)
    for name in ("leaf", "ask", "ark"):
        (folder / f"{name}.der").write_bytes(getattr(amd, name).public_bytes(Encoding.DER))
    crl = amd.crl(start=today - timedelta(days=1), end=today + timedelta(days=30))
    (folder / "collateral/amd.crl").write_bytes(crl.public_bytes(Encoding.DER))
    (folder / "root.der").write_bytes(amd.ark.public_bytes(Encoding.DER))


def _make_intel(folder: Path) -> None:
    issued = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)
    ends = issued + timedelta(days=30)
    intel = FakeIntel({"issued": issued, "root_listed": issued, "platform_listed": issued, "root_list_ends": ends,
                       "platform_list_ends": ends})
    intel.quote()
    (folder / "collateral/intel.json").write_text(json.dumps(intel.document()))
    (folder / "root.der").write_bytes(intel.root.public_bytes(Encoding.DER))


def _amd(folder: Path, loaded: Loaded, measurement: bytes) -> Interfaces:
    amd = FakeAmd("Genoa")
    for name in ("leaf", "ask", "ark"):
        setattr(amd, name, x509.load_der_x509_certificate((folder / f"{name}.der").read_bytes()))
    table = certificate_table({name: each.public_bytes(Encoding.DER) for name, each in (
        ("VCEK", amd.leaf), ("ASK", amd.ask), ("ARK", amd.ark))})
    return Interfaces(reports=cast(Any, FakeTsm(lambda data: amd.report(
        report_data=data, host_data=loaded.host_data, measurement=measurement), aux=table)))


def _intel(folder: Path, loaded: Loaded, measurement: bytes) -> Interfaces:
    intel = FakeIntel()
    intel.root = x509.load_der_x509_certificate((folder / "root.der").read_bytes())
    registers: dict[str, Any] = {f"rtmr{index}": value for index, value in enumerate(hardware_server.RTMRS)}
    registers["rtmr1"] = measurement
    return Interfaces(reports=cast(Any, FakeTsm(lambda data: intel.quote(
        report_data=data, mr_config_id=loaded.digest, mr_td=hardware_server.MRTD, **registers),
        provider="tdx_guest")), root=fingerprint(intel.root))


def serve() -> int:
    """Boot and serve until SIGTERM, in a process whose interpreter is isolated."""
    platform, (folder, models, image) = sys.argv[1], map(Path, sys.argv[2:5])
    if (image / "root.img").read_bytes() != ROOT_IMAGE:
        print("dm-verity: the root file system is another", file=sys.stderr, flush=True)
        return 1
    loaded = load(folder / "policy.hcl")
    keys = {path.stem: load_der_private_key(path.read_bytes(), None) for path in folder.glob("*.key")}
    with _keys(lambda name, _: cast(ec.EllipticCurvePrivateKey, keys[name])):
        return _serve(platform, folder, models, loaded, measured(image))


def _serve(platform: str, folder: Path, models: Path, loaded: Loaded, measurement: bytes) -> int:
    here = (_amd if platform == "sev-snp" else _intel)(folder, loaded, measurement)
    cast(Any, here.reports).sign(bytes(64))  # all certificates are there before the sandbox is
    console = sys.stderr

    def announce(listening: Any) -> None:
        print(f"ready on {listening[0].url}", file=console, flush=True)

    return boot(loaded, start_service=lambda booted: service.run(booted, announce=announce),
                operator=Operator(listen_port=int(sys.argv[6]), log_sink=folder / f"audit-{sys.argv[6]}.jsonl"),
                model_folders=(models,), places=here)


@contextlib.contextmanager
def host(path: Path) -> Iterator[None]:
    """Start a machine for each process that asks at the socket `path`, with its output, until it ends or hangs up."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        threading.Thread(target=_accept, args=(listening,), daemon=True).start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)


def _accept(listening: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is shut
        while True:
            threading.Thread(target=_host, args=(listening.accept()[0],), daemon=True).start()


def _host(asked: socket.socket) -> None:
    with asked:
        words, (out, err), _, _ = socket.recv_fds(asked, 1 << 16, 2)
        process = forked.start(json.loads(words), {}, out=out, err=err,
                               entry="tests.support.acceptance_machine:serve")
        for descriptor in (out, err):
            os.close(descriptor)
        watched = os.pidfd_open(process.pid)
        try:
            if asked in select.select([asked, watched], [], [])[0]:
                process.terminate()
        finally:
            os.close(watched)
        code = process.wait()
        with contextlib.suppress(OSError):  # nobody asks any more
            asked.sendall(str(code).encode())
