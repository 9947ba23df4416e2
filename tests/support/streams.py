"""Streamed sources of small models, sealed and plain, as files that a test may spoil."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from appliance.boot.planning.footprint import known_roles
from appliance.engine.forward.packing import Packing
from appliance.models.sealed.reader import open_sealed
from appliance.models.sources.streamed import StreamedSource
from appliance.models.sources.tagged import open_tagged
from appliance.sealing import sealing
from tests.support.engines import kernels
from tests.support.sealed_models import KEY

Open = Callable[..., StreamedSource]


def stored(kind: str, folder: Path, gguf: bytes, tile_size: int) -> tuple[Path, Open]:
    """Write a "sealed" or "plain" model; its file, and what makes a streamed source of it. Compiled code reads those of
    the kinds "compiled sealed" and "compiled plain", the interpreter the others."""
    plain, sealed = folder / "model.gguf", folder / "model.sealed"
    plain.write_bytes(gguf)
    how = {"compiled": kind.startswith("compiled"), "roles": known_roles}
    if kind.endswith("plain"):
        return plain, lambda **more: StreamedSource(
            open_tagged(plain, interleave=Packing(kernels()), tile_size=tile_size), **how | more)
    sealed.unlink(missing_ok=True)
    sealing.seal(plain, sealed, KEY, tile_size=tile_size)
    plain.unlink()
    return sealed, lambda **more: StreamedSource(open_sealed(sealed, KEY, header_sha256=None), **how | more)
