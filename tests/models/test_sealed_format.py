"""The sealed format by its specification: vectors, an independent sealer, and headers that lie."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import os
import re
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import FormatError, ModelError, ModelKeyError, PinError, TamperedError, UnsupportedError
from appliance.models.file import tiling
from appliance.models.file.disk import RandomFile
from appliance.models.sealed import header as sealed_header
from appliance.models.sealed import reader as sealed
from appliance.sealing import restore, sealing
from appliance.signed import desk
from appliance.signed import publisher as signature
from tests.fuzz import driver, sealed_fuzz
from tests.support import sealed_by_spec as spec
from tests.support.ggufs import STRING, build, kv
from tests.support.sealed_by_spec import Part
from tests.support.sealed_models import KEY, TILE_SIZE, parts, small, with_gaps
from tests.support.sealed_models import sealed as seal

ROOT = Path(__file__).parents[2]
SPEC = (ROOT / "docs/formats/sealed-model.md").read_text()
VECTORS = ROOT / "docs/formats/sealed-model-vectors"
NAMES = sorted(path.stem for path in VECTORS.glob("*.txt"))
CLASSES = {"malformed": FormatError, "unsupported": UnsupportedError, "pin mismatch": PinError,
           "wrong key": ModelKeyError, "tampered": TamperedError}


@pytest.mark.parametrize("name", NAMES)
def test_vectors(name: str, tmp_path: Path) -> None:
    """Each vector is accepted with its SHA-256, or refused with its class and that class's code."""
    fields, body = spec.read_vector(VECTORS, name)
    path = tmp_path / "model.sealed"
    path.write_bytes(body)
    pin = bytes.fromhex(fields["sealed_header_sha256"]) if "sealed_header_sha256" in fields else None
    if fields["expect"] == "success":
        done = restore.unseal(path, tmp_path / "m", bytes.fromhex(fields["key"]), header_sha256=pin)
        assert fields["sha256"] == hashlib.sha256((tmp_path / "m").read_bytes()).hexdigest() == done.sha256.hex()
        return
    with pytest.raises(ModelError) as caught:
        restore.verify(path, bytes.fromhex(fields["key"]), header_sha256=pin)
    assert CLASSES[fields["expect"]] is type(caught.value)
    row = re.search(rf"^\| {fields['expect']} \|.*\| `(.*)` \|$", SPEC, re.MULTILINE)
    assert row is not None
    assert caught.value.code == row[1]


def test_the_text_shows_what_the_vector_has() -> None:
    """Example bytes, keys and digest in the specification are those of the vector `success`."""
    fields, body = spec.read_vector(VECTORS, "success")
    shown = re.findall(r"^[0-9a-f]{8}: ((?:[0-9a-f]{4} ?){8})", SPEC, re.MULTILINE)
    assert body[:192].hex() == "".join(shown).replace(" ", "")
    header = spec.header_of(body)
    context = body[24:48] + body[80:112]
    stated = dict(re.findall(r"^([a-zA-Z]+(?: [a-zA-Z]+)?) +([0-9a-f]{64})$", SPEC, re.MULTILINE))
    assert fields["key"] == stated["master key"]
    for label in ("tile key", "header key", "commitment"):
        info = spec.MAGIC + b"\n" + label.encode() + b"\n" + context
        assert spec.hkdf(KEY, body[48:80], info).hex() == stated[label]
    assert header[-32:].hex() == stated["header MAC"]
    assert hashlib.sha256(header).hexdigest() == stated["digest"] == fields["sealed_header_sha256"]


def test_the_signature_in_the_text() -> None:
    """The example of a publisher's signature verifies, and is what `sign` makes."""
    block = SPEC[SPEC.index("public key   "):]
    public, first, second = re.findall(r"[0-9a-f]{64}", block)[:3]
    text = re.search(r"```\n(appliance/model-signature/1\n.*?)```", SPEC, re.DOTALL)
    assert text is not None
    sha256, header = (bytes.fromhex(digits) for digits in re.findall(r"[0-9a-f]{64}", text[1]))
    assert text[1].encode() == signature.message(sha256, header)
    assert (public, first + second) == tuple(part.hex() for part in desk.sign_model(KEY, sha256, header))


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("tile_size", [4096, 8192, 1 << 20])
def test_an_independent_sealer_writes_the_same_file(gaps: bool, tile_size: int, tmp_path: Path) -> None:
    """With the same salt, the specification's own sealer gives the same bytes."""
    gguf = small()
    start, tensors = parts(gguf)
    if gaps:
        gguf, tensors = with_gaps(gguf)
    ours = seal(tmp_path, gguf, tile_size=tile_size).read_bytes()
    assert spec.seal(gguf, start, tensors, KEY, ours[48:80], tile_size, gaps=gaps) == ours


def _read(data: bytes) -> sealed_header.Header:
    with tempfile.NamedTemporaryFile() as named:
        named.write(data)
        named.flush()
        file = RandomFile(Path(named.name))
        try:
            header = sealed_header.read_header(file)
            header.layout()
        finally:
            file.close()
    return header


GOOD = spec.read_vector(VECTORS, "success")[1]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 151), st.binary(min_size=1, max_size=12), st.integers(0, len(GOOD)))
def test_header_parsing_is_strict(at: int, new: bytes, cut: int) -> None:
    """Whatever stands in the header, what is read is what would be written: nothing else means the same."""
    data = (GOOD[:at] + new + GOOD[at + len(new):])[:max(cut, at)]
    try:
        header = _read(data)
    except ModelError:
        return
    assert data[:len(header.encode())] == header.encode()
    assert header.nbytes <= len(data)


def test_huge_lengths_take_no_memory(tmp_path: Path) -> None:
    """A sparse file of 8 GiB whose header claims 4 GiB of GGUF header is refused before anything is read."""
    path = tmp_path / "m"
    with path.open("wb") as file:
        file.write(GOOD[:32] + (1 << 40).to_bytes(8, "little") + (1 << 32).to_bytes(8, "little") + GOOD[48:144])
        file.truncate(8 << 30)
    with pytest.raises(FormatError, match=f"the size of the GGUF header is {1 << 32}; allowed: at most {64 << 20}"):
        sealed.structure(path)


def test_a_header_is_parsed_after_its_pin(tmp_path: Path) -> None:
    """Whoever has a pin, as a boot that reckons its memory, learns of another sealing, and not of what its GGUF header
    has: that is nobody's."""
    path = tmp_path / "m"
    path.write_bytes(GOOD[:144] + b"GARBAGE!" + GOOD[152:])
    digest = hashlib.sha256(sealed_header.read_header(RandomFile(path)).encode()).digest()
    with pytest.raises(FormatError, match="the magic is b'GARB'"):
        sealed.structure(path)
    with pytest.raises(FormatError, match="the magic is b'GARB'"):
        sealed.structure(path, digest)
    with pytest.raises(PinError, match=digest.hex()):
        sealed.structure(path, bytes(32))


@pytest.mark.parametrize(("outside", "good"), [(1 << 30, True), ((1 << 30) + 1, False), (1 << 45, False)])
def test_zeros_without_end_are_refused_before_they_are_hashed(outside: int, good: bool, tmp_path: Path) -> None:
    """A sealed file of one page may state a tail of zeros that it does not have: up to 1 GiB, whoever sealed it."""
    plain = build([kv("general.name", STRING, "m")]).ljust(64, b"\0")  # up to the alignment
    context = struct.pack("<IIQQ", TILE_SIZE, 0, len(plain) + outside, len(plain)) + bytes(32)
    keys = [spec.hkdf(KEY, bytes(32), spec.MAGIC + b"\n" + label + b"\n" + context)
            for label in (b"commitment", b"header key")]
    head = spec.MAGIC + context[:24] + bytes(64) + keys[0] + plain
    path = tmp_path / "m.sealed"
    path.write_bytes((head + hmac.digest(keys[1], head, "sha256")).ljust(4096, b"\0"))
    with contextlib.nullcontext() if good else pytest.raises(
            UnsupportedError, match=f"{outside} bytes of the GGUF file belong neither to its header") as caught:
        sealed.open_sealed(path, KEY, header_sha256=None).close()
    assert good or str(path) in str(caught.value)


def test_a_tail_that_nobody_could_unseal_is_not_sealed(tmp_path: Path) -> None:
    """A sparse GGUF file of which more than 1 GiB is no tensor is refused before it is hashed; nothing is left."""
    path = tmp_path / "m.gguf"
    path.write_bytes(small())
    os.truncate(path, (1 << 30) + len(small()) + 1)
    with pytest.raises(UnsupportedError, match="supported: 1073741824"):
        sealing.seal(path, tmp_path / "m.sealed", KEY)
    assert [path] == list(tmp_path.iterdir())


def test_a_flag_for_gaps_that_do_not_exist_is_refused() -> None:
    """Gaps cannot be sealed where there are none: one file has one encoding."""
    gguf = small()
    start, tensors = parts(gguf)
    end = tensors[0].offset + tensors[0].nbytes
    tight = gguf[:end]
    with pytest.raises(FormatError):
        _read(spec.seal(tight, start, tensors[:1], KEY, bytes(32), TILE_SIZE, gaps=True))


def test_gaps_that_need_no_tiles_are_refused_when_they_are_restored(tmp_path: Path) -> None:
    """Gaps of zeros have no tiles: whoever restores the file refuses another encoding of it."""
    gguf, path = small(), tmp_path / "m.sealed"
    start, tensors = parts(gguf)
    blank = [Part(first.offset + first.nbytes, second.offset - first.offset - first.nbytes)
             for first, second in itertools.pairwise([*tensors, Part(len(gguf), 0)])]
    everything = sorted([*tensors, *(gap for gap in blank if gap.nbytes)], key=lambda part: part.offset)
    assert everything != tensors
    path.write_bytes(spec.seal(gguf, start, everything, KEY, bytes(32), TILE_SIZE, gaps=True))
    with pytest.raises(TamperedError, match="every byte of them is zero"):
        restore.unseal(path, tmp_path / "m", KEY)
    assert not (tmp_path / "m").exists()


SIZES = [0, 1, 4095, 4097, 12 << 20 | 1, (16 << 20) + 4096, -4096]


@pytest.mark.parametrize("size", SIZES)
def test_tile_sizes(size: int) -> None:
    """Only multiples of 4096 from 4 KiB to 16 MiB are tile sizes."""
    with pytest.raises(FormatError, match=f"the tile size is {size} bytes"):
        tiling.check_tile_size(size)
    assert 8192 == tiling.check_tile_size(8192)


def test_the_reader_survives_mutations() -> None:
    """Two seconds of mutated files raise nothing but the model tree's own errors."""
    count, finding = driver.run(sealed_fuzz.fuzz, sealed_fuzz.seeds(), seconds=2, seed=1, least=201)
    assert None is finding
    assert 200 < count
