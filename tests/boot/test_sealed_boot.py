"""A sealed model, booted resident by a policy on the simulated platform."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from appliance.boot.running import load as models
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.errors import ModelError, ModelKeyError, PinError
from appliance.keys import policy_keys as modelkeys
from appliance.models.catalogue import ModelFile
from appliance.policy import load
from appliance.sealing import keyfile, sealing
from appliance.signed import desk
from tests.support import forked, server
from tests.support import sealed_by_spec as spec
from tests.support.engines import kernels
from tests.support.sealed_models import KEY


class Deployment:
    """A sealed tiny model, its key file, and policies for both."""

    def __init__(self, folder: Path, plain: Path) -> None:
        self.folder, self.plain, self.sealed, self.key = folder, plain, folder / "tiny.sealed", folder / "key"
        self.key.touch(0o600)
        self.key.write_text(KEY.hex())
        self.made = sealing.seal(plain, self.sealed, KEY, tile_size=65536)

    def policy(self, more: str = "", path: Path | None = None) -> Path:
        """A policy for the sealed file."""
        pins = (f'sealed_header_sha256 = "{self.made.header_sha256.hex()}"\n'
                f'key {{\n provider = "file"\n path = "{path or self.key}"\n }}\n{more}')
        written = server.write_policy(self.folder, {"tiny": self.sealed}, model=pins)
        text = written.read_text().replace(hashlib.sha256(self.sealed.read_bytes()).hexdigest(),
                                           self.made.sha256.hex())
        written.write_text(text)
        return written


@pytest.fixture
def deployment(tmp_path: Path, tiny_model: Path) -> Deployment:
    """One for each test: some of them spoil it."""
    return Deployment(tmp_path, tiny_model)


@contextmanager
def _running(policy: Path, folder: Path) -> Iterator[models.RunningModel]:
    """The policy's model, loaded as a boot does it."""
    loaded = load(policy)
    [model] = loaded.policy.models
    released = modelkeys.release([model])
    running = models.load(model, ModelFile(folder / model.file), models.Loading(
        loaded.policy.limits, key=released.get(model.name), kernels=kernels(), threads=1))
    with closing(running):
        assert all(not any(secret._data) for secret in released.values())
        yield running


def _answer(running: models.RunningModel) -> list[str]:
    ids = tuple(running.tokenizer.encode("▁aa▁ba▁ca", add_special=True))
    request = GenerationRequest(ids, 8, Sampling(temperature=0, seed=1))
    return [step.text for step in running.engine.generate(request)]


def test_the_same_answer_as_the_plain_model(deployment: Deployment, tmp_path: Path) -> None:
    """One prompt through the sealed model gives what the plain file gives; attestation gets both digests, and the key
    is wiped before anything runs."""
    (tmp_path / "plain").mkdir()
    plain = server.write_policy(tmp_path / "plain", {"tiny": deployment.plain})
    with _running(plain, deployment.plain.parent) as running:
        expected = _answer(running)
        assert None is running.bound().sealed_header_sha256
    public, signed = desk.sign_model(KEY[::-1], deployment.made.sha256, deployment.made.header_sha256)
    vouched = f'publisher {{\n public_key = "ed25519:{public.hex()}"\n signature = "ed25519:{signed.hex()}"\n }}'
    with _running(deployment.policy(vouched), tmp_path) as running:
        assert expected == _answer(running)
        assert (deployment.made.sha256.hex(), deployment.made.header_sha256.hex()) == (
            running.bound().sha256, running.bound().sealed_header_sha256)


def _refused(policy: Path, kind: type[ModelError]) -> str:
    with pytest.raises(kind) as caught, _running(policy, policy.parent):
        pass
    return caught.value.summary


def test_refusals(deployment: Deployment, tmp_path: Path) -> None:
    """No key, another key, a readable key, another sealing, an altered tile, another publisher: no model runs."""
    assert "model tiny: the key file" in _refused(deployment.policy(path=tmp_path / "none"), ModelKeyError)
    keyfile.make(tmp_path / "other")
    assert "not the key that the model" in _refused(deployment.policy(path=tmp_path / "other"), ModelKeyError)
    vouched = f'publisher {{\n public_key = "ed25519:{"ab" * 32}"\n signature = "ed25519:{"cd" * 64}"\n }}'
    assert "publisher's signature" in _refused(deployment.policy(vouched), PinError)
    policy, body = deployment.policy(), deployment.sealed.read_bytes()
    deployment.sealed.write_bytes(body[:-5000] + bytes([body[-5000] ^ 1]) + body[-4999:])
    assert "does not authenticate" in _refused(policy, ModelError)
    deployment.sealed.unlink()
    sealing.seal(deployment.plain, deployment.sealed, KEY, tile_size=65536)
    assert hashlib.sha256(spec.header_of(deployment.sealed.read_bytes())).hexdigest() in _refused(policy, PinError)
    deployment.key.chmod(0o644)
    assert "has mode 0644" in _refused(policy, ModelKeyError)


def test_formats_are_known_before_the_key(deployment: Deployment) -> None:
    """The self-test learns from the header of a sealed file which kernels to test."""
    assert models.formats_named_by([ModelFile(deployment.plain)]) == models.formats_named_by(
        [ModelFile(deployment.sealed)])


BOOT = """
import json, sys
from appliance.boot.sequence import boot
from appliance.policy import load

def serve(booted):
    booted.ready()
    print(json.dumps([step.__dict__ for step in booted.report.steps], default=str), file=sys.stderr)
    print(booted.attest(bytes(32)).to_json(), file=sys.stderr)
    return 7

sys.exit(boot(load(sys.argv[1]), start_service=serve))
"""


@pytest.mark.slow
def test_a_boot(deployment: Deployment) -> None:
    """The boot releases the key at its step and attests both digests."""
    done = forked.run([str(deployment.policy())], dict(os.environ), program=BOOT)
    said = done.stderr
    assert 7 == done.returncode, said
    steps = {step["name"]: step for step in json.loads(said.splitlines()[0])}
    assert ("passed", "tiny") == (steps["key-release"]["verdict"], steps["key-release"]["detail"])
    assert deployment.made.header_sha256.hex() in said
