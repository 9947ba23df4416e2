"""Making the file of a TPM-sealed key: which PCR values, and the key document that goes in."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path

from appliance.attestation import keyfile
from appliance.attestation.case import measurements
from appliance.attestation.case.measurements import Measurements
from appliance.attestation.tpm.chip import seal
from appliance.attestation.tpm.chip.client import Tpm
from appliance.attestation.tpm.chip.device import read_pcrs
from appliance.errors import AttestationError, ModelKeyError
from appliance.keys import document
from appliance.keys.providers import Secret
from appliance.keys.release.release import SUFFIX
from appliance.models.sealed import reader
from appliance.policy import inputfile
from appliance.policy.digest import POLICY_PCR, policy_pcr
from appliance.secure.wipe import wipe


def predicted(pcrs: Collection[int], measured: Measurements, machine: str | None = None,
              policy_sha384: bytes | None = None) -> dict[int, bytes]:
    """The values that an image will give. `machine`: whose golden PCR 0 and PCR 7; `policy_sha384`:
    what PCR 15 will hold, where those are wanted.

    AttestationError for a register that nothing gives, or that has several values.
    """
    known = {number: sorted(values) for number, values in measured.tpm_pcrs().items()}
    recorded = () if measured.tpm is None else measured.tpm.golden
    for golden in recorded:
        if golden.machine == machine:
            known |= {int(name): [bytes.fromhex(value)] for name, value in golden.pcrs.items()}
    if policy_sha384 is not None:
        known[POLICY_PCR] = [policy_pcr(policy_sha384)]
    for number in sorted(pcrs):
        if len(known.get(number, ())) != 1:
            raise AttestationError(
                f"PCR {number}: the measurements give {len(known.get(number, ()))} values, needed: one",
                code="tpm-prediction", hint="PCR 0 and 7 need a machine (--machine; recorded: "
                f"{', '.join(golden.machine for golden in recorded) or 'none'}), PCR 15 a policy (--policy)")
    return {number: known[number][0] for number in sorted(pcrs)}


def seal_key(secret: Secret, version: int, pcrs: Mapping[int, bytes] | Collection[int], opened: Path, device: Path
             ) -> Path:
    """Write the sealed key beside the file that it opens; returns its path.

    `pcrs`: what the registers will be, as `predicted` has it, or which of them count as they are
    now. AttestationError as the TPM says. ModelKeyError when the key is not that of the sealed
    model, where there is one, or the file of the sealed key is there already. PolicyError when it
    cannot be written.
    """
    path = opened.with_name(opened.name + SUFFIX)
    if path.exists():
        raise ModelKeyError(f"{path} is there already", hint="to seal the key anew, take it away")
    if opened.exists():
        reader.open_sealed(opened, secret.data, header_sha256=None).close()
    with contextlib.closing(Tpm(device)) as tpm:
        values = pcrs if isinstance(pcrs, Mapping) else read_pcrs(tpm, sorted(pcrs))
        text = document.make(secret.data, version)
        try:
            sealed = seal.seal(tpm, text, values)
        finally:
            wipe(text)
    keyfile.write_whole(path, sealed)
    return path


def read_measurements(path: Path) -> Measurements:
    """Measurements from a file that the caller trusts. AttestationError when it is none."""
    try:
        data = inputfile.read(path, measurements.MAX_BYTES + 1)
    except OSError as error:
        raise AttestationError(f"{path}: {error.strerror}", code="measurements-absent") from None
    return measurements.parse(data)
