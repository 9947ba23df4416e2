"""Keys and weights in the memory of the process that used a model: gone when the model is closed."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from appliance.models.file import gguf
from appliance.models.sealed.reader import structure
from appliance.sealing import sealing
from benchmarks.residue import windows
from examples import plain_engine
from tests.support import aes, forked, memory
from tests.support import sealed_by_spec as spec
from tests.support.engines import synthetic_model
from tests.support.environment import unmeasured
from tests.support.traces import Traces, key_traces, weight_traces


@contextmanager
def _forked(folder: Path, program: str, *words: object) -> Iterator[tuple[int, Callable[[], str], Callable[[], None]]]:
    """A program's process, with an allocator as the product's have: its id, what reads a line that it says, and what
    lets it go on."""
    path = folder / f"go-{secrets.token_hex(4)}"
    os.mkfifo(path)
    going = os.open(path, os.O_RDWR)
    try:
        with forked.piped([str(word) for word in words], unmeasured(),
                          f"import sys\nsys.stdin = open({str(path)!r})\n{program}") as child:
            assert child.stdout is not None
            out = child.stdout
            try:
                yield child.pid, lambda: out.readline().decode(), lambda: (os.write(going, b"\n"), None)[1]
            finally:
                child.kill()
    finally:
        os.close(going)


class Sealed:
    """A model, sealed with a key of its own, and what must not be found of it: made once for all that use it."""

    def __init__(self, folder: Path, plain: bytes | bytearray) -> None:
        self.folder, self.master = folder, secrets.token_bytes(32)
        self.plain, self.file, self.key = (folder / name for name in ("m.gguf", "m.sealed", "key"))
        self.plain.write_bytes(plain)
        self.key.touch(0o600)
        self.key.write_text(self.master.hex())
        sealing.seal(self.plain, self.file, self.master, tile_size=16384)
        self.traces = Traces(key_traces(self.master, self.file), weight_traces(self.plain, self.file, self.master))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Sealed:
    """A model with tensors of several formats."""
    return Sealed(tmp_path_factory.mktemp("mixed"), synthetic_model("mixed"))


RUN = """
import sys
from pathlib import Path
from appliance.engine.engine import Engine, EngineOptions
from appliance.keys import providers as keys
from appliance.models.sealed.reader import open_sealed
from appliance.models.sources.sealed_resident import open_sealed_resident
from appliance.models.sources.streamed import StreamedSource
from tests.support.plain import open_tagged
from tests.support.engines import kernels
from tests.support.logits import logits_of

how, file, key_file = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
key = keys.FileKey(key_file).key()
source = (open_sealed_resident(file, key.data, header_sha256=None) if how == "resident" else
          StreamedSource(open_tagged(file.with_suffix(".gguf")), compiled="compiled" in how) if "plain" in how else
          StreamedSource(open_sealed(file, key.data, header_sha256=None), compiled="compiled" in how))
print("opened", flush=True)
sys.stdin.readline()
key.wipe()
engine = Engine.open(source, EngineOptions(threads=2, slots=1), kernels=kernels())
logits_of(engine, [1, 5, 9])
print("ran", flush=True)
sys.stdin.readline()
engine.close()
source.close()
print("closed", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("how", ["resident", "streamed", "compiled", "plain", "compiled plain"])
def test_nothing_is_left(how: str, mixed: Sealed, tmp_path: Path) -> None:
    """The master key is found while it is held (so the search works), and not after it was wiped. Once the model is
    closed, nothing is found of keys that come of it, of the text of the key file, of weights in whatever order."""
    with _forked(tmp_path, RUN, how, mixed.file, mixed.key) as (child, line, go_on):
        seen = {}
        for said in ("opened", "ran", "closed"):
            assert f"{said}\n" == line()
            seen[said] = mixed.traces.found(child)
            go_on()
    assert "master key" in seen["opened"]
    assert not {name for name in seen["ran"] if name.startswith(("master", "header", "extracted"))}
    assert {} == seen["closed"]


REFUSED = """
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from appliance.engine.engine import Engine, EngineOptions
from appliance.errors import ApplianceError
from appliance.keys import providers as keys
from tests.support.plain import open_resident
from appliance.models.sealed.reader import open_sealed
from appliance.models.sources.sealed_resident import open_sealed_resident
from appliance.models.sources.streamed import StreamedSource
from tests.support.engines import kernels

how, file, key_file, draft = sys.argv[1], *map(Path, sys.argv[2:])
key, table = keys.FileKey(key_file).key(), kernels()
try:
    with ExitStack() as stack:
        source = stack.enter_context(closing(
            open_sealed_resident(file, key.data, header_sha256=None) if how == "resident" else
            StreamedSource(open_sealed(file, key.data, header_sha256=None), compiled="compiled" in how)))
        helper = stack.enter_context(open_resident(draft))
        stack.enter_context(Engine.open(source, EngineOptions(threads=2, slots=1), kernels=table, draft=helper))
except ApplianceError as error:
    code = error.code
finally:
    key.wipe()
print(code, flush=True)
sys.stdin.readline()
"""


def _norms(model: bytes) -> list[gguf.TensorInfo]:
    return sorted((info for info in gguf.parse(model).tensors.values() if len(info.shape) == 1),
                  key=lambda info: info.offset)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft with another vocabulary than the model's, and none of its vectors."""
    data = bytearray(synthetic_model("tied"))
    for info in _norms(bytes(data)):  # those of all synthetic models are the same
        data[info.offset:info.offset + info.nbytes] = bytes(info.nbytes)
    path = tmp_path_factory.mktemp("draft") / "draft.gguf"
    path.write_bytes(data.replace("▁ba".encode(), "▁bA".encode(), 1))
    return path


@pytest.fixture(scope="module", params=["altered", "not finite", "draft"])
def refused(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Sealed, str]:
    """A model that is not taken, and why: for its last vector's bytes or values, or for its draft."""
    model = bytearray(synthetic_model("mixed"))
    last = _norms(bytes(model))[-1]
    if request.param == "not finite":
        model[last.offset:last.offset + 4] = np.float32("nan").tobytes()
    made = Sealed(tmp_path_factory.mktemp("refused"), model)
    if request.param == "altered":
        with made.file.open("r+b") as file:
            file.seek(structure(made.file)[1].of(last.name).offset + 5)
            file.write(secrets.token_bytes(16))
    return made, {"altered": "model-tampered", "not finite": "engine-error", "draft": "draft-vocabulary"}[request.param]


@pytest.mark.parametrize("how", ["resident", "streamed", "compiled"])
def test_nothing_is_left_of_what_was_refused(how: str, refused: tuple[Sealed, str], draft: Path,
                                             tmp_path: Path) -> None:
    """A model that is refused when a part of it was read already, because of its last vector's bytes or values or of
    the draft that it was given, leaves nothing of that part."""
    model, code = refused
    with _forked(tmp_path, REFUSED, how, model.file, model.key, draft) as (child, line, _go_on):
        assert f"{code}\n" == line()
        assert {} == model.traces.found(child)


SAMPLED = """
import sys
from pathlib import Path
import numpy as np
from appliance.kernels.runtime import table
from appliance.kernels.runtime.memory import Memory
from appliance.engine.decode.sampler import Sampler, Sampling
from appliance.engine.decode.chain.scratch import Scratch

file = Path(sys.argv[1])
row = Memory(file.stat().st_size)
logits = row.view(np.float32)
scratch = Scratch(logits.size, table.load())
with file.open("rb", buffering=0) as stream:
    stream.readinto(row.view(np.uint8))
adjusted = dict(repeat_penalty=1.3, frequency_penalty=0.5, logit_bias={9: 1.5}, temperature=0.7, top_logprobs=5)
others = ({"typical_p": 0.9}, {"tfs_z": 0.9}, {"top_n_sigma": 2.0}, {"eta_cutoff": 5.0}, {"dynatemp_range": 0.5},
          {"mirostat": 1}, {"mirostat": 2}, {"dry_multiplier": 0.8, "dry_allowed_length": 1},
          {"temperature": 0.7, "presence_penalty": 0.5, "samplers": ("temperature", "penalties", "top_p")})
for how in ({}, {"top_p": 0.99}, {"top_k": 900, "min_p": 0.001}, *others, adjusted):
    sampler = Sampler(Sampling(seed=1, **how), list(range(300)), logits.size, scratch)
    for token in range(40, 200):
        sampler.accept(token)
    sampler.choose(logits)
print("chosen", flush=True)
sys.stdin.readline()
row.wipe()
scratch.release()
print("wiped", flush=True)
sys.stdin.readline()
"""


def test_sampling_leaves_no_logits(tmp_path: Path) -> None:
    """What every step of sampling makes of logits (adjusted, in float64, scaled, exponentials, their sums) is in memory
    that is wiped with the engine's: found before, and not after, but for the few single numbers (the highest logit,
    what log-probabilities are made of) that Python has."""
    logits = np.random.default_rng(3).normal(0, 3, 8000).astype(np.float32)
    (tmp_path / "logits").write_bytes(logits.tobytes())
    shifted = logits.astype(np.float64) - float(logits.max())
    powers = plain_engine.exp(shifted)
    kinds = {"logits": logits, "float64": logits.astype(np.float64), "shifted": shifted, "powers": powers,
             "ordered": np.sort(logits), "descending": np.sort(-logits),
             "blocks": plain_engine.sums(powers), "probabilities": powers / plain_engine.total(powers),
             "curve": np.sort(powers)[::-1].copy(), "running": np.cumsum(np.sort(powers)[::-1])}
    traces = Traces({}, {name: windows(values.tobytes()) for name, values in kinds.items()})
    with subprocess.Popen([sys.executable, "-c", SAMPLED, str(tmp_path / "logits")], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        seen = {}
        for said in ("chosen", "wiped"):
            assert f"{said}\n" == child.stdout.readline()
            seen[said] = traces.found(child.pid)
            child.stdin.write("\n")
            child.stdin.flush()
    assert seen["chosen"]["logits"] > 1000
    assert sum(seen["wiped"].values()) <= 8


MADE = """
import sys
from pathlib import Path
from appliance.keys import providers as keys
from appliance.sealing import keyfile
from appliance.state.disk import StateDisk

folder = Path(sys.argv[1])
key = keys.Secret.random()
(folder / "masked").write_bytes(bytearray(byte ^ 0xaa for byte in key.data))
disk = StateDisk(folder / "disk", key)
disk.save(b"kept")
disk.close()
keyfile.make(folder / "key")
keyfile.make(folder / "versioned", 3)
print("made", flush=True)
sys.stdin.readline()
"""


def test_nothing_is_left_of_keys_that_are_made_here(tmp_path: Path) -> None:
    """Random keys, for a state disk and for a file, and what is derived of the disk's key for its slots and session."""
    with (tmp_path / "disk").open("wb") as disk:
        disk.truncate(4 << 20)
    with subprocess.Popen([sys.executable, "-c", MADE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert "made\n" == child.stdout.readline()
        master = bytes(byte ^ 0xaa for byte in (tmp_path / "masked").read_bytes())
        text, versioned = (tmp_path / "key").read_bytes()[:64], (tmp_path / "versioned").read_bytes()[-65:-1]
        found = {"master key": master, "a file's text": text, "a file's key": bytes.fromhex(text.decode()),
                 "a document's text": versioned, "a document's key": bytes.fromhex(versioned.decode())}
        body = (tmp_path / "disk").read_bytes()
        for use, at in ((b"slot", 32), (b"slot", (1 << 20) + 32), (b"session", (2 << 20) + 28)):
            salt, info = body[at:at + 32], b"appliance/state/v1\n" + use + b"\n" + body[16:32]
            derived = spec.hkdf(master, salt, info)
            found |= {f"{use.decode()} at {at}: {name}": trace for name, trace in aes.traces(derived).items()}
        seen = Traces(found, {}).found(child.pid)
        child.stdin.write("\n")
    assert {} == seen


HIDDEN = """
import sys
from pathlib import Path
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from appliance.models.sources import hidden_rows
from appliance.models.sealed.reader import open_sealed
from appliance.models.sources.streamed import StreamedSource

def watched(key):
    Path(sys.argv[2]).write_bytes(bytearray(byte ^ 0xaa for byte in key))
    return AESGCM(key)

watched.generate_key = AESGCM.generate_key
hidden_rows.AESGCM = watched
source = StreamedSource(open_sealed(Path(sys.argv[1]), bytes(range(32)), header_sha256=None))
other = bytearray(byte ^ 0x55 for byte in Path(sys.argv[2]).read_bytes())  # differs from the key in every bit
cipher = AESGCM(other)
other[:] = bytes(32)
print("opened", flush=True)
sys.stdin.readline()
"""


def test_a_key_of_embeddings_is_nowhere_but_in_its_cipher(tmp_path: Path) -> None:
    """Of the key under which embeddings are kept, made in the process, there are as many copies as of any key that was
    wiped once its cipher was made."""
    (tmp_path / "m.gguf").write_bytes(synthetic_model("mixed"))
    sealing.seal(tmp_path / "m.gguf", tmp_path / "m.sealed", bytes(range(32)), tile_size=16384)
    with subprocess.Popen([sys.executable, "-c", HIDDEN, tmp_path / "m.sealed", tmp_path / "masked"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert "opened\n" == child.stdout.readline()
        masked = (tmp_path / "masked").read_bytes()
        hidden, other = (memory.count(child.pid, bytes(byte ^ mask for byte in masked)) for mask in (0xaa, 0x55))
        child.stdin.write("\n")
    assert 0 < hidden == other
