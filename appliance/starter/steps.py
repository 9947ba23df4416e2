"""The next commands of a first deployment: for the terminal, and for its README."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from appliance.starter.blocks import PCRS
from appliance.starter.choices import MODEL, Choices


@dataclass(frozen=True, slots=True)
class NextStep:
    """A command, and what it is for."""

    why: str
    command: str
    stays: bool = False  # whether it runs on, so that the next one needs another shell


class _Places:
    """The files of a deployment as the commands name them."""

    def __init__(self, folder: str) -> None:
        self._folder = folder.rstrip("/")

    def __call__(self, name: str) -> str:
        return name if self._folder in ("", ".") else f"{self._folder}/{name}"


def steps(choices: Choices, folder: str, model: str) -> list[NextStep]:
    """Return the commands from the folder that was made to a first chat. `folder`: how they name
    it, empty inside of it; `model`: the model's file in it."""
    at = _Places(folder)
    way = _serve if choices.simulated else _guest if choices.platform == "tpm" else _hardware
    return [*way(choices, at, model), _chat(choices, at)]


def _serve(_choices: Choices, at: _Places, _model: str) -> Iterator[NextStep]:
    yield NextStep("Boot by the policy and serve; the boot report says what was checked.",
                   f"appliance serve {at('deployment.hcl')} --models {at('models')} > {at('audit.jsonl')}", stays=True)


def _guest(choices: Choices, at: _Places, model: str) -> Iterator[NextStep]:
    yield NextStep("Build the image, and predict what a TPM measures of it.",
                   f"appliance image build {at('deployment.hcl')} -o {at('image')} --here")
    if choices.key == "tpm":
        yield NextStep("Make a software TPM, and give it the model's key for this image under this policy.",
                       f"appliance model tpm-seal {at('models/' + model)} --key {at('keys/model.key')} --key-version 1 "
                       f"--pcrs {','.join(map(str, PCRS))} --measurements {at('image/measurements.json')} "
                       f"--policy {at('deployment.hcl')} --tpm-state {at('tpm')}")
    else:
        yield NextStep("Make a software TPM, and the authority that certifies it.", f"appliance image tpm {at('tpm')}")
    if choices.key == "broker":
        yield NextStep("Start the key broker.", _broker(at), stays=True)
    broker = f" --broker 127.0.0.1:{choices.broker.rpartition(':')[2]}" if choices.key == "broker" else ""
    yield NextStep("Boot it under QEMU.",
                   f"appliance image boot {at('image')} --models {at('models')} --add {at('tenants.json')} "
                   f"--tpm-state {at('tpm')} --port 8443{broker}", stays=True)
    yield NextStep("Verify it, and open a local port that leads only to what was verified.",
                   f"appliance connect https://127.0.0.1:8443 --policy {at('deployment.hcl')} "
                   f"--measurements {at('image/measurements.json')} --measurements-unsigned "
                   f"--ek-roots {at('tpm/authority')} --accept host-trusted --listen 127.0.0.1:{choices.port}",
                   stays=True)


def _hardware(choices: Choices, at: _Places, _model: str) -> Iterator[NextStep]:
    guide = f"docs/guides/{choices.platform}.md"
    yield NextStep("Build the image.", f"appliance image build {at('deployment.hcl')} -o {at('image')}")
    yield NextStep(f"Predict what the hardware measures; {guide} says where the firmware comes from.",
                   f"appliance image predict {at('image')} --firmware OVMF.fd")
    if choices.key == "broker":
        yield NextStep("Start the key broker, on a machine that you trust.", _broker(at), stays=True)
    yield NextStep(f"Boot it on a machine with {choices.platform}: {guide}.",
                   f"appliance image boot {at('image')} --models {at('models')} --add {at('tenants.json')} "
                   "--port 8443", stays=True)
    yield NextStep("Verify it, and open a local port that leads only to what was verified.",
                   f"appliance connect https://127.0.0.1:8443 --policy {at('deployment.hcl')} "
                   f"--measurements {at('image/measurements.json')} --measurements-unsigned "
                   f"--collateral {at('collateral')} --listen 127.0.0.1:{choices.port}", stays=True)


def _broker(at: _Places) -> str:
    root = Path(__file__).parents[2]
    checkout = root if (root / "examples/broker").is_dir() else "CHECKOUT"
    return f"PYTHONPATH={checkout} python -m examples.broker {at('broker.toml')}"


def _chat(choices: Choices, at: _Places) -> NextStep:
    body = f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "Name three rivers."}}]}}'
    return NextStep("The first chat.",
                    f"curl -s http://127.0.0.1:{choices.port}/v1/chat/completions -H 'content-type: application/json' "
                    f"-H \"authorization: Bearer $(cat {at(f'keys/{choices.chatting.name}.api-key')})\" -d '{body}'")


_README = """# {name}

A deployment of the appliance on the platform `{platform}`, made by `appliance init`. Run the commands in this
folder, with `appliance` and its Python on the path: `export PATH={programs}:$PATH`.

{commands}## What is here

| file | what it is |
|---|---|
{files}
`appliance doctor deployment.hcl` says what this machine lacks for it. `appliance explain FIELD` and
`appliance explain CODE` say what a field or an error means. After a change, run `appliance check deployment.hcl`.
Another policy is another digest: build the image again{resealed}, and give the new policy to your clients.
"""


def readme(choices: Choices, model: str, files: dict[str, str]) -> str:
    """Return the README of the folder; `files` says what each file is."""
    commands = "".join(
        f"{number}. {each.why}{' It runs on: go on in another shell.' if each.stays else ''}\n\n"
        f"   ```sh\n   {each.command}\n   ```\n\n" for number, each in enumerate(steps(choices, "", model), 1))
    return _README.format(
        name=choices.name, platform=choices.platform, commands=commands, programs=Path(sys.executable).parent,
        files="".join(f"| `{name}` | {what} |\n" for name, what in files.items()),
        resealed=", seal the key to it" if choices.key == "tpm" else "")
