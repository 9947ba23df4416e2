"""Judge a folder of evidence, file by file, and keep the result. Later only changed files are
judged again.

TDX quotes are judged by each evaluation number of Intel's documents at hand: the step that is
announced shows beside the one in force.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from appliance.attestation import keyfile
from appliance.attestation.judge import collateral_folder, recognise
from appliance.attestation.judge.examine import MAX_BYTES, examine
from appliance.attestation.judge.halves import JUDGES
from appliance.attestation.judge.material import Material
from appliance.attestation.snp.judging.verify import SnpClaims
from appliance.attestation.tdx import abi
from appliance.attestation.tdx.judging import verify
from appliance.attestation.tdx.signatures import SignedTdxQuote, verify_signatures
from appliance.attestation.trust.roots import VENDORS, Roots
from appliance.attestation.x509.judging.collateral import MAX_FILE_BYTES, Collateral
from appliance.attestation.x509.judging.pcs_answer import IDENTITY, TCB, as_date
from appliance.errors import (
    AttestationError,
    ForgedEvidenceError,
    RejectedEvidenceError,
    UncheckedEvidenceError,
)
from appliance.fleet import node
from appliance.fleet.node import Machine, TdxNode, TdxStanding
from appliance.platforms import TDX

STORE = "judged.jsonl"
Told = Callable[[int, int], None]


def judge(folder: Path, shared: Path | None, store: Path, *, at: datetime, announced: Path | None = None,
          roots: Roots = VENDORS, told: Told = lambda done, total: None) -> list[Machine]:
    """All evidence below a folder, judged `at` a time, in the order of names.

    `shared`: a folder of collateral for all; without it, what lies beside each file. `announced`: a
    folder of Intel's early documents. Nodes of `store` that did not change are taken from it; it is
    written whole. Raises UncheckedEvidenceError where nothing below the folder is evidence.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != store)
    known = {each.key: each for each in _stored(store)}
    beside = _Beside(shared, announced)
    found: list[Machine] = []
    for done, path in enumerate(paths):
        told(done, len(paths))
        one = _node(path, folder, beside, known, at, roots)
        if one is not None:
            found.append(one)
    if not found:
        raise UncheckedEvidenceError(f"{folder}: none of its {len(paths)} files is evidence", code="fleet-empty",
                                     hint="one file of evidence a machine: `appliance evidence FILE` says what is read")
    keyfile.write_whole(store, "".join(f"{line}\n" for line in (
        json.dumps({"format": node.FORMAT}), *(each.line() for each in found))).encode())
    return found


def _stored(store: Path) -> Iterator[Machine]:
    """The nodes of a store; none where it is absent or of another format."""
    if not store.exists():
        return
    lines = store.read_text(errors="replace").splitlines()
    if lines[:1] == [json.dumps({"format": node.FORMAT})]:
        yield from map(node.read, lines[1:])


class _Beside:
    """Collateral by folder, each read once, and a digest of it."""

    def __init__(self, shared: Path | None, announced: Path | None) -> None:
        self._shared = shared
        self._read: dict[Path, tuple[Collateral, bytes]] = {}
        self._announced = (Collateral(), b"") if announced is None else self._of(announced)

    def of(self, path: Path) -> tuple[Collateral, Collateral, bytes]:
        """The collateral of a file, that and what is announced, and a digest of both."""
        (collateral, digest), (more, other) = self._of(self._shared or path.parent), self._announced
        return collateral.copy(), collateral.joined(more), digest + other

    def _of(self, folder: Path) -> tuple[Collateral, bytes]:
        if folder not in self._read:
            digest = hashlib.sha256()
            for each in sorted(folder.iterdir()) if folder.is_dir() else ():
                if (each.is_file() and each.name != STORE and each.stat().st_size <= MAX_FILE_BYTES
                        and _kind(each) is None):
                    digest.update(hashlib.sha256(each.read_bytes()).digest())
            self._read[folder] = collateral_folder.load(folder), digest.digest()
        return self._read[folder]


def _kind(path: Path) -> str | None:
    """The kind of evidence that a file is by its bytes; None if it is none."""
    if path.stat().st_size > MAX_BYTES:
        return None
    kind = recognise.recognise(path.read_bytes())
    return None if kind == recognise.CERTIFICATE and path.suffix != ".evidence" else kind


def _node(path: Path, folder: Path, beside: _Beside, known: dict[str, Machine], at: datetime,
          roots: Roots) -> Machine | None:
    if _kind(path) is None:
        return None
    data = path.read_bytes()
    collateral, both, digest = beside.of(path)
    name = path.relative_to(folder).as_posix()
    key = hashlib.sha256(hashlib.sha256(data).digest() + digest + repr(roots).encode()).hexdigest()
    if key in known and known[key].hardware is not None:
        return replace(known[key], file=name)
    record = examine(Material(data, path, collateral, roots=roots), at=at)
    one = Machine(name, key, record.kind, record.verdict, record.code, record.reason, record.hint or "")
    if record.verdict == "genuine" and isinstance(record.authentic, SnpClaims):
        return replace(one, hardware=record.authentic)
    # documents of another number may speak for a TD; a failure elsewhere is final
    open_yet = record.verdict == "cannot tell" and record.authentic is None
    if (record.verdict == "genuine" or open_yet) and JUDGES[TDX.name].recognise(record.hardware) is not None:
        return replace(one, hardware=_tdx(record.hardware, both, at, roots))
    return one


def _tdx(quote: bytes, collateral: Collateral, at: datetime, roots: Roots) -> TdxNode | None:
    """A quote beside each evaluation number; None where its own signatures do not hold."""
    try:
        signed = verify_signatures(abi.parse(quote), at=at, root=roots.intel)
    except AttestationError:
        return None
    numbers = sorted({each for each in map(_number, _texts(collateral)) if each is not None})
    standings = (_standing(signed, _only(collateral, number), number, at, roots) for number in numbers)
    return TdxNode(quote, min(each.not_valid_after_utc for each in signed.chain),
                   tuple(each for each in standings if each is not None))


def _standing(signed: SignedTdxQuote, collateral: Collateral, number: int, at: datetime,
              roots: Roots) -> TdxStanding | None:
    """By the documents of one number: at a time, or else, where they are not of that time, at their
    own. None where they say nothing of this platform."""
    for when in (at, *map(_issued, _texts(collateral))):
        try:
            return TdxStanding(number, verify.authenticate(signed, collateral, at=when, root=roots.intel).tcb)
        except (RejectedEvidenceError, ForgedEvidenceError) as error:
            return TdxStanding(number, None, error.summary)
        except AttestationError:
            continue
    return None


def _issued(text: str) -> datetime:
    """The time of a document; the earliest there is where it has none."""
    return as_date(_value(text).get("issueDate"))


def _texts(collateral: Collateral) -> Iterator[str]:
    """Intel's TCB information at hand, as text."""
    yield from (each.text for each in collateral.answers if each.name == TCB and not each.misfit)
    yield from (str(each.get("tcb_info")) for each in collateral.documents)


def _number(text: str) -> int | None:
    number = _value(text).get("tcbEvaluationDataNumber")
    return number if type(number) is int else None


def _value(text: str) -> dict[str, Any]:
    """The object in a text that anybody may have written; empty if there is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {}


def _only(collateral: Collateral, number: int) -> Collateral:
    """Collateral without TCB information of other numbers; identities of another number go where
    there is one of this."""
    found = collateral.copy()
    found.documents = [each for each in found.documents if _number(str(each.get("tcb_info"))) == number]
    same = [each for each in found.answers if _number(each.text) == number]
    others = () if any(each.name == IDENTITY for each in same) else [
        each for each in found.answers if each.name == IDENTITY]
    found.answers = [*same, *others]
    return found
