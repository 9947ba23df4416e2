"""The guide of the image, followed to the letter: its commands are read from the page, and run in a folder that has
what a checkout has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from appliance.kernels.runtime import targets
from tests.support import images
from tests.support.pages import ROOT, lines
from tests.support.reader import Reader

pytestmark = [pytest.mark.guests, pytest.mark.soak, pytest.mark.timeout(3600)]

LINES = [line.text for line in lines(ROOT / "docs/guides/image.md")]


def _line(beginning: str) -> str:
    """The one line of the page that begins so."""
    found = [text for text in LINES if text.startswith(beginning)]
    assert 1 == len(found), found
    return found[0]


def test_build_boot_verify_and_talk(tmp_path: Path) -> None:
    """Every command ends as the page says, and what is left out (`sha256:…`) is what the one before it told."""
    images.need("qemu-system-x86_64", "mkfs.erofs", "swtpm", "swtpm_setup", "curl")
    (tmp_path / "build").mkdir()
    (tmp_path / "build/models").symlink_to(images.MODELS)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    reader = Reader(tmp_path)
    built = reader.types(_line("appliance image build examples/vm/deployment.hcl"))
    assert 0 == built.returncode, built.stderr
    assert "manifest" in built.stdout
    boot = "appliance image boot build/vm --models build/models --add examples/vm/tenants.json --tpm "
    with reader.keeps(_line(boot), "ready on"):
        verify = _line("appliance verify https://127.0.0.1:8443")
        first = reader.types(verify.partition(" --ak ")[0])
        assert 2 == first.returncode, first.stdout + first.stderr
        told = re.search(r"sha256:[0-9a-f]{64}", first.stdout + first.stderr)
        assert told is not None, first.stdout + first.stderr
        second = reader.types(verify.replace("sha256:…", told[0]))
        assert 4 == second.returncode, second.stdout + second.stderr
        connect = _line("appliance connect https://127.0.0.1:8443").replace("sha256:…", told[0])
        with reader.keeps(connect, "ready: http://127.0.0.1:9000"):
            answer = reader.types(_line("curl -s http://127.0.0.1:9000/health"))
        health = json.loads(answer.stdout)
        assert (0, "ready") == (answer.returncode, health["status"])
        tested = next(step["detail"] for step in health["boot"] if step["step"] == "self-test")
        ran = re.search(r"\(ahead, (\w+)\)", tested)
        assert ran is not None, tested
        assert ran[1] in ("avx2", targets.detect().name), "of the targets in the image, the one that runs"
        plain = reader.types("curl -s https://127.0.0.1:8443/health")
        assert (60, "") == (plain.returncode, plain.stdout), "as the page says"
