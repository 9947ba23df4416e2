"""Look at a TPM quote and the files beside it. Its best verdict alone is "measured boot, host
trusted"."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import Certificate

from appliance.attestation import keyfile
from appliance.attestation.case import event_log
from appliance.attestation.case.record import Record
from appliance.attestation.judge import azure_vm
from appliance.attestation.judge.azure_vm import BoundAk
from appliance.attestation.paravisor import judge as paravisor
from appliance.attestation.tpm import abi
from appliance.attestation.tpm.abi import TpmQuote
from appliance.attestation.tpm.judging import azure as azure_abi
from appliance.attestation.tpm.judging import files as tpm_files
from appliance.attestation.tpm.judging import verify
from appliance.attestation.tpm.judging.verify import AttestationKey, SignedTpmQuote, TpmClaims
from appliance.attestation.trust.roots import VENDORS, Roots
from appliance.attestation.x509 import walks
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.attestation.x509.walks import name_of
from appliance.errors import AttestationError, ForgedEvidenceError, MalformedEvidenceError, UncheckedEvidenceError
from appliance.policy import inputfile

MAX_CERTIFICATES = 8  # of one key, that are tried
_STRAY = ("tpm-signature", "file-unreadable")  # what a key says that has nothing to do with a quote
HOST_TRUSTED = "measured boot, host trusted"
_HOST = ("HOST TRUSTED: a virtual TPM belongs to whoever runs it. Alone this proves measured boot to someone who "
         "trusts the host, and protects nothing from it.")


def read_key(path: Path) -> bytes:
    """The bytes of a key that somebody named."""
    return inputfile.read(path, keyfile.MAX_BYTES)


def named_key(path: Path) -> AttestationKey:
    """The attestation key in a file that somebody named. Raises UncheckedEvidenceError, with the
    file's name, if no key can be read from it."""
    return _load_key(read_key(path), path.name)


def _load_key(data: bytes, name: str) -> AttestationKey:
    try:
        return verify.load_key(data)
    except MalformedEvidenceError as error:
        raise _unread(name, error) from None


def _unread(name: str, error: AttestationError) -> UncheckedEvidenceError:
    """The error for a file beside the evidence that cannot be read: it says nothing against it."""
    return UncheckedEvidenceError(f"{name} cannot be read: {error.summary}", code="file-unreadable",
                                  hint="take it away, or put the right one in its place")


def examine(record: Record, path: Path, collateral: Collateral, *, key: Path | None, nonce: bytes | None,
            at: datetime, log: bytes | None = None, roots: Roots = VENDORS) -> Record:
    """Verify the quote in `path` with what lies beside it; `key` is an AK that the caller vouches
    for."""
    files = tpm_files.gather(path, key)
    files = replace(files, log=files.log if log is None else log, nonce=files.nonce if nonce is None else nonce)
    return judge(record, files, collateral, vouched=key is not None, at=at, roots=roots, path=path)


def judge(record: Record, files: tpm_files.TpmFiles, collateral: Collateral, *, vouched: bool, at: datetime,
          roots: Roots = VENDORS, path: Path | None = None) -> Record:
    """Verify the quote in `files`; `vouched` tells that the caller vouches for the key in them.
    `path` is a file in the folder where a TDX quote that binds the key may lie."""
    message, tail = abi.split_quote(files.message)
    quote = abi.parse_quote(message)
    record.claims["claims"] = _describe(quote)
    record.warnings.append(_HOST)
    record.followed(tail)
    if not vouched and files.azure is not None:
        bound = azure_vm.bound_key(files.azure)
        signed = None if bound is None else verify.signed_by(quote, files.signature, bound.key)
        if bound is not None and signed is not None:
            _answered(record, files, signed, f"the Azure report ({azure_abi.AK_NAME})")
            return _joined(record, bound, path, collateral, at, roots)
        record.warnings.append("AZURE REPORT PASSED OVER: the one beside this quote names another key than the one "
                               "that signed it.")
    return _by_key(record, files, quote, collateral, at, roots, vouched=vouched)


def _by_key(record: Record, files: tpm_files.TpmFiles, quote: TpmQuote, collateral: Collateral, at: datetime,
            roots: Roots, *, vouched: bool) -> Record:
    """Judge a quote by the key in a file. One that nobody vouches for, and that did not sign, is
    passed over where the key in a certificate did."""
    if files.key is None:
        return _by_certificates(record, files, quote, collateral, at, roots)
    try:
        ak = _load_key(files.key, files.key_name)
        signed = verify.verify_signature(quote, files.signature, ak)
    except AttestationError as error:
        if vouched or error.code not in _STRAY or _certified_signer(files, quote, collateral) is None:
            raise
        record.warnings.append(f"KEY PASSED OVER: {files.key_name} did not sign this quote, and a certificate's key "
                               f"did ({error.summary}).")
        return _by_certificates(record, files, quote, collateral, at, roots)
    _answered(record, files, signed, files.key_name)
    if vouched:
        return record.genuine(f"{HOST_TRUSTED}: quoted by the key that you named")
    return _origin(record, ak, collateral, at, roots)


def _joined(record: Record, bound: BoundAk, path: Path | None, collateral: Collateral, at: datetime,
            roots: Roots) -> Record:
    """Judge the hardware that binds the key which signed a quote, and the key's certificate."""
    hardware = azure_vm.bind(record, bound, path, collateral, at, roots)
    record.warnings.remove(_HOST)
    mine = [each for each in collateral.certificates if verify.certifies(each, bound.key)]
    if mine:
        try:
            root = _certified(bound.key, mine, collateral, at, roots)
            record.holds("ak-origin", f"the AK's chain leads to the pinned root {root}")
        except AttestationError as error:
            record.warnings.append(f"AK CERTIFICATE: not proved, and not needed, since hardware names the key: "
                                   f"{error.summary}.")
    return record.genuine(f"quoted by the virtual TPM that {hardware} names; "
                         "whether that guest is acceptable is for a policy to say")


def by_bound_key(record: Record, files: tpm_files.TpmFiles, azure: bytes) -> BoundAk:
    """Verify a quote that came in one piece with an Azure report by the key that the report names.

    Whether hardware binds the report is for the caller to verify. Raises ForgedEvidenceError if
    another key signed, UncheckedEvidenceError if the report names none.
    """
    bound = azure_vm.bound_key(azure)
    if bound is None:
        raise UncheckedEvidenceError(f"Azure report: its runtime data name no attestation key ({azure_abi.AK_NAME})",
                                     code="tpm-ak-origin")
    message, tail = abi.split_quote(files.message)
    quote = abi.parse_quote(message)
    record.claims["TPM quote"] = _describe(quote)
    record.followed(tail)
    signed = verify.verify_signature(quote, files.signature, bound.key)
    _answered(record, files, signed, f"the Azure report ({azure_abi.AK_NAME})")
    return bound


def _answered(record: Record, files: tpm_files.TpmFiles, signed: SignedTpmQuote, key_name: str) -> None:
    """Judge what a signed quote says by nonce, registers and log, and record what holds."""
    try:
        values = files.pcr_values()
    except MalformedEvidenceError as error:
        raise _unread(files.pcrs_name, error) from None
    claims = verify.authenticate(signed, nonce=files.nonce, pcrs=values, log=files.log)
    _record(record, claims, key_name, nonce_checked=files.nonce is not None)


def _by_certificates(record: Record, files: tpm_files.TpmFiles, quote: TpmQuote, collateral: Collateral,
                     at: datetime, roots: Roots) -> Record:
    """Without a key file the AK is the one whose certificate is at hand."""
    signed = _certified_signer(files, quote, collateral)
    if signed is not None:
        _answered(record, files, signed, "a certificate")
        return _origin(record, signed.key, collateral, at, roots)
    raise collateral.unchecked("TPM quote: neither the public key nor a certificate of the AK that signed is at hand",
                               "put ak.pub beside it, or name the key with --ak")


def _certified_signer(files: tpm_files.TpmFiles, quote: TpmQuote, collateral: Collateral) -> SignedTpmQuote | None:
    """The quote as one that the key in a certificate at hand signed; None if none did."""
    for certificate in collateral.certificates:
        public = certificate.public_key()
        if isinstance(public, verify.PublicKey):
            signed = verify.signed_by(quote, files.signature, AttestationKey(public))
            if signed is not None:
                return signed
    return None


def _certified(ak: AttestationKey, mine: Sequence[Certificate], collateral: Collateral, at: datetime,
               roots: Roots) -> str:
    """The pinned root above one of the AK's certificates. Raises the first one's error where none
    leads to any: a stray certificate is never worse than none."""
    first: AttestationError | None = None
    for certificate in mine[:MAX_CERTIFICATES]:
        try:
            return verify.certify(ak, certificate, collateral.certificates, at=at, roots=roots.tpm)
        except AttestationError as error:
            first = first or error
    raise first or UncheckedEvidenceError("TPM quote: no certificate of its key is at hand", code="tpm-ak-origin")


def _origin(record: Record, ak: AttestationKey, collateral: Collateral, at: datetime,
            roots: Roots) -> Record:
    """Whose the AK is: a certificate for this very key, under a pinned root."""
    mine = [each for each in collateral.certificates if verify.certifies(each, ak)]
    for other in collateral.certificates:
        if verify.is_ak_certificate(other) and other not in mine:
            record.warnings.append(
                f"AK CERTIFICATE REFUSED: the one of {name_of(other)} is for another key than the one "
                "that signed this quote.")
    if not mine:
        raise collateral.unchecked(
            "TPM quote: its key signed it, but no certificate says that a TPM holds this key",
            "name a key that you know by other means with --ak", code="tpm-ak-origin")
    root = _certified(ak, mine, collateral, at, roots)
    record.holds("ak-origin", f"the AK's chain leads to the pinned root {root}")
    return record.genuine(f"{HOST_TRUSTED}: quoted by a TPM of {root}")


def _record(record: Record, claims: TpmClaims, key_name: str, *, nonce_checked: bool) -> None:
    record.holds("signature", f"the key in {key_name} signed the quote")
    if nonce_checked:
        record.holds("nonce", "the quote answers the nonce")
    else:
        record.warnings.append("NONCE: not checked; nothing shows when this quote was made.")
    _record_registers(record, claims)
    if claims.log is not None:  # it is no part of the quote, so it cannot make one false
        record.log(claims.log, len(claims.events))
    if claims.key.area is None:
        record.warnings.append("AK: its attributes are not at hand, so nothing shows that it signs quotes only.")


def _record_registers(record: Record, claims: TpmClaims) -> None:
    """Tell which registers the quote covers, and which values came beside it. A quote over no
    register proves nothing of a boot."""
    if not claims.quote.covers:
        raise UncheckedEvidenceError("TPM quote: it covers no PCR, so it proves nothing of what booted",
                                     code="tpm-quote-empty", hint="quote the registers that you want to know")
    for bank, values in claims.pcrs.items():
        record.holds("pcrs", f"the values of PCR {event_log.listed(values)} ({bank}) are the quoted ones")
        record.claims.setdefault("PCR values", []).extend(
            (f"{bank} PCR {number}", value.hex()) for number, value in values.items())
    if not claims.pcrs:
        record.warnings.append("PCR: the values behind the quoted digest are not at hand, so what booted is not known.")
    for bank in dict.fromkeys(bank for bank, _ in claims.uncovered):
        numbers = [number for each, number in claims.uncovered if each == bank]
        record.warnings.append(f"PCR {event_log.listed(numbers)} ({bank}): NOT QUOTED. Values came with the quote that "
                               "it does not cover; nothing signs them.")
    if any(selection.bank == "sha1" and selection.pcrs for selection in claims.quote.selections):
        record.warnings.append("SHA-1 BANK: collisions of SHA-1 can be made, so what its registers measure can be "
                               "exchanged. `appliance verify` never accepts it.")


def _describe(quote: TpmQuote) -> list[tuple[str, str]]:
    """TPMS_ATTEST in the TCG's terms."""
    return [
        ("qualifiedSigner", quote.qualified_signer.hex()), ("extraData", quote.extra_data.hex()),
        ("clockInfo.clock", str(quote.clock)), ("clockInfo.resetCount", str(quote.reset_count)),
        ("clockInfo.restartCount", str(quote.restart_count)), ("clockInfo.safe", "YES" if quote.safe else "NO"),
        ("firmwareVersion", f"{quote.firmware_version:#018x}"),
        *((f"pcrSelect.{each.bank}", ", ".join(str(number) for number in each.pcrs)) for each in quote.selections),
        ("pcrDigest", quote.pcr_digest.hex()), ("message, SHA-256", hashlib.sha256(quote.signed).hexdigest())]


def _keys(claims: TpmClaims) -> list[tuple[str, str]]:
    """Which keys the evidence names: what one enrols, and what one asks the TPM's maker about."""
    named = [("AK, SHA-256", hashlib.sha256(claims.key.spki()).hexdigest())]
    if claims.key.area is not None:
        named.append(("AK, name", claims.key.area.name.hex()))
    if claims.ek_certificate is None:
        return named
    try:
        certificate = walks.load(claims.ek_certificate, "EK certificate")[0]
    except MalformedEvidenceError:
        return [*named, ("EK certificate", "cannot be read")]
    public = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return [*named, ("EK, SHA-256", hashlib.sha256(public).hexdigest()),
            ("EK certificate, issuer", walks.shown(certificate.issuer)),
            ("EK certificate, valid", f"{first:%Y-%m-%d} to {last:%Y-%m-%d}"),
            ("EK certificate, SHA-256", walks.fingerprint(certificate))]


def record_origin(record: Record, claims: TpmClaims, key: Path | None = None) -> Record:
    """Record the verified claims of TPM evidence. Without a root above its key nothing tells whose
    quote it is, unless the caller vouches for it (`key`)."""
    record.warnings.append(_HOST)
    record.claims["claims"] = _describe(claims.quote)
    record.claims["keys"] = _keys(claims)
    _record(record, claims, "the evidence", nonce_checked=True)
    if claims.ek_certificate is not None:
        record.warnings.append("EK CERTIFICATE: not proof of anything here. That the AK is in the TPM that it is about "
                               "takes a challenge to the running machine (appliance verify URL --ek-roots).")
    if key is not None:
        if named_key(key).spki() != claims.key.spki():
            raise ForgedEvidenceError("TPM evidence: another key than the one that you named signed it",
                                      code="tpm-signature")
        return record.genuine(f"{HOST_TRUSTED}: quoted by the key that you named")
    if claims.bound_by is not None:
        record.holds("ak-bound-in-hardware", f"a report of {paravisor.told(claims.bound_by)} names the AK")
    if claims.root is None:
        raise UncheckedEvidenceError(
            "TPM evidence: its key signed it, but no certificate says that a TPM holds this key", code="tpm-ak-origin",
            hint="name a key that you know by other means with --ak")
    record.holds("ak-origin", f"the AK's chain leads to the pinned root {claims.root}")
    return record.genuine(f"{HOST_TRUSTED}: quoted by a TPM of {claims.root}")
