"""The base install is the client alone: its wheel, in an environment with nothing else, on systems of other kinds."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tomllib
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, cast

import pytest
from packaging.requirements import Requirement

from appliance.attestation import keyfile
from appliance.attestation.keyfile import write_whole
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.client import target
from appliance.errors import PolicyError
from appliance.policy import load
from appliance.signed import approvals
from tests.support import each_verb
from tests.support import fake_appliance as fake
from tests.support.require import absent

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a policy and simulated evidence under it."""
    folder = tmp_path_factory.mktemp("material")
    policy = load(fake.write_policy(folder, "simulated"))
    made = fake.attestor(SimulatedProvider(policy.host_data), policy).attest(bytes(32))
    (folder / "evidence.json").write_bytes(made.to_json())
    return folder


VERBS: list[tuple[list[str], int, str]] = [
    (["check", "deployment.hcl"], 0, ""), (["digest", "deployment.hcl", "--json"], 0, "policy_sha384"),
    (["approve", "deployment.hcl"], 0, "approvals: 0 of 0"), (["key", "new"], 0, "api_key_sha256"),
    (["machines", "add", "l.json", "--custody", "x"], 2, "there is no machine to add"),
    (["evidence", "evidence.json"], 1, "SIMULATED"),
    (["collateral", "fetch", "evidence.json", "--print"], 2, "no vendor's service has collateral for it"),
    (["verify", "evidence.json", "--policy", "deployment.hcl", "--ear", "r.jwt"], 5, "SIMULATED"),
    (["verify", "http://127.0.0.1:1", "--policy", "deployment.hcl"], 2, "unreachable"),
    (["connect", "--help"], 0, "--listen"), (["connect", "http://127.0.0.1:1", "--policy", "deployment.hcl"], 2, ""),
    (["audit", "pack", "-o", "pack.zip", "--policy", "deployment.hcl", "--evidence", "evidence.json"], 0, "missing: "),
    (["audit", "pack", "verify", "pack.zip", "--require", "policy-valid"], 0, "HIPAA"),
    (["schema"], 0, "tee"),
]


@pytest.fixture(scope="module")
def answers(material: Path) -> list[each_verb.Answer]:
    """What each verb says where there is the client alone."""
    return each_verb.asked([sys.executable, "-m", "tests.support.client_alone"], [words for words, *_ in VERBS],
                           cwd=material, env={**os.environ, "PYTHONPATH": str(ROOT)})


@pytest.mark.parametrize("number", range(len(VERBS)), ids=[words[0] for words, *_ in VERBS])
def test_without_posix_engine_or_server(answers: list[each_verb.Answer], number: int) -> None:
    """As on Windows: no fork, no fcntl, no Unix sockets; no numpy, numba or litestar; and nothing above the client."""
    _, code, says = VERBS[number]
    done = answers[number]
    assert code == done.code, done.out + done.err
    assert says in done.out + done.err


def test_nothing_says_to_install_the_bare_name() -> None:
    """PyPI's `appliance` is another project. Hints name the packages of our extras, as pyproject.toml has them."""
    texts = [each.read_text() for folder in ("appliance", "docs", "examples", "image")
             for each in (ROOT / folder).rglob("*") if each.suffix in (".py", ".md", ".toml")]
    told = [words for text in (*texts, (ROOT / "README.md").read_text())
            for words in re.findall(r"pip install (?:-\S+ )*['\"]?([^'\"`\s)]+)", text)]
    assert not [words for words in told if words.partition("[")[0] == "appliance"]
    assert not [words for words in told if words.startswith("CHECKOUT")]  # pip asks PyPI for what has no slash
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*extras["tdx"], *extras["llamacpp"]} <= set(told)


def _closure(name: str, found: set[str]) -> set[str]:
    """A distribution and all that it requires, without extras."""
    if name not in found:
        found.add(name)
        for text in importlib.metadata.requires(name) or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                _closure(requirement.name, found)
    return found


def _copy(name: str, site: Path) -> None:
    """A distribution's files into another environment."""
    distribution = importlib.metadata.distribution(name)
    for file in distribution.files or ():
        source = Path(str(distribution.locate_file(file)))
        if ".." not in file.parts and "__pycache__" not in file.parts and source.is_file():
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, site / file)


def test_the_wheel_alone(tmp_path: Path, material: Path) -> None:
    """Built, installed into a fresh environment with what it requires and no more, and used."""
    run: dict[str, Any] = {"check": True, "capture_output": True, "timeout": 120}
    try:
        importlib.metadata.version("hatchling")
    except importlib.metadata.PackageNotFoundError:
        absent("hatchling")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=ROOT, **run)
    (wheel,) = tmp_path.glob("appliance-*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "v"], **run)
    python = tmp_path / "v/bin/python"
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index", "--no-deps",
                    "--no-compile", wheel], **run)
    (site,) = (tmp_path / "v/lib").glob("python*/site-packages")
    (metadata,) = site.glob("appliance-*.dist-info/METADATA")
    base = [Requirement(line.partition(": ")[2]) for line in metadata.read_text().splitlines()
            if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert {"cryptography", "lark", "pydantic", "pyopenssl", "python-hcl2", "tqdm"} == {each.name for each in base}
    for name in set().union(*(_closure(each.name, set()) for each in base)):
        _copy(name, site)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COVERAGE"))}
    script = subprocess.run([tmp_path / "v/bin/appliance", "digest", "deployment.hcl"], cwd=material, env=clean, **run)
    assert len(script.stdout.split()[0]) == 96
    found = each_verb.asked([python, "-I", each_verb.__file__], [words for words, *_ in VERBS], cwd=material, env=clean)
    for (_, code, says), done in zip(VERBS, found, strict=True):
        assert code == done.code, done.out + done.err
        assert says in done.out + done.err
    listed = subprocess.run([python, "-c", "import importlib.metadata as m, json; print(json.dumps(sorted("
                             "d.name.lower() for d in m.distributions())))"], env=clean, **run)
    assert not {"numpy", "numba", "litestar", "uvicorn", "httpx"} & set(json.loads(listed.stdout))


@pytest.mark.parametrize("path", [PureWindowsPath(r"C:\deployments\a.hcl"), PureWindowsPath(r"\\host\share\a.hcl"),
                                  PurePosixPath("/srv/a.hcl"), PurePosixPath("a.hcl")])
def test_files_beside_others_on_every_system(path: Any) -> None:
    """Approvals and signatures are found beside their files, whatever a path looks like."""
    found = approvals.beside(cast(Path, path))
    assert ("a.hcl.approvals", path.parent) == (found.name, found.parent)
    assert not target.is_url(str(path))


def test_small_files_are_whole_or_as_before(tmp_path: Path) -> None:
    """Written over, created, or refused; nothing is left beside them."""
    path = tmp_path / "file"
    write_whole(path, b"one\n")
    write_whole(path, b"two\n")
    assert b"two\n" == path.read_bytes()
    with pytest.raises(PolicyError, match="cannot be written"):
        write_whole(tmp_path / "absent" / "file", b"x")
    assert ["file"] == [each.name for each in tmp_path.iterdir()]


def test_no_file_takes_the_place_of_what_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe, a link to one, a socket, folders without a name: refused in words, and still there. Who may write to /dev
    would otherwise make a file of /dev/null, for all."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    for name in ("pipe", "link", "socket", "/dev/null", "/dev/full", "/dev/stdout"):
        kind = stat.S_IFMT(os.lstat(name).st_mode)
        assert keyfile.special(Path(name))
        if "/dev" not in name:  # nor may the test be what breaks them
            with pytest.raises(PolicyError, match="not a regular file"):
                write_whole(Path(name), b"x")
        assert kind == stat.S_IFMT(os.lstat(name).st_mode)
    for name in ("", "/", ".."):
        with pytest.raises(PolicyError, match="cannot be written") as caught:
            write_whole(Path(name), b"x")
        assert "file-unwritable" == caught.value.code
    assert {"pipe", "link", "socket"} == {each.name for each in tmp_path.iterdir()}
