"""Rules of policies/baselines: each passes and fails where it should, by the line that decides it."""

from __future__ import annotations

import functools
import json
import re
import tomllib
from pathlib import Path

import pytest

from appliance.cli.main import main
from appliance.policy.baselines import judge, reading
from appliance.policy.explaining.checking import check
from tests.policy.baselines.breaks import BREAKS
from tests.support.policies import MARK, hardware, marked

ROOT = Path(__file__).parents[3]
BASELINES = {path.stem: path for path in sorted((ROOT / "policies/baselines").glob("*.hcl"))}
MEETS = {"development": ("development",), "production": ("bank", "hospital", "saas", "air-gapped"),
         "finance": ("bank",), "hipaa": ("hospital",), "eu-ai-act": ("saas",), "high-assurance": ("air-gapped",)}


@functools.cache
def text(name: str) -> str:
    """A policy that meets a baseline, or one of schema 1 that meets little."""
    if name == "schema-1":
        return hardware()
    path = "policies/development.hcl" if name == "development" else f"examples/deployments/{name}/deployment.hcl"
    return (ROOT / path).read_text()


@functools.cache
def loaded(name: str) -> list[reading.Baseline]:
    """A baseline, and those that it includes."""
    return reading.load(BASELINES[name])


@functools.cache
def rulings(baseline: str, policy: str) -> dict[str, judge.Ruling]:
    """How each rule of a baseline, and of those that it includes, stands for a policy's text."""
    checked = check(policy)
    assert checked.policy is not None, checked.diagnostics[0]
    return {each.id: each for each in judge.judge(checked, loaded(baseline))}


@pytest.mark.parametrize("baseline", BASELINES)
def test_a_deployment_meets_each_baseline(baseline: str) -> None:
    """No rule fails, not even a warning; and each rule applies to one of the deployments that meet it."""
    found = [rulings(baseline, text(name)) for name in MEETS[baseline]]
    assert [] == [id for each in found for id, ruling in each.items() if ruling.outcome == "fail"]
    own = [id for id in found[0] if id.startswith(f"{baseline}/")]
    assert len(own) >= 7
    idle = [id for id in own if all(each[id].outcome == "not applicable" for each in found)]
    assert idle == (["high-assurance/tdx-modules"] if baseline == "high-assurance" else [])


def test_every_rule_has_a_policy_that_breaks_it() -> None:
    """None is there for show."""
    every = {f"{each.name}/{rule.id}" for name in BASELINES for each in loaded(name)
             for rule in each.rules}
    assert every == set(BREAKS)


@pytest.mark.parametrize("id", BREAKS)
def test_a_rule_fails_where_it_is_broken(id: str) -> None:
    """By the line and column of what decides it; without a mark, the fields are left out, and a block decides."""
    name, there, instead = BREAKS[id]
    assert there in text(name)
    edited, place = marked(text(name).replace(there, instead, 1))
    ruling = rulings(id.partition("/")[0], edited)[id]
    assert "fail" == ruling.outcome
    assert ruling.diagnostic is not None
    if MARK in instead:
        assert place == (ruling.diagnostic.line, ruling.diagnostic.column)
    assert ruling.diagnostic.source.strip()


def test_controls_and_attacks_exist() -> None:
    """Each control stands in a mapping of ours, and each attack in the page of attacks."""
    attacks = (ROOT / "docs/attacks.md").read_text()
    clauses = {f"{path.stem} {each['id']}" for path in (ROOT / "appliance/auditor/controls").glob("*.toml")
               for each in tomllib.loads(path.read_text())["control"]}
    for name in BASELINES:
        for rule in loaded(name)[-1].rules:
            assert set(rule.controls) <= clauses, rule.id
            assert rule.attack is None or f"\n| {rule.attack}" in attacks, rule.id


WRONG = {
    "an unknown field": ('field = "tee.platform"\nequals = "tdx"', 'there is no field tee.platform', "tee.platforms?"),
    "an unknown value": ('field = "tee.platforms"\nonly = ["sev-snpp"]', "only is", 'did you mean "sev-snp"?'),
    "a number as text": ('field = "approvals.required"\nat_least = "2"', "at_least is a string", "write 2 without"),
    "a duration as number": ('field = "privacy.retention.audit"\nat_least = 30', "at_least is", "in quotes"),
    "no demand": ('field = "tee.platforms"', "nothing is asked", "present = true"),
    "an order of words": ('field = "model.load"\nat_least = "boot"', "at_least cannot be asked", "one_of"),
    "a value of a block": ('field = "model.key"\nequals = "broker"', "equals cannot be asked", "present"),
    "a value of a list": ('field = "tee.platforms"\nequals = "tdx"', "equals cannot be asked", "only"),
    "an unknown word": ('field = "audit.sink"\nequls = "state"', "equls is not known", "did you mean equals?"),
    "a condition": ('field = "audit.sink"\nequals = "state"\nwhen {\nfield = "modl.load"\npresent = true\n}',
                    "there is no field modl.load", "model.load?"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_in_a_baseline_are_named(name: str, tmp_path: Path) -> None:
    """With the line, what was found, and the fix; nothing is judged by such a file."""
    lines, found, fix = WRONG[name]
    path = tmp_path / "own.hcl"
    path.write_text('baseline {\n  name = "own"\n  summary = "ours"\n}\n'
                    f'rule "r" {{\n  reason = "why"\n{lines}\n}}\n')
    with pytest.raises(reading.BaselineError) as raised:
        reading.load(path)
    said = raised.value.summary
    assert re.search(r"own\.hcl:\d+:\d+: error\[", said)
    assert found in said
    assert fix in said


def _own(folder: Path, *rules: str, includes: str = "") -> Path:
    path = folder / "own.hcl"
    path.write_text(f'baseline {{\n  name = "own"\n  summary = "ours"\n  {includes}\n}}\n' + "\n".join(
        f'rule "r{number}" {{\n  reason = "why"\n  {rule}\n}}' for number, rule in enumerate(rules)))
    return path


MODELS = text("bank").replace('model "assistant" {', 'model "plain" {\n file = "a.gguf"\n sha256 = '
                              f'"{"0b" * 32}"\n load = "boot"\n}}\n\nmodel "assistant" {{', 1)
EACH = {  # rule, policy -> outcome, path
    "a value": ('field = "audit.sink"\nequals = "state"', "pass", "audit.sink"),
    "another": ('field = "audit.sink"\nequals = "stdout"', "fail", "audit.sink"),
    "a label of several": ('field = "model.load"\nequals = "always"', "fail", 'model "plain".load'),
    "only where a condition holds": (
        'field = "model.load"\nequals = "always"\nwhen {\nfield = "model.key"\npresent = true\n}', "pass",
        'model "assistant".load'),
    "a condition that holds nowhere": (
        'field = "model.load"\nequals = "always"\nwhen {\nfield = "tee.platforms"\nhas = ["tdx"]\n}',
        "not applicable", None),
    "absent fails": ('field = "service.tls.key_exchange"\nequals = "any"', "fail", "service.tls.key_exchange"),
    "absent passes": ('field = "service.tls.key_exchange"\nequals = "any"\nabsent = "passes"', "pass",
                      "service.tls.key_exchange"),
    "none of, absent": ('field = "service.operator_may_set"\nnone_of = ["log_sink"]', "pass",
                        "service.operator_may_set"),
    "a range": ('field = "limits.concurrent_requests"\nat_least = 32\nat_most = 32', "pass",
                "limits.concurrent_requests"),
    "above it": ('field = "limits.concurrent_requests"\nat_least = 1\nat_most = 31', "fail",
                 "limits.concurrent_requests"),
    "units": ('field = "privacy.timing_padding.total"\nat_most = "1s"', "pass", "privacy.timing_padding.total"),
    "types": ('field = "model.streaming_decrypt"\none_of = [false, "auto"]', "pass",
              'model "assistant".streaming_decrypt'),
    "count": ('field = "approvals.approver"\ncount = 4', "fail", "approvals.approver"),
    "a map's label": ('field = "model.sampling.bound.temperature.max"\nat_most = 1.0', "fail",
                      'model "plain".sampling.bound "temperature".max'),
}


@pytest.mark.parametrize("name", EACH)
def test_each_demand(name: str, tmp_path: Path) -> None:
    """On a policy with two models, of which one is plain and may be swapped."""
    rule, outcome, path = EACH[name]
    (found,) = judge.judge(check(MODELS), reading.load(_own(tmp_path, rule)))
    assert (outcome, path) == (found.outcome, found.diagnostic.path if found.diagnostic else None)


def test_a_file_includes_others_once(tmp_path: Path) -> None:
    """Beside it or on the way to it; a circle is refused."""
    (tmp_path / "common.hcl").write_text('baseline {\n name = "common"\n summary = "all"\n}\n')
    own = _own(tmp_path, 'field = "audit.sink"\nequals = "state"', includes='includes = ["common.hcl"]')
    assert ["common", "own"] == [each.name for each in reading.load(own)]
    (tmp_path / "common.hcl").write_text('baseline {\n name = "c"\n summary = "a"\n includes = ["own.hcl"]\n}\n')
    with pytest.raises(reading.PolicyError, match="included by itself"):
        reading.load(own)


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 where an error fails, 0 where only a warning does, 2 for a baseline that cannot be used; the same in
    JSON."""
    policy = str(ROOT / "examples/deployments/bank/deployment.hcl")
    finance, hipaa = (str(BASELINES[name]) for name in ("finance", "hipaa"))
    assert 0 == main(["check", policy, "--against", finance])
    out = capsys.readouterr().out
    assert re.search(r"rules: pass \d+, fail 0, not applicable \d+", out)
    assert "approvals.approver is 3 blocks\n" in out
    assert "tee.evidence.debug is false (not written)\n" in out
    assert 1 == main(["check", policy, "--against", finance, "--against", hipaa])
    out = capsys.readouterr().out
    assert 1 == out.count("  pass  production/approvals")
    assert re.search(r":\d+:\d+: error\[hipaa/redact-identifiers\]: privacy\.redaction\.detectors is \[", out)
    assert "  reason: Identifiers of people do not reach the model" in out
    assert 1 == main(["check", policy, "--json", "--against", hipaa])
    found = {each["id"]: each for each in json.loads(capsys.readouterr().out)["against"]}
    line = text("bank").splitlines()[found["hipaa/redact-identifiers"]["line"] - 1]
    assert line.strip().startswith("detectors = ")
    assert ("fail", "warning") == tuple(found["hipaa/post-quantum"][key] for key in ("outcome", "severity"))
    warned = _own(tmp_path, 'field = "audit.sink"\nequals = "stdout"\nseverity = "warning"')
    assert 0 == main(["check", policy, "--against", str(warned)])
    assert "warning[own/r0]" in capsys.readouterr().out
    assert 2 == main(["check", policy, "--against", str(tmp_path / "none.hcl")])
    warned.write_text("rule {")
    assert 2 == main(["check", policy, "--json", "--against", str(warned)])
    assert "baseline-invalid" == json.loads(capsys.readouterr().out)["code"]
