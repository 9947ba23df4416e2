"""Evidence that lies inside of something else: where it is, and how to cut it out.

Providers put reports and quotes into JSON, protobuf and tokens of their own. Nothing here judges
them: a person is told what to cut out and examine.
"""

from __future__ import annotations

import base64
import binascii
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from appliance.attestation.snp.judging import abi as snp_abi
from appliance.attestation.snp.judging import judge as snp_judge
from appliance.attestation.snp.layout import REPORT_BYTES
from appliance.attestation.tdx import abi as tdx_abi
from appliance.attestation.tdx.judging import judge as tdx_judge
from appliance.attestation.tpm import abi as tpm_abi
from appliance.attestation.tpm.judging import azure
from appliance.attestation.tpm.judging import judge as tpm_judge
from appliance.errors import AttestationError

MAX_DEPTH, MAX_RUNS, MAX_TRIED, MAX_FOUND, MAX_BYTES = 3, 64, 256, 3, 1 << 17
_LEAST_CHARACTERS = 190  # a TPM quote in base64
_BEGINNINGS = re.compile(
    rb"(?P<tdx>[\x04\x05]\x00\x02\x00\x81\x00\x00\x00)|(?P<azure>HCLA)|(?P<tpm>\xffTCG\x80\x18)"
    rb"|(?P<snp>[\x02-\x05]\x00\x00\x00)")
_SNP_ALGORITHM_AT, _SNP_ALGORITHM = 0x34, b"\x01\x00\x00\x00"
_RUN = re.compile(rb"[A-Za-z0-9+/_-]++")
_HEX = re.compile(rb"(?:0x)?((?:[0-9a-fA-F]{2})++)")
_ESCAPED = re.compile(rb"\\[nr]")
_LINE = re.compile(rb"^[ \t]*+[A-Za-z0-9+/_-]++={0,2}+[ \t\r]*+$", re.MULTILINE)


@dataclass(frozen=True)
class Buried:
    """A piece of evidence: its kind, its bytes, where it lies in words, and the commands that take
    it out of the file, piped into each other."""

    kind: str
    data: bytes
    place: str
    pipe: tuple[str, ...]

    def command(self, path: Path) -> str:
        """A line for a shell that writes it into a file of its own."""
        return " | ".join((f"cat {shlex.quote(str(path))}", *self.pipe)) + " > evidence.bin"


def find(data: bytes) -> list[Buried]:
    """The evidence in `data`, `MAX_FOUND` pieces at most, each once."""
    found: dict[bytes, Buried] = {}
    for each in _search(data, "", (), MAX_DEPTH):
        found.setdefault(each.data, each)
        if len(found) == MAX_FOUND:
            break
    return list(found.values())


def _search(data: bytes, inside: str, pipe: tuple[str, ...], depth: int) -> Iterator[Buried]:
    seen = False
    for kind, at, size in _bare(data):
        seen = True
        yield Buried(kind, data[at:at + size], f"at byte {at}{inside}", (*pipe, *_cut(at, size)))
    if seen or not depth:
        return
    for text, told, first in _views(data):
        for at, size, decoded, encoding, command in _decoded(text):
            for each in _search(decoded, f" of the {encoding} at byte {at}{told}{inside}",
                                (*pipe, *first, *_cut(at, size), command), depth - 1):
                seen = True
                yield each
        if seen:
            return


def _views(data: bytes) -> Iterator[tuple[bytes, str, tuple[str, ...]]]:
    """The readings of a text: as it is, without the line feeds that JSON escapes, and each of its
    paragraphs of lines of one width. Each with its place in words, and the commands that make it.
    """
    yield data, "", ()
    if b"\\n" in data or b"\\r" in data:
        yield _ESCAPED.sub(b"", data), ", without escaped line feeds", ("sed 's/\\\\[nr]//g'",)
    for first, last, text in _paragraphs(data):
        yield text, f" of lines {first} to {last}, joined", (f"sed -n '{first},{last}p'", "tr -d ' \\t\\r\\n'")


def _paragraphs(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Lines of one width that may be hex or base64, and the shorter one behind them: the numbers of
    the first and last, counted from 1, and their text."""
    number, place, width = 1, 0, 0
    first, parts = 0, list[bytes]()
    for match in _LINE.finditer(data):
        number, place = number + data.count(b"\n", place, match.start()), match.start()
        text = match.group().strip()
        follows = bool(parts) and number == first + len(parts)
        if follows and len(text) <= width and len(parts[-1]) == width:
            parts.append(text)
            continue
        if len(parts) > 1:
            yield first, first + len(parts) - 1, b"".join(parts)
        first, width, parts = number, len(text), [text]
    if len(parts) > 1:
        yield first, first + len(parts) - 1, b"".join(parts)


def _cut(at: int, size: int) -> tuple[str, str]:
    return f"tail -c +{at + 1}", f"head -c {size}"


def _bare(data: bytes) -> Iterator[tuple[str, int, int]]:
    """Evidence in bytes: kind, place and size of each that can be read."""
    end = tried = 0
    for match in _BEGINNINGS.finditer(data):
        at, name = match.start(), str(match.lastgroup)
        algorithm = at + _SNP_ALGORITHM_AT
        if at < end or (name == "snp" and data[algorithm:algorithm + len(_SNP_ALGORITHM)] != _SNP_ALGORITHM):
            continue
        tried += 1
        if tried > MAX_TRIED:
            return
        try:
            kind, size = _read(name, data[at:at + MAX_BYTES])
        except AttestationError:
            continue
        end = at + size
        yield kind, at, size


def _read(name: str, data: bytes) -> tuple[str, int]:
    """The kind and size of evidence that `data` begins with. Raises AttestationError if it does
    not."""
    behind = data + b"\x01"  # or else zeros behind it would count as its padding
    if name == "tdx":
        quote, _ = tdx_abi.split(behind)
        tdx_abi.parse(quote)
        return tdx_judge.KIND, len(quote)
    if name == "tpm":
        return tpm_judge.QUOTE, len(tpm_abi.split_quote(data)[0])
    if name == "azure":
        report, _ = azure.split(behind)
        azure.parse(report)
        return tpm_judge.AZURE, len(report)
    snp_abi.parse(data[:REPORT_BYTES])
    return snp_judge.KIND, REPORT_BYTES


def _decoded(text: bytes) -> Iterator[tuple[int, int, bytes, str, str]]:
    """The longest texts in hex or base64: place, size, bytes, encoding, and the command that
    decodes."""
    runs = [match for match in _RUN.finditer(text) if match.end() - match.start() >= _LEAST_CHARACTERS]
    for match in sorted(runs, key=lambda each: each.start() - each.end())[:MAX_RUNS]:
        at, run = match.start(), match.group()
        digits = _HEX.fullmatch(run)
        if digits is not None:
            yield at + digits.start(1), len(digits[1]), bytes.fromhex(digits[1].decode()), "hex text", "xxd -r -p"
            continue
        padding = -len(run) % 4
        url = b"-" in run or b"_" in run
        if padding == 3 or (url and (b"+" in run or b"/" in run)):
            continue
        try:
            data = base64.b64decode(run + b"=" * padding, b"-_" if url else b"+/", validate=True)
        except binascii.Error:
            continue
        alphabet = "tr -- '-_' '+/' | " if url else ""
        padded = f"(cat; printf '{'=' * padding}') | " if padding else ""
        yield at, len(run), data, "base64url text" if url else "base64 text", f"{alphabet}{padded}base64 -d"
