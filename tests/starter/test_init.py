"""`appliance init`: for each platform, key and privacy level a policy that is valid and boots, with keys that fit it;
and next commands that are taken."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import httpx
import pytest

from appliance.cli.main import main, parser_of
from appliance.policy import Policy, load, unenforced
from appliance.starter.choices import KEYS, PRIVACY
from tests.support import images, waiting, written
from tests.support.environment import unmeasured
from tests.support.require import absent

ROOT = Path(__file__).parents[2]


def _init(folder: Path, model: Path, *words: str) -> int:
    return main(["init", str(folder), "--model", str(model), "--yes", *words])


def _made(folder: Path, model: Path, *words: str) -> Policy:
    assert 0 == _init(folder, model, *words)
    return load(folder / "deployment.hcl").policy


@pytest.mark.parametrize(("platform", "key"), [(name, key) for name, keys in KEYS.items() for key in keys])
def test_a_policy_of_each_kind_is_valid_and_boots(platform: str, key: str, tmp_path: Path, tiny_model: Path,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    """`check` finds no error and nothing that stops a boot. The policy says what was chosen."""
    folder = tmp_path / "made"
    policy = _made(folder, tiny_model, "--platform", platform, "--key", key)
    assert 0 == main(["check", str(folder / "deployment.hcl"), "--models", str(folder / "models")]), capsys.readouterr()
    assert ((platform,), []) == (policy.tee.platforms, unenforced(policy))
    provider = policy.models[0].key.provider if policy.models[0].key else "none"
    assert key == provider
    assert hashlib.sha256(tiny_model.read_bytes()).hexdigest() == policy.models[0].sha256
    text = (folder / "deployment.hcl").read_text()
    assert all(text.partition(f"\n{block}")[0].rpartition("\n")[2].startswith("#")
               for block in ("tee {", 'model "', "privacy {", "limits {", "tenants {", "service {", "audit {"))


@pytest.mark.parametrize("level", PRIVACY)
def test_privacy_levels_hide_more_and_more(level: str, tmp_path: Path, tiny_model: Path) -> None:
    """By the fields that the help names."""
    privacy = _made(tmp_path / "made", tiny_model, "--privacy", level).privacy
    rank = [*PRIVACY].index(level)
    assert (rank > 0) == (privacy.timing_padding is not None)
    assert (1, 16, 64)[rank] == privacy.token_count_rounding
    assert (rank == 2) == (privacy.size_padding_bytes is not None)
    assert (0, 2, 7)[rank] == len(privacy.redaction.detectors)


def test_keys_open_what_the_policy_pins_and_nobody_else_reads_them(tmp_path: Path, tiny_model: Path) -> None:
    """API keys hash to what the signed list has, the model's key opens the model, and secrets are their owner's."""
    folder = tmp_path / "made"
    assert 0 == _init(folder, tiny_model, "--platform", "tpm", "--tenant", "acme", "--tenant", "audits=auditor")
    secrets = {path.name for path in (folder / "keys").iterdir() if path.stat().st_mode & 0o077 == 0}
    assert {"acme.api-key", "audits.api-key", "authority.pem", "model.key"} == secrets
    assert 0o700 == (folder / "keys").stat().st_mode & 0o777
    listed = json.loads((folder / "tenants.json").read_text())["list"]["tenants"]
    assert ["acme", "audits"] == [each["name"] for each in listed]
    for each in listed:
        key = (folder / f"keys/{each['name']}.api-key").read_text().strip()
        assert [hashlib.sha256(key.encode()).hexdigest()] == each["api_key_sha256"]
    assert 0 == main(["tenants", str(folder / "tenants.json"), "--policy", str(folder / "deployment.hcl")])
    assert 0 == main(["model", "unseal", str(folder / "models/chat.sealed"), "-o", str(tmp_path / "back.gguf"),
                      "--key", str(folder / "keys/model.key")])
    assert tiny_model.read_bytes() == (tmp_path / "back.gguf").read_bytes()
    assert "keys/" in (folder / ".gitignore").read_text().splitlines()


@pytest.mark.parametrize("platform", ["simulated", "tpm"])
def test_a_key_for_metrics_asks_no_model(platform: str, tmp_path: Path, tiny_model: Path,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    """A tenant with the role `metrics` has no model, in a policy's own tenants and in a signed list."""
    folder = tmp_path / "made"
    policy = _made(folder, tiny_model, "--platform", platform, "--tenant", "acme", "--tenant", "scrapes=metrics")
    assert 0 == main(["check", str(folder / "deployment.hcl")]), capsys.readouterr()
    if platform == "simulated":
        roles = {each.name: (each.role, list(each.models)) for each in policy.tenants.tenants}
    else:
        listed = json.loads((folder / "tenants.json").read_text())["list"]["tenants"]
        roles = {each["name"]: (each["role"], each["models"]) for each in listed}
        assert 0 == main(["tenants", str(folder / "tenants.json"), "--policy", str(folder / "deployment.hcl")])
    assert {"acme": ("user", ["chat"]), "scrapes": ("metrics", [])} == roles


@pytest.mark.parametrize("name", ["sev-snp", "tdx"])
def test_evidence_must_show_what_the_production_policies_ask_for(name: str, tmp_path: Path, tiny_model: Path) -> None:
    """The floors are those of `policies/`, which a test of bulletins keeps at what makers ask for."""
    made = _made(tmp_path / "made", tiny_model, "--platform", name).tee.evidence
    shipped = load(ROOT / f"policies/{name}-production.hcl").policy.tee.evidence
    if name == "sev-snp":
        wanted, floors = ({each.product: each for each in found.sev_snp.floors} for found in (shipped, made))
        assert {product: wanted[product] for product in made.sev_snp.products} == floors
    assert (shipped.tdx, shipped.debug, shipped.migration) == (made.tdx, made.debug, made.migration)
    assert (shipped.sev_snp.min_report_version, shipped.sev_snp.min_api, shipped.sev_snp.committed_is_current) == (
        made.sev_snp.min_report_version, made.sev_snp.min_api, made.sev_snp.committed_is_current)


@pytest.mark.parametrize("platform", KEYS)
def test_the_next_commands_are_taken(platform: str, tmp_path: Path, tiny_model: Path,
                                     capsys: pytest.CaptureFixture[str]) -> None:
    """By the command line's own parser; the README has the same ones, as they are inside of the folder."""
    folder = tmp_path / "made"
    assert 0 == _init(folder, tiny_model, "--platform", platform, "--json")
    told = json.loads(capsys.readouterr().out)
    assert {"deployment.hcl", "README.md"} <= set(told["files"])
    assert all((folder / name).is_file() for name in told["files"])
    readme = (folder / "README.md").read_text()
    for command in told["next"]:
        assert re.sub(rf"{re.escape(str(folder))}/", "", command) in readme
        words = shlex.split(command.partition(" > ")[0])
        if words[0] == "appliance":
            assert [] == parser_of(words[1]).parse_known_args(words[1:])[1]
    assert told["next"][-1].startswith("curl ")


def test_a_broker_has_a_certificate_that_openssl_takes(tmp_path: Path, tiny_model: Path) -> None:
    """Chain, name and pin by openssl's own word; its rule names the files that are there, or that later steps make."""
    images.need("openssl")
    folder = tmp_path / "made"
    policy = _made(folder, tiny_model, "--platform", "tpm", "--key", "broker", "--broker", "10.0.2.100:9555")
    key = policy.models[0].key
    assert key is not None
    assert key.broker is not None
    assert "https://10.0.2.100:9555" == key.broker.url
    chain = (folder / "keys/broker.pem").read_text()
    root = tmp_path / "root.pem"
    root.write_text("-----BEGIN" + chain.rpartition("-----BEGIN")[2])
    seen = subprocess.run(["openssl", "verify", "-x509_strict", "-CAfile", str(root), "-verify_ip", "10.0.2.100",
                           "-purpose", "sslserver", str(folder / "keys/broker.pem")], capture_output=True, text=True,
                          check=False)
    assert 0 == seen.returncode, seen.stdout + seen.stderr
    der = subprocess.run(["openssl", "x509", "-in", str(root), "-outform", "DER"], capture_output=True, check=True)
    assert hashlib.sha256(der.stdout).hexdigest() == key.broker.root_sha256
    config = tomllib.loads((folder / "broker.toml").read_text())
    [rule] = config["release"]
    assert (9555, key.broker.resource, True) == (config["port"], rule["resource"], rule["host_trusted"])
    later = {"image/measurements.json", "tpm/authority"}
    files = {config["certificate"], config["private_key"], rule["key_file"], rule["policy"]}
    assert all((folder / name).is_file() for name in files)
    assert {rule["measurements"], rule["ek_roots"]} == later


def _refusal(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = json.loads(capsys.readouterr().out)
    assert (2, code) == (error["exit_code"], error["code"])
    assert error["hint"]


def test_refusals_name_the_way_on_and_leave_nothing(tmp_path: Path, tiny_model: Path,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    """No folder is made by a refused choice, and none with files is touched."""
    folder = tmp_path / "made"
    for words in (["--platform", "sev-snp", "--key", "file"], ["--tenant", "a", "--tenant", "a=admin"],
                  ["--tenant", "a=owner"], ["--tenant", "a b"], ["--tenant", "a=auditor", "--tenant", "b=metrics"],
                  ["--name", "ü"]):
        assert 2 == _init(folder, tiny_model, "--json", *words), words
        _refusal("init-choice", capsys)
        assert not folder.exists()
    assert 2 == _init(folder, tmp_path / "none.gguf", "--json")
    _refusal("model-absent", capsys)
    (tmp_path / "text.gguf").write_text("text")
    assert 2 == _init(folder, tmp_path / "text.gguf", "--json")
    assert not folder.exists()
    capsys.readouterr()
    folder.mkdir()
    (folder / "mine").write_text("kept")
    assert 2 == _init(folder, tiny_model, "--json")
    _refusal("file-exists", capsys)
    assert ["mine"] == [each.name for each in folder.iterdir()]


def test_a_failure_half_way_takes_its_files_away(tmp_path: Path, tiny_model: Path,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    """A model that is cut short is found out as it is read; keys that were made before are gone, and so is the
    folder."""
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_model.read_bytes()[:-1000])
    assert 2 == _init(tmp_path / "made", cut, "--json")
    assert json.loads(capsys.readouterr().out)["code"]
    assert not (tmp_path / "made").exists()


def test_a_person_is_asked_on_a_terminal(tmp_path: Path, tiny_model: Path) -> None:
    """Five questions; an empty answer is the default, an unknown one is asked again."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-m", "appliance", "init", str(tmp_path / "made")], stdin=theirs,
                               stdout=theirs, stderr=theirs, env=unmeasured() | {"PYTHONPATH": str(ROOT)}, cwd=tmp_path)
    os.close(theirs)
    os.write(ours, f"cloud\n\n{tiny_model}\nnone\nopen\n\n".encode())
    said = b""
    while process.poll() is None:
        try:
            said += os.read(ours, 4096)
        except OSError:
            break
    assert 0 == process.wait(), said.decode()
    assert b"cloud is not one of" in said
    policy = load(tmp_path / "made/deployment.hcl").policy
    assert (("simulated",), None, None) == (policy.tee.platforms, policy.models[0].key, policy.privacy.timing_padding)
    os.close(ours)


@pytest.mark.slow
def test_a_simulated_deployment_boots_and_answers(tmp_path: Path, tiny_model: Path,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    """The commands that `init` prints, as they are: the second asks the first."""
    if shutil.which("curl") is None:
        absent("curl")
    port = images.free_port()
    assert 0 == _init(tmp_path / "made", tiny_model, "--json", "--port", str(port))
    serve, chat = json.loads(capsys.readouterr().out)["next"]
    words = [sys.executable, "-m", *shlex.split(serve.partition(" > ")[0]), "--json"]
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        process = subprocess.Popen(words, stdout=out, stderr=err, env=unmeasured() | {"PYTHONPATH": str(ROOT)})
    try:
        waiting.until(lambda: any('"event": "ready"' in line for line in written.lines(tmp_path / "err"))
                      or process.poll() is not None, "server that is ready",
                      lambda: waiting.processor_time(process.pid))
        limited = chat.replace('"model": "chat"', '"model": "chat", "max_tokens": 2')
        done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, timeout=600, check=False)
        assert "assistant" == json.loads(done.stdout)["choices"][0]["message"]["role"], done.stdout + done.stderr
        refused = httpx.get(f"http://127.0.0.1:{port}/v1/models", headers={"authorization": "Bearer sk-other"})
        assert 401 == refused.status_code
    finally:
        process.terminate()
        process.wait()
