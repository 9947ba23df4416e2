"""Places for tiles in compiled code: what a thread asks for again is read again only where its place was needed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from appliance.engine.forward.tile_tables import Streaming
from appliance.errors import TamperedError
from appliance.kernels.runtime.threads import Pool
from tests.support.engines import kernels, synthetic_model
from tests.support.streams import stored

MATRIX = "blk.0.ffn_up.weight"


@pytest.mark.parametrize("kind", ["compiled sealed", "compiled plain"])
@pytest.mark.parametrize("in_place", [False, True])
def test_tiles_that_are_still_there(kind: str, in_place: bool, tmp_path: Path) -> None:
    """After the file is overwritten, the last two tiles are found as they were, in one place the last one alone; any
    other is refused."""
    path, make = stored(kind, tmp_path, synthetic_model("Q8_0"), 4096)
    with closing(make()) as source, closing(Pool(kernels(), 1)) as pool:
        source.prepare(1)
        native = source.native(1, in_place=in_place)
        assert native is not None
        fetch = kernels().function("fetch_plain" if native.tags else "fetch_sealed")
        streaming = Streaming(source, native, kernels(), pool)
        matrix = streaming.matrix(MATRIX)
        with source.passing():
            streaming.begin()
            places = [fetch(matrix, tile, 0) for tile in range(3)]
            assert places[2] == (places[1] if in_place else places[0])
            path.write_bytes(bytes(path.stat().st_size))
            assert places[2] == fetch(matrix, 2, 0)
            if not in_place:
                assert places[1] == fetch(matrix, 1, 0)
            streaming.end()  # nothing was read
            fetch(matrix, 0, 0)
            with pytest.raises(TamperedError):
                streaming.end()
