"""The example deployments: each meets its baseline, boots on a machine that shows all that it demands, and answers."""

from __future__ import annotations

import re
import time
from pathlib import Path

import httpx
import openai
import pytest

from appliance.client import Verifier, transport
from tests.service.test_hardware_service import _said, _start
from tests.service.test_production_boot import disk  # noqa: F401 - a fixture
from tests.support import server, waiting
from tests.support.production import MADE_UP, Production

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples/deployments"
PLATFORMS = {"bank": "sev-snp", "hospital": "tdx", "saas": "sev-snp", "air-gapped": "sev-snp"}
GRIDS = {"bank": 500, "hospital": 1000, "saas": 0, "air-gapped": 2000}  # ms: an answer ends at a multiple


def test_each_folder_is_tried() -> None:
    """None without a row here."""
    assert set(PLATFORMS) == {path.parent.name for path in FOLDER.glob("*/deployment.hcl")}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLATFORMS)
def test_it_boots_and_answers(name: str, tmp_path: Path, disk: Path) -> None:  # noqa: F811 - the fixture
    """With a sealed model, its publisher, a broker, approvals, tenants, listed machines and a state disk. The answer's
    end keeps to the grid that its policy pays for, and the client has verified the machine by the policy."""
    source, platform = FOLDER / name / "deployment.hcl", PLATFORMS[name]
    deployment = Production(platform, tmp_path, disk, source)
    policy = deployment.write()
    lines = zip(source.read_text().splitlines(), policy.read_text().splitlines(), strict=True)
    assert {old.split()[0] for old, new in lines if old != new} <= MADE_UP
    process = _start(f"patched-{platform}", policy, tmp_path / "plain.gguf", tmp_path, "broker")
    try:
        waiting.until(lambda: (tmp_path / "machine").exists(), "machine", lambda: waiting.processor_time(process.pid))
        with deployment.broker():
            (tmp_path / "broker").touch()
            said = _said(process, tmp_path)
        assert "ready" == said["event"], said
        port = re.search(r":(\d+)$", said["listening"][0])
        assert port is not None
        verifier = Verifier.from_files(policy, tmp_path / "measurements.json", measurements_unsigned=True,
                                       collateral=tmp_path / "collateral", roots=deployment.roots())
        with httpx.Client(transport=transport(verifier)) as verified:
            client = openai.OpenAI(base_url=f"https://127.0.0.1:{port[1]}/v1", api_key=server.KEY, max_retries=0,
                                   http_client=verified)
            assert ["assistant"] == [model.id for model in client.models.list()]
            began = time.monotonic()
            answer = client.chat.completions.create(
                model="assistant", messages=[{"role": "user", "content": "Hello"}], max_tokens=4)
            took = (time.monotonic() - began) * 1000
    finally:
        process.terminate()
        process.wait(60)
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert took >= GRIDS[name]
