"""The whole service in a process of its own, booted by a hardware policy on a machine that is faked below the kernel.

Everything is real but configfs-tsm: its files answer with reports of the fake AMD or Intel
hierarchy. The boot gets them by an argument that no command line, environment or policy can reach.

    python -m tests.support.hardware_server MACHINE POLICY MODEL_FOLDER OUT [ROTATION_MS [leak]]
    python -m tests.support.hardware_server MACHINE POLICY MODEL_FOLDER OUT broker

With "leak" it tells each TLS key on standard error, as a machine would whose memory somebody reads. With "broker" it
boots once the file OUT/broker is there: a broker has to know the machine's maker first.
MACHINE is "sev-snp", "tdx" ("other-" before it: launched with another policy; "patched-": a machine
that the production policies accept), or a software TPM's socket.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from appliance.attestation.collector import Interfaces
from appliance.attestation.x509.walks import fingerprint
from appliance.attestation.x509.walks import load as load_certificates
from appliance.boot.checks import Operator
from appliance.boot.sequence import boot
from appliance.errors import ApplianceError
from appliance.http import tls
from appliance.policy import Loaded, load
from appliance.service import server as serve
from appliance.signed import desk
from tests.support.fake_amd import PATCHED, PATCHED_TCB, FakeAmd
from tests.support.fake_intel import FakeIntel
from tests.support.fake_tsm import FakeTsm, certificate_table

MEASUREMENT = b"\x05" * 48  # what the fake SEV-SNP guest was launched with
MRTD, RTMRS = b"\x06" * 48, (b"\x07" * 48, b"\x08" * 48, b"\x09" * 48)  # what the fake TDX guest was, RTMR 0 to 2
EVIDENCE = """
    vmpl               = 1
    max_collateral_age = "60d"
    sev_snp {{
      products     = ["genoa"]
      signing_keys = ["vcek"]
      min_tcb {tcb}{{ snp = 1 }}
    }}
    tdx {{ tcb_status = ["UpToDate", "SWHardeningNeeded"] }}
    tpm {{ pcrs = [4, 9, 11, 12, 13] }}
  """
POLICY = """
appliance {{
  name   = "hardware"
  schema = {schema}
}}
tee {{
  platforms = ["{platform}"]
  evidence {{{evidence}}}
}}
{models}
limits {{ concurrent_requests = 2 }}  # little to lock: test machines allow 8 MiB
tenants {{
  authority   = "ed25519:{authority}"
  list        = "tenants.json"
  min_version = 3
}}
service {{
  {service}
  operator_may_set = ["listen_port", "log_sink"]
  listen "api" {{
    kind  = "ra-tls"
    port  = 8443
    names = ["appliance.example"]
  }}
}}
"""


def write(folder: Path, platform: str, model: Path, *, version: int = 3, schema: int = 1, service: str = "",
          evidence: str | None = None) -> Path:
    """A hardware policy with its signed tenant list beside it; returns the policy's path. `evidence`: what the block of
    that name holds."""
    from tests.support import server  # with a client, which would be long to load for the process that serves

    authority = Ed25519PrivateKey.generate()
    block = server.MODEL.format(name="tiny", file=model.name, sha256=server.sha256(model.read_bytes()), more="")
    path = folder / "policy.hcl"
    path.write_text(POLICY.format(
        platform=platform, models=block, schema=schema, service=service,
        evidence=EVIDENCE.format(tcb="" if schema == 1 else '"genoa" ') if evidence is None else evidence,
        authority=authority.public_key().public_bytes_raw().hex()))
    tenant = {"name": "user", "role": "user", "models": ["tiny"], "api_key_sha256": [server.sha256(server.KEY)]}
    listed = {"appliance": "hardware", "version": version, "tenants": [tenant]}
    (folder / "tenants.json").write_bytes(desk.sign_tenants(listed, authority))
    return path


def amd_machine(loaded: Loaded, out: Path, *, patched: bool = False) -> FakeTsm:
    """An SEV-SNP guest launched with the policy's HOST_DATA; the root that a verifier needs goes to `out`."""
    amd, shown = FakeAmd("Genoa", tcb=PATCHED_TCB if patched else {}), PATCHED if patched else {}
    for number, each in enumerate((amd.leaf, amd.ask, amd.ark)):
        (out / f"amd-{number}.der").write_bytes(each.public_bytes(Encoding.DER))
    today = datetime.now(UTC).replace(microsecond=0)
    (out / "amd.crl").write_bytes(amd.crl(start=today - timedelta(days=1), end=today + timedelta(days=30)).public_bytes(
        Encoding.DER))
    (out / "roots.json").write_text(json.dumps(amd.roots))
    (out / "root.der").write_bytes(amd.ark.public_bytes(Encoding.DER))
    table = certificate_table({name: each.public_bytes(Encoding.DER) for name, each in (
        ("VCEK", amd.leaf), ("ASK", amd.ask), ("ARK", amd.ark))})
    return FakeTsm(lambda data: amd.report(report_data=data, host_data=loaded.host_data, measurement=MEASUREMENT,
                                           **shown), aux=table)


def intel_machine(loaded: Loaded, out: Path, *, patched: bool = False) -> FakeTsm:
    """A TDX guest launched with the policy's digest as MRCONFIGID."""
    intel = FakeIntel({"info_number": 20, "qe_number": 20} if patched else {})
    (out / "root.der").write_bytes(intel.root.public_bytes(Encoding.DER))
    (out / "collateral.json").write_text(json.dumps(intel.document()))
    yesterday = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)
    ends = {name: yesterday + timedelta(days=30) for name in ("root_list_ends", "platform_list_ends")}
    today = FakeIntel({**intel.options, "issued": yesterday, "root_listed": yesterday, "platform_listed": yesterday,
                       **ends})
    today.root = intel.root
    (out / "collateral-today.json").write_text(json.dumps(today.document()))
    registers = {f"rtmr{index}": value for index, value in enumerate(RTMRS)}
    return FakeTsm(lambda data: intel.quote(report_data=data, mr_config_id=loaded.digest, mr_td=MRTD, **registers),
                   provider="tdx_guest")


def machine(kind: str, loaded: Loaded, out: Path) -> Interfaces:
    """The interfaces of a machine; a name that begins with "other-" was launched with another
    policy."""
    if kind.startswith("other-"):
        loaded, kind = replace(loaded, digest=bytes(48)), kind.removeprefix("other-")
    patched, kind = kind.startswith("patched-"), kind.removeprefix("patched-")
    if kind not in ("sev-snp", "tdx"):
        return Interfaces(tpm=Path(kind), event_log=out / "none")
    tsm = (amd_machine if kind == "sev-snp" else intel_machine)(loaded, out, patched=patched)
    tsm.sign(bytes(64))  # all keys are there before the sandbox is
    root = fingerprint(load_certificates((out / "root.der").read_bytes(), "root")[0]) if kind == "tdx" else ""
    return Interfaces(reports=cast(Any, tsm), root=root)


def _leak_keys() -> None:
    make = tls.server_context

    def leaking(key: Any, chain: Any) -> Any:
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        print(json.dumps({"event": "leak", "key": pem}), file=sys.stderr, flush=True)
        return make(key, chain)

    tls.server_context = leaking  # type: ignore[assignment]


def main() -> int:
    """Boot and serve until SIGTERM."""
    kind, (policy, models, out) = sys.argv[1], map(Path, sys.argv[2:5])
    broker = sys.argv[5:] == ["broker"]
    if len(sys.argv) > 5 and not broker:
        tls.ROTATION_MS = int(sys.argv[5])  # the policy language allows no less than ten minutes
    if len(sys.argv) > 6:
        _leak_keys()
    loaded = load(policy)
    ready = sys.stderr

    def announce(listening: Any) -> None:
        print(json.dumps({"event": "ready", "listening": [place.url for place in listening]}), file=ready, flush=True)

    granted = loaded.policy.service.operator_may_set
    choices: dict[str, Any] = {"listen_port": 0, "log_sink": out / "audit.jsonl"}
    try:
        here = machine(kind, loaded, out)
        (out / "machine").touch()
        while broker and not (out / "broker").exists():
            time.sleep(0.01)
        return boot(loaded, start_service=lambda booted: serve.run(booted, announce=announce),
                    operator=Operator(**{name: value for name, value in choices.items() if name in granted}),
                    model_folders=(models,), places=here)
    except ApplianceError as error:
        print(json.dumps({"event": "refused", "code": error.code, "summary": error.summary}), file=ready, flush=True)
        return 2


if __name__ == "__main__":
    sys.exit(main())
