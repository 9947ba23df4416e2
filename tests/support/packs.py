"""A deployment's papers, all genuine, by a hardware vendor, a builder, approvers and a witness of ours.

The log is written by the product's own audit code. `deployment` gives files on a disk; `Papers.given` is what a judge
of them knows.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from appliance import hostclock
from appliance.attestation import binding
from appliance.attestation.case import measurements
from appliance.attestation.case.measurements import Measurements
from appliance.attestation.collect.attestor import Attestor, BoundFacts
from appliance.attestation.trust.roots import Roots
from appliance.audit.chain import Chain
from appliance.audit.digests import Digests, Salts
from appliance.audit.log import AuditLog, RecordProof, new_request_id
from appliance.audit.periods import Periods, Seeds
from appliance.auditor import bundle
from appliance.auditor.claims.case import Given
from appliance.auditor.pack.gather import Files
from appliance.auditor.records import Reader
from appliance.codec import strict
from appliance.imaging.papers import provenance, releases, sbom
from appliance.policy import Loaded, load
from appliance.policy.digest import host_data
from appliance.receipts import cwt, dsse
from appliance.receipts.statement import Answered, AnsweringModel, Asked, Choosing, Image, Receipt, RecordPlace, Tokens
from appliance.signed import desk, timestamps
from appliance.signed.approvals import Approvals
from appliance.transparency import note, reading
from tests.support import fake_appliance as fake
from tests.support import fake_image, folders
from tests.support.fake_amd import NOW, FakeAmd
from tests.support.timestamping import Authority

AMD = FakeAmd()
NONCE = bytes(range(32))
SELF_TEST = hashlib.sha384(b"self-test").digest()
BOOTS = tuple((NOW - timedelta(days=days)).timestamp() for days in (400, 1))  # when they were
HEADER = hashlib.sha256(b"header").hexdigest()
BUNDLES = Path(__file__).parents[1] / "goldens" / "bundles"  # by the public model-signing package
PUBLISHER: dict[str, str] = json.loads((BUNDLES / "keys.json").read_text())
MODEL = hashlib.sha256(b"GGUF of a test").hexdigest()  # as make_model_signing_vectors.py has it
LOG_ID = bytes(range(16))
CUT: frozenset[int] = frozenset()  # boots, from 0, that a kill ends


def key(number: int) -> Ed25519PrivateKey:
    """A key of somebody."""
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)


BUILDER, AUDIT, WITNESS, SECURITY, PRIVACY, AUTHORITY = map(key, range(1, 7))


@functools.cache
def stamping() -> Authority:
    """The timestamp authority, by openssl."""
    return Authority(folders.lasting("authority"))


def public(private: Ed25519PrivateKey) -> str:
    """A public key as policies name it."""
    return f"ed25519:{private.public_key().public_bytes_raw().hex()}"


ROOT = "cd" * 32  # stands for the root of the timestamp authority
IMAGE = Image(platform="sev-snp", measurement=fake.LAUNCH.hex(), version="0.1.0", code_sha384=None,
              kernels_sha384=None, self_test_sha384=SELF_TEST.hex())  # as receipts name it
RETENTION = 'retention { audit = "365d" }'
POLICY = f"""\
appliance {{
  name   = "hospital"
  schema = 2
}}
tee {{
  platforms = ["sev-snp"]
  evidence {{
    sev_snp {{
      products = ["milan"]
      min_tcb "milan" {{ snp = 10 }}
    }}
  }}
}}
state {{
  device = "/dev/vdb"
  key {{
    provider = "broker"
    broker {{
      url         = "https://keys.hospital.example"
      root_sha256 = "{"ab" * 32}"
      resource    = "hospital/state"
    }}
  }}
}}
approvals {{
  required = 2
  approver "security" {{ public_key = "{public(SECURITY)}" }}
  approver "privacy" {{ public_key = "{public(PRIVACY)}" }}
}}
model "demo" {{
  file                 = "demo.sealed"
  sha256               = "{MODEL}"
  sealed_header_sha256 = "{HEADER}"
  publisher {{
    public_key  = "{PUBLISHER["certificate"]}"
    bundle      = "demo.sigstore"
    root_sha256 = "{PUBLISHER["root_sha256"]}"
    identity    = "models@publisher.example"
  }}
  key {{
    provider = "broker"
    broker {{
      url         = "https://keys.hospital.example"
      root_sha256 = "{"ab" * 32}"
      resource    = "hospital/demo"
    }}
  }}
}}
privacy {{
  redaction {{ detectors = ["email"] }}
  {RETENTION}
}}
limits {{ requests_per_minute = 600 }}
tenants {{
  authority = "{public(AUTHORITY)}"
  list      = "tenants.json"
}}
service {{
  listen "api" {{
    kind = "ra-tls"
    port = 8443
  }}
}}
audit {{
  sink                = "state"
  receipts            = true
  checkpoint_interval = "5m"
  witness "w1" {{
    url        = "https://witness.example"
    public_key = "{public(WITNESS)}"
  }}
  timestamp_authority {{
    url         = "https://time.example"
    root_sha256 = "{ROOT}"
  }}
}}
"""


@dataclass
class Papers:
    """A folder of files, and their keys."""

    folder: Path
    policy: Loaded
    measured: Measurements
    lines: list[bytes] = field(default_factory=list)
    seeds: Seeds = field(default_factory=list)
    receipts: list[Path] = field(default_factory=list)

    @property
    def files(self) -> Files:
        """Everything, as `appliance audit pack` is given it."""
        at = self.folder
        return Files(
            policy=at / "deployment.hcl", measurements=at / "measurements.json", sbom=at / "sbom.cdx.json",
            provenance=at / "provenance.intoto.jsonl", bundles=(at / "demo.sigstore",), releases=at / "releases",
            evidence=(at / "evidence.json",), collateral=at / "collateral",
            health=at / "health.json", log=at / "audit.jsonl", extracts=(at / "extract.json",),
            checkpoints=(at / "held.txt",), receipts=tuple(self.receipts))

    def words(self) -> list[str]:
        """The same, and what the packer knows, for a command line."""
        found = self.files
        listed = {"policy": [found.policy], "measurements": [found.measurements], "sbom": [found.sbom],
                  "provenance": [found.provenance], "bundle": found.bundles, "evidence": found.evidence,
                  "collateral": [found.collateral], "releases": [found.releases],
                  "health": [found.health], "log": [found.log], "extract": found.extracts, "held": found.checkpoints,
                  "receipt": found.receipts}
        return [word for name, paths in listed.items() for path in paths for word in (f"--{name}", str(path))]

    def judging(self) -> list[str]:
        """A judge's knowledge, as options of a command line."""
        return ["--builder-key", public(BUILDER), "--nonce", NONCE.hex(),
                "--unsafe-root", str(self.folder / "root.pem"), "--at", f"{NOW:%Y-%m-%dT%H:%M:%SZ}"]

    @property
    def given(self) -> Given:
        """The same as a value."""
        return Given(NOW, BUILDER.public_key().public_bytes_raw(), nonces=(NONCE,), roots=Roots(amd=AMD.roots),
                     policy_sha384=self.policy.digest, self_tests=frozenset({SELF_TEST}),
                     max_release_age=timedelta(days=30), period_keys=dict(self.seeds))


def deployment(folder: Path, *, requests: int = 40, receipts: int = 2, retention: str = RETENTION) -> Papers:
    """All papers, in a folder. Without `retention` the log's records are in the open."""
    (folder / "deployment.hcl").write_text(
        POLICY.replace(ROOT, stamping().fingerprint()).replace(RETENTION, retention))
    policy = load(folder / "deployment.hcl")
    signed = (desk.approve(PRIVACY, "privacy", policy.digest),
              desk.approve(SECURITY, "security", policy.digest))
    (folder / "deployment.hcl.approvals").write_bytes(
        Approvals(policy_sha384=policy.digest.hex(), approvals=signed).to_json())
    papers = Papers(folder, policy, _image(folder, policy))
    _hardware(folder, policy)
    _log(papers, requests, receipts)
    return papers


def _image(folder: Path, policy: Loaded) -> Measurements:
    """Measurements, bill of materials and provenance of one image, by the builder."""
    image = fake_image.write(folder / "image", policy=policy.digest.hex())
    document = json.loads((image / "image.json").read_text())
    files = {name: each["sha256"] for name, each in document["files"].items()}
    measured = fake.measured(policy=policy.digest.hex())
    measured = Measurements.model_validate(measured.model_dump() | {"image": {
        name: files[name] for name in ("root.img", "appliance.efi", "gate.bin")}})
    data = measured.to_json()
    (folder / "measurements.json").write_bytes(data)
    digest = hashlib.sha384(data).hexdigest()
    releases.append(folder / "releases", [
        ("release.measurements", {"sha384": digest, "version": "0.1.0"}),
        ("release.policy", {"sha384": policy.digest.hex(), "name": "hospital"}),
        ("release.revoked", {"what": "measurements", "sha384": "ab" * 48})], BUILDER, NOW - timedelta(days=1))
    (folder / "demo.sigstore").write_bytes((BUNDLES / "certificate.sigstore").read_bytes())
    (folder / "measurements.json.sig").write_bytes(measurements.sign(data, BUILDER))
    bill = sbom.make(document, policy)
    (folder / "sbom.cdx.json").write_bytes(bill)
    made = provenance.statement(document, {**files, "sbom.cdx.json": provenance.digest(bill)})
    (folder / "provenance.intoto.jsonl").write_bytes(provenance.envelope(made, BUILDER))
    return measured


def _hardware(folder: Path, policy: Loaded) -> None:
    """Evidence that binds the audit key, the collateral of that day, and the boot's own report."""
    made = Attestor(fake.SnpSource(AMD, host_data(policy.digest)), BoundFacts(
        policy.digest, SELF_TEST, binding.Build(version="0.1.0"),
        audit_key_ed25519=AUDIT.public_key().public_bytes_raw()))
    made.new_generation([binding.LoadedModel(name="demo", sha256=MODEL, sealed_header_sha256=HEADER)])
    made.bind_tls_key(bytes(32))
    (folder / "evidence.json").write_bytes(made.attest(NONCE).to_json())
    (folder / "collateral").mkdir()
    (folder / "collateral" / "list.crl").write_bytes(AMD.crl().public_bytes(Encoding.DER))
    (folder / "collateral" / "builder.pem").write_bytes(b"-----BEGIN PRIVATE KEY-----\n")  # must not be taken
    (folder / "root.pem").write_bytes(AMD.ark.public_bytes(Encoding.PEM))
    (folder / "health.json").write_text(json.dumps({
        "status": "ready", "policy_sha384": policy.digest.hex(), "self_test_sha384": SELF_TEST.hex(),
        "boot": [{"step": "self-test", "verdict": "passed", "duration_us": 1, "detail": ""}]}))


def _log(papers: Papers, requests: int, receipts: int) -> None:
    clock = hostclock.seconds
    try:
        _boots(papers, requests, receipts)
    finally:
        hostclock.seconds = clock


def _retain(log: AuditLog, papers: Papers) -> None:
    """Seal requests' records as the policy says. The seed of a period stands for its key."""
    kept = papers.policy.policy.privacy.retention.audit_ms
    if kept is not None:
        def keep(seeds: Seeds) -> None:
            papers.seeds[:] = seeds
        log.retain(Periods(kept, papers.seeds[:], derive=bytearray, draw=lambda count: bytes(
            [1 + log.chain.epoch if log.chain else 0]) * count, keep=keep))
        log.expire()


def _boots(papers: Papers, requests: int, receipts: int) -> None:
    out = io.BytesIO()
    out.close = lambda: None  # type: ignore[method-assign]
    for boot in range(len(BOOTS)):
        chain = Chain()
        for line in out.getvalue().splitlines():
            chain.follow(line)
        log = AuditLog(out, version=3, strict=True)
        _words(log)
        hostclock.seconds = lambda boot=boot: BOOTS[boot]  # type: ignore[misc]
        log.begin(chain, AUDIT, log=LOG_ID)
        _retain(log, papers)
        _boot(log, papers.policy)
        for number in range(requests // 2):
            _request(log, number, papers if number < receipts and boot + 1 == len(BOOTS) else None)
        signed = log.checkpoint()
        if signed is not None:
            line = note.sign(signed.checkpoint.text, "w1", WITNESS, when=1_780_272_000 + boot)
            log.write("audit.cosigned", witness="w1", size=signed.checkpoint.size, cosigned_at=1_780_272_000 + boot,
                      signature=line.data[8:].hex())
            log.write("audit.timestamped", size=signed.checkpoint.size, token=_token(signed.checkpoint.text))
        if boot not in CUT:
            log.close()
        (papers.folder / "held.txt").write_bytes(log.signed().note.encode())
    (papers.folder / "audit.jsonl").write_bytes(out.getvalue())
    papers.lines = out.getvalue().splitlines(keepends=True)
    records = [Reader().read(line[:-1]) for line in papers.lines]
    (papers.folder / "extract.json").write_bytes(json.dumps(
        bundle.export(records, [5, 6], reading.note((papers.folder / "held.txt").read_bytes()))).encode())


def _token(text: str) -> str:
    """The authority's token for a checkpoint, in the form that a log keeps."""
    digest, authority = hashlib.sha256(text.encode()).digest(), stamping()
    token = timestamps.token_of(authority.answer(timestamps.request(digest)))
    return timestamps.verify(token, digest, authority.fingerprint()).token.hex()


def _words(log: AuditLog) -> None:
    log.words.witnesses.admit(["w1"])
    log.words.models.admit(["demo"])
    log.words.tenants.admit(["ward", "lab"])
    log.words.approvers.admit(["security", "privacy"])
    log.words.listeners.admit(["api"])
    log.words.parameters.admit(["max_tokens"])
    log.admit_codes(["rate_limit_exceeded", "invalid_value"])


def _boot(log: AuditLog, policy: Loaded) -> None:
    log.write("boot.start", version="0.1.0", platform="sev-snp", policy_sha384=policy.digest.hex())
    for approver in ("security", "privacy"):
        log.write("policy.approved", approver=approver)
    log.write("boot.model", model="demo", sha256=MODEL)
    log.write("boot.ready", duration_us=1, self_test_sha384=SELF_TEST.hex(), generation=1, models=1)


def _request(log: AuditLog, number: int, papers: Papers | None) -> None:
    """One request: most are answered, some are refused; with `papers`, it ends with a receipt."""
    request = new_request_id()
    digests = Salts().of(request)
    digests.read(b'{"prompt": "CANARY"}')
    digests.sent(b"CANARY")
    common: dict[str, Any] = {
        "request": request, "endpoint": "/v1/chat/completions", "tenant": "ward" if number % 3 else "lab",
        "model": "demo", "duration_us": 100_000 * (1 + number % 40), "request_digest": _hex(digests.request),
        "answer_digest": _hex(digests.answer)}
    if number % 10 == 9:
        log.write("request.refused", status=429, code="rate_limit_exceeded", **common)
        return
    log.write("stream.started", **{name: common[name] for name in ("request", "endpoint", "tenant", "model")})
    done = {**common, "status": 200, "streamed": True, "prompt_tokens": 64, "completion_tokens": 64, "finish": "stop",
            "first_token_us": 50_000}
    if papers is None:
        log.write("request.done", detail=secrets.token_hex(112), **done)
        return
    sealed = log.write_signed("request.done", receipt=True, **done)
    place = papers.folder / f"answer-{number}.json"
    place.write_bytes(b'{"text":"CANARY","receipt":' + _spelled(_receipt(log, sealed, request, digests, papers)) + b"}")
    papers.receipts.append(place)


def _hex(digest: bytes | None) -> str:
    return (digest or b"").hex()


def _spelled(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _receipt(log: AuditLog, sealed: RecordProof, request: str, digests: Digests, papers: Papers) -> dict[str, Any]:
    chain = log.chain
    assert chain is not None
    receipt = Receipt(
        request=Asked(id=request, endpoint="/v1/chat/completions", digest=_hex(digests.request)),
        answer=Answered(digest=_hex(digests.answer), streamed=True, finish="stop"),
        tokens=Tokens(digest="ef" * 32, prompt=64, completion=64, cached=0, rounding=64),
        model=AnsweringModel(name="demo", sha256=MODEL, sealed_header_sha256=HEADER,
                             publisher=PUBLISHER["certificate"], publisher_identity="models@publisher.example"),
        policy_sha384=papers.policy.digest.hex(), generation=1,
        image=IMAGE,
        sampling=Choosing(samplers=("top_k",), settings={"temperature": 0.5}, seed="7", kv_cache="f16",
                          digest="ab" * 32),
        record=RecordPlace(log=sealed.head.checkpoint.origin.rpartition("/")[2], epoch=sealed.epoch, boot=sealed.boot,
                           seq=sealed.seq, leaf=sealed.leaf.hex()),
        time=sealed.time, checkpoint=sealed.head.note.encode().decode(),
        path=tuple(each.hex() for each in sealed.path))
    payload = receipt.encode()
    return {"envelope": dsse.sign(payload, AUDIT, chain.key.id.hex()),
            "cwt": strict.to_base64url(cwt.sign(receipt, payload, AUDIT)),
            "opening": {"salts": {name: digests.salts[name].hex() for name in ("request", "answer")}}}
