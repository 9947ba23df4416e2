"""No key and nonce of AES-GCM are ever used for two contents: two objects of one key by configuration, threads,
restarts, kills, full disks, disks that are put back or copied. docs/concepts/nonces.md names a test for each use."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import struct
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from appliance.attestation.tpm.judging import protection
from appliance.audit import detail
from appliance.audit.chain import Chain
from appliance.audit.detail import Detail
from appliance.audit.log import AuditLog
from appliance.boot.planning import rates
from appliance.boot.prompt_cache import FileKeys, PromptCache
from appliance.engine.forward.persistence import NOBODY
from appliance.errors import AuditError, ModelError, StateError
from appliance.keys.providers import Secret
from appliance.models.sealed.reader import open_sealed
from appliance.models.sources import native
from appliance.models.sources.streamed import StreamedSource
from appliance.receipts import opening
from appliance.sealing import sealing
from appliance.state import audit_sink, sessions
from appliance.state.audit_sink import StateSink
from appliance.state.disk import StateDisk
from appliance.state.frames import AUDIT, MIN_DISK_BYTES
from appliance.state.pages import PageShelf
from examples.broker import jwe
from tests.state.test_session_pages import KIND, page, tokens
from tests.support import nonces, shelves
from tests.support.engines import synthetic_model
from tests.support.nonces import Ledger
from tests.support.plain import open_tagged
from tests.support.sealed_models import KEY, TILE_SIZE, sealed, small, with_gaps
from tests.support.shelves import LIFETIME, SECRET, Clock, Open

FIELDS = {"request": "req-" + "0a" * 16, "endpoint": "/v1/completions", "status": 200, "tenant": "acme",
          "model": "demo"}


def _key() -> Secret:
    return Secret(bytearray(SECRET))


def _at_once(*tasks: Callable[[], object]) -> None:
    """Each in a thread of its own, all begun together. What one of them raises is raised at the end."""
    gate, errors = threading.Barrier(len(tasks)), list[Exception]()

    def run(task: Callable[[], object]) -> None:
        gate.wait()
        try:
            task()
        except Exception as error:  # noqa: BLE001 - raised again below
            errors.append(error)
    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error


def test_the_ledger_finds_a_repeat() -> None:
    """Two contents under one key and nonce; the same content twice, another nonce and another key are none."""
    ledger = Ledger()
    one, two = (nonces.Watched(ledger, bytes([number]) * 32) for number in (1, 2))
    for cipher, nonce, data in ((one, 0, b"a"), (one, 0, b"a"), (one, 1, b"b"), (two, 0, b"b")):
        cipher.encrypt(bytes([nonce]) * 12, data, None)
    assert [] == ledger.repeats
    one.encrypt_into(bytes(12), b"b", None, bytearray(17))
    assert [bytes(12)] == ledger.repeats


def test_a_reader_of_the_disk_finds_a_repeat() -> None:
    """Two texts under one key and nonce tell each other, wherever they stand; under two nonces they do not."""
    cipher, mine, theirs = AESGCM(bytes(32)), tokens(1).tobytes(), tokens(2).tobytes()
    same = [b"head" + cipher.encrypt(bytes(12), text, None) for text in (mine, theirs)]
    assert [(0, 1), (1, 0)] == nonces.told(same, mine, theirs)
    other = [b"head" + cipher.encrypt(bytes([number]) * 12, text, None) for number, text in enumerate((mine, theirs))]
    assert [] == nonces.told(other, mine, theirs)


# --- pages of sessions ---------------------------------------------------------------------------------------------


def _fill(shelf: PageShelf, tenant: str, seed: int) -> None:
    for place in range(6):
        shelf.put(place, tenant, NOBODY, tokens(seed + place), page(seed + place))


def _life(disk: Path, seed: int, clock: Clock) -> Open:
    """Two models of one file, two tenants, two threads; then again under a later key."""
    opened = shelves.start(disk, KIND, labels=("one", "two"), clock=clock)
    for _ in range(2):
        _at_once(*(functools.partial(_fill, shelf, f"tenant {number}", seed + 100 * number)
                   for number, shelf in enumerate(opened.shelves)))
        clock.sleep(LIFETIME / 1000 / 8)
    opened.shelf.flush(30)
    return opened


def _records(disk: Path) -> list[bytes]:
    data = disk.read_bytes()
    return [data[at:at + 512] for at in range(0, len(data) - 512, 4096) if data[at:at + 4] in (b"APG1", b"APG2")]


def test_pages_of_two_models_of_one_file(tmp_path: Path) -> None:
    """Two shelves number their pages under one key together, also after an end, a kill, with the disk put back and on a
    copy of it. Whoever reads the disk and sent a text learns of no other."""
    disk, copy, clock = shelves.blank(tmp_path), tmp_path / "copy", Clock()
    with nonces.watched() as ledger:
        _life(disk, 1000, clock).close()
        old = disk.read_bytes()
        _life(disk, 2000, clock).kill()
        disk.write_bytes(old)
        one = _life(disk, 3000, clock)
        shutil.copyfile(disk, copy)
        two = _life(copy, 4000, clock)
        one.close()
        two.close()
    assert [] == ledger.repeats
    assert len(ledger.sealed) > 4 * 2 * 12 * 4
    found = _records(disk)
    assert 12 == len(found) == len({struct.unpack_from("<QQ", record, 8) for record in found})
    assert [] == nonces.told(found, tokens(3000).tobytes(), tokens(3100).tobytes())


def test_states_and_pages_of_one_key(tmp_path: Path) -> None:
    """Pages and states of two models take their numbers from one counter, whichever comes first; no key and nonce is
    used twice."""
    kind = replace(KIND, state_nbytes=5000, states=4)
    with nonces.watched() as ledger:
        opened = shelves.start(shelves.blank(tmp_path), kind, labels=("one", "two"))
        for place in (0, 6, 1, 7, 6, 0):
            for shelf in opened.shelves:
                content = page(place) if place < 6 else [memoryview(bytearray(5000))]
                assert shelf.put(place, "tenant", NOBODY, tokens(place), content) is not None
        opened.shelf.flush(30)
        opened.close()
    assert [] == ledger.repeats
    assert len(ledger.sealed) >= 2 * (3 * 4 + 3 * 3)
    data = (tmp_path / "disk").read_bytes()
    found = [data[at:at + 24] for at in range(0, len(data) - 512, 4096) if data[at:at + 4] in (b"APG2", b"APS2")]
    assert 8 == len(found) == len({struct.unpack_from("<QQ", record, 8) for record in found})


def test_two_shelves_of_one_binding_stop_the_boot(tmp_path: Path) -> None:
    """Shelves that would share their keys are refused, for a state disk and for a cache file."""
    with shelves.running(shelves.blank(tmp_path), KIND) as opened:
        for keys in (opened.keys, FileKeys(_key(), bytes(32))):
            bound = sessions.binding("chat", opened.at, b"\1" * 32, KIND.arithmetic)
            PageShelf(opened.keeper, keys, bound, at=opened.at, places=1, halves=KIND.halves)
            with pytest.raises(StateError, match=f"one binding .shelf chat, place {opened.at}.") as caught:
                PageShelf(opened.keeper, keys, bound, at=opened.at, places=1, halves=KIND.halves)
            assert "state-shelves" == caught.value.code


def test_runs_of_a_cache_file(tmp_path: Path) -> None:
    """Each run of a file has a key of its own, also on a copy of it; two files of one key have nothing in common."""
    def run(path: Path, seed: int) -> None:
        cache = PromptCache(path, tmp_path / "key", b"\1" * 32, KIND)
        _fill(cache.shelf, "", seed)
        cache.close()
    with nonces.watched() as ledger:
        run(tmp_path / "one", 1)
        shutil.copyfile(tmp_path / "one", tmp_path / "copy")
        for number, name in enumerate(("one", "copy", "two", "one")):
            run(tmp_path / name, 100 * (number + 1))
    assert [] == ledger.repeats
    assert len(ledger.sealed) == 2 + 5 * 6 * 4


# --- the state disk, and the audit log on it ------------------------------------------------------------------------


def _blank(folder: Path, name: str = "disk") -> Path:
    path = folder / name
    path.write_bytes(b"")
    os.truncate(path, MIN_DISK_BYTES)
    return path


def _lines(disk: StateDisk, word: bytes) -> None:
    for number in range(5):
        disk.append(AUDIT, b"%s %d" % (word, number))


def _write(path: Path, word: bytes) -> None:
    """Boot, write from two threads, save, go on after a refusal, and end."""
    disk = StateDisk(path, _key())
    try:
        _at_once(*(functools.partial(_lines, disk, word + name) for name in (b" a", b" b")))
        disk.save(word)
        while disk.free > 1 << 16:
            disk.append(AUDIT, word.ljust(1 << 15))
        for size in (1 << 17, 1 << 16, 1):
            with contextlib.suppress(StateError):
                disk.append(AUDIT, word.ljust(size))
        disk.save(word + b" again")
    finally:
        with contextlib.suppress(StateError):
            disk.close()


def test_frames_and_slots_of_the_state_disk(tmp_path: Path) -> None:
    """Over restarts, on a disk that is full, put back, or copied and open twice."""
    with nonces.watched() as ledger:
        path = _blank(tmp_path)
        empty = path.read_bytes()
        _write(path, b"first")
        path.write_bytes(empty)
        StateDisk(path, _key()).close()
        old = path.read_bytes()
        for word in (b"second", b"third"):
            path.write_bytes(old)
            (tmp_path / "copy").write_bytes(old)
            _at_once(functools.partial(_write, path, word),
                     functools.partial(_write, tmp_path / "copy", word + b" copy"))
    assert [] == ledger.repeats
    assert len(ledger.sealed) > 5 * 20


def test_writes_of_the_state_disk_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write of a life fails in part, in turn; what this life or the next writes after it has other nonces."""
    real = os.pwrite
    with nonces.watched() as ledger:
        for nth in range(1, 12):
            path, calls = _blank(tmp_path), [0]

            def pwrite(file: int, data: bytes, at: int, *, calls: list[int] = calls, nth: int = nth) -> int:
                calls[0] += 1
                if calls[0] == nth:
                    real(file, data[:len(data) // 2], at)
                    raise OSError(5, "Input/output error")
                return real(file, data, at)
            monkeypatch.setattr(os, "pwrite", pwrite)
            for word in (b"one", b"two"):
                with contextlib.suppress(StateError):
                    _write(path, word)
    assert [] == ledger.repeats


def _log(path: Path) -> tuple[AuditLog, StateDisk]:
    """A boot's log on the disk, of which requests' records expire."""
    chain, sink = Chain(), StateSink()
    log = AuditLog(sink, version=3, strict=True)
    log.words.models.admit(["demo"])
    log.words.tenants.admit(["acme"])
    disk = StateDisk(path, _key(), heard=lambda line: chain.follow(line.rstrip(b"\n")))
    sink.attach(disk)
    log.begin(chain, audit_sink.audit_key(disk), log=disk.disk, epoch=disk.epoch)
    audit_sink.retain(86_400_000, disk, log)
    return log, disk


def _requests(log: AuditLog, count: int) -> None:
    for number in range(5):
        log.write("request.done", **FIELDS, prompt_tokens=count + number)


def test_records_under_keys_of_periods(tmp_path: Path) -> None:
    """Boots of one period, also on a disk that is put back, have a key of their own. Threads share the log's count."""
    path = _blank(tmp_path)
    with nonces.watched() as ledger:
        log, disk = _log(path)
        disk.close()
        old = path.read_bytes()
        for boot in range(2):
            path.write_bytes(old)
            log, disk = _log(path)
            _at_once(*(functools.partial(_requests, log, 100 * number + boot) for number in range(2)))
            log.close()
            disk.close()
    assert [] == ledger.repeats


@pytest.mark.parametrize("how", ["full", "fails", "closed"])
def test_a_log_that_takes_no_more_seals_no_more(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a record that could not be written, no other one is sealed at its place."""
    with nonces.watched() as ledger:
        log, disk = _log(_blank(tmp_path))
        _requests(log, 1)
        if how == "full":
            while disk.free > 600:
                disk.append(AUDIT, bytes(min(1 << 16, disk.free - 200)))
        elif how == "fails":
            monkeypatch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        else:
            log.close()
        for number in range(3):
            with pytest.raises(AuditError):
                log.write("request.done", **FIELDS, prompt_tokens=1000 + number)
    assert [] == ledger.repeats
    disk.close()


# --- models ----------------------------------------------------------------------------------------------------------


def test_sealed_models(tmp_path: Path) -> None:
    """Models under one key, other tile sizes, a sealing again, one that goes on, and one whose part the host exchanged
    for another model's: no two files have a nonce in common."""
    def stop(step: str, done: int, _total: int) -> None:
        if step == "sealing" and done > 12_000:
            raise ModelError("stopped")
    with nonces.watched() as ledger:
        first = sealed(tmp_path, small())
        sealed(tmp_path, small(), tile_size=2 * TILE_SIZE, name="larger")
        sealed(tmp_path, with_gaps(small())[0], name="gaps")
        again = sealed(tmp_path, small(), name="again")
        assert first.read_bytes() != again.read_bytes()
        for name, part in (("resumed", None), ("exchanged", first)):
            source, target = tmp_path / f"{name}.gguf", tmp_path / f"{name}.sealed"
            source.write_bytes(small(7))
            if part is None:
                with pytest.raises(ModelError, match="stopped"):
                    sealing.seal(source, target, KEY, tile_size=TILE_SIZE, progress=stop)
            else:
                target.with_name(target.name + ".part").write_bytes(part.read_bytes()[:-4096])
            done = sealing.seal(source, target, KEY, tile_size=TILE_SIZE)
            assert (part is None) == (done.kept_tiles > 0)
    assert [] == ledger.repeats


def test_keys_of_a_sealed_model_follow_from_all_that_its_tiles_do() -> None:
    """Under one salt, as of a part that the host made, another content or layout has other keys."""
    def key(**more: object) -> bytes:
        given = {"tile_size": 4096, "gaps": False, "size": 10_000, "salt": bytes(32), "sha256": b"\1" * 32,
                 "header": b"GGUF", **more}
        _, keys = sealing.make_header(KEY, **given)  # type: ignore[arg-type]
        return bytes(keys.tiles)
    others = [key(tile_size=8192), key(gaps=True), key(size=10_001), key(salt=b"\2" * 32), key(sha256=b"\2" * 32),
              key(header=b"GGUF longer")]
    assert 7 == len({key(), *others})
    assert key() == key()


def test_tags_and_hidden_rows(tmp_path: Path) -> None:
    """Each opening of a plain file has a key, each tile of it a nonce, also with bytes between tensors. So has each
    matrix of rows that are kept encrypted."""
    (tmp_path / "plain.gguf").write_bytes(with_gaps(small())[0])
    (tmp_path / "mixed.gguf").write_bytes(synthetic_model("mixed"))
    sealing.seal(tmp_path / "mixed.gguf", tmp_path / "mixed.sealed", KEY, tile_size=16384)
    with nonces.watched() as ledger:
        for _ in range(2):
            open_tagged(tmp_path / "plain.gguf", tile_size=TILE_SIZE).close()
        assert 2 == len(ledger.keys)
        for _ in range(2):
            StreamedSource(open_sealed(tmp_path / "mixed.sealed", KEY, header_sha256=None)).close()
    assert [] == ledger.repeats
    assert 4 == len(ledger.keys)


# --- keys that are drawn for one message ----------------------------------------------------------------------------


def _sealed_once(public: bytes) -> list[bytes]:
    """Of messages by HPKE, the broker and for a TPM: bytes that follow from the message's own key."""
    release = ec.derive_private_key(7, ec.SECP256R1()).public_key()
    said = {"prompt_tokens": [1], "tokens": [2], "ending": None}
    return [detail.seal(Detail(1, 2, 3, 4, bytes(32)), public, "req-1")[:32],
            opening.seal(said, public, "req-1", 1)[:40].encode(), jwe.encrypt(b"key", release)[-100:],
            protection.challenge(release, b"\0\x0bname", b"secret")[:100]]


def test_each_message_has_a_key_of_its_own() -> None:
    """Twice the same message, in a copy of this process (fork), and twice more after it: six keys, of each kind."""
    public = X25519PrivateKey.generate().public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    found = [_sealed_once(public) for _ in range(2)]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.write(writer, b"".join(each.ljust(100) for _ in range(2) for each in _sealed_once(public)))
        os._exit(0)
    os.close(writer)
    found += [_sealed_once(public) for _ in range(2)]
    with os.fdopen(reader, "rb") as pipe:
        theirs = pipe.read()
    os.waitpid(child, 0)
    assert 800 == len(theirs)
    ours = [each.ljust(100) for sealed_once in found for each in sealed_once]
    assert 24 == len({*ours, *(theirs[at:at + 100] for at in range(0, 800, 100))})


def test_what_is_measured_is_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """The constant nonces of measurements seal nothing but zeros, and their keys nothing else."""
    seen = list[bytes]()
    monkeypatch.setattr(Ledger, "note", lambda _self, _key, _nonce, data, _extra: seen.append(bytes(data)))
    with nonces.watched():
        native._rate.__wrapped__()
        rates._decrypter()(0)
    assert 3 == len(seen)
    assert not any(map(any, seen))
