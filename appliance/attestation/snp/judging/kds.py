"""The requests to AMD's Key Distribution Service (KDS) that a SEV-SNP report needs.

Source: AMD publication 57230, "Versioned Chip Endorsement Key (VCEK) Certificate and KDS Interface
Specification", chapter 4. A VCEK is named by the product line, the chip's hardware id and the
reported TCB.
"""

from __future__ import annotations

from appliance.attestation.snp.judging import abi
from appliance.attestation.snp.judging.abi import SnpReport, SnpTcb
from appliance.attestation.snp.judging.certificate import TURIN_HARDWARE_ID_BYTES
from appliance.attestation.trust import amd
from appliance.attestation.x509.judging import requests
from appliance.attestation.x509.judging.requests import Request

SERVICE = "https://kdsintf.amd.com"
_BEFORE_TURIN = ("Milan", "Genoa")
_LEVELS = {"fmc": "fmcSPL", "bootloader": "blSPL", "tee": "teeSPL", "snp": "snpSPL", "microcode": "ucodeSPL"}
_KEYS = {abi.VCEK: "vcek", abi.VLEK: "vlek"}


def product_lines(report: SnpReport) -> tuple[str, ...]:
    """The product lines that a report may be of. Version 2 tells no CPU: a short chip id is
    Turin's."""
    if report.cpuid is not None:
        family, model, _ = report.cpuid
        found = amd.product_of(family, model)
        return (found,) if found and found in amd.ROOTS else ()
    short = any(report.chip_id) and not any(report.chip_id[TURIN_HARDWARE_ID_BYTES:])
    return ("Turin",) if short else _BEFORE_TURIN


def _levels(tcb: SnpTcb) -> str:
    return "&".join(f"{_LEVELS[name]}={version}" for name, version in tcb.components().items())


def leaf(report: SnpReport, product: str) -> Request:
    """The VCEK of the report's chip and reported TCB, or the VLEK of that TCB, which AMD gives to
    its cloud alone."""
    key = _KEYS[report.key_info.signing_key]
    size = TURIN_HARDWARE_ID_BYTES if product == "Turin" else abi.CHIP_ID_AT[1]
    chip = report.chip_id[:size].hex() if key == "vcek" else "cert"
    named = f"-{chip[:16]}" if key == "vcek" else ""
    return Request(
        f"{SERVICE}/{key}/v1/{product}/{chip}?{_levels(SnpTcb.decode(report.reported_tcb, product))}",
        f"amd-{product.lower()}-{key}{named}-{report.reported_tcb.hex()}.der",
        f"the {key.upper()} of this {'chip and TCB' if key == 'vcek' else 'TCB'}, whose key signed the report",
        "certificates")


def chain(key: str, product: str) -> Request:
    """ASK (or ASVK) and ARK of a product line."""
    return Request(f"{SERVICE}/{key}/v1/{product}/cert_chain", f"amd-{product.lower()}-{key}-cert_chain.pem",
                   f"the authority above every {key.upper()} of {product}, and its root", "certificates")


def revocation_list(key: str, product: str) -> Request:
    """The list of revoked certificates of a product line."""
    return Request(f"{SERVICE}/{key}/v1/{product}/crl", f"amd-{product.lower()}-{key}.crl",
                   f"the list of revoked certificates of {product}", "list")


def leaf_requests(report: SnpReport) -> list[Request]:
    """The requests that would fetch the report's leaf, one for each product line that it may be of;
    none where no request can."""
    if _no_leaf(report):
        return []
    return [leaf(report, product) for product in product_lines(report)]


def _no_leaf(report: SnpReport) -> str:
    """Why nobody but the host has the leaf; empty where AMD serves it."""
    if report.key_info.signing_key == abi.VLEK:
        return ("AMD gives a VLEK to its cloud alone: the host passes it to the guest, beside the report (certificate "
                "table)")
    if not any(report.chip_id):
        return "the host masks the chip id, which a request would name: only the host can give the VCEK"
    return ""


def leaf_hint(report: SnpReport) -> str:
    """How to get the certificate whose key signed a report."""
    lines, reason = product_lines(report), _no_leaf(report)
    if reason:
        shown = [leaf(report, each).url for each in lines if any(report.chip_id) or report.key_info.signing_key
                 == abi.VLEK]
        return reason + (f"; with the cloud's credentials: GET {' or '.join(shown)}" if shown else "")
    if not lines:
        return f"a CPU of no product line whose root is pinned here ({', '.join(amd.ROOTS)}): AMD's KDS is {SERVICE}"
    return requests.told(leaf_requests(report), "AMD's KDS", " or ")


def chain_hint(issuer: str) -> str:
    """How to get the certificates of an authority, by the common name that a leaf or an authority
    gives it."""
    product = issuer.rpartition("-")[2]
    if product not in amd.ROOTS:
        return f"AMD's KDS is {SERVICE}; product lines known here: {', '.join(amd.ROOTS)}"
    return requests.told([chain("vlek" if "VLEK" in issuer else "vcek", product)], "AMD's KDS")
