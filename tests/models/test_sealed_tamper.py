"""A disk that alters, cuts, exchanges or rolls back bytes of a sealed model, before and while it is read."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.errors import FormatError, ModelError, ModelKeyError, PinError, TamperedError, UnsupportedError
from appliance.models.sealed.reader import SealedModel, open_sealed
from appliance.models.sources.sealed_resident import open_sealed_resident
from appliance.sealing import restore, sealing
from tests.support import sealed_by_spec as spec
from tests.support.sealed_models import KEY, OTHER_KEY, data, sealed, small, with_gaps

HEADER = 144 + 320  # bytes before the MAC of a sealed `small()`
# Where a flipped bit leads, without a pin: the first offset of each region, and the classes that may come of it.
REGIONS: list[tuple[int, tuple[type[ModelError], ...]]] = [
    (0, (FormatError,)),  # magic
    (23, (UnsupportedError,)),  # version
    (24, (FormatError, ModelKeyError)),  # tile size, flags, sizes: not allowed, or another context for the keys
    (48, (ModelKeyError,)),  # salt, SHA-256, commitment
    (144, (TamperedError,)),  # GGUF header, MAC
    (HEADER + 32, (FormatError,)),  # padding
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed file with gaps, so that it has every kind of tile; its header is that of `small`."""
    return sealed(tmp_path_factory.mktemp("tamper"), with_gaps(small())[0])


@pytest.fixture
def opened(model: Path) -> Iterator[SealedModel]:
    """That file, open."""
    with open_sealed(model, KEY, header_sha256=None) as found:
        yield found


def _flips(path: Path, start: int, end: int, step: int = 1) -> Iterator[int]:
    """Flip one bit of each byte in turn; the file is as it was in between."""
    with path.open("r+b", buffering=0) as file:
        for at in range(start, end, step):
            old = os.pread(file.fileno(), 1, at)
            os.pwrite(file.fileno(), bytes([old[0] ^ 1 << at % 8]), at)
            yield at
            os.pwrite(file.fileno(), old, at)


def test_every_byte_of_the_header(model: Path) -> None:
    """A flipped bit anywhere in the header is refused with the class of its region, whoever forgets the pin."""
    for at in _flips(model, 0, 4096):
        expected = next(classes for first, classes in reversed(REGIONS) if first <= at)
        with pytest.raises(expected) as caught:
            open_sealed(model, KEY, header_sha256=None)
        assert (True, True) == (type(caught.value) in expected, str(model) in caught.value.summary), at


def test_every_byte_of_the_header_against_its_pin(model: Path) -> None:
    """With the pin, nothing of a changed header gets as far as the key, but for what cannot be a header at all."""
    pin = hashlib.sha256(spec.header_of(model.read_bytes())).digest()
    for at in _flips(model, 0, HEADER + 32, 3):
        expected = PinError if at >= 48 else (FormatError, UnsupportedError, PinError)
        with pytest.raises(expected):
            open_sealed(model, KEY, header_sha256=pin)


def test_every_byte_of_every_tile(model: Path, opened: SealedModel) -> None:
    """A flipped bit anywhere in a record, padding included, is refused, and the buffer is wiped."""
    records = {tile.offset: tile for tile in opened.tiling}
    tile, buffer = opened.tiling.tile(0), bytearray(b"\xaa" * opened.tiling.max_tile_nbytes)
    for at in _flips(model, 4096, model.stat().st_size):
        tile = records.get(at, tile)
        buffer[:] = b"\xaa" * len(buffer)
        with pytest.raises(TamperedError) as caught:
            opened.read_tile(tile.number, buffer)
        assert f"tile {tile.number} (" in caught.value.summary
        assert bytes(tile.nbytes) == buffer[:tile.nbytes], at
        assert b"\xaa" * (len(buffer) - tile.nbytes) == buffer[tile.nbytes:]
    assert [opened.read_tile(tile.number, buffer) for tile in opened.tiling] == [t.nbytes for t in opened.tiling]


@pytest.mark.parametrize("region", range(4096, 40960, 4096))
def test_a_resident_load_refuses_each_region(model: Path, region: int) -> None:
    """Whichever record is altered, a resident model is refused while it loads; so is a restored one."""
    for _ in _flips(model, region, region + 1):
        with pytest.raises(TamperedError):
            restore.verify(model, KEY)


def test_truncation_and_extension(tmp_path: Path) -> None:
    """A file that ends anywhere else is refused when it is opened."""
    path = sealed(tmp_path, small())
    whole = path.read_bytes()
    for size in (*range(0, 200, 7), HEADER, 4095, 4096, 4097, 8192, len(whole) - 4096, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError):
            open_sealed(path, KEY, header_sha256=None)
    for more in (b"\0", bytes(4096), whole):
        path.write_bytes(whole + more)
        with pytest.raises(FormatError, match=f"has {len(whole) + len(more)} bytes; its header asks for {len(whole)}"):
            open_sealed(path, KEY, header_sha256=None)


def test_tiles_of_other_files_do_not_fit(tmp_path: Path) -> None:
    """Exchanged tiles, tiles of another sealing of the same model, and of another model under the same key."""
    files = {name: sealed(tmp_path, gguf, name=name) for name, gguf in (
        ("one", small()), ("again", small()), ("other", small(7)))}
    one, again, other = (path.read_bytes() for path in files.values())
    assert one[48:80] != again[48:80]
    spoiled = [one[:4096] + one[8192:12288] + one[4096:8192] + one[12288:]]
    spoiled += [one[:at] + source[at:at + 4096] + one[at + 4096:] for source in (again, other)
                for at in range(4096, len(one), 4096)]
    spoiled += [one[:4096] + again[4096:], again[:4096] + one[4096:]]
    for body in spoiled:
        files["one"].write_bytes(body)
        with pytest.raises(TamperedError):
            restore.verify(files["one"], KEY)


def test_a_whole_other_sealing_is_refused_by_the_pins(tmp_path: Path) -> None:
    """Rolled back to another sealing, or to another model under the same key: each pin alone refuses what it names."""
    one = sealed(tmp_path, small(), name="one")
    pins = {"header_sha256": hashlib.sha256(spec.header_of(one.read_bytes())).digest(),
            "sha256": hashlib.sha256(small()).digest()}
    with open_sealed(one, KEY, **pins):
        pass
    with pytest.raises(PinError, match="has a header with SHA-256"):
        open_sealed(sealed(tmp_path, small(), name="again"), KEY, **pins)
    with pytest.raises(PinError, match="has a header with SHA-256"):
        open_sealed(sealed(tmp_path, small(7), name="other"), KEY, **pins)
    with pytest.raises(PinError, match=f"the policy pins {pins['sha256'].hex()}"):
        open_sealed(tmp_path / "other.sealed", KEY, header_sha256=None, sha256=pins["sha256"])


def test_a_sealed_file_in_place_of_a_plain_one_and_the_other_way_round(model: Path) -> None:
    """Each is called what it is, by its name, with what to do: nothing about it is damaged."""
    plain = model.with_suffix(".gguf")
    with pytest.raises(FormatError, match="a GGUF file, which is not sealed") as caught:
        open_sealed(plain, KEY, header_sha256=None)
    assert (True, True) == (str(plain) in str(caught.value), "model seal" in str(caught.value))
    with pytest.raises(FormatError, match="a sealed model; needed: a GGUF file") as caught:
        sealing.seal(model, model.with_name("again"), KEY)
    assert (True, True) == (str(model) in str(caught.value), "unseal it" in str(caught.value))


def test_wrong_keys(model: Path) -> None:
    """The commitment tells a wrong key before anything is decrypted; a key of another length is none."""
    with pytest.raises(ModelKeyError, match="not the key that the model was sealed under"):
        open_sealed(model, OTHER_KEY, header_sha256=None)
    with pytest.raises(ModelKeyError, match="the key has 31 bytes; needed: 32"):
        open_sealed(model, KEY[:31], header_sha256=None)


def test_a_forged_commitment_does_not_help(tmp_path: Path) -> None:
    """With the commitment of another key, that key still opens nothing: MAC and tiles are the first one's."""
    ours, theirs = sealed(tmp_path, small()).read_bytes(), sealed(tmp_path, small(), OTHER_KEY, "x").read_bytes()
    context = ours[24:48] + ours[80:112]
    forged = spec.hkdf(OTHER_KEY, ours[48:80], spec.MAGIC + b"\ncommitment\n" + context)
    (tmp_path / "m.sealed").write_bytes(ours[:112] + forged + ours[144:])
    with pytest.raises(TamperedError, match="the header of the sealed model does not authenticate"):
        open_sealed(tmp_path / "m.sealed", OTHER_KEY, header_sha256=None)
    (tmp_path / "m.sealed").write_bytes(theirs[:4096] + ours[4096:])
    with pytest.raises(TamperedError, match="tile 0"):
        restore.verify(tmp_path / "m.sealed", OTHER_KEY)


def test_the_file_is_cut_while_it_is_open(tmp_path: Path) -> None:
    """A truncated file does not kill the process: the read is refused, the buffer wiped; what remains still reads."""
    path = sealed(tmp_path, small())
    with open_sealed(path, KEY, header_sha256=None) as model:
        os.truncate(path, 8192 + 100)
        buffer = bytearray(b"\xaa" * 4096)
        assert 2176 == model.read_tile(0, buffer)
        buffer[:] = b"\xaa" * 4096
        with pytest.raises(TamperedError, match="ends at byte 8292"):
            model.read_tile(1, buffer)
        assert bytes(2176) + b"\xaa" * 1920 == buffer


def test_a_removed_file_can_still_be_read(tmp_path: Path) -> None:
    """An unlinked or replaced name changes nothing for a model that is open."""
    path = sealed(tmp_path, small())
    with open_sealed(path, KEY, header_sha256=None) as model:
        path.unlink()
        path.write_bytes(b"something else")
        assert 2176 == model.read_tile(0, bytearray(2176))


def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An I/O error is told with the place where it happened, and wipes the buffer."""
    path = sealed(tmp_path, small())
    with open_sealed(path, KEY, header_sha256=None) as model:
        def broken(*_: object) -> int:
            raise OSError(5, "Input/output error")

        buffer = bytearray(b"\xaa" * 4096)
        monkeypatch.setattr(os, "preadv", broken)
        with pytest.raises(ModelError, match="cannot be read at byte 8192: Input/output error") as caught:
            model.read_tile(1, buffer)
        assert "model-unreadable" == caught.value.code
        assert bytes(2176) == buffer[:2176]


def test_threads_read_while_another_alters(tmp_path: Path) -> None:
    """While bits flip under four readers, each read gives the right tile or a refusal, never anything else."""
    path = sealed(tmp_path, small())
    with open_sealed(path, KEY, header_sha256=None) as model:
        right = []
        for tile in model.tiling:
            buffer = bytearray(tile.nbytes)
            model.read_tile(tile.number, buffer)
            right.append(bytes(buffer))
        stop, wrong, counts = threading.Event(), list[str](), [0, 0]

        def read() -> None:
            buffer = bytearray(4096)
            while not stop.is_set():
                for number, expected in enumerate(right):
                    try:
                        nbytes = model.read_tile(number, buffer)
                    except TamperedError:
                        counts[1] += 1
                        nbytes, expected = len(expected), bytes(len(expected))
                    else:
                        counts[0] += 1
                    if buffer[:nbytes] != expected:
                        wrong.append(f"tile {number}")

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        rounds = 0
        while rounds <= 20 or not all(counts):  # a busy machine takes more of them
            for _at in _flips(path, 4096, path.stat().st_size, 97):
                pass
            rounds += 1
        stop.set()
        for thread in threads:
            thread.join()
    assert [] == wrong
    assert all(count > 0 for count in counts)


def test_a_failed_load_leaves_nothing(tmp_path: Path) -> None:
    """A resident load that meets an altered tile in the middle gives the error of that tile."""
    from tests.support.ggufs import Tensor, build

    path = sealed(tmp_path, build([], [Tensor(f"t{i}", 0, (64, 64), data(16384, i)) for i in range(8)]))
    for _ in _flips(path, path.stat().st_size // 2 // 4096 * 4096, path.stat().st_size // 2 // 4096 * 4096 + 1):
        with pytest.raises(TamperedError):
            open_sealed_resident(path, KEY, header_sha256=None)
    open_sealed_resident(path, KEY, header_sha256=None).close()


def test_the_source_changes_between_hashing_and_sealing(tmp_path: Path) -> None:
    """Bytes that are not those that were hashed are never encrypted: no sealed file comes of it."""
    source, target = tmp_path / "m.gguf", tmp_path / "m.sealed"
    source.write_bytes(small())

    def alter(step: str, done: int, total: int) -> None:
        if step == "hashing" and done == total:
            with source.open("r+b") as file:
                file.seek(len(small()) - 500)
                file.write(b"\0\1\2\3")

    with pytest.raises(TamperedError, match="changed since the file was hashed"):
        sealing.seal(source, target, KEY, tile_size=4096, progress=alter)
    assert not target.exists()
