"""Keys sealed to PCRs in a real (software) TPM, with tpm2-tools as the judge of policy and object."""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.attestation.tpm.chip import client as tpm_client
from appliance.attestation.tpm.chip import device as tpm_device
from appliance.attestation.tpm.chip import seal as tpm_seal
from appliance.attestation.tpm.chip.client import Tpm
from appliance.cli.main import main
from appliance.errors import AttestationError, MalformedEvidenceError, ModelKeyError
from appliance.keys.release.release import KeyRelease
from appliance.policy.schema.keys import KeySource
from appliance.sealing import sealing
from tests.keys.test_key_release import KEY, attestor
from tests.project.test_key_broker import measurements
from tests.support import swtpm

SECRET = bytes(range(60, 165))


@pytest.fixture
def tpm_path() -> Iterator[Path]:
    """A fresh TPM, since tests extend its registers."""
    with swtpm.running() as path:
        yield path


def extend(tpm: Tpm, pcr: int, event: bytes) -> None:
    """Measure an event."""
    tpm.require(tpm_client.PCR_EXTEND, (pcr,), struct.pack(">IH", 1, 0x000B) + hashlib.sha256(event).digest())


def after(value: bytes, event: bytes) -> bytes:
    """What an event makes of a register's value, by the TCG's formula."""
    return hashlib.sha256(value + hashlib.sha256(event).digest()).digest()


def test_sealed_to_a_boot_to_come(tpm_path: Path) -> None:
    """A key sealed to predicted values opens once the registers have them, as often as asked, and not before or
    after."""
    with contextlib.closing(Tpm(tpm_path)) as tpm:
        before = tpm_device.read_pcrs(tpm, (4, 11))
        predicted = {4: after(before[4], b"kernel"), 11: before[11]}
        sealed = tpm_seal.seal(tpm, SECRET, predicted)
        assert len(sealed) <= tpm_seal.MAX_BYTES
        for _ in range(3):
            with pytest.raises(AttestationError, match="PCR 4, 11 are not what the key was sealed to") as caught:
                tpm_seal.unseal(tpm, sealed, (11, 4))
            assert "tpm-pcrs" == caught.value.code
        extend(tpm, 4, b"kernel")
        for _ in range(8):  # no handle or session is left behind: a TPM has room for three
            assert SECRET == tpm_seal.unseal(tpm, sealed, (4, 11))
        with pytest.raises(AttestationError, match="not what the key was sealed to"):
            tpm_seal.unseal(tpm, sealed, (4,))
        extend(tpm, 11, b"another command line")
        with pytest.raises(AttestationError, match="not what the key was sealed to"):
            tpm_seal.unseal(tpm, sealed, (4, 11))


def test_another_tpm(tpm_path: Path) -> None:
    """A file copied to another machine opens nowhere."""
    with contextlib.closing(Tpm(tpm_path)) as tpm:
        sealed = tpm_seal.seal(tpm, SECRET, tpm_device.read_pcrs(tpm, (7,)))
    with swtpm.running() as other_path, contextlib.closing(Tpm(other_path)) as other:
        with pytest.raises(AttestationError, match="another TPM's") as caught:
            tpm_seal.unseal(other, sealed, (7,))
        assert "tpm-other" == caught.value.code


def test_altered_files(tpm_path: Path) -> None:
    """No byte of a sealed key file can be changed: every fifth one tried."""
    with contextlib.closing(Tpm(tpm_path)) as tpm:
        sealed = tpm_seal.seal(tpm, SECRET, tpm_device.read_pcrs(tpm, (7,)))
        for at in range(0, len(sealed), 5):
            with pytest.raises(AttestationError):
                tpm_seal.unseal(tpm, sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1:], (7,))
        for bad in (b"", sealed[:-1], sealed + b"\0", b"x" * 2000, tpm_seal.MAGIC):
            with pytest.raises(MalformedEvidenceError):
                tpm_seal.unseal(tpm, bad, (7,))
        assert SECRET == tpm_seal.unseal(tpm, sealed, (7,))
        for values in ({}, {7: bytes(31)}):
            with pytest.raises(ValueError, match="PCR values"):
                tpm_seal.seal(tpm, SECRET, values)


def _tool(path: Path, folder: Path, *words: str) -> bytes:
    done = subprocess.run([*words], cwd=folder, capture_output=True, timeout=600, check=False,
                          env={**os.environ, "TPM2TOOLS_TCTI": f"swtpm:path={path}"})
    if done.returncode:
        raise AssertionError(done.stderr.decode())
    return done.stdout


def test_tpm2_tools_agree(tpm_path: Path, tmp_path: Path) -> None:
    """tpm2-tools computes the same policy, and opens what we sealed."""
    swtpm.tpm2_tools("tpm2_createpolicy", "tpm2_createprimary", "tpm2_flushcontext", "tpm2_load", "tpm2_unseal")
    with contextlib.closing(Tpm(tpm_path)) as tpm:
        extend(tpm, 9, b"something")
        values = tpm_device.read_pcrs(tpm, (4, 9, 11))
        sealed = tpm_seal.seal(tpm, SECRET, values)
    _tool(tpm_path, tmp_path, "tpm2_createpolicy", "--policy-pcr", "-l", "sha256:4,9,11", "-L", "policy")
    assert tpm_seal.policy_digest(values) == (tmp_path / "policy").read_bytes()
    private, public = tpm_seal._parts(sealed)
    (tmp_path / "private").write_bytes(struct.pack(">H", len(private)) + private)
    (tmp_path / "public").write_bytes(struct.pack(">H", len(public)) + public)
    _tool(tpm_path, tmp_path, "tpm2_createprimary", "-C", "o", "-G", "ecc", "-g", "sha256", "-c", "parent", "-a",
          "fixedtpm|fixedparent|sensitivedataorigin|userwithauth|restricted|decrypt|noda")
    _tool(tpm_path, tmp_path, "tpm2_flushcontext", "-t")  # without a resource manager there is room for three
    _tool(tpm_path, tmp_path, "tpm2_load", "-C", "parent", "-r", "private", "-u", "public", "-c", "item")
    _tool(tpm_path, tmp_path, "tpm2_flushcontext", "-t")
    assert SECRET == _tool(tpm_path, tmp_path, "tpm2_unseal", "-c", "item", "-p", "pcr:sha256:4,9,11")


def key_file(folder: Path) -> Path:
    """A model's key."""
    path = folder / "model.key"
    path.touch(0o600)
    path.write_text(KEY.hex())
    return path


def fetched(model: Path, tpm_path: Path, pcrs: list[int], version: int = 3) -> bytes:
    """The key as a boot fetches it, in the process of its own, hardened as on hardware."""
    key = KeySource.model_validate({"provider": "tpm", "version": version, "pcrs": pcrs})
    release = KeyRelease({"model m": key}, seconds=20, tpm=tpm_path)
    try:
        release.start({"model m": model})
        with release.keys(attestor(), tolerant=False)["model m"] as secret:
            return bytes(secret.data)
    finally:
        release.close()


def test_from_the_command_to_the_boot(tpm_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`appliance model tpm-seal`, then a boot's key release: the key for the right PCRs and version, else one word."""
    model = tmp_path / "m.sealed"
    words = ["model", "tpm-seal", str(model), "--key", str(key_file(tmp_path)), "--key-version", "3", "--tpm",
             str(tpm_path)]
    assert 0 == main([*words, "--pcrs", "11,4"])
    assert "pcrs     = [4, 11]" in capsys.readouterr().out
    assert KEY not in (tmp_path / "m.sealed.tpm-key").read_bytes()
    assert KEY == fetched(model, tpm_path, [4, 11])
    for pcrs, version, code in (([4], 3, "tpm-pcrs"), ([4, 11], 2, "key-version")):
        with pytest.raises(ModelKeyError) as caught:
            fetched(model, tpm_path, pcrs, version)
        assert (code, True) == (caught.value.code, caught.value.summary.startswith("model m: "))
    assert 2 == main([*words, "--pcrs", "4"]), "nothing is overwritten"
    with contextlib.closing(Tpm(tpm_path)) as tpm:
        extend(tpm, 11, b"another image")
    with pytest.raises(ModelKeyError, match="PCR 4, 11 are not what the key was sealed to"):
        fetched(model, tpm_path, [4, 11])
    with pytest.raises(ModelKeyError, match=r"none\.sealed\.tpm-key: No such file"):
        fetched(tmp_path / "none.sealed", tpm_path, [4])
    with pytest.raises(SystemExit):
        main([*words, "--pcrs", "24"])


def test_sealed_to_the_boot_of_an_image(tpm_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With measurements the key is sealed to what the image will measure; what they do not give is refused."""
    with contextlib.closing(Tpm(tpm_path)) as tpm:
        before = tpm_device.read_pcrs(tpm, (7, 11))
    registers = {str(number): ["00" * 32] for number in (2, 3, 4, 5, 6, 9, 12, 13)}
    registers["11"] = [after(before[11], b"kernel").hex()]
    golden = [{"machine": "q35", "firmware_sha256": "11" * 32,
               "pcrs": {"0": "22" * 32, "7": before[7].hex()}}]
    path = tmp_path / "measurements.json"
    path.write_bytes(measurements(tpm={"bank": "sha256", "pcrs": registers, "golden": golden, "events": []}))
    words = ["model", "tpm-seal", str(tmp_path / "m"), "--key", str(key_file(tmp_path)), "--key-version", "3", "--tpm",
             str(tpm_path), "--measurements", str(path), "--pcrs", "7,11"]
    assert 2 == main(words), "PCR 7 needs a machine"
    assert "--machine; recorded: q35" in capsys.readouterr().err
    assert 0 == main([*words, "--machine", "q35", "--json"])
    with pytest.raises(ModelKeyError, match="are not what the key was sealed to"):
        fetched(tmp_path / "m", tpm_path, [7, 11])
    with contextlib.closing(Tpm(tpm_path)) as tpm:
        extend(tpm, 11, b"kernel")
    assert KEY == fetched(tmp_path / "m", tpm_path, [7, 11])


def test_what_would_seal_a_key_for_nothing_is_refused(tpm_path: Path, tmp_path: Path, tiny_model: Path,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    """A policy or a machine that nothing would look at, the key of another model, a file that is no sealed model, a
    folder that cannot be written: no file is made, and what is wrong is said."""
    key, model = key_file(tmp_path), tmp_path / "m.sealed"
    sealing.seal(tiny_model, model, SECRET[:32])
    (tmp_path / "plain.gguf").write_bytes(tiny_model.read_bytes())
    for file, words, said in ((tmp_path / "m", ["--policy", "p.hcl"], "--policy needs --measurements"),
                              (tmp_path / "m", ["--machine", "q35"], "--machine needs --measurements"),
                              (model, [], "not the key that the model was sealed under"),
                              (tmp_path / "plain.gguf", [], "needed: a sealed model"),
                              (tmp_path / "absent" / "m", [], "cannot be written: No such file or directory")):
        assert 2 == main(["model", "tpm-seal", str(file), "--key", str(key), "--key-version", "3", "--tpm",
                          str(tpm_path), "--pcrs", "15", *words])
        assert said in capsys.readouterr().err, said
        assert [] == list(tmp_path.rglob("*.tpm-key"))
    key.write_text(f"appliance/key/v1\nversion 2\nkey {SECRET[:32].hex()}\n")
    assert 2 == main(["model", "tpm-seal", str(model), "--key", str(key), "--key-version", "3", "--tpm", str(tpm_path),
                      "--pcrs", "15"])
    assert "the key has version 2, not 3" in capsys.readouterr().err
    key.write_text(SECRET[:32].hex())
    assert 0 == main(["model", "tpm-seal", str(model), "--key", str(key), "--key-version", "3", "--tpm", str(tpm_path),
                      "--pcrs", "15"])


def test_no_tpm(tmp_path: Path) -> None:
    """A machine without a TPM says so."""
    (tmp_path / "m.tpm-key").write_bytes(tpm_seal.MAGIC)
    with pytest.raises(ModelKeyError) as caught:
        fetched(tmp_path / "m", tmp_path / "none", [4])
    assert "tpm-absent" == caught.value.code


def test_a_file_in_the_place_of_a_tpm(tmp_path: Path) -> None:
    """Nothing is written into it: it may be the model, by a slip of who typed the command."""
    (tmp_path / "m").write_bytes(b"model")
    (tmp_path / "m.tpm-key").write_bytes(tpm_seal.MAGIC)
    with pytest.raises(ModelKeyError, match="neither a device nor a socket") as caught:
        fetched(tmp_path / "m", tmp_path / "m", [4])
    assert ("tpm-absent", b"model") == (caught.value.code, (tmp_path / "m").read_bytes())
