"""Keys of a sealed model in the memory of the process that used it: gone when the model is closed."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.models import sealing
from tests.support import sealed_by_spec as spec
from tests.support.engines import synthetic_model

RUN = """
import sys
from pathlib import Path
from appliance.engine.engine import Engine
from appliance.models import keys
from appliance.models.sealed import open_sealed
from appliance.models.sealed_resident import open_sealed_resident
from appliance.models.streamed import StreamedSource
from tests.support.engines import kernels

how, file, key_file = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
key = keys.FileKey(key_file).key()
source = (open_sealed_resident(file, key.data, header_sha256=None) if how == "resident" else
          StreamedSource(open_sealed(file, key.data, header_sha256=None)))
print("opened", flush=True)
sys.stdin.readline()
key.wipe()
engine = Engine.open(source, threads=2, slots=1, kernels=kernels())
engine.logits([1, 5, 9])
print("ran", flush=True)
sys.stdin.readline()
engine.close()
source.close()
print("closed", flush=True)
sys.stdin.readline()
"""


def _found(process: int, patterns: dict[str, bytes]) -> set[str]:
    """Names of the patterns that are somewhere in the writable memory of a process."""
    found, folder = set(), Path(f"/proc/{process}")
    with (folder / "mem").open("rb", buffering=0) as memory:
        for line in (folder / "maps").read_text().splitlines():
            first, last = (int(end, 16) for end in line.split()[0].split("-"))
            if " rw" in line and "[v" not in line:
                area = os.pread(memory.fileno(), last - first, first)
                found |= {name for name, pattern in patterns.items() if pattern in area}
    return found


@pytest.mark.parametrize("how", ["resident", "streamed"])
def test_keys_are_gone(how: str, tmp_path: Path) -> None:
    """The master key is found while it is held (so the search works), and not after it was wiped; the keys that come
    of it are nowhere once the model is closed; nor is the text of the key file."""
    master = secrets.token_bytes(32)
    (tmp_path / "key").touch(0o600)
    (tmp_path / "key").write_text(master.hex())
    (tmp_path / "m.gguf").write_bytes(synthetic_model("mixed"))
    sealing.seal(tmp_path / "m.gguf", tmp_path / "m.sealed", master, tile_size=16384)
    body = (tmp_path / "m.sealed").read_bytes()
    context, salt = body[24:48] + body[80:112], body[48:80]
    patterns = {name: spec.hkdf(master, salt, spec.MAGIC + b"\n" + name.encode() + b"\n" + context)
                for name in ("tile key", "header key")}
    patterns |= {"master key": master, "its text": master.hex().encode()}
    with subprocess.Popen([sys.executable, "-c", RUN, how, str(tmp_path / "m.sealed"), str(tmp_path / "key")],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        seen = {}
        for said in ("opened", "ran", "closed"):
            assert f"{said}\n" == child.stdout.readline()
            seen[said] = _found(child.pid, patterns)
            child.stdin.write("\n")
            child.stdin.flush()
    assert "master key" in seen["opened"]
    assert not seen["ran"] & {"master key", "header key", "its text"}
    assert set() == seen["closed"]
