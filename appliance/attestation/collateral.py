"""Collateral: certificates, revocation lists and TCB documents that travel with evidence.

Nothing in it is trusted: it is a heap of candidates, in any order and under any file name. What cannot be read is
remembered, so that a verdict that lacks something can say why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509

from appliance.attestation import revocation, x509chain
from appliance.errors import MalformedEvidenceError, UncheckedEvidenceError

MAX_FILES, MAX_FILE_BYTES = 256, 1 << 20
_BLOCK = re.compile(rb"^-----BEGIN (CERTIFICATE|X509 CRL)-----[ \r]*$.*?^-----END \1-----", re.MULTILINE | re.DOTALL)
_DER_NAMES = (".der", ".cer", ".crt", ".crl", ".pem")


@dataclass
class Collateral:
    """What was found. `documents` are JSON objects that name a vendor's TCB information."""

    certificates: list[x509.Certificate] = field(default_factory=list)
    crls: list[x509.CertificateRevocationList] = field(default_factory=list)
    documents: list[dict[str, object]] = field(default_factory=list)
    problems: list[MalformedEvidenceError | UncheckedEvidenceError] = field(default_factory=list)

    def add(self, data: bytes, what: str) -> bool:
        """Take `data` in if it is collateral of any kind; returns whether it was."""
        if data[:1] == b"\x30":  # a DER sequence
            return self._add_der(data, what)
        if data.lstrip()[:1] == b"{":
            return self._add_json(data)
        blocks = list(_BLOCK.finditer(data))
        for block in blocks:
            try:
                if block[1] == b"CERTIFICATE":
                    self.certificates += x509chain.load(block[0], what)
                else:
                    self.crls.append(revocation.load(block[0], what))
            except MalformedEvidenceError as error:
                self.problems.append(error)
        return bool(blocks)

    def with_items(self, items: Iterable[bytes], what: str) -> Collateral:
        """This collateral and what is in `items`; itself it stays as it is."""
        more = Collateral(list(self.certificates), list(self.crls), list(self.documents), list(self.problems))
        for item in items:
            more.add(item, what)
        return more

    def _add_der(self, data: bytes, what: str) -> bool:
        try:
            self.certificates += x509chain.load(data, what)
        except MalformedEvidenceError as error:
            try:
                self.crls.append(revocation.load(data, what))
            except MalformedEvidenceError:
                if not what.lower().endswith(_DER_NAMES):
                    return False
                self.problems.append(error)
        return True

    def _add_json(self, data: bytes) -> bool:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return False
        if isinstance(value, dict) and "tcb_info" in value and "qe_identity" in value:
            self.documents.append(value)
            return True
        return False

    def lacking(self, what: str, hint: str) -> MalformedEvidenceError | UncheckedEvidenceError:
        """The error for something that is absent: malformed if it may be in what is not in form."""
        for problem in self.problems:
            if isinstance(problem, MalformedEvidenceError):
                return MalformedEvidenceError(f"{what} is absent, and {problem.summary}", hint=hint)
        also = f", and {self.problems[0].summary}" if self.problems else ""
        return UncheckedEvidenceError(f"{what} is absent{also}", hint=hint)


def load(folder: Path) -> Collateral:
    """Everything in a folder that is collateral, without its sub-folders, in the order of file names.

    A file that cannot be read is a problem that is remembered.
    Raises UncheckedEvidenceError if the folder cannot be read.
    """
    found = Collateral()
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file())[:MAX_FILES]
    except OSError as error:
        raise UncheckedEvidenceError(f"collateral: {folder} cannot be read: {error.strerror}") from None
    for path in paths:
        try:
            if path.stat().st_size <= MAX_FILE_BYTES:
                found.add(path.read_bytes(), path.name)
        except OSError as error:
            found.problems.append(UncheckedEvidenceError(f"{path.name} cannot be read: {error.strerror}"))
    return found
