"""Models streamed by the tile: the bits of a resident model, or an error, and no plaintext beyond the buffers."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from appliance.engine.decode.generation import Advance, GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.scheduler import Scheduler
from appliance.errors import FormatError, ModelError, TamperedError
from appliance.models.sources import read_ahead
from appliance.models.sources.streamed import StreamedSource
from appliance.models.sources.tile_reader import TileReader
from appliance.models.sources.worker import WorkerBuffers
from tests.support import synthetic
from tests.support.engines import kernels, running, synthetic_model
from tests.support.extent import some
from tests.support.logits import logits_of
from tests.support.require import absent
from tests.support.streams import stored

IDS = [1, *np.random.default_rng(3).integers(3, synthetic.VOCAB, 99).tolist()]
KINDS = ("sealed", "plain", "compiled sealed", "compiled plain")


@contextmanager
def _engine(source: StreamedSource, threads: int = 1) -> Iterator[Engine]:
    with closing(source), Engine.open(source, EngineOptions(threads=threads, slots=2), kernels=kernels()) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    """Logits of IDS, resident."""
    with running("mixed") as engine:
        return logits_of(engine, IDS)


def _asked_of_the_disk() -> int:
    """Bytes that this process has read so far, by the kernel's count."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize("kind", ["compiled sealed", "compiled plain"])
def test_what_reads_tell(kind: str, tmp_path: Path) -> None:
    """A pass reads as much whatever its tokens are; one for nobody's next token leaves the output head out."""
    _, make = stored(kind, tmp_path, synthetic_model("mixed"), 8192)
    source = make()
    segment = source.reader.segment("output.weight")
    tiles = (source.reader.tiles.tiling.tile(segment.first_tile + index) for index in range(segment.tiles))
    head = sum(source.reader.place(tile)[1] for tile in tiles)

    def bytes_of(ids: list[int]) -> int:
        before = _asked_of_the_disk()
        empty = _asked_of_the_disk() - before  # what asking takes
        before = _asked_of_the_disk()
        logits_of(engine, ids, last=1)
        return _asked_of_the_disk() - before - empty

    with _engine(source) as engine:
        whole = bytes_of([5])
        assert abs(whole - bytes_of([300])) < head // 100
        for ids in ([1, 5, 9], [1, 300, 200]):  # a pass for the last one alone
            assert abs(2 * whole - head - bytes_of(ids)) < head // 100


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("tile_size", "threads", "how"), [
    (4096, 1, {}), (8192, 3, {"access": "leaks"}), (1 << 20, 2, {}),
    (8192, 2, {"kept": [f"blk.{block}.{name}.weight" for block in range(9) for name in ("attn_q", "ffn_down")]}),
    (8192, 2, {"drop": True, "ahead_nbytes": 1 << 16}), (65536, 1, {"drop": True}), (65536, 1, {"ahead_nbytes": 0}),
    (16384, 2, {"resident": ["token_embd.weight", "blk.0.ffn_up.weight", "output_norm.weight"]})])
def test_the_same_bits(kind: str, tile_size: int, threads: int, how: dict[str, object], expected: np.ndarray,
                       tmp_path: Path) -> None:
    """Whatever is streamed, in tiles of whatever size, gives the bits of the resident model."""
    _, make = stored(kind, tmp_path, synthetic_model("mixed"), tile_size)
    with _engine(make(**how), threads) as engine:
        assert np.array_equal(expected, logits_of(engine, IDS, chunk=33))
        source = engine._source
        assert isinstance(source, StreamedSource)
        assert 0 < source.most_alive <= source.alive_limit
        assert kind.startswith("compiled") == source.reader.fetched_by.startswith("libcrypto")


@pytest.mark.parametrize("kind", KINDS)
def test_one_place_for_a_tile(kind: str, expected: np.ndarray, tmp_path: Path) -> None:
    """With half the plaintext the bits are the same, where threads share the tiles of a prompt, too. One thread's was
    never more, not while the model was loaded either, with all of its matrices that stay."""
    source = stored(kind, tmp_path, synthetic_model("mixed"), 8192)[1](resident=["token_embd.weight"])
    source.narrow()
    assert 0 < source.most_alive <= source.alive_limit
    with _engine(source, 2) as engine:
        assert np.array_equal(expected, logits_of(engine, IDS))


@pytest.mark.parametrize("name", ["tied", "F16"])
def test_other_models(name: str, tmp_path: Path) -> None:
    """A tied output is streamed while its rows are looked up; half-precision weights have no blocks."""
    with running(name) as engine:
        expected = logits_of(engine, IDS)
    _, make = stored("sealed", tmp_path, synthetic_model(name), 8192)
    with _engine(make(), 2) as engine:
        assert np.array_equal(expected, logits_of(engine, IDS))


def test_what_a_source_tells(tmp_path: Path) -> None:
    """Digests, shapes and sizes; a tensor that is not there is named; after close nothing is handed out."""
    gguf = synthetic_model("mixed")
    with closing(stored("plain", tmp_path, gguf, 8192)[1](resident=["output.weight"])) as source:
        assert None is source.header_sha256
        assert source.weight("output.weight").nbytes <= source.resident_nbytes
        assert 0 == source.weight("blk.0.ffn_up.weight").address
        with pytest.raises(FormatError, match="missing"):
            source.weight("blk.77.ffn_up.weight")
        with pytest.raises(FormatError, match="needed: a vector"):
            source.vector("output.weight")
    with pytest.raises(ModelError, match="closed"):
        source.weight("output.weight")


# --- tampering --------------------------------------------------------------------------------------------------------
SPOIL = {
    "flip": "f = open(p, 'r+b'); f.seek(at); old = f.read(1); f.seek(at); f.write(bytes([old[0] ^ 4]))",
    "truncate": "import os; os.truncate(p, at)",
}


def _spoil(how: str, path: Path, at: int) -> None:
    """Change the file from another process."""
    subprocess.run([sys.executable, "-c", f"import sys; p, at = sys.argv[1], int(sys.argv[2]); {SPOIL[how]}",
                    str(path), str(at)], check=True)


REQUEST = GenerationRequest(IDS[:20], 12, Sampling(temperature=0, seed=1), ignore_end=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", SPOIL)
def test_spoiled_during_an_answer(kind: str, how: str, tmp_path: Path) -> None:
    """Another process alters or cuts the file while an answer is made: the answer ends with the error, its tokens so
    far are the right ones, and the model answers nothing more."""
    path, make = stored(kind, tmp_path, synthetic_model("mixed"), 8192)
    with _engine(make()) as engine:
        expected = [step.token for step in engine.generate(REQUEST)]
    with _engine(make(), 2) as engine:
        source = engine._source
        assert isinstance(source, StreamedSource)
        tile = source.reader.tiles.tiling.tile(source.reader.segment("blk.1.ffn_down.weight").first_tile + 1)
        at = tile.source_offset if kind.endswith("plain") else tile.offset
        found: list[int | None] = []
        steps = engine.generate(REQUEST)
        found += [next(steps).token for _ in range(3)]
        _spoil(how, path, at + 7)
        with pytest.raises(TamperedError, match=str(path)):
            found += [step.token for step in steps]
        assert expected[:3] == found
        assert not any(any(tile) for tile in source.workers[0].tiles)
        assert engine._cache._memory is not None
        assert not engine._cache._memory.view(np.uint64).any()
        with pytest.raises(TamperedError):
            logits_of(engine, IDS[:2])


@pytest.mark.parametrize("kind", KINDS)
def test_every_region(kind: str, tmp_path: Path) -> None:
    """A flipped bit in any tile of a streamed matrix, between two passes, is an error in the next pass."""
    path, make = stored(kind, tmp_path, synthetic_model("tied"), 32768)
    with closing(make()) as source:
        tiles = [tile for tile in source.reader.tiles.tiling if tile.segment.kind == "matrix"]
    for tile in some(tiles[::2], 12):
        at, nbytes = ((tile.source_offset, tile.source_nbytes) if kind.endswith("plain") else
                      (tile.offset, tile.nbytes + 16))
        with _engine(make(access="leaks")) as engine, path.open("r+b", buffering=0) as file:
            place = at + (tile.number * 7919) % nbytes
            old = os.pread(file.fileno(), 1, place)
            os.pwrite(file.fileno(), bytes([old[0] ^ 1]), place)
            with pytest.raises(TamperedError):
                logits_of(engine, list(range(synthetic.VOCAB))[:200], last=1)
            os.pwrite(file.fileno(), old, place)


def _cached(path: Path) -> bytes:
    """By page, whether the page cache has it. (Reading with RWF_NOWAIT tells, too, but brings what is not there.)"""
    size = path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE) as pages:
        found, place = (ctypes.c_ubyte * -(-size // 4096))(), ctypes.c_char.from_buffer(pages)
        try:
            assert 0 == ctypes.CDLL(None).mincore(ctypes.byref(place), ctypes.c_size_t(size), found)
        finally:
            del place
        return bytes(each & 1 for each in found)


def _forget(path: Path) -> None:
    """Have the page cache drop a file: the kernel keeps what somebody has in hand, so it is asked until it did."""
    with path.open("rb") as file:
        for _ in range(500):
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if not any(_cached(path)):
                return
            time.sleep(0.01)
    absent(f"a file system that lets go of what is cached; that of {path} does not")


NO_THREADS = """
import sys
import threading
from pathlib import Path
from appliance.boot.planning import machine
from appliance.engine.engine import Engine, EngineOptions
from tests.support.engines import kernels, synthetic_model
from tests.support.logits import logits_of
from tests.support.streams import stored

path, make = stored(sys.argv[1], Path(sys.argv[2]), synthetic_model("mixed"), 65536)
found = []
for limited in (False, True):
    source = make(drop=limited)
    if limited:
        threading.stack_size(1 << 30)
        machine.limit_growth(512 << 20)
    engine = Engine.open(source, EngineOptions(threads=1, slots=1), kernels=kernels())
    found.append(logits_of(engine, [1, 5, 9]).tobytes())
    engine.close()
    source.close()
print("the same" if found[0] == found[1] else "others")
"""


@pytest.mark.parametrize("kind", ["sealed", "plain"])
def test_no_memory_for_readers(kind: str, tmp_path: Path) -> None:
    """Where the kernel refuses the stacks of those who read ahead, answers are the same and the model can be closed."""
    done = subprocess.run([sys.executable, "-c", NO_THREADS, kind, str(tmp_path)], capture_output=True, text=True,
                          check=False)
    assert (0, "the same\n", "") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("kind", ["compiled sealed", "compiled plain"])
def test_page_cache(kind: str, tmp_path: Path) -> None:
    """Where memory is short, what the disk brought is dropped from the page cache; what was there already stays."""
    path, make = stored(kind, tmp_path, synthetic_model("tied"), 32768)
    with _engine(make(drop=True, ahead_nbytes=1 << 16)) as engine:
        source = engine._source
        assert isinstance(source, StreamedSource)
        at, nbytes = source.reader.table("blk.1.ffn_down.weight").places[0]
        logits_of(engine, IDS[:2])
        middle = (at + nbytes // 2) // 4096
        assert _cached(path)[middle]
        for attempt in range(5):  # a busy disk makes even reads that may not wait succeed: then nothing tells of it
            _forget(path)
            logits_of(engine, IDS[:2])
            if not _cached(path)[middle]:
                break
            assert attempt < 4


@pytest.mark.parametrize("kind", ["sealed", "plain"])
def test_read_ahead_unless_it_is_cached(kind: str, expected: np.ndarray, tmp_path: Path) -> None:
    """Where memory is short, a file is read past the page cache, unless that has it all the same; the same bits."""
    path, make = stored(kind, tmp_path, synthetic_model("mixed"), 8192)
    for cached in (True, False):
        source = make(drop=True, compiled=None)
        if not cached:
            _forget(path)
        with _engine(source, 2) as engine:
            assert np.array_equal(expected, logits_of(engine, IDS))
            assert cached == (source.reader.ahead is None)
            if not cached:
                assert source.reader.fetched_by == "the interpreter"
                assert not _cached(path)[path.stat().st_size // 4 // 4096]


@pytest.mark.parametrize("kind", ["sealed", "plain"])
def test_a_disk_brings_each_tile_of_a_prompt_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows a pass has; and they are asked for in the order in which they are read ahead, but for what
    threads have in hand. (Threads that shared tiles would want some twice, and from two places 30 tiles apart.)"""
    asked: list[int] = []
    fill = TileReader.fill

    def slowly(reader: TileReader, worker: WorkerBuffers, number: int) -> int:
        asked.append(number)
        time.sleep(0.002)
        return fill(reader, worker, number)

    monkeypatch.setattr(read_ahead, "SPAN_NBYTES", 4096)  # one tile of this small model
    _, make = stored(kind, tmp_path, synthetic_model("tied"), 4096)
    with _engine(make(drop=True), 2) as engine:
        source = engine._source
        assert isinstance(source, StreamedSource)
        assert source.reader.ahead is not None
        offsets = list(source.reader.ahead._places)
        monkeypatch.setattr(TileReader, "fill", slowly)
        logits_of(engine, IDS[:40])
        found = [source.reader.place(source.reader.tiles.tiling.tile(number))[0] for number in asked]
        places = [offsets.index(offset) for offset in found if offset in offsets]
    assert len(offsets) == len(places) == len(set(places))
    assert max(abs(place - turn) for turn, place in enumerate(places)) <= 16


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_gone(kind: str, tmp_path: Path) -> None:
    """A file that is removed stays readable while it is open; one that cannot be read ends with the disk's error."""
    path, make = stored(kind, tmp_path, synthetic_model("tied"), 32768)
    with _engine(make()) as engine:
        expected = logits_of(engine, IDS)
        path.unlink()
        assert np.array_equal(expected, logits_of(engine, IDS))
        source = engine._source
        assert isinstance(source, StreamedSource)
        source.reader.tiles.file.close()
        with pytest.raises(ModelError, match="was closed"):
            logits_of(engine, IDS)


@pytest.mark.parametrize("kind", ["sealed", "compiled sealed"])
def test_records_in_memory(kind: str, tmp_path: Path) -> None:
    """Records that are kept are authenticated whenever they are used, and the disk is not asked for them again."""
    path, make = stored(kind, tmp_path, synthetic_model("tied"), 32768)
    with closing(make()) as source:
        names = [name for name, info in source.tensors.items() if len(info.shape) == 2]
    with _engine(make(kept=names)) as engine:
        expected = logits_of(engine, IDS)
        os.truncate(path, 0)
        assert np.array_equal(expected, logits_of(engine, IDS))
        source = engine._source
        assert isinstance(source, StreamedSource)
        assert source.reader.records.pages is not None
        assert source.kept_nbytes > 0
        pages = source.reader.records.pages
        pages[len(pages) // 2 & -4096] ^= 1
        with pytest.raises(TamperedError, match="does not authenticate"):
            logits_of(engine, IDS)


@pytest.mark.parametrize("kind", ["compiled sealed", "compiled plain"])
@pytest.mark.parametrize(("directory", "said"), [(True, "Is a directory"), (False, "Bad file descriptor")])
def test_errors_of_the_disk(kind: str, directory: bool, said: str, tmp_path: Path) -> None:
    """What the system says of a read that fails in compiled code ends the answer."""
    path, make = stored(kind, tmp_path, synthetic_model("tied"), 32768)
    with _engine(make()) as engine:
        source = engine._source
        assert isinstance(source, StreamedSource)
        other = os.open(tmp_path if directory else path, os.O_RDONLY if directory else os.O_WRONLY)
        before, source.reader.tiles.file._descriptor = source.reader.tiles.file._descriptor, other
        with pytest.raises(ModelError, match=f"cannot be read at byte .*{said}") as caught:
            logits_of(engine, IDS)
        assert "model-unreadable" == caught.value.code
        os.close(before)


def test_waiting_requests_get_the_error(tmp_path: Path) -> None:
    """Through a scheduler, a running answer and all that come later end with the model's error."""
    path, make = stored("sealed", tmp_path, synthetic_model("tied"), 32768)
    with _engine(make(access="leaks")) as engine:
        os.truncate(path, 4096)
        scheduler = Scheduler(engine)
        steps: list[Advance] = []
        errors: list[Exception] = []
        for _ in range(2):
            scheduler.submit(GenerationRequest(IDS[:5], 4), "a", steps.append, errors.append).wait(30)
        scheduler.close()
        assert ([], [TamperedError] * 2) == (steps, [type(error) for error in errors])


# --- memory -----------------------------------------------------------------------------------------------------------
RUN = """
import sys
import threading
from pathlib import Path
from appliance.engine.engine import Engine, EngineOptions
from appliance.models.sealed.reader import open_sealed
from appliance.models.sources.sealed_resident import open_sealed_resident
from appliance.models.sources.streamed import StreamedSource
from tests.support.engines import kernels
from tests.support.logits import logits_of
from tests.support.sealed_models import KEY

path = Path(sys.argv[2])
source = (open_sealed_resident(path, KEY, header_sha256=None) if sys.argv[1] == "resident" else
          StreamedSource(open_sealed(path, KEY, header_sha256=None)))
engine = Engine.open(source, EngineOptions(threads=2, slots=1), kernels=kernels())
stop = threading.Event()

def passes():
    while not stop.is_set():
        logits_of(engine, [1, 5, 9])

runner = threading.Thread(target=passes)
logits_of(engine, [1])
runner.start()
print("running", flush=True)
sys.stdin.readline()
stop.set()
runner.join()
engine.close()
source.close()
print("closed", flush=True)
sys.stdin.read()
"""


def _found(process: int, patterns: set[bytes]) -> int:
    """How many of the patterns are in the memory of a process that stands still, at multiples of 8 bytes."""
    begins: dict[int, list[bytes]] = {}
    for pattern in patterns:
        begins.setdefault(int.from_bytes(pattern[:8], "little"), []).append(pattern)
    likely = np.zeros(1 << 20, bool)  # by the low bits of a word: one look at each word of a large memory
    likely[[first % len(likely) for first in begins]] = True
    seen, folder = set[bytes](), Path(f"/proc/{process}")
    with (folder / "maps").open(encoding="ascii") as maps, (folder / "mem").open("rb", buffering=0) as memory:
        for line in maps:
            first, last = (int(end, 16) for end in line.split()[0].split("-"))
            if " rw" not in line or "[v" in line:
                continue
            memory.seek(first)
            area = memory.read(last - first) or b""
            words = np.frombuffer(area, np.uint64, len(area) // 8)
            places = np.flatnonzero(likely[words & np.uint64(len(likely) - 1)])
            places = places[np.isin(words[places], np.array(list(begins), np.uint64))]
            for at in places.tolist():
                seen |= {pattern for pattern in begins[int(words[at])]
                         if area[8 * at:8 * at + len(pattern)] == pattern}
    return len(seen)


def _watched(how: str, path: Path, patterns: set[bytes]) -> tuple[int, int]:
    """The most patterns seen at once while a child runs passes over the model, and how many are left after it."""
    child = subprocess.Popen([sys.executable, "-c", RUN, how, str(path)], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert "running\n" == child.stdout.readline()
        most = 0
        for _ in range(3):
            os.kill(child.pid, signal.SIGSTOP)
            most = max(most, _found(child.pid, patterns))
            os.kill(child.pid, signal.SIGCONT)
            time.sleep(0.01)
        child.stdin.write("\n")
        child.stdin.flush()
        assert "closed\n" == child.stdout.readline()
        left = _found(child.pid, patterns)
        child.stdin.close()
    return most, left


@pytest.mark.slow
def test_weights_in_memory(tmp_path: Path) -> None:
    """In the memory of another process, all weights of a resident model are found while it runs; of a streamed one no
    more than two tiles for each of its two threads; and of neither any when it is closed."""
    tile_size, step = 65536, 16384
    path, make = stored("sealed", tmp_path, synthetic_model("Q8_0"), tile_size)
    patterns: set[bytes] = set()
    buffer = bytearray(tile_size)
    with closing(make()) as source:
        for tile in source.reader.tiles.tiling:
            if tile.segment.kind == "matrix":
                nbytes = source.reader.tiles.read_tile(tile.number, buffer)
                patterns |= {bytes(buffer[at:at + 48]) for at in range(256, nbytes - 48, step)}
    assert len(patterns) > 20
    assert (len(patterns), 0) == _watched("resident", path, patterns)
    most, left = _watched("streamed", path, patterns)
    assert 0 == left
    assert most <= 2 * 2 * tile_size // step
