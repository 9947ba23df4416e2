"""The reference of a verifier before it looks at evidence: policy, measurements, approvals,
collateral."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypedDict

from appliance.attestation import keyfile
from appliance.attestation.case import measurements
from appliance.attestation.case.machine import MachineList
from appliance.attestation.case.measurements import DerivedMeasurements, Measurements
from appliance.attestation.case.terms import EkRoots
from appliance.attestation.findings import Finding, judged
from appliance.attestation.google import endorsement, launches
from appliance.attestation.judge import collateral_folder
from appliance.attestation.judge.collateral_folder import load as load_collateral
from appliance.attestation.tpm.judging import verify
from appliance.attestation.trust.roots import VENDORS, Roots
from appliance.attestation.x509 import walks
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.errors import MalformedEvidenceError, PolicyError, UncheckedEvidenceError
from appliance.policy import Loaded, inputfile
from appliance.policy.explaining.checking import load
from appliance.signed import approvals, desk, machines, releases
from appliance.signed.approvals import Approvals
from appliance.signed.releases import Releases

MAX_KEY_BYTES = 1 << 16
SIGNATURE_SUFFIX = ".sig"
GATE = "gate.bin"  # a file of the image
REBUILD = ("appliance image build DEPLOYMENT.hcl -o OUT && appliance image predict OUT, with the builder's --firmware "
           "and --golden")


@dataclass(frozen=True)
class KnownImage:
    """Measurements and why they are believed: `signed_by` is the builder's key, None where the
    caller vouches. `firmware_by` names another signer, of a firmware, whose certificate ends at
    `firmware_until`."""

    measurements: Measurements
    signed_by: bytes | None = None
    firmware_by: str = ""
    firmware_until: datetime | None = None

    def finding(self, at: datetime) -> Finding:
        """Whose word the measurements are, and whether it holds at a time: a client may run on for
        longer than a certificate."""
        also = f"; {self.firmware_by}" if self.firmware_by else ""
        if self.firmware_until is not None and at > self.firmware_until:
            return Finding("measurements", "fails", f"{self.firmware_by}, whose certificate ended at "
                           f"{self.firmware_until:%Y-%m-%dT%H:%M:%SZ}")
        if self.signed_by is None:
            return Finding("measurements", "not checked", f"taken as given, unsigned; rebuild them: {REBUILD}{also}")
        return Finding("measurements", "holds", f"signed by ed25519:{self.signed_by.hex()}{also}")


@dataclass(frozen=True)
class Reference:
    """Everything that evidence is compared with. `known` is needed for hardware, not for the
    simulated platform.

    `need_revocation`: without a revocation list in force there is no verdict "verified" on SEV-SNP
    evidence. `any_ak`: a TPM's key needs nobody to vouch for it (for tests: such a quote is
    anybody's). `key_bound`: evidence of a TLS key will do where the policy binds none to
    sessions. `attestation_keys`: TPM keys that the verifier enrolled itself, by SHA-256 of their
    SubjectPublicKeyInfo. `ek_roots`: makers of TPMs; a TPM then has to show that its quoting key is
    in it beside an endorsement key that one of them certified. `roots` other than the vendors' are
    for tests, and every verdict then says so.
    """

    policy: Loaded
    known: KnownImage | None = None
    approvals: Approvals | None = None
    collateral: Collateral = field(default_factory=Collateral)
    need_revocation: bool = True
    any_ak: bool = False
    roots: Roots = VENDORS
    attestation_keys: frozenset[bytes] = frozenset()
    ek_roots: EkRoots | None = None
    releases: Releases | None = None
    max_release_age: timedelta | None = None  # of the release log's newest record
    key_bound: bool = False
    self_tests: frozenset[bytes] | None = None  # digests of self-tests that will do, 48 bytes each; None: any
    machines: MachineList | None = None  # the list that the policy demands; None: it is not at hand
    keep: Path | None = None  # where collateral that came with good evidence is kept

    def findings(self, at: datetime) -> list[Finding]:
        """The findings on the reference itself, before any evidence: whose measurements, who
        approved, and what the builder's release log says of them at that time."""
        return [*self._own_findings(at), *([] if self.releases is None else [self.releases.finding(
            None if self.known is None else hashlib.sha384(self.known.measurements.to_json()).hexdigest(),
            self.policy.digest.hex(), at, self.max_release_age)])]

    def _own_findings(self, at: datetime) -> list[Finding]:
        found = [desk.finding(self.policy.policy, self.policy.digest, self.approvals)]
        if self.known is None:
            return [*found, Finding("measurements", "not checked", "none given")]
        found.append(self.known.finding(at))
        found.append(_gate(self.known.measurements))
        baked = self.known.measurements.policy_sha384
        if baked is not None:
            found.append(judged("measured-policy", baked == self.policy.digest.hex(),
                                f"the image has the policy {baked} in it"))
        return found


def _gate(known: Measurements) -> Finding:
    """Whether the image begins with a gate, without which a host's ACPI tables reach its kernel.
    The predictor of the measurements compared it with the measured program."""
    digest = known.image.get(GATE)
    if digest is None:
        return Finding("gate", "not checked", f"the measurements name no {GATE}: the kernel of such an image runs "
                       "what the host's ACPI tables hold; build the image again")
    return Finding("gate", "holds", f"sha256:{digest}, which keeps the host's ACPI tables from the kernel")


def read_measurements(path: Path, *, builder_key: bytes | None, unsigned: bool = False,
                      signature: Path | None = None) -> KnownImage:
    """Measurements that the builder signed (the signature is beside the file, as `.sig`), or taken
    as given.

    Raises PolicyError if the caller says neither, ForgedEvidenceError if the signature is not the
    builder's, MalformedEvidenceError for another format, UncheckedEvidenceError if a file cannot be
    read.
    """
    data = _read(path, measurements.MAX_BYTES)
    if builder_key is None:
        if not unsigned:
            raise PolicyError(
                f"{path}: nothing says whose measurements these are", code="measurements-unsigned",
                hint="give the builder's public key (--builder-key), or rebuild the image, compare, and say "
                "--measurements-unsigned")
        return KnownImage(measurements.parse(data))
    signed = _read(signature or path.with_name(path.name + SIGNATURE_SUFFIX), measurements.SIGNATURE_BYTES)
    return KnownImage(measurements.signed(data, signed, builder_key), builder_key)


def _read(path: Path, most: int) -> bytes:
    try:
        data = inputfile.read(path, most + 1)
    except OSError as error:
        raise UncheckedEvidenceError(f"{path} cannot be read: {error.strerror}", code="file-unreadable") from None
    if len(data) > most:
        raise MalformedEvidenceError(f"{path}: more than {most} bytes")
    return data


class Options(TypedDict, total=False):
    """The files of a reference beside the policy and the measurements, and what it accepts."""

    builder_key: str | None
    """Who signed the measurements: `ed25519:HEX`, or the path of a key."""
    measurements_unsigned: bool
    """The caller vouches for the measurements, and no signature is asked for."""
    approvals: str | Path | None
    """A file; by default the one beside the policy, if there is one."""
    collateral: str | Path | None
    """A folder of certificates, revocation lists and so on."""
    keep: str | Path | None
    """A folder in which collateral that came with good evidence is kept, and found again."""
    need_revocation: bool
    any_ak: bool
    roots: Roots
    """These three as `Reference` has them, by default, too."""
    attestation_keys: Iterable[str]
    """Keys of TPMs that were enrolled: `sha256:HEX` or paths."""
    ek_roots: str | Path | None
    """A folder with certificates of TPM makers, whose TPMs are then challenged."""
    releases: str | Path | None
    """A folder with the builder's release log, whose key is `builder_key`."""
    held_release: str | Path | None
    """A checkpoint of that log from an earlier day."""
    max_release_age: timedelta | None
    """How old the log's newest record may be; None: any age."""
    key_bound: bool
    """Evidence of a TLS key will do, where the policy binds none to sessions."""
    self_tests: Iterable[bytes]
    """Digests (48 bytes) of which the boot's must be one; none: any will do."""
    gce_endorsement: str | Path | None
    """Google's endorsement of the machine's firmware, beside a portable reference."""
    machines: str | Path | None
    """The signed list of machines; by default the one beside the policy, if there is one."""


def read(policy: Path, measured: Path | None, options: Options) -> Reference:
    """A reference from files: a policy, and measurements if given. Raises PolicyError,
    AttestationError."""
    loaded = load(policy)
    key, given = options.get("builder_key"), options.get("approvals")
    known = None if measured is None else read_measurements(
        measured, builder_key=None if key is None else keyfile.ed25519_public_key(key),
        unsigned=options.get("measurements_unsigned", False))
    if (said := options.get("gce_endorsement")) is not None:
        known = _endorsed(known, Path(said), options.get("roots", VENDORS))
    found = approvals.read(approvals.beside(policy) if given is None else Path(given))
    if found is None and given is not None:
        raise PolicyError(f"approvals: {given} does not exist", code="approvals-unreadable")
    log, listed = _releases(options, key), options.get("machines")
    folder, makers, kept = options.get("collateral"), options.get("ek_roots"), options.get("keep")
    return Reference(
        loaded, known, found, Collateral() if folder is None else load_collateral(Path(folder)),
        options.get("need_revocation", True), options.get("any_ak", False), options.get("roots", VENDORS),
        frozenset(map(enrolled, options.get("attestation_keys", ()))),
        None if makers is None else collateral_folder.ek_roots(Path(makers)), log, options.get("max_release_age"),
        options.get("key_bound", False), frozenset(options.get("self_tests", ())) or None,
        machines.machines_of(loaded.policy, policy.parent, None if listed is None else Path(listed)),
        None if kept is None else Path(kept))


def _endorsed(known: KnownImage | None, document: Path, roots: Roots) -> KnownImage:
    """A known image with the firmware that Google endorses, judged by the verifier's own clock.
    PolicyError unless it is a portable reference, AttestationError."""
    if known is None or not isinstance(known.measurements, DerivedMeasurements):
        raise PolicyError("an endorsement of a firmware goes with a portable reference: measurements have rows of "
                          "their own", code="endorsement-alone",
                          hint="give the image's reference: --reference FILE; appliance image reference DIR makes one")
    beside = document.with_name(endorsement.ROOT_FILE)
    said = endorsement.read(
        _read(document, endorsement.MAX_BYTES), at=datetime.now(UTC), root=roots.others.get("gce", endorsement.ROOT),
        certificates=walks.load(keyfile.read(beside, "root"), beside.name) if beside.exists() else ())
    return replace(known, measurements=known.measurements.endorsed(launches.tdx_rows(said), launches.snp_rows(said)),
                   firmware_by=f"a firmware by {said.signer}, sha384:{said.firmware_sha384.hex()}",
                   firmware_until=said.until)


def _releases(options: Options, key: str | None) -> Releases | None:
    """The builder's release log. PolicyError, NoteError."""
    given, held = options.get("releases"), options.get("held_release")
    if given is None:
        if options.get("max_release_age") is not None or held is not None:
            raise PolicyError("an age or an earlier checkpoint is of a release log, and there is none",
                              code="releases-absent", hint="give its folder: --releases DIR")
        return None
    if key is None:
        raise PolicyError("nothing says whose release log this is", code="releases-unsigned",
                          hint="give the builder's public key: --builder-key KEY")
    folder = Path(given)
    log, head = (_read(folder / name, releases.MAX_BYTES) for name in (releases.LOG, releases.HEAD))
    return releases.read(log, head, keyfile.ed25519_public_key(key),
                         held=None if held is None else _read(Path(held), releases.MAX_BYTES))


def enrolled(text: str) -> bytes:
    """A TPM's attestation key as one names it: `sha256:HEX` of its SubjectPublicKeyInfo, or a file
    with the key (PEM, DER, TPM2B_PUBLIC) or its certificate. Raises AttestationError."""
    if text.startswith("sha256:"):
        try:
            digest = bytes.fromhex(text.removeprefix("sha256:"))
        except ValueError:
            digest = b""
        if len(digest) != 32:
            raise MalformedEvidenceError(f"{text}: sha256: and 64 hex digits are a key's fingerprint")
        return digest
    key = verify.load_key(_read(Path(text), MAX_KEY_BYTES))
    return hashlib.sha256(key.spki()).digest()
