"""Keys of sealed models, and publishers' signatures, as the policy names them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from appliance import isolated
from appliance.codec.regularfile import open_file
from appliance.errors import ModelKeyError, PinError
from appliance.keys.providers import CredentialKey, EnvironmentKey, FileKey, KeyProvider, Secret
from appliance.policy.schema import Model, Policy
from appliance.policy.schema.keys import KeySource
from appliance.policy.schema.model import Publisher
from appliance.signed import bundle, publisher

_PROVIDERS: Mapping[str, Callable[[KeySource], KeyProvider]] = {
    "file": lambda key: FileKey(Path(key.path or ""), key.version),
    "environment": lambda key: EnvironmentKey(key.variable or "", version=key.version),
    "systemd-credential": lambda key: CredentialKey(key.credential or "", version=key.version),
}


STATE = "state"


def keys_of(policy: Policy) -> dict[str, KeySource]:
    """Every key that the policy names, by what needs it, as diagnostics call it."""
    found = {f"model {model.name}": model.key for model in policy.models if model.key is not None}
    return found if policy.state is None else {**found, STATE: policy.state.key}


def provider(key: KeySource) -> KeyProvider:
    """The provider of this key. ModelKeyError for a provider that this version does not have."""
    if key.provider not in _PROVIDERS:
        raise ModelKeyError(f"key provider {key.provider!r} is not in this version; there are: "
                            f"{', '.join(sorted(_PROVIDERS))}")
    return _PROVIDERS[key.provider](key)


def key_files(files: Mapping[str, Path]) -> dict[str, Path]:
    """The file that each key opens, named as `keys_of` does; `files` by the model's name."""
    return {f"model {name}": path for name, path in files.items()}


def release(models: Iterable[Model], fetched: Mapping[str, Secret] | None = None) -> dict[str, Secret]:
    """The key of each sealed model, by the model's name; the caller wipes them. `fetched`: what
    brokers and the TPM released, named as `keys_of` does.

    ModelKeyError, which names the model, for the first that cannot be had; then none is left.
    Environment variables that held keys are removed."""
    models = tuple(models)
    keys: dict[str, Secret] = {}
    try:
        for model in models:
            if model.key is not None:
                keys[model.name] = (fetched or {}).get(f"model {model.name}") or _released(model, model.key)
    except BaseException:
        wipe(keys)
        wipe(fetched or {})
        raise
    finally:
        for model in models:
            if model.key is not None and model.key.variable is not None:
                isolated.forget(model.key.variable)
    return keys


def state_key(policy: Policy, fetched: Mapping[str, Secret] | None = None) -> Secret | None:
    """The key of the state disk, if the policy has one; an ephemeral one is made here. The caller
    wipes it. ModelKeyError when it cannot be had."""
    if policy.state is None:
        return None
    key = policy.state.key
    if key.provider == "ephemeral":
        return Secret.random()
    try:
        return (fetched or {}).get(STATE) or _from(STATE, key)
    finally:
        if key.variable is not None:
            isolated.forget(key.variable)


def _released(model: Model, key: KeySource) -> Secret:
    return _from(f"model {model.name}", key)


def _from(name: str, key: KeySource) -> Secret:
    try:
        return provider(key).key()
    except ModelKeyError as error:
        raise ModelKeyError(f"{name}: {error.summary}", hint=error.hint, code=error.code) from None


def wipe(keys: Mapping[str, Secret]) -> None:
    """Overwrite all of them."""
    for key in keys.values():
        key.wipe()


def check_publisher(who: Publisher, sha256: bytes, header_sha256: bytes | None, model: Path,
                    shards: Sequence[bytes] = ()) -> None:
    """PinError unless the publisher signed the pins: by a signature in the policy, or by a bundle
    beside the model's file, which has each of its `shards`. A signature that the policy does not
    give never verifies."""
    if who.bundle is not None:
        data = _bundle(bundle_path(who, model))
        for digest in shards or (sha256,):
            bundle.check(data, who.public_key, digest, root_sha256=who.root_sha256,
                         identity=who.identity)
        return
    given = (who.signature or "").removeprefix("ed25519:")
    publisher.check(bytes.fromhex(who.public_key.removeprefix("ed25519:")), bytes.fromhex(given), sha256,
                    header_sha256)


def bundle_path(who: Publisher, model: Path) -> Path:
    """The file of a publisher's bundle: beside the model's."""
    return model.parent / (who.bundle or "")


def bundles(models: Iterable[Model], files: Mapping[str, Path]) -> list[Path]:
    """The bundles that models will be checked by; `files` by the model's name."""
    return [bundle_path(model.publisher, files[model.name]) for model in models
            if model.publisher is not None and model.publisher.bundle is not None]


def _bundle(path: Path) -> bytes:
    try:
        descriptor, _ = open_file(path)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(bundle.MAX_BYTES + 1)
    except OSError as error:
        raise PinError(f"the publisher's bundle {path}: {error.strerror}", code="model-signature",
                       hint="put it beside the model's file") from None
