"""Each row of the platforms' table has two halves that fit together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from appliance import platforms
from appliance.attestation.collect.halves import COLLECTORS
from appliance.attestation.judge.halves import JUDGES
from appliance.client import judge
from appliance.client.verdict import EXIT_CODES
from appliance.platforms import Platform
from appliance.policy.schema.base import fields
from appliance.policy.schema.kinds import Pick, SetOf
from appliance.policy.schema.platform import Tee

DIGEST = bytes(range(48))


@pytest.mark.parametrize("row", platforms.PLATFORMS, ids=lambda row: row.name)
def test_the_halves_of_a_platform_agree(row: Platform) -> None:
    """On how reports come, and on what a launch field must hold; a TEE names an image and tells what it was given."""
    collector, half = COLLECTORS[row.name], JUDGES[row.name]
    assert (row.tsm is None) == (collector.open is not None)
    if row.tee:
        assert collector.launch is not None
        assert half.launch is not None
        assert collector.launch.value(DIGEST) == half.launch(DIGEST)
        assert {"launch-policy", *half.image} <= set(half.required)
        assert half.image
    assert row.tee or row.notice


def test_each_verdict_is_one_of_the_client() -> None:
    """A row's best verdict is a word that a client has; what lifts it is a rule with a meaning."""
    assert {row.verdict for row in platforms.PLATFORMS} <= set(EXIT_CODES)
    lifts = {JUDGES[row.name].lifted_by for row in platforms.PLATFORMS} - {""}
    assert lifts <= {rule.name for judge in JUDGES.values() for rule in judge.rules}


def test_the_judge_of_a_client_knows_no_platform() -> None:
    """Its rows decide: no module of a platform is imported there, and no class of claims is asked for."""
    source = Path(judge.__file__).read_text()
    folders = "|".join(row.folder for row in platforms.PLATFORMS)
    assert [] == re.findall(rf"attestation\.(?:{folders})|isinstance\([^)]*\bclaims\b", source)


def test_rules_have_one_meaning() -> None:
    """A rule of one platform's own is no other's."""
    names = [rule.name for judge in JUDGES.values() for rule in judge.rules]
    assert len(names) == len(set(names))


def test_schema_1_keeps_its_platforms() -> None:
    """A platform that came later is not a choice there, whatever rows there are."""
    assert ("sev-snp", "tdx", "tpm", "simulated") == platforms.names_in(1)
    (shape,) = (each for each in fields(Tee, 1) if each.attribute == "platforms")
    assert SetOf(Pick(platforms.names_in(1)), 1) == shape.kind
