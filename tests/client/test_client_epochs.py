"""Verdicts that were begun before something ended, and are there after it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from appliance.client import target
from appliance.client.channel import Channel
from appliance.client.fleet.overlap import Overlap
from appliance.client.verdict import Verdict
from tests.client.test_fleet import NOW, _appliances, _verifier


def test_a_verdict_that_is_given_up_while_it_is_made(tmp_path: Path) -> None:
    """The connection is verified again, and no prompt goes out on the verdict before."""
    told: list[Verdict] = []

    def tell(verdict: Verdict) -> None:
        told.append(verdict)
        if len(told) == 1:
            channel.close()

    with _appliances(tmp_path, "a") as ((server, path),):
        channel = Channel(_verifier(path), target.endpoint(server.url), tell=tell)
        channel.give(channel.take())
        assert 2 == len(told)
        channel.give(channel.take())
        assert 2 == len(told)
        channel.close()


def test_an_overlap_that_ends_while_the_old_reference_is_asked(tmp_path: Path) -> None:
    """Its verdict does not count any more: that by the next reference does."""
    until, times = NOW + timedelta(hours=1), [NOW]
    with _appliances(tmp_path, "a", "b") as ((server, old), (_, new)):
        overlap = Overlap(_verifier(old), _verifier(new), until, clock=lambda: times.pop() if times else until)
        verdict = overlap.verify(server.url)
    assert "policy not met" == verdict.status
    assert verdict.policy_sha384 == _verifier(new).reference.policy.digest
