"""A folder of collateral, as people keep it: everything in it that is understood, and why the rest
is not."""

from __future__ import annotations

import json
from pathlib import Path

from appliance.attestation.case.terms import EkRoots
from appliance.attestation.judge import recognise
from appliance.attestation.tpm.judging import ek
from appliance.attestation.x509.judging.collateral import MAX_FILE_BYTES, MAX_FILES, Collateral
from appliance.codec.printable import plain
from appliance.errors import UncheckedEvidenceError

ENDORSEMENT = ".binarypb"  # Google's word on a firmware, which `image predict` reads


def files(folder: Path) -> list[Path]:
    """The files in a folder, by name; a name that begins with a dot is of a file half written."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.is_file())


def load(folder: Path) -> Collateral:
    """Everything in a folder that is collateral, without its sub-folders and hidden files, in the
    order of file names.

    A file that cannot be read is a problem that is remembered; one that is not understood is named
    with the reason. Raises UncheckedEvidenceError if the folder cannot be read.
    """
    found = Collateral()
    try:
        paths, folders = files(folder), sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError as error:
        raise UncheckedEvidenceError(f"collateral: {folder} cannot be read: {error.strerror}") from None
    for path in paths[:MAX_FILES]:
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                found.ignored.append((path.name, f"larger than {MAX_FILE_BYTES} bytes"))
                continue
            data = path.read_bytes()
        except FileNotFoundError:
            continue  # taken away meanwhile
        except OSError as error:
            found.problems.append(UncheckedEvidenceError(f"{path.name} cannot be read: {error.strerror}"))
            continue
        if not found.add(data, path.name) and path.suffix != ENDORSEMENT and recognise.recognise(data) is None:
            found.ignored.append((path.name, _reason(data)))
    found.ignored += [(path.name, f"not read: {MAX_FILES} files are") for path in paths[MAX_FILES:]]
    found.ignored += [(path.name, "a folder, and only files are read") for path in folders]
    return found


def ek_roots(folder: Path) -> EkRoots:
    """The roots in a folder of certificates (PEM or DER, any names). Raises UncheckedEvidenceError
    if there is none."""
    return ek.roots_of(load(folder).certificates, folder)


def _reason(data: bytes) -> str:
    """Why a file is not collateral, for who put it there as such."""
    start = data.lstrip()[:1]
    if not start:
        return "empty"
    if start == b"<":
        return "HTML or XML, as an error page is"
    if start == b"{":
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return "not whole JSON"
        keys = ", ".join(plain(str(key), 40) for key in list(value)[:4])
        return (f"JSON with {keys or 'nothing'}; known: tcbInfo or enclaveIdentity with its signature, "
                "or tcb_info and the rest")
    if data[:1] == b"\x30":
        return "DER that is neither a certificate nor a revocation list"
    return "neither certificates nor revocation lists, in DER or PEM, nor JSON"
