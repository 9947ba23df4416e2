"""*The first hour*, to the letter: as far as a process goes, then in a guest that boots."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from appliance.imaging.qemu.machine import FIRMWARE, Reach
from appliance.policy import load
from tests.support import guides, images
from tests.support.pages import ROOT
from tests.support.reader import Reader, Script
from tests.support.require import absent

PAGE = "first-hour.md"
DEMO = "SmolLM2-135M-Instruct.Q4_1.gguf"


def _commands() -> list[str]:
    """The commands of the first chapter, one for each block."""
    chapter = guides.section(PAGE, "apt-get install", "appliance init look")
    assert chapter[-1].startswith("curl ")
    return chapter


def _folder(tmp_path: Path, model: Path) -> Reader:
    (tmp_path / "build/models").mkdir(parents=True)
    (tmp_path / f"build/models/{DEMO}").symlink_to(model)
    return Reader(tmp_path, {"PYTHONPATH=CHECKOUT": f"PYTHONPATH={ROOT}"})


def test_eight_commands_of_which_init_prints_the_last_five(tmp_path: Path, tiny_model: Path) -> None:
    """The policy is valid, the model is sealed, and what `init` prints is what the page has."""
    commands = _commands()
    assert 8 == len(commands)
    init = commands[2]
    assert init.startswith("appliance init ")
    said = _folder(tmp_path, tiny_model).ends(init, 0, "valid, and this version boots it")
    printed = re.findall(r"^   ((?:appliance|curl) .*)$", said, re.MULTILINE)
    assert [shlex.split(each) for each in commands[3:]] == [shlex.split(each) for each in printed]
    assert ("tpm",) == load(tmp_path / "first/deployment.hcl").policy.tee.platforms
    listed = (ROOT / "docs/guides" / PAGE).read_text()
    files = re.findall(r"^\| `([^`]+)` \|", listed, re.MULTILINE)
    assert len(files) >= 5
    assert all((tmp_path / "first" / name).exists() for name in files)


def test_the_packages_are_all_that_doctor_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    """On a machine that has none of them."""
    from appliance.cli.main import main

    monkeypatch.setenv("PATH", str(tmp_path))
    assert 1 == main(["doctor", "--json"])
    install = json.loads(capsys.readouterr().out)["next"][0]
    wanted = set(shlex.split(install.partition("install ")[2]))
    assert wanted <= set(_commands()[0].split())


@pytest.mark.slow
def test_the_other_chapters(tmp_path: Path, tiny_model: Path) -> None:
    """A simulated deployment lacks nothing by `doctor`; a broker's has its files; what is explained is known; and
    completions are written."""
    reader, script = _folder(tmp_path, tiny_model), Script(PAGE)
    script.until("appliance init look")
    said = reader.ends(script.next("appliance init look"), 0)
    assert f"appliance {script.next('appliance serve').partition(' ')[2]}" in said
    reader.ends(script.next("appliance init kept"), 0)
    kept = script.until("appliance doctor")
    assert all((tmp_path / name).is_file() for name in ("kept/broker.toml", "kept/keys/broker.pem"))
    assert any(each.startswith("python -m examples.broker kept/broker.toml") for each in kept)
    assert reader.types(script.next("appliance doctor")).returncode in (0, 1)
    reader.ends(script.next("appliance doctor first").replace("first", "look"), 0)
    reader.ends(script.next("appliance explain tee.platforms"), 0, "carried out by")
    reader.ends(script.next("appliance explain tpm-pcrs"), 0, "appliance model tpm-seal")
    reader.environment["HOME"] = str(tmp_path)
    (tmp_path / ".local/share/bash-completion/completions").mkdir(parents=True)
    (tmp_path / ".config/fish/completions").mkdir(parents=True)
    for command in script.left:
        reader.ends(command, 0)
    assert (tmp_path / ".local/share/man/man1/appliance-init.1").is_file()


def _needed() -> None:
    images.need("qemu-system-x86_64", "mkfs.erofs", "swtpm", "swtpm_setup", "curl")
    if not FIRMWARE[0].is_file() or not (images.MODELS / DEMO).is_file():
        absent("OVMF and the demo model: install ovmf; run `make demo`")


def _guests(tmp_path: Path) -> Reader:
    """A folder for images with the kernels of emulated guests only: those of this CPU are compiled for minutes."""
    reader = _folder(tmp_path, images.MODELS / DEMO)
    for target in images.TARGETS:
        images.libraries.library(target)
        reader.added["appliance image build"] = f"--target {target}"
    return reader


@pytest.mark.guests
@pytest.mark.soak
@pytest.mark.timeout(5400)
def test_from_init_to_a_chat_with_a_guest(tmp_path: Path) -> None:
    """The first chapter behind its installation: a sealed model, an image, a TPM, a verdict and an answer."""
    _needed()
    reader = _guests(tmp_path)
    local, port = images.free_port(), images.free_port()
    reader.places |= {"--port 8443": f"--port {port}", "https://127.0.0.1:8443": f"https://127.0.0.1:{port}",
                      "127.0.0.1:8080": f"127.0.0.1:{local}", '"model": "chat"': '"model": "chat", "max_tokens": 4'}
    init, build, seal, boot, connect, chat = _commands()[2:]
    for command in (init, build, seal):
        reader.ends(command, 0)
    with reader.keeps(boot, "ready on"), reader.keeps(connect, "ready: http"):
        answer = json.loads(reader.types(chat).stdout)
    assert "assistant" == answer["choices"][0]["message"]["role"]


@pytest.mark.guests
@pytest.mark.soak
@pytest.mark.timeout(5400)
def test_a_broker_gives_the_key_to_a_guest(tmp_path: Path) -> None:
    """The chapter on a broker, as it is; then the first chapter's verdict and chat."""
    _needed()
    reader = _guests(tmp_path)
    local, port, broker = images.free_port(), images.free_port(), images.free_port()
    reader.environment["PYTHONPATH"] = str(ROOT)
    reader.places |= {"--port 8443": f"--port {port}", "https://127.0.0.1:8443": f"https://127.0.0.1:{port}",
                      "127.0.0.1:8080": f"127.0.0.1:{local}", "127.0.0.1:9443": f"127.0.0.1:{broker}",
                      "--key broker": f"--key broker --broker {Reach.ADDRESS}:{broker}", "first/": "kept/",
                      '"model": "chat"': '"model": "chat", "max_tokens": 4'}
    *made, serve, boot = guides.section(PAGE, "appliance init kept", "appliance doctor")
    for command in made:
        reader.ends(command, 0)
    connect, chat = _commands()[-2:]
    with reader.keeps(serve, "listening at"), reader.keeps(boot, "ready on"), reader.keeps(connect, "ready: http"):
        answer = json.loads(reader.types(chat).stdout)
    assert "assistant" == answer["choices"][0]["message"]["role"]
