"""Collateral: certificates, revocation lists and TCB documents that travel with evidence.

Nothing in it is trusted: it is a heap of candidates, in any order and under any file name.
Unreadable files are remembered, so that a verdict that lacks something can say why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from urllib.parse import unquote_to_bytes

from cryptography import x509

from appliance.attestation.x509 import pem, walks
from appliance.attestation.x509.judging import pcs_answer, revocation
from appliance.attestation.x509.judging.pcs_answer import PcsAnswer
from appliance.codec.printable import plain
from appliance.errors import MalformedEvidenceError, UncheckedEvidenceError

MAX_FILES, MAX_FILE_BYTES = 256, 1 << 20
MAX_IGNORED, MAX_NAME = 8, 80  # files that an error names, and characters of a name
MAX_HEADS = 8  # of proxies and the service, before one answer
_ENCODED = b"-----BEGIN%20"
_END = re.compile(rb"\r?\n\r?\n")
_HEX = re.compile(rb"\s*30(?:[0-9a-fA-F]{2})+\s*")  # as caching services give lists
_DER_NAMES = (".der", ".cer", ".crt", ".crl", ".pem")


@dataclass
class Collateral:
    """The collateral that was found. `documents` are JSON objects that name a vendor's TCB
    information, `answers` raw ones of Intel's service; `ignored`: files that were not understood,
    by name, and why."""

    certificates: list[x509.Certificate] = field(default_factory=list)
    crls: list[x509.CertificateRevocationList] = field(default_factory=list)
    documents: list[dict[str, object]] = field(default_factory=list)
    problems: list[MalformedEvidenceError | UncheckedEvidenceError] = field(default_factory=list)
    answers: list[PcsAnswer] = field(default_factory=list)
    ignored: list[tuple[str, str]] = field(default_factory=list)

    def add(self, data: bytes, what: str) -> bool:
        """Take `data` in if it is collateral of any kind; returns whether it was."""
        known, heads = False, 0
        while data[:5] == b"HTTP/" and heads < MAX_HEADS:  # an answer kept with its headers, or these alone
            heads += 1
            end = _END.search(data)
            known |= self._add_text(data[:end.start() if end else None], what)
            data = data[end.end():] if end else b""
        return (bool(data) and self._add_body(data, what)) or known

    def _add_body(self, data: bytes, what: str) -> bool:
        if data[:1] == b"\x30":  # a DER sequence
            return self._add_der(data, what)
        if _HEX.fullmatch(data):
            return self._add_der(bytes.fromhex(data.decode()), what)
        if data.lstrip()[:1] == b"{":
            return self._add_json(data, what)
        return self._add_text(data, what)

    def copy(self) -> Collateral:
        """The same, in lists of its own."""
        return Collateral().joined(self)

    def joined(self, other: Collateral) -> Collateral:
        """This and another."""
        return Collateral(*([*getattr(self, each.name), *getattr(other, each.name)] for each in fields(self)))

    def with_items(self, items: Iterable[bytes], what: str) -> Collateral:
        """This collateral and what is in `items`; itself it stays as it is."""
        more = self.copy()
        for item in items:
            more.add(item, what)
        return more

    def _add_text(self, data: bytes, what: str) -> bool:
        """PEM, as it is or URL-encoded as in a response header."""
        if _ENCODED in data:
            data = b"\n".join(unquote_to_bytes(line.partition(b": ")[2] or line) for line in data.splitlines())
        blocks = pem.blocks(data)
        for kind, block in blocks:
            try:
                if kind == b"CERTIFICATE":
                    self.certificates += walks.load(block, what)
                else:
                    self.crls.append(revocation.load(block, what))
            except MalformedEvidenceError as error:
                self.problems.append(error)
        return bool(blocks)

    def _add_der(self, data: bytes, what: str) -> bool:
        try:
            self.certificates += walks.load(data, what)
        except MalformedEvidenceError as error:
            try:
                self.crls.append(revocation.load(data, what))
            except MalformedEvidenceError:
                if not what.lower().endswith(_DER_NAMES):
                    return False
                self.problems.append(error)
        return True

    def _add_json(self, data: bytes, what: str) -> bool:
        raw = pcs_answer.answer(data, what)
        if raw is not None:
            self.answers.append(raw)
            if raw.misfit:
                self.ignored.append((what, raw.misfit))
            return True
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return False
        if isinstance(value, dict) and "tcb_info" in value and "qe_identity" in value:
            self.documents.append(value)
            return True
        return False

    def not_understood(self) -> str:
        """The files that were not understood and why, `MAX_IGNORED` of them; empty where there are
        none."""
        if not self.ignored:
            return ""
        shown = "; ".join(f"{plain(name, MAX_NAME)}: {reason}" for name, reason in self.ignored[:MAX_IGNORED])
        more = len(self.ignored) - MAX_IGNORED
        return f"not understood in the folder: {shown}" + (f"; and {more} more" if more > 0 else "")

    def unchecked(self, what: str, hint: str, code: str | None = None) -> UncheckedEvidenceError:
        """The error for something that is absent. It names the files that could not be read, one of
        which may be it, and its hint what was not understood."""
        problems = "; ".join(each.summary for each in self.problems[:MAX_IGNORED])
        also = self.not_understood()
        return UncheckedEvidenceError(f"{what}, and {problems}" if problems else what,
                                      hint=f"{hint}; {also}" if also else hint, code=code)
