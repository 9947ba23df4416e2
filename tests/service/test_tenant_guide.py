"""The guide to tenants and keys, followed command by command: a key is added and another one revoked in a running
appliance."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import guides
from tests.support.server import Server, write_policy

ROOT = Path(__file__).parents[2]
PAGE = "tenants.md"
HEX = re.compile(r"[0-9a-f]{64}")


def _run(command: str, folder: Path, **environment: str) -> str:
    """What a command line prints; `appliance` is this interpreter's."""
    words = command.replace("appliance ", f"{shlex.quote(sys.executable)} -m appliance ", 1)
    done = subprocess.run(["bash", "-ec", words if command.startswith("appliance ") else command], cwd=folder,
                          text=True, capture_output=True, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT), **environment})
    assert 0 == done.returncode, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def _key(said: str) -> tuple[str, str]:
    """An API key and its hash, out of `appliance key new`."""
    key, digest = re.search(r"^  (sk-\S+|\S+)$", said, re.MULTILINE), HEX.search(said)
    assert key is not None
    assert digest is not None
    return key[1], digest[0]


def _policy(folder: Path, model: Path, public: str) -> Path:
    """A policy with the guide's block of tenants, which has the authority's key."""
    policy = write_policy(folder, {"chat": model}, schema=2)
    block = re.sub(r'ed25519:[0-9a-f]{64}', f"ed25519:{public}", guides.blocks(PAGE, "hcl")[0])
    text, found = re.subn(r"^tenants \{.*?^\}", block, policy.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert 1 == found
    policy.rename(folder / "deployment.hcl")
    (folder / "deployment.hcl").write_text(text.replace('"test"', '"llm-prod"'))
    return folder / "deployment.hcl"


def _write(folder: Path, version: int, acme: str, operations: str) -> None:
    """The guide's list, with these keys."""
    listed: Any = json.loads(guides.blocks(PAGE, "json")[0])
    listed["version"] = version
    for tenant, digest in zip(listed["tenants"], (acme, operations), strict=True):
        tenant["api_key_sha256"] = [digest]
    (folder / "list.json").write_text(json.dumps(listed))


@pytest.mark.slow
def test_the_guide_is_followed_to_the_letter(tmp_path: Path, tiny_model: Path) -> None:
    """Each command on the page, in its order. On the simulated platform there are no measurements to give."""
    commands = guides.commands(PAGE)
    first = [each for each in commands if not each.startswith(("export ", "appliance tenants push"))]
    generate, shown, new, sign, check, again = first
    assert [again, "export APPLIANCE_API_KEY=...", commands[-1]] == commands[-3:]
    _run(generate, tmp_path)
    public = HEX.search(_run(shown, tmp_path))
    assert public is not None
    user, admin, newer = (_key(_run(new, tmp_path)) for _ in range(3))
    policy = _policy(tmp_path, tiny_model, public[0])
    _write(tmp_path, 1, user[1], admin[1])
    _run(sign, tmp_path)
    assert "version 1, 2 tenants\n" == _run(check, tmp_path)
    server = Server(policy, [tiny_model], measured=False).wait_ready()
    try:
        assert [200, 401] == _asked(server, user[0], newer[0])
        _write(tmp_path, 2, newer[1], admin[1])
        _run(again, tmp_path)
        push = commands[-1].replace("https://HOST:PORT", server.url)
        assert push.endswith(" --measurements measurements.json --builder-key KEY --collateral collateral")
        push = push.partition(" --measurements")[0] + " --accept simulated"
        assert "version 2 is in force: 2 tenants, keys revoked: 1" in _run(push, tmp_path, APPLIANCE_API_KEY=admin[0])
        assert [401, 200] == _asked(server, user[0], newer[0])
    finally:
        assert 0 == server.stop()


def _asked(server: Server, *keys: str) -> list[int]:
    found = []
    for key in keys:
        with server.http(key) as http:
            found.append(http.post("/v1/completions", json={
                "model": "chat", "prompt": "a", "max_tokens": 1}).status_code)
    return found
