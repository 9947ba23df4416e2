"""`python -m benchmarks.tamper FILE.sealed KEY`: flip single bits of a large sealed model, one
after the other, at places drawn at random, and see that each is refused by the read of its tile.
The file is as it was in the end.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path

from tqdm import tqdm

from appliance.cli import numbers
from appliance.errors import TamperedError
from appliance.keys import providers as keys
from appliance.models.sealed.reader import SealedModel, open_sealed
from benchmarks import commandline


def missed(model: SealedModel, path: Path, samples: int, seed: int) -> list[int]:
    """Offsets of flipped bits that no read refused."""
    draw, found = random.Random(seed), list[int]()
    buffer = bytearray(model.tiling.max_tile_nbytes)
    with path.open("r+b", buffering=0) as file:
        for _ in tqdm(range(samples), unit="bit", file=sys.stderr):
            tile = model.tiling.tile(draw.randrange(len(model.tiling)))
            at = tile.offset + draw.randrange(tile.record_nbytes)
            old = os.pread(file.fileno(), 1, at)
            os.pwrite(file.fileno(), bytes([old[0] ^ 1 << draw.randrange(8)]), at)
            try:
                model.read(tile, buffer)
                found.append(at)
            except TamperedError:
                if any(memoryview(buffer)[:tile.nbytes]):
                    found.append(at)  # refused, but the buffer was not wiped
            finally:
                os.pwrite(file.fileno(), old, at)
            model.read(tile, buffer)
    return found


def main() -> int:
    """1 when a bit was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tamper", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("key", type=Path, metavar="KEY", help="its key file")
    parser.add_argument("--samples", type=numbers.whole(1, 1 << 20), default=1000)
    parser.add_argument("--seed", type=numbers.whole(0, 1 << 62), default=1)
    args = parser.parse_args()
    with keys.FileKey(args.key).key() as key, open_sealed(args.file, key.data, header_sha256=None) as model:
        found = missed(model, args.file, args.samples, args.seed)
    where = f": {found[:20]}" if found else ""
    print(f"{args.samples} bits flipped in {args.file.name}, {len(found)} missed{where}")
    return int(bool(found))


if __name__ == "__main__":
    commandline.run(main)
