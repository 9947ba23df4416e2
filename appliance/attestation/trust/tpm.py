"""Roots above attestation keys of virtual TPMs: SHA-256 of the DER certificate to its name.

A key under one of these is held by that cloud's virtual TPM, that is, by the host: it makes a
quote's origin known, not the host honest. Google's roots, of 2022 and of 2018 (above keys made
until 2022), are in google/go-tpm-tools. The Azure root was compared in agentrust-io/cmcp and
flashbots/attested-tls, which agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

ROOTS: Mapping[str, str] = MappingProxyType({
    "594759594b9b61524f6c8ef668f7177f7b9066bc0674f2f49fe9e052be78beb2": "Google Cloud EK/AK CA Root",
    "9bd5285f8fb18502a7947e621ffd470266f49fcd3b73e19a190f690ad32a7caf": "Google Cloud vTPM Root 2018",
    "e6c596b17f8ffefba5c300f714cfb1260c6028704ecf7becc4ab5018efb00e95":
        "Azure Virtual TPM Root Certificate Authority 2023",
})
