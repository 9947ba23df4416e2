"""A machine with faked SEV-SNP or TDX, as `appliance accept --boot-command` starts one: it measures the EFI program of
the image that it is given, and boots the whole service.

    python -m tests.support.acceptance_machine PLATFORM FOLDER MODELS IMAGE --port PORT

`prepare` makes FOLDER first: the hierarchy of the machine's vendor, which all machines of a trial share.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.collector import Interfaces
from appliance.attestation.x509.walks import fingerprint
from appliance.boot.checks import Operator
from appliance.boot.sequence import boot
from appliance.policy import Loaded, load
from appliance.service import server as serve
from tests.support import hardware_server
from tests.support.fake_amd import FakeAmd
from tests.support.fake_intel import FakeIntel
from tests.support.fake_tsm import FakeTsm, certificate_table

ROOT_IMAGE = b"root file system"  # that of tests/support/fake_image
PROGRAM_AT = "appliance.efi"


def measured(image: Path) -> bytes:
    """What the faked firmware measures of an image."""
    return hashlib.sha384((image / PROGRAM_AT).read_bytes()).digest()


def prepare(platform: str, folder: Path) -> None:
    """Make a vendor: its root, and its documents in the folder `collateral`."""
    (folder / "collateral").mkdir()
    today = datetime.now(UTC).replace(microsecond=0)
    if platform == "sev-snp":
        amd = FakeAmd("Genoa")
        for name in ("leaf", "ask", "ark"):
            (folder / f"{name}.der").write_bytes(getattr(amd, name).public_bytes(Encoding.DER))
        crl = amd.crl(start=today - timedelta(days=1), end=today + timedelta(days=30))
        (folder / "collateral/amd.crl").write_bytes(crl.public_bytes(Encoding.DER))
        (folder / "root.der").write_bytes(amd.ark.public_bytes(Encoding.DER))
        return
    issued, ends = today - timedelta(days=1), today + timedelta(days=29)
    intel = FakeIntel({"issued": issued, "root_listed": issued, "platform_listed": issued, "root_list_ends": ends,
                       "platform_list_ends": ends})
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
    registers = {f"rtmr{index}": value for index, value in enumerate(hardware_server.RTMRS)} | {"rtmr1": measurement}
    return Interfaces(reports=cast(Any, FakeTsm(lambda data: intel.quote(
        report_data=data, mr_config_id=loaded.digest, mr_td=hardware_server.MRTD, **registers),
        provider="tdx_guest")), root=fingerprint(intel.root))


def main() -> int:
    """Boot and serve until SIGTERM."""
    platform, (folder, models, image) = sys.argv[1], map(Path, sys.argv[2:5])
    if os.environ:  # strict hardening refuses much of a usual environment
        words = [sys.executable, "-m", "tests.support.acceptance_machine", *sys.argv[1:]]
        os.execve(sys.executable, words, {})  # noqa: S606 - this program again
    if (image / "root.img").read_bytes() != ROOT_IMAGE:
        print("dm-verity: the root file system is another", flush=True)
        return 1
    loaded = load(folder / "policy.hcl")
    here = (_amd if platform == "sev-snp" else _intel)(folder, loaded, measured(image))
    cast(Any, here.reports).sign(bytes(64))  # all keys are there before the sandbox is

    def announce(listening: Any) -> None:
        print(f"ready on {listening[0].url}", flush=True)

    return boot(loaded, start_service=lambda booted: serve.run(booted, announce=announce),
                operator=Operator(listen_port=int(sys.argv[6]), log_sink=folder / f"audit-{sys.argv[6]}.jsonl"),
                model_folders=(models,), places=here)


if __name__ == "__main__":
    sys.exit(main())
