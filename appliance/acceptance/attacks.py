"""The attacks of a host, one row each: what it does, and by what a client refuses it.

A row either shows a client something else than a machine's fresh answer, or boots something else
than the image. A machine on which nothing comes up is refused as well: nobody talks to it. Only its
console then says why, which is the host's word.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from appliance.acceptance import copies
from appliance.acceptance.machine import Launch
from appliance.acceptance.sight import Sight
from appliance.attestation import binding
from appliance.attestation.collect.attestor import Attestor, BoundFacts
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.client.verdict import INVALID
from appliance.platforms import NAMES, SIMULATED
from appliance.policy import Loaded
from appliance.policy.schema import Policy

_IMAGE = frozenset({"measurement", "mrtd", "rtmr1", "rtmr2", "pcr4", "pcr9", "pcr11", "pcr12"})
_SIGNED_AT = 100  # in each platform's report, a byte that is signed
_LONG_AGO = "2020-01-01T00:00:00"
CPUS = 7  # which a machine seldom has


@dataclass(frozen=True)
class Scene:
    """A host's material: answers of the machine to two connections, and the policy."""

    first: Sight
    second: Sight
    policy: Loaded


@dataclass(frozen=True)
class Attack:
    """One row. `refusals`: words of a verdict, rules or codes, one of which has to be in it.

    `show` makes what a client sees; `boot` makes what is started, with a folder for its files.
    `own`: only where the machine is booted by `appliance image boot`, whose options it uses.
    """

    what: str
    refusals: frozenset[str]
    show: Callable[[Scene], Sight] | None = None
    boot: Callable[[Launch, Path], Launch] | None = None
    platforms: frozenset[str] = frozenset(NAMES)
    own: bool = False
    shapes: bool = False  # only where the image's measurements do not allow this number of processors
    sessions: bool = False  # only where the policy binds evidence to TLS sessions

    def beside_the_point(self, policy: Policy, first: Sight, platform: str) -> str:
        """Return why it says nothing on a machine, by its policy and its first answer; empty where
        it does."""
        if platform not in self.platforms:
            return f"it says nothing about {platform}"
        if first.certificate is None and self.show is not None and "tls-key" in self.refusals:
            return "the listener has no TLS"
        if self.sessions and (policy.service.session_binding != "required" or first.session is None):
            return "the policy does not bind evidence to TLS sessions"
        return ""


def _replayed(scene: Scene) -> Sight:
    return replace(scene.second, evidence=scene.first.evidence)


def _relay(scene: Scene) -> Sight:
    """The host ends TLS with a key of its own, and passes on what the machine answers."""
    return replace(scene.first, certificate=_certificate(scene.first.at), session=scene.second.session)


def _stolen_key(scene: Scene) -> Sight:
    return replace(scene.first, session=scene.second.session)


def _report(scene: Scene) -> Sight:
    value = json.loads(scene.first.evidence)
    report = bytearray(base64.b64decode(value["report"]))
    report[_SIGNED_AT] ^= 1
    return replace(scene.first, evidence=_text({**value, "report": base64.b64encode(report).decode()}))


def _statement(scene: Scene) -> Sight:
    value = json.loads(scene.first.evidence)
    statement = {**value["statement"], "generation": value["statement"]["generation"] + 1}
    return replace(scene.first, evidence=_text({**value, "statement": statement}))


def _software(scene: Scene) -> Sight:
    """A program on the host answers by itself, as an appliance without hardware does."""
    facts = BoundFacts(scene.policy.digest, bytes(48), binding.Build(version="host"))
    attestor = Attestor(SimulatedProvider(scene.policy.host_data), facts)
    attestor.new_generation(binding.LoadedModel(name=each.name, sha256=each.sha256)
                            for each in scene.policy.policy.models)
    return replace(scene.first, evidence=attestor.attest(scene.first.nonce).to_json())


def _text(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _certificate(at: datetime) -> bytes:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "relay")])
    day = timedelta(days=1)
    return x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(
        1).not_valid_before(at - day).not_valid_after(at + day).sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


def _copy(change: Callable[[Path, Path], None]) -> Callable[[Launch, Path], Launch]:
    def launch(given: Launch, folder: Path) -> Launch:
        change(given.image, folder / "image")
        return replace(given, image=folder / "image")
    return launch


def _clock(given: Launch, folder: Path) -> Launch:
    return replace(given, words=(*given.words, "--qemu=-rtc", f"--qemu=base={_LONG_AGO}"))


def _cpus(given: Launch, folder: Path) -> Launch:
    return replace(given, words=(*given.words, "--cpus", str(CPUS)))


_HARDWARE = frozenset(NAMES) - {SIMULATED.name}
ATTACKS: dict[str, Attack] = {
    "replay": Attack("answer with evidence of an earlier question", frozenset({"nonce"}), _replayed),
    "relay": Attack("end TLS with a key of the host's, and pass the evidence on", frozenset({"tls-key"}), _relay),
    "stolen-key": Attack("pass the evidence on behind the machine's own TLS key, as if it had leaked",
                         frozenset({"session"}), _stolen_key, sessions=True),
    "report": Attack("change a bit that the hardware signed", frozenset({INVALID}), _report),
    "statement": Attack("change the statement that the report binds", frozenset({INVALID}), _statement),
    "software": Attack("answer by a program without hardware", frozenset({"platform"}), _software,
                       platforms=_HARDWARE),
    "kernel": Attack("boot another kernel", _IMAGE, boot=_copy(copies.program(".linux", copies.kernel)),
                     platforms=_HARDWARE),
    "initrd": Attack("boot another initrd", _IMAGE, boot=_copy(copies.program(".initrd", copies.initrd)),
                     platforms=_HARDWARE),
    "command-line": Attack("boot with another command line", _IMAGE,
                           boot=_copy(copies.program(".cmdline", copies.command_line)), platforms=_HARDWARE),
    "root": Attack("boot with another root file system", _IMAGE, boot=_copy(copies.root), platforms=_HARDWARE),
    "cpus": Attack("boot with another number of processors", _IMAGE, boot=_cpus, platforms=frozenset({"sev-snp"}),
                   own=True, shapes=True),
    "clock": Attack("set the machine's clock to another year", frozenset({"certificate-expired", "certificate"}),
                    boot=_clock, platforms=_HARDWARE, own=True),
}

