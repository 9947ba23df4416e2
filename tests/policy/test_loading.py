"""A policy as the service loads it, by the same words as at a desk."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.policy import load
from appliance.policy.hcl.diagnostics import InvalidPolicyError
from tests.support.policies import BASE

MOST = 1 << 20


@pytest.mark.parametrize(("data", "words"), [
    (BASE.encode().replace(b"demo.gguf", b"d\xe9mo.gguf"), "0xe9 at offset"),
    (BASE.encode().ljust(MOST + 1), "1048577 bytes, more than the 1048576 bytes allowed"),
    (BASE.encode().ljust(MOST + 9), "1048585 bytes, more than the 1048576 bytes allowed"),
])
def test_other_bytes_than_a_policys_are_refused(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.hcl"
    path.write_bytes(data)
    with pytest.raises(InvalidPolicyError) as refused:
        load(path)
    [finding] = refused.value.diagnostics
    assert "encoding" == finding.code
    assert words in finding.summary
    assert "UTF-8, at most 1048576 bytes" == finding.detail


def test_as_many_bytes_as_allowed_are_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.hcl"
    path.write_bytes(BASE.encode() + b"#".ljust(MOST - len(BASE.encode()), b"x"))
    assert "demo" == load(path).policy.models[0].name


def test_a_rule_holds_from_its_version_on(tmp_path: Path) -> None:
    """A cadence without a total was valid under schema 1, and stays so."""
    path = tmp_path / "policy.hcl"
    text = BASE.replace("privacy {", 'privacy {\n  timing_padding {\n    cadence = "20ms"\n  }')
    path.write_text(text)
    times = load(path).policy.privacy.timing_padding
    assert times is not None
    assert 20 == times.cadence_ms
    path.write_text(text.replace("schema = 1", "schema = 2"))
    with pytest.raises(InvalidPolicyError, match="cadence stands without"):
        load(path)
