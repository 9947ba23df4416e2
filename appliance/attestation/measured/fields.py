"""The fields that rows of every version have."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from appliance.attestation.binding import Frozen, Hex48
from appliance.codec import strict

ID_BLOCK_BYTES, ID_AUTH_BYTES = 96, 4096

Text = Annotated[str, StringConstraints(strict=True, pattern=r"^[ -~]{1,256}$")]
Word = Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$")]
Bits64 = Annotated[str, StringConstraints(strict=True, pattern=r"^0x(0|[1-9a-f][0-9a-f]{0,15})$")]
Number = Annotated[int, Field(strict=True, ge=0, lt=1 << 32)]
MAX_VCPUS = 512
Vcpus = Annotated[int, Field(strict=True, ge=1, le=MAX_VCPUS)]
Registers = tuple[Hex48 | None, Hex48 | None, Hex48 | None, Hex48 | None]


def _base64(size: int) -> AfterValidator:
    def check(text: str) -> str:
        try:
            data = strict.base64(text)
        except ValueError:
            data = b""
        if len(data) != size:
            raise ValueError(f"not {size} bytes in base64")
        return text

    return AfterValidator(check)


class IdBlock(Frozen):
    """AMD 56860, "ID Block" and "ID Authentication Information": what a host must pass for the
    launch to succeed."""

    block: Annotated[str, Field(strict=True, max_length=128), _base64(ID_BLOCK_BYTES)]
    auth: Annotated[str, Field(strict=True, max_length=5464), _base64(ID_AUTH_BYTES)]
    id_key_sha384: Hex48
    author_key_sha384: Hex48 | None
