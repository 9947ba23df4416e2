"""The claims of Intel's PCK certificate about the platform that it stands for.

Source: Intel, "Intel SGX PCK Certificate and Certificate Revocation List Profile Specification",
section 1.3.5: an extension of (name, value) pairs. The certificate's signature is checked
elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from cryptography import x509

from appliance.codec import der
from appliance.errors import MalformedEvidenceError, UnsupportedEvidenceError

OID = "1.2.840.113741.1.13.1"
COMPONENTS = 16
INSTANCE_BYTES = 16
_PPID, _TCB, _PCE_ID, _FMSPC, _SGX_TYPE, _INSTANCE, _CONFIGURATION = (f"{OID}.{number}" for number in range(1, 8))
_SMT = f"{_CONFIGURATION}.3"
_INTEGER, _ENUMERATED = 0x02, 0x0A
_SIZES = {_PPID: 16, _PCE_ID: 2, _FMSPC: 6}


@dataclass(frozen=True)
class Pck:
    """A platform: which one it is, and the security versions that its PCK was certified for."""

    fmspc: bytes
    pce_id: bytes
    components: tuple[int, ...]     # the 16 SGX TCB components
    pce_svn: int
    smt: bool | None                # whether hyper-threading is on, if the certificate tells
    ppid: bytes                     # 16 bytes, the processor's name
    instance: bytes | None          # 16 bytes, the platform's name, if Intel's Platform CA issued the certificate


def _pairs(content: bytes) -> dict[str, der.Element]:
    """The (name, value) pairs of a sequence. Raises MalformedEvidenceError if a name stands twice.
    """
    found: dict[str, der.Element] = {}
    for pair in der.elements(content):
        parts = der.elements(pair.content)
        if len(parts) != 2 or parts[0].tag != der.OBJECT_IDENTIFIER:
            raise MalformedEvidenceError("DER: not a pair of name and value")
        name = der.object_identifier(parts[0].content)
        if name in found:
            raise MalformedEvidenceError(f"DER: {name} stands twice")
        found[name] = parts[1]
    return found


def _number(element: der.Element, most: int) -> int:
    value = int.from_bytes(element.content, "big", signed=True)
    if element.tag != _INTEGER or not element.content or not 0 <= value <= most:
        raise MalformedEvidenceError(f"DER: not an integer from 0 to {most}")
    return value


def _smt(values: dict[str, der.Element]) -> bool | None:
    if _CONFIGURATION not in values:
        return None
    flag = _pairs(values[_CONFIGURATION].content).get(_SMT)
    return None if flag is None or flag.tag != der.BOOLEAN else any(flag.content)


def _instance(values: dict[str, der.Element]) -> bytes | None:
    found = values.get(_INSTANCE)
    return None if found is None or (found.tag, len(found.content)) != (der.OCTET_STRING, INSTANCE_BYTES) else (
        found.content)


def _read(extension: bytes) -> Pck:
    values = _pairs(der.only(extension, der.SEQUENCE).content)
    for name, size in _SIZES.items():
        if len(values[name].content) != size or values[name].tag != der.OCTET_STRING:
            raise MalformedEvidenceError(f"DER: {name} is not {size} bytes")
    if values[_SGX_TYPE].tag != _ENUMERATED:
        raise MalformedEvidenceError(f"DER: {_SGX_TYPE} is not an enumeration")
    tcb = _pairs(values[_TCB].content)
    components = tuple(_number(tcb[f"{_TCB}.{number}"], 255) for number in range(1, COMPONENTS + 1))
    return Pck(values[_FMSPC].content, values[_PCE_ID].content, components,
               _number(tcb[f"{_TCB}.{COMPONENTS + 1}"], 65535), _smt(values), values[_PPID].content, _instance(values))


def read(certificate: x509.Certificate) -> Pck:
    """The platform that a PCK certificate names.

    Raises UnsupportedEvidenceError where it names none: Intel's root stands above it, so that is
    not a forgery.
    """
    try:
        extension = certificate.extensions.get_extension_for_oid(x509.ObjectIdentifier(OID)).value
        if not isinstance(extension, x509.UnrecognizedExtension):
            raise MalformedEvidenceError("the extension was read as another")
        return _read(extension.value)
    except x509.ExtensionNotFound:
        problem = f"extension {OID} is absent"
    except KeyError as error:
        problem = f"{error.args[0]} is absent"
    except (MalformedEvidenceError, ValueError) as error:
        problem = str(error)
    raise UnsupportedEvidenceError(f"TDX quote: its PCK names no platform ({problem})", code="tdx-pck")
