"""The files that a verifier holds, in a bundle: policy, measurements, collateral, and their like.

Trial and judge both make their verifier of these files, so that they judge by the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance.acceptance.bundle import Terms
from appliance.acceptance.machine import AcceptanceError
from appliance.attestation import keyfile
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging.collateral import MAX_FILES, Collateral
from appliance.client import Verifier, reference
from appliance.policy import inputfile
from appliance.policy.explaining.checking import load
from appliance.signed import approvals

POLICY, MEASUREMENTS, COLLATERAL = "policy/deployment.hcl", "image/measurements.json", "collateral"
IMAGE = "image/image.json"
_MOST = 4 << 20


@dataclass(frozen=True)
class Given:
    """The owner's files and words."""

    policy: Path
    image: Path
    measurements: Path | None = None
    builder_key: str | None = None
    approvals: Path | None = None
    machines: Path | None = None
    collateral: Path | None = None
    attestation_keys: tuple[str, ...] = ()
    without_revocation: bool = False
    key_bound: bool = False

    def terms(self) -> Terms:
        """Return what a verifier is told beside the files."""
        key = self.builder_key
        return Terms(builder_key=None if key is None else keyfile.ed25519_public_key(key).hex(),
                     attestation_keys=tuple(reference.enrolled(each).hex() for each in self.attestation_keys),
                     without_revocation=self.without_revocation, key_bound=self.key_bound)


def gather(given: Given) -> dict[str, bytes]:
    """Return the files by their names in a bundle. Raises AcceptanceError if a file cannot be read.
    """
    listed = load(given.policy).policy.tee.evidence.machines
    measured = given.measurements
    wanted = {POLICY: given.policy, IMAGE: given.image / "image.json",
              approvals.beside(Path(POLICY)).as_posix(): _there(given.approvals or approvals.beside(given.policy)),
              MEASUREMENTS: measured,
              f"{MEASUREMENTS}.sig": None if measured is None else _there(measured.with_name(f"{measured.name}.sig"))}
    if listed is not None:
        wanted[f"policy/{listed.list_file}"] = given.machines or given.policy.parent / listed.list_file
    found = {name: _content(path) for name, path in wanted.items() if path is not None}
    for number, data in enumerate(_collateral(given.collateral)):
        found[f"{COLLATERAL}/{number:03}"] = data
    return found


def verifier(files: Mapping[str, bytes], terms: Terms, roots: Roots) -> Verifier:
    """Return the verifier of a bundle's files. Raises PolicyError, AttestationError."""
    with tempfile.TemporaryDirectory(prefix="appliance-accept-") as scratch:
        folder = Path(scratch)
        for name, content in _needed(files):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        measured, collateral = folder / MEASUREMENTS, folder / COLLATERAL
        return Verifier.from_files(
            folder / POLICY, measured if measured.is_file() else None,
            builder_key=None if terms.builder_key is None else f"ed25519:{terms.builder_key}",
            measurements_unsigned=terms.builder_key is None, collateral=collateral if collateral.is_dir() else None,
            need_revocation=not terms.without_revocation, key_bound=terms.key_bound, roots=roots,
            attestation_keys=[f"sha256:{each}" for each in terms.attestation_keys])


def _needed(files: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    for name, content in files.items():
        folder, _, rest = name.partition("/")
        if folder in ("policy", "image", COLLATERAL) and rest.strip(".") and "/" not in rest:
            yield name, content


def _there(path: Path) -> Path | None:
    return path if path.is_file() else None


def _content(path: Path) -> bytes:
    try:
        data = inputfile.read(path, _MOST + 1)
    except OSError as error:
        raise AcceptanceError(f"{path}: {error.strerror}", code="file-unreadable") from None
    if len(data) > _MOST:
        raise AcceptanceError(f"{path}: more than {_MOST} bytes", code="file-unreadable")
    return data


def _collateral(folder: Path | None) -> list[bytes]:
    """Return the collateral of a folder. A key that lies there stays outside."""
    if folder is None:
        return []
    paths = sorted(path for path in folder.iterdir() if path.is_file())[:MAX_FILES]
    return [data for path in paths if Collateral().add(data := _content(path), path.name)]
