"""Keys that lie wrapped: by a file, by a token, by Vault. Each form is opened here by plain AES-GCM, too."""

from __future__ import annotations

import base64
import json
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from appliance.errors import ModelKeyError
from examples.broker import __main__ as command
from examples.broker.config import wrappers
from examples.broker.keepers.pkcs11 import TokenWrapper
from examples.broker.keepers.wrapping import FileWrapper, WrappedKey
from examples.broker.rules import ConfigError
from examples.broker.server import _RefusedError
from tests.project.test_key_broker import CONFIG, KEY, Deployment, Snp
from tests.support import softhsm, transit
from tests.support.brokers import Authority

KEK = bytes(range(100, 132))
CONTEXT = b'{"format":"appliance/wrapped-key/v1","resource":"acme/production/model","version":4,"wrapping":"%s"}'


def _deployed(folder: Path, wrapping: str) -> Deployment:
    """A broker whose one key is not yet wrapped, and that knows a wrapping key."""
    head, release, rules = CONFIG.partition("[[release]]")
    text = f"{head}{wrapping}\n{release}{rules}".replace(
        'key_file = "model.key"', 'key_file = "model.wrapped"\nwrapped_by = "team"')
    return Deployment(folder, config=text)


def _wrap(folder: Path, *, resource: str = "acme/production/model") -> int:
    return command.main(["wrap", str(folder / "broker.toml"), "--by", "team", "--resource", resource, "--key",
                         str(folder / "model.key"), "--key-version", "4", "-o", str(folder / "model.wrapped")])


def _private(path: Path, text: str) -> None:
    path.touch(0o600)
    path.write_text(text)


def _ciphertext(folder: Path) -> str:
    found = json.loads((folder / "model.wrapped").read_text())
    assert {"ciphertext", "format", "version", "wrapping"} == set(found)
    return str(found["ciphertext"])


def _releases(deployment: Deployment) -> None:
    assert KEY == deployment.ask(deployment.broker(), Snp(deployment.policy.digest), "snp")


FILE = '[wrapping.team]\nkind = "file"\nkey_file = "kek.key"\n'


def test_a_key_that_a_file_wraps(tmp_path: Path) -> None:
    """The broker releases it; HKDF and AES-GCM open it here; another wrapping key, a changed byte or a changed version
    do not."""
    deployment = _deployed(tmp_path, FILE)
    _private(tmp_path / "kek.key", KEK.hex())
    assert 0 == _wrap(tmp_path)
    (tmp_path / "model.key").unlink()
    _releases(deployment)
    raw = base64.b64decode(_ciphertext(tmp_path))
    key = HKDF(SHA256(), 32, raw[:32], b"appliance/wrapped-key/v1 file").derive(KEK)
    assert KEY == AESGCM(key).decrypt(bytes(12), raw[32:], CONTEXT % b"file")
    (tmp_path / "kek.key").write_text(bytes(32 * [9]).hex())
    with pytest.raises(ConfigError, match="did not wrap it for this resource, or it was altered"):
        deployment.broker()


def test_each_wrapped_key_has_a_salt_of_its_own(tmp_path: Path) -> None:
    """One key that is wrapped twice has two salts, and two ciphertexts."""
    _deployed(tmp_path, FILE)
    _private(tmp_path / "kek.key", KEK.hex())
    made = []
    for _ in range(2):
        assert 0 == _wrap(tmp_path)
        raw = base64.b64decode(_ciphertext(tmp_path))
        made += [raw[:32], raw[32:]]
    assert 4 == len(set(made))


def _changed(**members: Any) -> Callable[[str], str]:
    return lambda text: json.dumps({**json.loads(text), **members})


@pytest.mark.parametrize(("change", "words"), [
    (_changed(version=5), "the key has version 5, not 4"), (_changed(wrapping="vault"), "wrapped by 'vault'"),
    (_changed(more=1), "not a wrapped key"), (_changed(format="appliance/wrapped-key/v2"), "not a wrapped key"),
    (_changed(ciphertext="AAAA"), "not 80 bytes in base64"), (_changed(ciphertext=7), "not a wrapped key"),
    (lambda text: "x" * 5000, "not a wrapped key"),
    (lambda text: text.replace('"ciphertext":"', '"ciphertext":"A', 1)[:-2], "not a wrapped key"),
])
def test_wrapped_keys_that_are_not_as_they_were(tmp_path: Path, change: Callable[[str], str], words: str) -> None:
    """The broker does not start, and says what is wrong with which file."""
    deployment = _deployed(tmp_path, FILE)
    _private(tmp_path / "kek.key", KEK.hex())
    assert 0 == _wrap(tmp_path)
    path = tmp_path / "model.wrapped"
    path.write_text(change(path.read_text()))
    with pytest.raises(ConfigError) as caught:
        deployment.broker()
    assert words in str(caught.value)


def test_a_version_is_part_of_what_is_sealed(tmp_path: Path) -> None:
    """A file and its rule that both say another version than the key was wrapped with open nothing."""
    deployment = _deployed(tmp_path, FILE)
    _private(tmp_path / "kek.key", KEK.hex())
    assert 0 == _wrap(tmp_path)
    path, config = tmp_path / "model.wrapped", tmp_path / "broker.toml"
    path.write_text(_changed(version=5)(path.read_text()))
    config.write_text(config.read_text().replace("version = 4", "version = 5"))
    with pytest.raises(ConfigError, match="did not wrap it for this resource, or it was altered"):
        deployment.broker()


def test_a_resource_is_part_of_what_is_sealed(tmp_path: Path) -> None:
    """A file that was wrapped for another resource, and is copied to where the rule looks, opens nothing there."""
    deployment = _deployed(tmp_path, FILE)
    _private(tmp_path / "kek.key", KEK.hex())
    assert 0 == _wrap(tmp_path, resource="default/key/production")
    with pytest.raises(ConfigError, match="did not wrap it for this resource"):
        deployment.broker()
    config = tmp_path / "broker.toml"
    config.write_text(config.read_text().replace('"acme/production/model"', '"default/key/production"'))
    deployment.broker()


WRONG: list[tuple[str, str]] = [
    ('[wrapping.team]\nkind = "hsm"\n', "allowed: file, pkcs11, vault"),
    ('[wrapping.team]\nkind = "file"\nkey_file = "kek.key"\nmore = 1\n', "more: not known here"),
    ('[wrapping.other]\nkind = "file"\nkey_file = "kek.key"\n', "wrapped_by is 'team'; there are: other"),
    ('[wrapping]\nteam = 1\n', "wrapping team is not a table"),
    ('[wrapping.team]\nkind = "vault"\nurl = "http://vault.example.org"\nkey = "k"\ntoken_file = "t"\n',
     "https:// with `ca`, or http:// to this machine"),
    ('[wrapping.team]\nkind = "vault"\nurl = "http://127.0.0.1"\nkey = "a b"\ntoken_file = "t"\n', "mount or key"),
]


@pytest.mark.parametrize(("wrapping", "words"), WRONG)
def test_wrapping_keys_that_cannot_be(tmp_path: Path, wrapping: str, words: str) -> None:
    """A kind, a member or an address that is not allowed: the error says what is."""
    deployment = _deployed(tmp_path, wrapping)
    with pytest.raises(ConfigError) as caught:
        deployment.broker()
    assert words in str(caught.value)


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[transit.Transit]:
    """Vault over TLS under an authority of its own."""
    (tmp_path / "vault").mkdir()
    authority = Authority("vault")
    authority.write(tmp_path / "vault")
    (tmp_path / "vault-ca.pem").write_bytes(authority.chain().split(b"-----END CERTIFICATE-----\n")[1]
                                            + b"-----END CERTIFICATE-----\n")
    with transit.running(tmp_path / "vault") as served:
        yield served


def _vaulted(folder: Path, served: transit.Transit) -> Deployment:
    _private(folder / "vault.token", transit.TOKEN + "\n")
    return _deployed(folder, f"""[wrapping.team]
kind       = "vault"
url        = "https://127.0.0.1:{served.server_address[1]}"
ca         = "vault-ca.pem"
key        = "models"
token_file = "vault.token"
""")


def test_a_key_that_vault_wraps(tmp_path: Path, vault: transit.Transit, capsys: pytest.CaptureFixture[str]) -> None:
    """It is unwrapped for each release. A token that Vault revokes, or a Vault that is sealed, ends releases: the asker
    learns nothing, and the broker's log says why."""
    deployment = _vaulted(tmp_path, vault)
    assert 0 == _wrap(tmp_path)
    raw = base64.b64decode(_ciphertext(tmp_path).removeprefix("vault:v1:"))
    assert KEY == vault.cipher.decrypt(raw[:12], raw[12:], CONTEXT % b"vault")
    broker = deployment.broker()
    for _ in range(2):
        assert KEY == deployment.ask(broker, Snp(deployment.policy.digest), "snp")
    assert ["encrypt", *["decrypt"] * 3] == [each.split("/")[3] for each in vault.asked]
    for change, words in ((lambda: vault.tokens.clear(), "HTTP status 403: ['permission denied']"),
                          (lambda: setattr(vault, "sealed", True), "HTTP status 503: ['Vault is sealed']")):
        change()
        with pytest.raises(_RefusedError) as caught:
            deployment.ask(broker, Snp(deployment.policy.digest), "snp")
        assert 503 == caught.value.status
        assert "the key cannot be had now; the broker's log says why" == caught.value.detail
        assert words in deployment.reason()
    assert 2 == _wrap(tmp_path)
    assert "Vault is sealed" in capsys.readouterr().err


def test_a_vault_of_another_authority_is_not_asked(tmp_path: Path, vault: transit.Transit) -> None:
    """The token does not leave: nothing is sent to a server whose certificate does not lead to `ca`."""
    deployment = _vaulted(tmp_path, vault)
    assert 0 == _wrap(tmp_path)
    vault.asked.clear()
    (tmp_path / "vault-ca.pem").write_bytes(Authority("stranger").chain())
    with pytest.raises(ConfigError, match="lead to `ca`"):
        deployment.broker()
    assert [] == vault.asked


def test_a_token_file_that_others_may_read(tmp_path: Path, vault: transit.Transit) -> None:
    """It is refused, with the command that mends it."""
    _vaulted(tmp_path, vault)
    (tmp_path / "vault.token").chmod(0o644)
    assert 2 == _wrap(tmp_path)
    assert [] == vault.asked


TOKEN = f"""[wrapping.team]
kind     = "pkcs11"
module   = "%s"
token    = "{softhsm.TOKEN}"
key      = "kek"
pin_file = "pin"
"""


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The library of a token with the wrapping key. SoftHSM reads its configuration once a process."""
    library, folder = softhsm.module(), tmp_path_factory.mktemp("token")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTHSM2_CONF", str(softhsm.configure(folder)))
        softhsm.make(folder, kek=KEK)
        yield library


def _with_token(folder: Path, library: Path) -> Deployment:
    _private(folder / "pin", softhsm.PIN + "\n")
    deployment = _deployed(folder, TOKEN % library)
    assert 0 == _wrap(folder)
    return deployment


def test_a_key_that_a_token_wraps(tmp_path: Path, token: Path) -> None:
    """The token encrypts and decrypts; AES-GCM under the key that it was given opens the file here."""
    deployment = _with_token(tmp_path, token)
    raw = base64.b64decode(_ciphertext(tmp_path))
    assert KEY == AESGCM(KEK).decrypt(raw[:12], raw[12:], CONTEXT % b"pkcs11")
    _releases(deployment)


def test_tokens_that_are_not_as_the_configuration_says(tmp_path: Path, token: Path) -> None:
    """Another label, another token, no library, an altered file, a wrong PIN: the error says which."""
    _with_token(tmp_path, token)
    path = tmp_path / "model.wrapped"
    raw = base64.b64decode(_ciphertext(tmp_path))
    altered = base64.b64encode(raw[:20] + bytes([raw[20] ^ 1]) + raw[21:]).decode()

    def said(**changes: str) -> str:
        given = {"token": softhsm.TOKEN, "key": "kek", "module": str(token), **changes}
        wrapper = TokenWrapper(Path(given["module"]), given["token"], given["key"], tmp_path / "pin")
        with pytest.raises(ModelKeyError) as caught:
            WrappedKey(path, "acme/production/model", 4, wrapper).key()
        return str(caught.value)

    assert "no secret key of this label" in said(key="other")
    assert "no token of this label" in said(token="another")
    assert "name the library of the token" in said(module=str(tmp_path / "none.so"))
    path.write_text(_changed(ciphertext=altered)(path.read_text()))
    assert "C_Decrypt: " in said()
    (tmp_path / "pin").write_text("000000")
    assert "C_Login: CKR_PIN_INCORRECT" in said()


def test_errors_of_a_token_are_not_those_of_tls(tmp_path: Path, token: Path) -> None:
    """Both use OpenSSL, which keeps errors by thread: each use of a token is in a thread that then ends."""
    deployment = _with_token(tmp_path, token)
    wrapper, threads = wrappers(tmp_path / "broker.toml")["team"], set[int]()
    assert isinstance(wrapper, TokenWrapper)
    called = wrapper._tried

    def noted(*given: Any) -> bytearray:
        threads.add(threading.get_native_id())
        return called(*given)

    wrapper._tried = noted  # type: ignore[method-assign]
    assert KEY == bytes(WrappedKey(tmp_path / "model.wrapped", "acme/production/model", 4, wrapper).key().data)
    assert threads
    assert not threads & {each.native_id for each in threading.enumerate()}
    _releases(deployment)


def test_a_wrong_pin_is_tried_once(tmp_path: Path, token: Path) -> None:
    """However many ask for keys: the token would lock itself otherwise."""
    _with_token(tmp_path, token)
    (tmp_path / "pin").write_text("000000")
    team = wrappers(tmp_path / "broker.toml")["team"]
    provider = WrappedKey(tmp_path / "model.wrapped", "acme/production/model", 4, team)
    for words in ("CKR_PIN_INCORRECT", *["is not tried again"] * 11):
        with pytest.raises(ModelKeyError, match=words):
            provider.key()


def test_a_wrong_pin_is_tried_once_by_several_at_once(tmp_path: Path, token: Path) -> None:
    """Five threads: one learns that the PIN is wrong, and the others that it is not tried again."""
    _with_token(tmp_path, token)
    (tmp_path / "pin").write_text("000000")
    team, said = wrappers(tmp_path / "broker.toml")["team"], list[str]()
    provider, ready = WrappedKey(tmp_path / "model.wrapped", "acme/production/model", 4, team), threading.Barrier(5)

    def ask() -> None:
        ready.wait()
        with pytest.raises(ModelKeyError) as caught:
            provider.key()
        said.append(str(caught.value))

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [1, 4] == [sum(words in each for each in said) for words in ("CKR_PIN_INCORRECT", "is not tried again")]


def test_random_files_are_no_wrapped_keys(tmp_path: Path) -> None:
    """Bytes that are not a wrapped key raise nothing but the error that says so."""
    _private(tmp_path / "kek.key", KEK.hex())
    path = tmp_path / "model.wrapped"
    for size in (0, 1, 200, 4097):
        path.write_bytes(secrets.token_bytes(size))
        with pytest.raises(ModelKeyError, match="not a wrapped key"):
            WrappedKey(path, "acme/production/model", 4, FileWrapper(tmp_path / "kek.key")).key()
