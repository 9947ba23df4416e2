"""The folder of a first deployment: keys, the model, the tenant list, the policy, a README."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from appliance.attestation import keyfile
from appliance.boot.planning import advice, forecast, inspection
from appliance.errors import PolicyError
from appliance.keys import providers
from appliance.models.file import shards
from appliance.platforms import TPM
from appliance.policy import apikey
from appliance.policy.explaining import checking
from appliance.policy.explaining.checking import CheckResult
from appliance.policy.hcl.diagnostics import InvalidPolicyError
from appliance.sealing import digests, sealing
from appliance.sealing import keyfile as modelkey
from appliance.signed import desk
from appliance.starter import authority, steps, text
from appliance.starter.choices import MODEL, Choices
from appliance.starter.facts import KeyFacts, ModelFacts

Progress = Callable[[str, int, int], None]
POLICY = "deployment.hcl"
_SECRET = 0o600
_BROKER = """# The reference broker's rules: examples/broker/README.md. From the root of the checkout:
#     python -m examples.broker {place}

host        = "127.0.0.1"
port        = {port}
certificate = "keys/broker.pem"
private_key = "keys/broker.key"

[[release]]
resource     = "default/key/{name}"
key_file     = "keys/model.key"
version      = 1
policy       = "deployment.hcl"
platforms    = ["{platform}"]
measurements = "image/measurements.json"
{trust}
"""
_TRUST = 'host_trusted = true\nek_roots     = "tpm/authority"'
_COLLATERAL = 'collateral   = "collateral" # what `appliance collateral fetch` got'


@dataclass(frozen=True, slots=True)
class Made:
    """The outcome: the folder, the model's file in it, and what each file is."""

    folder: Path
    model: str
    files: dict[str, str]
    checked: CheckResult


def make(choices: Choices, folder: Path, progress: Progress | None = None) -> Made:
    """Make the folder, once the policy is known to be valid. Raises PolicyError if the folder has
    files, or for choices that no policy allows, and ModelError for the model."""
    facts = _looked_at(choices)
    _check(choices, facts)
    with _new(folder):
        files = dict[str, str]()
        keys = _keys(choices, folder, files)
        facts = _placed(choices, facts, folder, progress)
        files[f"models/{facts.file}"] = "the model, encrypted" if choices.sealed else "the model"
        data = text.policy(choices, facts, keys).encode()
        keyfile.write_whole(folder / POLICY, data)
        keyfile.write_whole(folder / ".gitignore", b"keys/\nmodels/\nimage/\ntpm/\naudit.jsonl\n")
        files = {POLICY: "the policy: what runs, for whom and how"} | files
        keyfile.write_whole(folder / "README.md", steps.readme(choices, facts.file, files).encode())
    return Made(folder, facts.file, files | {"README.md": "the next commands"},
                checking.check_file(folder / POLICY))


@contextmanager
def _new(folder: Path) -> Iterator[None]:
    """Make a folder that is not there, or is empty. A failure leaves nothing in it."""
    there = folder.is_dir()
    if there and any(folder.iterdir()):
        raise PolicyError(f"{folder} has files already", code="file-exists",
                          hint="name another folder: appliance init DIR")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "keys").mkdir(mode=0o700)
        (folder / "models").mkdir()
    except OSError as error:
        raise PolicyError(f"{folder} cannot be made: {error.strerror}", code="file-unwritable",
                          hint="name another folder: appliance init DIR") from None
    try:
        yield
    except BaseException:
        for each in [*folder.iterdir()]:
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        if not there:
            with suppress(OSError):
                folder.rmdir()
        raise


def _looked_at(choices: Choices) -> ModelFacts:
    """Read the model's header: whether it runs here, and what the policy says of it. Digests are
    none yet."""
    found = inspection.inspect(choices.model)
    if found.sealed is not None:
        raise PolicyError(f"{choices.model} is sealed already", code="init-choice",
                          hint="name the GGUF file: --model FILE.gguf; or write its block by: appliance model pin "
                          f"{choices.model}")
    fit = forecast.of_file(choices.model)
    if fit.refusal is not None and found.chat_template:
        raise fit.refusal
    return ModelFacts(
        file=choices.model.name, sha256=_stand_in("model"),
        header_sha256=_stand_in("header") if choices.sealed else None, context=found.context_length,
        template=found.chat_template,
        sampling=advice.block(inspection.header(choices.model).metadata))


def _check(choices: Choices, facts: ModelFacts) -> None:
    """Raise InvalidPolicyError for choices that make no valid policy. Keys are stand-ins here."""
    keys = KeyFacts(authority=f"ed25519:{Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()}",
                    hashes={each.name: _stand_in(each.name) for each in choices.tenants},
                    root_sha256=_stand_in("root"), model_key="/stand-in")
    found = checking.check(text.policy(choices, facts, keys), POLICY)
    if not found.valid:
        raise InvalidPolicyError(found.diagnostics)


def _stand_in(what: str) -> str:
    return hashlib.sha256(what.encode()).hexdigest()


def _keys(choices: Choices, folder: Path, files: dict[str, str]) -> KeyFacts:
    """Make API keys, the list of tenants with its authority, and the model's key."""
    hashes = {}
    for each in choices.tenants:
        key = apikey.new()
        hashes[each.name] = apikey.sha256(key)
        keyfile.write_whole(folder / f"keys/{each.name}.api-key", key.encode() + b"\n", mode=_SECRET)
        files[f"keys/{each.name}.api-key"] = f"the API key of {each.name}, role {each.role}; give it to nobody else"
    signer = Ed25519PrivateKey.generate()
    if not choices.simulated:
        _signed_list(choices, hashes, signer, folder, files)
    if choices.sealed:
        modelkey.make(folder / "keys/model.key", None if choices.key == "file" else 1)
        files["keys/model.key"] = "the model's key; keep a copy: nothing else opens the model"
    root = _broker(choices, folder, files) if choices.key == "broker" else ""
    return KeyFacts(authority=f"ed25519:{signer.public_key().public_bytes_raw().hex()}", hashes=hashes,
                    root_sha256=root, model_key=str((folder / "keys/model.key").absolute()))


def _signed_list(choices: Choices, hashes: dict[str, str], signer: Ed25519PrivateKey, folder: Path,
                 files: dict[str, str]) -> None:
    """Write the list of tenants, plain and signed, and its authority's key."""
    listed = {"appliance": choices.name, "version": 1, "tenants": [
        {"name": each.name, "role": each.role, "models": [MODEL] if each.chats else [],
         "api_key_sha256": [hashes[each.name]]} for each in sorted(choices.tenants, key=lambda each: each.name)]}
    keyfile.write_whole(folder / "keys/authority.pem",
                        signer.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), mode=_SECRET)
    keyfile.write_whole(folder / "list.json", json.dumps(listed, indent=2).encode() + b"\n")
    keyfile.write_whole(folder / "tenants.json", desk.sign_tenants(listed, signer))
    files |= {"keys/authority.pem": "signs the list of tenants; keep it off the machines that serve",
              "list.json": "the tenants, to edit", "tenants.json": "the same, signed by the authority"}


def _placed(choices: Choices, facts: ModelFacts, folder: Path, progress: Progress | None) -> ModelFacts:
    """Seal the model into the folder, or give its file a name there; return its pins."""
    if choices.sealed:
        target = folder / "models" / f"{MODEL}.sealed"
        with providers.FileKey(folder / "keys/model.key", None if choices.key == "file" else 1).key() as key:
            done = sealing.seal(choices.model, target, key.data, progress=progress or sealing.quiet)
        return replace(facts, file=target.name, sha256=done.sha256.hex(), header_sha256=done.header_sha256.hex())
    for source in shards.files(choices.model):
        _same(source, folder / "models" / source.name)
    hashes, _ = digests.hashes_of(choices.model, None if progress is None else
                                  lambda done, total: progress("hashing", done, total))
    return replace(facts, sha256=hashes.pin.hex(), shards=tuple(each.hex() for each in hashes.shards))


def _same(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where it can have none."""
    try:
        target.hardlink_to(source.resolve())
    except OSError:
        shutil.copy(source, target)


def _broker(choices: Choices, folder: Path, files: dict[str, str]) -> str:
    """Write the broker's rules and certificates. Returns the pin of its root."""
    host, _, port = choices.broker.rpartition(":")
    made = authority.make(host)
    for name, data, mode, what in (
            ("broker.pem", made.chain, 0o644, "the broker's certificate, and the root that the policy pins"),
            ("broker.key", made.server_key, _SECRET, "the broker's private key"),
            ("broker-root.key", made.root_key, _SECRET, "the root's private key, to renew the certificate")):
        keyfile.write_whole(folder / "keys" / name, data, mode=mode)
        files[f"keys/{name}"] = what
    keyfile.write_whole(folder / "broker.toml", _BROKER.format(
        port=port, name=MODEL, platform=choices.platform, place=folder / "broker.toml",
        trust=_TRUST if choices.platform == TPM.name else _COLLATERAL).encode())
    files["broker.toml"] = "the rules of the reference broker: which image and policy get the key"
    return made.root_sha256
