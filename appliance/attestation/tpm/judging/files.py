"""A TPM quote as a set of files side by side: message, signature, key, PCR values, nonce, event
log.

The names that `tpm2_quote` and its users give them: `X.msg` with `X.sig`, and in the same folder
the only file of each other kind. Content decides where names do not.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from appliance.attestation.case import event_log
from appliance.attestation.tpm import abi
from appliance.attestation.tpm.abi import Pcrs
from appliance.attestation.tpm.judging import azure as azure_abi
from appliance.codec.cursor import Cursor
from appliance.errors import MalformedEvidenceError, UncheckedEvidenceError

MAX_FILE_BYTES = 1 << 24
_KEYS = (".pub", ".pem", ".key")
_GZIP = b"\x1f\x8b"
_LOGS = ("eventlog", "event_log", "binary_bios_measurements", "ccel")


@dataclass(frozen=True)
class TpmFiles:
    """The pieces; None where there is none. `key_name` is the file that the key came from."""

    message: bytes
    signature: bytes
    key: bytes | None
    key_name: str
    pcrs: bytes | None
    nonce: bytes | None
    log: bytes | None
    azure: bytes | None = None  # what an Azure confidential VM keeps beside its TPM
    values: Pcrs | None = None  # PCR values that did not come as a file
    pcrs_name: str = ""

    def pcr_values(self) -> Pcrs | None:
        """The PCR values, however they came; None without any. Raises MalformedEvidenceError."""
        if self.values is not None or self.pcrs is None:
            return self.values
        return parse_pcrs(self.pcrs)


def message_in(folder: Path) -> Path | None:
    """The quote in a folder: the only file that begins as one."""
    found = [path for path in _files(folder) if _read(path)[:4] == abi.MAGIC]
    return found[0] if len(found) == 1 else None


def log_beside(path: Path | None) -> bytes | None:
    """The event log in a file's folder, by its name; None without one."""
    if path is None or not path.is_file():
        return None
    return _maybe(_first([each for each in _files(path.parent) if each != path], _is_log), unpacked=True)


def beside(path: Path | None) -> list[Path]:
    """The other files in a file's folder, in the order of their names."""
    return [] if path is None or not path.is_file() else [each for each in _files(path.parent) if each != path]


def azure_beside(path: Path) -> bytes | None:
    """The Azure report in a file's folder; None without one."""
    return _azure([each for each in _files(path.parent) if each != path]) if path.is_file() else None


def _azure(files: list[Path]) -> bytes | None:
    return _maybe(_first(files, lambda path: _read(path).startswith(azure_abi.MAGIC)))


def unpack(data: bytes) -> bytes:
    """A log as it is, or out of gzip; at most one byte more than logs may have. Raises
    MalformedEvidenceError."""
    if not data.startswith(_GZIP):
        return data
    reader = zlib.decompressobj(wbits=31)
    try:
        return reader.decompress(data, event_log.MAX_LOG_BYTES + 1)
    except zlib.error:
        raise MalformedEvidenceError("event log: not in gzip's format, as its first bytes say") from None


def _is_log(path: Path) -> bool:
    return any(word in path.name.lower() for word in _LOGS)


def gather(message: Path, key: Path | None = None) -> TpmFiles:
    """Everything beside a quote's message; `key` overrides the search for the AK.

    Raises UncheckedEvidenceError if there is no signature.
    """
    files = [path for path in _files(message.parent) if path != message]
    signature = _first(files, lambda path: path == message.with_suffix(".sig")) or _only(files, (".sig",))
    if signature is None:
        raise UncheckedEvidenceError(
            "TPM quote: no signature beside it", hint=f"expected it as {message.with_suffix('.sig').name}")
    found = key or _first(files, lambda path: path.name.lower() in ("ak.pub", "ak.pem")) or _only(files, _KEYS)
    values = (_first(files, lambda path: path == message.with_suffix(".pcrs")) or _only(files, (".pcrs",))
              or _first(files, lambda path: path.name.lower().startswith("pcr")))
    nonce = _first(files, lambda path: path.stem.lower() == "nonce")
    log = _first(files, _is_log)
    return TpmFiles(
        _read(message), _read(signature), _maybe(found), found.name if found else "", _maybe(values),
        None if nonce is None else _nonce(_read(nonce)), _maybe(log, unpacked=True),
        _azure(files), pcrs_name=values.name if values else "")


def _nonce(data: bytes) -> bytes:
    """A nonce as raw bytes or as hex text."""
    try:
        return bytes.fromhex(data.decode("ascii").strip())
    except ValueError:
        return data


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and path.stat().st_size <= MAX_FILE_BYTES)


def _first(files: list[Path], wanted: Callable[[Path], bool]) -> Path | None:
    return next((path for path in files if wanted(path)), None)


def _only(files: list[Path], suffixes: tuple[str, ...]) -> Path | None:
    found = [path for path in files if path.suffix.lower() in suffixes
             and b"-----BEGIN CERTIFICATE-----" not in _read(path)]
    return found[0] if len(found) == 1 else None


def _read(path: Path) -> bytes:
    return path.read_bytes()


def _maybe(path: Path | None, *, unpacked: bool = False) -> bytes | None:
    data = None if path is None else _read(path)
    return unpack(data) if unpacked and data is not None else data


# The file that `tpm2_quote --pcr` writes: TPML_PCR_SELECTION with room for 16 banks, then the
# number of TPML_DIGEST lists, each of up to 8 digests in rooms of 64 bytes. Little endian.
_LISTS, _DIGESTS, _ROOM = 16, 8, 64


def parse_pcrs(data: bytes) -> abi.Pcrs:
    """PCR values as tpm2-tools writes them. Raises MalformedEvidenceError."""
    cursor = Cursor(data, "PCR values", "little")
    banks = cursor.number(4, "number of banks")
    selected: list[tuple[str, int]] = []
    for index in range(_LISTS):
        algorithm, size = cursor.number(2, "bank"), cursor.number(1, "selection size")
        bits = int.from_bytes(cursor.take(abi.MAX_SELECT_BYTES, "selection")[:size], "little")
        cursor.take(1, "padding")
        if index < banks:
            bank = abi.hash_name(algorithm, "PCR values")
            selected += [(bank, number) for number in range(abi.MAX_PCRS) if bits >> number & 1]
    values = []
    lists = cursor.number(4, "number of lists")
    if lists > _LISTS:
        raise MalformedEvidenceError(f"PCR values: {lists} lists, at most {_LISTS}")
    for _ in range(lists):
        count = cursor.number(4, "number of digests")
        rooms = [(cursor.number(2, "size"), cursor.take(_ROOM, "digest")) for _ in range(_DIGESTS)]
        if count > _DIGESTS or any(size > _ROOM for size, _ in rooms):
            raise MalformedEvidenceError("PCR values: a list or digest is longer than its room")
        values += [room[:size] for size, room in rooms[:count]]
    cursor.end()
    if len(values) != len(selected) or len(set(selected)) != len(selected):
        raise MalformedEvidenceError(f"PCR values: {len(values)} values for {len(selected)} selected PCRs")
    found: dict[str, dict[int, bytes]] = {}
    for (bank, number), value in zip(selected, values, strict=True):
        if len(value) != hashlib.new(bank).digest_size:
            raise MalformedEvidenceError(f"PCR values: PCR {number} of {bank} has {len(value)} bytes")
        found.setdefault(bank, {})[number] = value
    return found
