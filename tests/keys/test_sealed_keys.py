"""Key files, key providers, secrets in memory, and publishers' signatures."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.errors import ModelKeyError, PinError
from appliance.keys import document as keydocument
from appliance.keys import policy_keys as modelkeys
from appliance.keys import providers as keys
from appliance.models.sealed.header import Keys
from appliance.sealing import keyfile
from appliance.signed import desk
from appliance.signed import publisher as signature
from tests.support.policies import valid, with_lines

KEY = bytes(range(7, 39))
HEX, BASE64 = KEY.hex().encode(), base64.b64encode(KEY)
HASH = "ab" * 32


@pytest.mark.parametrize("text", [HEX, HEX + b"\n", BASE64, BASE64 + b"\n"])
def test_spellings_of_a_key(text: bytes) -> None:
    """Hex or base64, with or without one line feed."""
    assert KEY == keydocument.decode(bytearray(text), "here")


@pytest.mark.parametrize("text", [
    b"", b"\n", KEY, HEX[:-1], HEX + b"0", HEX + b"\n\n", HEX + b"\r\n", b" " + HEX, HEX.upper(), b"0x" + HEX[2:],
    BASE64[:-1], BASE64[:-1] + b"A", BASE64[:-2] + b"+=", base64.urlsafe_b64encode(b"\xff" * 32), BASE64 + b"=",
    HEX[:-1] + b"\xff"])
def test_other_spellings_are_refused(text: bytes) -> None:
    """One key has two spellings and no more; the error does not repeat the text."""
    with pytest.raises(ModelKeyError) as caught:
        keydocument.decode(bytearray(text), "here")
    assert text[:8].decode("latin-1").strip() not in caught.value.summary or len(text) < 8


def test_key_files(tmp_path: Path) -> None:
    """A new key file is random, private, never overwrites; one that others may read is refused."""
    path = tmp_path / "key"
    keyfile.make(path)
    assert 0o600 == path.stat().st_mode & 0o777
    with keys.FileKey(path).key() as key:
        assert path.read_text() == key.data.hex() + "\n"
    with pytest.raises(ModelKeyError, match="cannot be made: File exists\n  hint: name a file that is not there yet"):
        keyfile.make(path)
    keyfile.make(tmp_path / "other")
    assert path.read_bytes() != (tmp_path / "other").read_bytes()
    for mode in (0o604, 0o640, 0o660, 0o644):
        path.chmod(mode)
        with pytest.raises(ModelKeyError, match=f"has mode {mode:04o}"):
            keys.FileKey(path).key()
    with pytest.raises(ModelKeyError, match="cannot be opened: No such file"):
        keys.FileKey(tmp_path / "none").key()
    with pytest.raises(ModelKeyError, match="is not a regular file"):
        keys.FileKey(tmp_path).key()


NO_ROOM = """
import resource, signal, sys
from appliance.cli.main import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
sys.exit(main(["model", "key", sys.argv[1]]))
"""


@pytest.mark.parametrize("room", [0, 20])
def test_a_key_that_does_not_fit_leaves_no_file(room: int, tmp_path: Path) -> None:
    """Where there is no room for a whole key there is none: not an empty file, and not half of one."""
    done = subprocess.run([sys.executable, "-c", NO_ROOM, tmp_path / "key", str(room)], capture_output=True, text=True,
                          check=False, timeout=600)
    assert (2, True) == (done.returncode, f"{tmp_path}/key cannot be made" in done.stderr), done
    assert [] == list(tmp_path.iterdir())


def test_a_name_that_the_terminal_cannot_show(tmp_path: Path) -> None:
    """A file's name need not be text: what was done is reported all the same, with escapes, and exits with 0."""
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run([sys.executable, "-m", "appliance", "model", "key", b"k\xff.key"], cwd=tmp_path,
                          env=environment, capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)
    assert done.stdout.startswith("k\\udcff.key: a new key.")
    assert ["k\udcff.key"] == [found.name for found in tmp_path.iterdir()]


def test_zeros_are_no_key(tmp_path: Path) -> None:
    """A key of zeros is what a wiped or a forgotten key looks like."""
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_text("00" * 32)
    with pytest.raises(ModelKeyError, match="all zero"):
        keys.FileKey(path).key()


def test_secrets_are_wiped() -> None:
    """At the end of its block a secret is zeros, in its own memory, and says so; its repr shows nothing."""
    data = bytearray(KEY)
    with keys.Secret(data) as secret:
        assert data is secret.data
        assert "Secret(...)" == repr(secret)
    assert bytes(32) == data
    with pytest.raises(ModelKeyError, match="was wiped"):
        _ = secret.data
    derived = Keys(KEY, bytes(32), b"")
    assert "Keys(...)" == repr(derived)
    tiles = derived.tiles
    derived.wipe()
    assert bytes(32) == tiles == derived.header


def test_environment_and_credentials(tmp_path: Path) -> None:
    """The other two providers for development, and what they say when there is no key."""
    with keys.EnvironmentKey("MODEL_KEY", {b"MODEL_KEY": HEX}).key() as secret:
        assert KEY == secret.data
    with pytest.raises(ModelKeyError, match="MODEL_KEY is not set"):
        keys.EnvironmentKey("MODEL_KEY", {}).key()
    (tmp_path / "model").write_bytes(BASE64)
    (tmp_path / "model").chmod(0o400)
    with keys.CredentialKey("model", {"CREDENTIALS_DIRECTORY": str(tmp_path)}).key() as secret:
        assert KEY == secret.data
    with pytest.raises(ModelKeyError, match="systemd passed no credentials"):
        keys.CredentialKey("model", {}).key()
    with pytest.raises(ModelKeyError, match="is no name"):
        keys.CredentialKey("../model", {"CREDENTIALS_DIRECTORY": str(tmp_path / "x")}).key()


def test_release_by_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy's providers are asked, environment variables are removed; one failure leaves no key, by name."""
    (tmp_path / "key").write_bytes(HEX)
    (tmp_path / "key").chmod(0o600)
    pinned = f'sealed_header_sha256 = "{HASH}"\n'
    by_file = valid(with_lines("model", f'{pinned}key {{\n provider = "file"\n path = "{tmp_path}/key"\n}}')).models
    by_variable = valid(with_lines("model", pinned + 'key {\n provider = "environment"\n variable = "K"\n}')).models
    plain = valid(with_lines("model", "")).models
    assert {} == modelkeys.release(plain)
    keys = modelkeys.release(by_file)
    assert KEY == keys["demo"].data
    monkeypatch.setenv("K", HEX.decode())
    keys = modelkeys.release(by_variable)
    assert KEY == keys["demo"].data
    with pytest.raises(ModelKeyError, match="model demo: the environment variable K is not set"):
        modelkeys.release([*by_file, *by_variable])
    by_broker = by_file[0].model_copy(update={"key": by_file[0].key.model_copy(update={"provider": "tpm"})}
                                      if by_file[0].key else {})
    with pytest.raises(ModelKeyError, match="key provider 'tpm' is not in this version"):
        modelkeys.release([by_broker])


def test_signatures() -> None:
    """A publisher signs the pins; another key, pin or header is refused, and either form serves a sealed model."""
    sha256, header = bytes(32), b"\1" * 32
    text = f"appliance/model-signature/1\nsha256 {'00' * 32}\nsealed_header_sha256 {'01' * 32}\n".encode()
    expected = Ed25519PrivateKey.from_private_bytes(KEY).sign(text)
    public, made = desk.sign_model(KEY, sha256, header)
    assert expected == made
    signature.check(public, made, sha256, header)
    plain = desk.sign_model(KEY, sha256)[1]
    signature.check(public, plain, sha256)
    signature.check(public, plain, sha256, header)
    refused = [(public, made, sha256, None), (public, made, sha256, sha256), (public, made, header, header),
               (public, plain, header, None), (desk.sign_model(HEX[:32], sha256)[0], made, sha256, header),
               (public, made[:63], sha256, header), (public, b"", sha256, header), (bytes(32), bytes(64), sha256, None)]
    for case in refused:
        with pytest.raises(PinError, match="signature does not verify"):
            signature.check(*case)
