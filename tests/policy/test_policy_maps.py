"""The map of bounds on sampling: one block for each parameter, whether or not it stands in the file."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.main import main
from appliance.codec.canonical import canonical
from appliance.policy import bounds, load, policy_digest
from appliance.policy.digest import digested
from appliance.policy.explaining.checking import check, check_bytes
from appliance.policy.hcl.diagnostics import InvalidPolicyError
from appliance.policy.language.upgrade import upgrade
from appliance.policy.schema import Policy, frozen
from appliance.policy.schema.sampling import BY_NAME
from tests.support import extent
from tests.support.policies import in_schema, marked, valid, with_lines

ROOT = Path(__file__).parents[2]
WRITTEN = sorted([*ROOT.glob("examples/**/*.hcl"), *ROOT.glob("policies/*.hcl")])
# Each parameter that requests may set, with what a policy may write of it: a list of its own, so that none gets lost.
RANGES = {
    "dry_allowed_length": (0, 1000), "dry_base": (1.0, 10.0), "dry_multiplier": (0.0, 20.0),
    "dry_penalty_last_n": (-1, 1 << 20), "dynatemp_exponent": (0.0, 10.0), "dynatemp_range": (0.0, 5.0),
    "epsilon_cutoff": (0.0, 10_000.0), "eta_cutoff": (0.0, 10_000.0), "frequency_penalty": (-2.0, 2.0),
    "guidance_scale": (0.0, 20.0), "length_penalty": (-10.0, 10.0), "min_p": (0.0, 1.0), "mirostat": (0, 2),
    "mirostat_eta": (0.0, 1.0), "mirostat_tau": (0.0, 20.0), "presence_penalty": (-2.0, 2.0),
    "repeat_last_n": (0, 1 << 17), "repeat_penalty": (0.1, 10.0), "temperature": (0.0, 5.0), "tfs_z": (0.0, 1.0),
    "token_healing": (0, 8), "top_k": (0, 1_000_000), "top_n_sigma": (0.0, 100.0), "top_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0), "xtc_probability": (0.0, 1.0), "xtc_threshold": (0.0, 1.0)}
FIRST = ("temperature", "top_p", "top_k", "min_p", "repeat_penalty", "frequency_penalty", "presence_penalty")


def _policy(sampling: str, schema: int = 2) -> str:
    return in_schema(schema, with_lines("model", f"  sampling {{\n{sampling}\n  }}"))


def _bounds(policy: Policy | None) -> dict[str, tuple[float, float, float]]:
    assert policy is not None
    return {each.name: (each.default, each.min, each.max) for each in policy.models[0].sampling.bounds}


@pytest.mark.parametrize("name", RANGES)
def test_each_parameter_has_its_own_range(name: str) -> None:
    """Both ends of it are taken; what lies beyond, or is of another kind, is refused at its place."""
    low, high = RANGES[name]
    found = _bounds(valid(_policy(f'bound "{name}" {{\n min = {low}\n max = {high}\n default = {high}\n}}')))
    assert (high, low, high) == found[name]
    whole = isinstance(low, int)
    for value in (low - 1, high + 1, *((0.5,) if whole else ()), '"1"', "true"):
        text, place = marked(_policy(f'bound "{name}" {{ max = «{value} }}'))
        errors = check(text).diagnostics
        assert [("value", *place)] == [(each.code, each.line, each.column) for each in errors]
        assert f'model "demo".sampling.bound "{name}".max' == errors[0].path
        assert f"{'a whole' if whole else 'a'} number from {low:{'d' if whole else 'g'}} to" in errors[0].detail


def test_every_parameter_is_bounded() -> None:
    """By default, too, and alike whether or not that is written."""
    plain = _bounds(valid(in_schema(2)))
    assert list(RANGES) == list(plain)
    lines = "\n".join(f'bound "{name}" {{\n default = {each[0]}\n min = {each[1]}\n max = {each[2]}\n}}'
                      for name, each in plain.items())
    again = valid(_policy(lines))
    assert plain == _bounds(again)
    assert policy_digest(valid(in_schema(2))) == policy_digest(again)
    assert policy_digest(again) != policy_digest(valid(_policy('bound "xtc_threshold" { max = 0.9 }')))


def test_the_digest_has_every_bound() -> None:
    """The document is an object with each parameter of the table, as the specification says."""
    document = digested(valid(_policy('bound "top_k" { max = 50 }')))["model"]["demo"]["sampling"]
    table = frozen.table(2)
    parts = {part: table[f"model.sampling.bound.{part}"]["default"] for part in ("default", "min", "max")}
    expected = {name: {part: values[name] for part, values in parts.items()} for name in parts["max"]}
    expected["top_k"]["max"] = 50
    assert canonical(expected) == canonical(document["bound"])
    assert {"bound", "extended", "samplers", "max_beams", "max_logprobs"} == set(document)


WRONG = [
    ('bound «"top_pp" { max = 0.5 }', "value", 'did you mean "top_p"?'),
    ('bound «"brand_new" {}', "value", '"typical_p"'),
    ('«bound { max = 0.5 }', "label", 'write bound "name"'),
    ('bound "top_p" «"top_k" {}', "label", "2 labels"),
    ('«bound = 3', "wrong-shape", 'write bound "name"'),
    ('bound "top_p" {}\n«bound "top_p" {}', "duplicate", "stands twice"),
    ('bound "top_p" { «most = 1 }', "unknown-key", "default, min, max"),
    ('bound "top_k" { max = «1.5 }', "value", "not a whole number"),
    ('bound "top_p" {\n min = «0.5\n max = 0.4\n}', "rule", "min 0.5 is above max 0.4"),
    ('bound "dry_base" { default = «1.5\n min = 1.6 }', "rule", "write default = 1.6"),
    ('«bound "top_k" { max = 20 }', "rule", "write default = 20"),
    ("«temperature { max = 1 }", "unknown-key", "ended with schema 1"),
    ("«dry_multiplier { max = 1 }", "unknown-key", 'write bound "dry_multiplier" { ... }'),
]


@pytest.mark.parametrize(("lines", "code", "words"), WRONG)
def test_what_is_wrong_in_a_bound(lines: str, code: str, words: str, tmp_path: Path) -> None:
    """It is one finding, at its place, with what is allowed and a fix; a guest refuses it there, too."""
    text, place = marked(_policy(lines))
    errors = [each for each in check(text).diagnostics if each.severity == "error"]
    assert [(code, *place)] == [(each.code, each.line, each.column) for each in errors], "\n".join(map(str, errors))
    assert words in str(errors[0])
    assert errors[0].fix
    path = tmp_path / "p.hcl"
    path.write_text(text)
    with pytest.raises(InvalidPolicyError) as refused:
        load(path)
    assert [(code, *place)] == [(each.code, each.line, each.column) for each in refused.value.diagnostics]


def test_schema_1_has_no_map() -> None:
    """Its own blocks stay; the map is a field of schema 2, and so are the parameters that came with it."""
    for lines, words in (('bound "top_p" {}', "bound is a field of schema 2"),
                         ("dry_base {}", "dry_base is a label of bound")):
        assert [words] == [each.summary for each in check(_policy(lines, 1)).diagnostics]
    for name in FIRST:
        assert valid(_policy(f"{name} {{}}", 1))


def _drawn(rng: random.Random, names: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Valid bounds, at random."""
    found: dict[str, dict[str, float]] = {}
    for name in rng.sample(names, rng.randint(1, len(names))):
        low, high = RANGES[name]
        numbers = sorted(rng.randint(low, high) if isinstance(low, int) else round(rng.uniform(low, high), 3)
                         for _ in range(3))
        found[name] = dict(zip(("min", "default", "max"), numbers, strict=True))
    return found


def _written(drawn: dict[str, dict[str, float]], rng: random.Random, *, mapped: bool) -> str:
    """Bounds as a policy has them, with comments and in one of three layouts."""
    blocks = []
    for name, parts in drawn.items():
        head = f'bound "{name}"' if mapped else name
        lines = [f"{part} = {value}" for part, value in parts.items()]
        layout = rng.choice([" /* { */\n  @\n", "\n    @ # of these\n", "  # // }\n\t@\n"])
        inner = layout.replace("@", "\n  ".join(lines))
        before, behind = rng.choice(["", "  # why", "// " + name]), rng.choice(["", " # end"])
        blocks.append(f"{before}\n    {head} {{{inner}}}{behind}")
    return "\n".join(blocks)


def _allowed(policy: Policy, rng: random.Random) -> list[Any]:
    """What becomes of requests that ask for one parameter each, and of some that ask for all."""
    rules, found = policy.models[0].sampling, list[Any]()
    asked = {name: rng.choice([low, high, (low + high) // 2, high + 1]) for name, (low, high) in RANGES.items()}
    for each in (*({name: value} for name, value in asked.items()), asked, {}):
        for order in (None, ["top_k", "temperature"]):
            try:
                found.append(bounds.numbers(rules, each, order))
            except bounds.OutsideError as error:
                found.append(str(error))
    return found


@pytest.mark.parametrize("seed", range(extent.examples(20, 300)))
def test_an_upgrade_moves_bounds_into_the_map(seed: int) -> None:
    """Of schema 1 and of the blocks that schema 2 had before: with the same numbers, digest and comments."""
    schema = 1 + seed % 2
    drawn = _drawn(random.Random(seed), FIRST if schema == 1 else tuple(RANGES))
    old, new = (_written(drawn, random.Random(seed), mapped=mapped) for mapped in (False, True))
    done = upgrade(_policy(old, schema).encode())
    assert done.data is not None, done.decisions
    assert new in done.data.decode()
    expected = {name: (each["default"], each["min"], each["max"]) for name, each in drawn.items()}
    after = check_bytes(done.data).policy
    assert {**_bounds(valid(in_schema(2))), **expected} == _bounds(after)
    if schema == 1:
        before = valid(_policy(old, 1))
        assert after is not None
        assert _bounds(before) == _bounds(after)
        assert _allowed(before, random.Random(seed)) == _allowed(after, random.Random(seed))
    else:
        assert _policy(new).encode() == done.data
        assert after is not None
        assert policy_digest(valid(_policy(new))) == policy_digest(after)
    assert upgrade(done.data).data == done.data


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_each_policy_of_ours_comes_back(path: Path) -> None:
    """Written with the former blocks, it is upgraded to what it is."""
    text = path.read_text()
    former = re.sub(r'\bbound "(\w+)" {', r"\1 {", text)
    assert ("bound" in text) == (former != text)
    assert text.encode() == upgrade(former.encode()).data
    assert load(path).digest == policy_digest(valid(text))


def test_an_upgrade_of_schema_1_may_have_new_blocks_of_either_form() -> None:
    """A file that was changed to the new fields, but not to the new number, is upgraded as it stands."""
    text = _policy('temperature { max = 1 }\ndry_multiplier { max = 3 }\nbound "top_n_sigma" { max = 4 }', 1)
    assert not check(text).valid
    done = upgrade(text.encode())
    assert done.data is not None, done.decisions
    found = _bounds(check_bytes(done.data).policy)
    assert [1, 3, 4] == [found[name][2] for name in ("temperature", "dry_multiplier", "top_n_sigma")]


def test_one_bound_in_both_forms_is_nobody_s_to_choose() -> None:
    """Neither is taken: a person has to."""
    lines = 'top_p { max = 0.96 }\nbound "top_p" { max = 0.97 }'
    with pytest.raises(InvalidPolicyError):
        upgrade(_policy(lines).encode())
    assert upgrade(_policy(lines, 1).encode()).data is None


def test_the_command_says_what_became_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of schema 2 with the former blocks is not one without anything to change."""
    path = tmp_path / "p.hcl"
    path.write_text(_policy("top_p { max = 0.96 } # mine"))
    assert 1 == main(["check", str(path)])
    assert "appliance check --upgrade" in capsys.readouterr().out
    assert 0 == main(["check", "--upgrade", str(path), "--in-place"])
    assert "schema 2 as it is now" in capsys.readouterr().err
    assert _policy('bound "top_p" { max = 0.96 } # mine') == path.read_text()
    assert 0 == main(["check", "--upgrade", str(path)])
    assert "nothing to change" in capsys.readouterr().err


def test_a_sampler_to_come_stays_off_under_this_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter of a later schema has no bound: a file cannot name it, and requests cannot turn it on."""
    place, table = "model.sampling.bound", dict(frozen.table(2))
    table[place] = {"block": "map", "labels": [each for each in table[place]["labels"] if each != "top_n_sigma"]}
    monkeypatch.setattr(frozen, "table", {2: table}.__getitem__)
    policy = valid(in_schema(2))
    assert "top_n_sigma" not in _bounds(policy)
    assert ["value"] == [each.code for each in check(_policy('bound "top_n_sigma" {}')).diagnostics]
    rules: Any = policy.models[0].sampling
    assert BY_NAME["top_n_sigma"].off == bounds.numbers(rules, {}, None)["top_n_sigma"]
    with pytest.raises(bounds.OutsideError, match="the policy allows no value but 0 or null"):
        bounds.numbers(rules, {"top_n_sigma": 1.0}, None)


def test_a_wrong_bound_hides_no_other_finding() -> None:
    """All that is wrong in a block is told at once."""
    text = _policy('bound "top_p" { max = 3 }\nbound "top_k" {\n min = 9\n max = 8\n}\nbound "nope" { x = 1 }')
    assert {"value", "rule", "unknown-key"} == {each.code for each in check(text).diagnostics}
