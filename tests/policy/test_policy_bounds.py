"""What a request's sampling may be, by a policy of each schema."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.policy import bounds
from appliance.policy.schema import SamplingBounds
from appliance.policy.schema.sampling import PARAMETERS, SAMPLERS
from tests.support.policies import valid, with_lines


def _rules(text: str, version: int = 2) -> SamplingBounds:
    source = with_lines("model", text).replace("schema = 1", f"schema = {version}")
    return valid(source).models[0].sampling


def _refused(rules: SamplingBounds, asked: dict[str, Any], order: list[str] | None = None) -> tuple[str, bool, str]:
    with pytest.raises(bounds.OutsideError) as caught:
        bounds.numbers(rules, asked, order)
    return caught.value.name, caught.value.fixed, str(caught.value)


def test_nothing_asked_is_the_policys() -> None:
    """The defaults of the schema, and of a policy that says others."""
    plain = bounds.numbers(_rules("sampling { }"), {}, None)
    assert plain["samplers"] == SAMPLERS
    assert {row.name: row.off for row in PARAMETERS} | {
        "temperature": 0.8, "top_p": 0.95, "top_k": 40, "min_p": 0.05, "samplers": SAMPLERS} == plain
    rules = _rules('sampling {\n bound "dry_multiplier" { default = 0.8 }\n samplers = "dry;top_k"\n }')
    own = bounds.numbers(rules, {}, None)
    assert (own["dry_multiplier"], own["samplers"]) == (0.8, ("dry", "top_k"))


def test_values_lie_within_bounds() -> None:
    """Each new parameter is refused outside of its own, by name."""
    rules = _rules('sampling {\n bound "typical_p" { min = 0.5 }\n bound "mirostat" { max = 0 }\n }')
    assert bounds.numbers(rules, {"typical_p": 0.5}, None)["typical_p"] == 0.5
    assert _refused(rules, {"typical_p": 0.4}) == ("typical_p", False, "typical_p: allowed are 0.5 to 1; found: 0.4")
    assert _refused(rules, {"mirostat": 2}) == ("mirostat", True, "mirostat: the policy allows no value but 0 or null")


def test_what_adjusts_nothing_has_no_effect() -> None:
    """Whatever its value: many clients send their defaults for all parameters."""
    rules = _rules("sampling { }")
    found = bounds.numbers(rules, {"dry_base": 1000.0, "mirostat_tau": -3.0, "repeat_last_n": 1 << 40}, None)
    assert (found["dry_base"], found["mirostat_tau"], found["repeat_last_n"]) == (1.75, 5.0, 64)
    assert _refused(rules, {"dry_multiplier": 1.0, "dry_base": 1000.0})[0] == "dry_base"


def test_orders() -> None:
    """Names of other servers pass; unknown ones do not."""
    rules = _rules("sampling { }")
    given = ["repetition_penalty", "temp", "top_a", "typical_p", "presence_penalty", "top-k"]
    assert bounds.numbers(rules, {}, given)["samplers"] == ("penalties", "temperature", "typ_p", "top_k")
    assert bounds.numbers(rules, {}, [])["samplers"] == ()
    assert "allowed are the names penalties, dry" in _refused(rules, {}, ["infill"])[2]


def test_an_order_evades_no_bound() -> None:
    """A sampler that is left out is off: where the policy does not allow that, the order is refused. Mirostat, too."""
    rules = _rules('sampling {\n bound "top_k" { min = 1\n max = 50 }\n }')
    assert bounds.numbers(rules, {"mirostat": 0}, ["top_k", "temperature"])["samplers"] == ("top_k", "temperature")
    assert _refused(rules, {}, ["temperature"]) == (
        "samplers", False, "samplers: leaves out top_k, but the policy allows top_k only from 1 to 50")
    assert _refused(rules, {"mirostat": 1}) == (
        "mirostat", False, "mirostat: turns off top_k, but the policy allows top_k only from 1 to 50")
    greedy = _rules('sampling {\n bound "temperature" {\n default = 0\n max = 0 }\n }')
    assert _refused(greedy, {}, ["top_k"])[0] == "samplers"


def test_schema_1_has_none_of_them() -> None:
    """Each may say what happens anyway; an order may be one of llama.cpp's, and changes nothing."""
    rules = _rules("sampling { }", version=1)
    neutral = {row.name: row.off for row in PARAMETERS if row.since > 1}
    found = bounds.numbers(rules, neutral, ["top_k", "typ_p", "top_p", "min_p", "temperature"])
    assert found == bounds.numbers(rules, {}, None)
    assert found["samplers"] == SAMPLERS
    for row in PARAMETERS:
        if row.since > 1 and not row.of:
            value = row.low if row.low != row.off else 1
            assert _refused(rules, {row.name: value})[:2] == (row.name, True)
    assert _refused(rules, {}, ["temperature", "top_k"])[:2] == ("samplers", True)
    assert _refused(rules, {"repeat_penalty": 1.2, "repeat_last_n": 100})[:2] == ("repeat_last_n", True)


def test_a_policy_may_do_without_them() -> None:
    """With `extended = false` its own defaults hold, and requests cannot change them."""
    rules = _rules(
        'sampling {\n extended = false\n bound "typical_p" { default = 0.9 }\n samplers = "typ_p;temperature"\n }')
    found = bounds.numbers(rules, {"typical_p": 0.9}, None)
    assert (found["typical_p"], found["samplers"]) == (0.9, ("typ_p", "temperature"))
    assert _refused(rules, {"typical_p": 1.0})[2] == "typical_p: the policy allows no value but 0.9 or null"
