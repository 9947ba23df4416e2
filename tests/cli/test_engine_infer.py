"""`appliance infer`: one prompt under a policy, as text and as JSON."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.cli.main import main
from examples import plain_engine
from tests.support.engines import synthetic_model

KEY = hashlib.sha256(b"a key").hexdigest()
POLICY = """
appliance {{
  name   = "t"
  schema = 1
}}
tee {{ platforms = ["simulated"] }}
model "tiny" {{
  file                   = "tiny.gguf"
  sha256                 = "{sha256}"
  chat_template_fallback = "chatml"
  sampling {{
    temperature {{ max = 1.5 }}
  }}
}}
limits {{
  prompt_tokens     = 100
  generation_tokens = 20
}}
tenants {{
  tenant "t" {{
    models         = ["tiny"]
    api_key_sha256 = ["{key}"]
  }}
}}
service {{
  listen "api" {{
    kind    = "tcp"
    address = "127.0.0.1"
    port    = 8080
  }}
}}
"""


def write_second(folder):
    """The policy, in schema 2."""
    text = (folder / "policy.hcl").read_text().replace("schema = 1", "schema = 2")
    (folder / "second.hcl").write_text(text.replace("temperature {", 'bound "temperature" {'))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A policy and, in another folder, its model."""
    folder = tmp_path_factory.mktemp("infer")
    data = synthetic_model("Q8_0")
    (folder / "models").mkdir()
    (folder / "models" / "tiny.gguf").write_bytes(data)
    text = POLICY.format(sha256=hashlib.sha256(data).hexdigest(), key=KEY)
    (folder / "policy.hcl").write_text(text)
    (folder / "pinned.hcl").write_text(POLICY.format(sha256=hashlib.sha256(b"another").hexdigest(), key=KEY))
    return folder


def infer(folder, *arguments, policy="policy.hcl"):
    """Run the command; its exit code."""
    return main(["infer", str(folder / policy), "--models", str(folder / "models"), "--threads", "1", *arguments])


def test_json_and_text_agree(folder, capsys):
    """The same seed gives the same answer in both forms; JSON has the ids and the timings."""
    arguments = ["--model", "tiny", "--prompt", "hello", "--seed", "5", "--max-tokens", "8"]
    assert infer(folder, *arguments, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert infer(folder, *arguments) == 0
    assert found["text"] + "\n" == capsys.readouterr().out
    assert (5, 8, "length") == (found["seed"], len(found["tokens"]), found["finish_reason"])
    assert {"load_seconds", "prompt_seconds", "seconds_per_token"} == set(found["timings"])


def test_an_answer_of_several(folder, capsys):
    """Its seed is made from the one that is given, as the API documents it; the first has that one itself."""
    asked = ["--prompt", "hello", "--max-tokens", "6", "--json", "--seed"]
    made = int.from_bytes(hashlib.sha256(
        b"appliance choice seed v1\0" + (5).to_bytes(8, "little") + (3).to_bytes(8, "little")).digest()[:8]) >> 11
    for more in (["5", "--choice", "3"], [str(made)], ["5", "--choice", "0"], ["5"]):
        assert infer(folder, *asked, *more) == 0
    third, by_seed, first, plain = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (third["seed"], third["tokens"]) == (by_seed["seed"], by_seed["tokens"]) == (made, third["tokens"])
    assert (first["seed"], first["tokens"]) == (plain["seed"], plain["tokens"])


def test_an_answer_that_has_begun(folder, capsys):
    """Its prompt is the other's, and then what it has said."""
    for more in ([], ["--begun", "Well, "]):
        assert infer(folder, "--prompt", "hello", "--max-tokens", "1", "--temperature", "0", "--json", *more) == 0
    plain, begun = (json.loads(line)["prompt_tokens"] for line in capsys.readouterr().out.splitlines())
    assert plain == begun[:len(plain)]
    assert len(plain) < len(begun)


@pytest.mark.parametrize(("arguments", "words"), [
    (["--raw", "--suffix", "x"], "no tokens for what stands between"), (["--suffix", "x"], "--suffix is for --raw"),
    (["--raw", "--begun", "x"], "--begun for the others")])
def test_what_does_not_go_together(folder, capsys, arguments, words):
    """A suffix needs a raw prompt and tokens of the model, an answer that has begun a chat."""
    assert infer(folder, "--prompt", "x", *arguments) == 2
    assert words in capsys.readouterr().err


def test_schema_2_clamps(folder, capsys):
    """More tokens than are allowed are as many as are, with a warning."""
    write_second(folder)
    assert infer(folder, "--prompt", "x", "--max-tokens", "21", "--json", policy="second.hcl") == 0
    told = capsys.readouterr()
    assert 20 >= len(json.loads(told.out)["tokens"])
    assert "the policy allows 20 tokens; 21 were asked for" in told.err


def test_raw_prompts_have_no_template(folder, capsys):
    """--raw gives the tokens of the text alone; the only model needs no name."""
    for raw in ([], ["--raw"]):
        assert infer(folder, "--prompt", "hello", "--max-tokens", "1", "--temperature", "0", "--json", *raw) == 0
    chat, plain = (json.loads(line)["prompt_tokens"] for line in capsys.readouterr().out.splitlines())
    assert len(plain) < len(chat)
    assert 1 == plain[0]


@pytest.mark.parametrize(("arguments", "code"), [
    (["--max-tokens", "21"], "capacity-exceeded"), (["--temperature", "1.6"], "engine-error"),
    (["--model", "other"], "model-unknown"), (["--prompt", "x " * 200], "capacity-exceeded"),
])
def test_the_policy_holds(folder, capsys, arguments, code):
    """What the policy does not allow is refused with exit code 2."""
    assert infer(folder, "--prompt", "x", *arguments) == 2
    assert f"error[{code}]" in capsys.readouterr().err


def test_a_prompt_that_is_no_utf_8(folder):
    """The place that is named is the prompt's own, as the shell gave it, not one in the template's text."""
    for raw in ([], ["--raw"]):
        done = subprocess.run(
            [sys.executable, "-m", "appliance", "infer", str(folder / "policy.hcl"), *raw, "--prompt",
             b"h\xc3\xa4\xff!"],
            capture_output=True, check=False, cwd=Path(__file__).parents[2], env={**os.environ, "LC_ALL": "C.UTF-8"})
        assert (2, b"") == (done.returncode, done.stdout)
        assert b"argument --prompt: no UTF-8 at byte 3\n" in done.stderr


def test_a_name_without_letters_is_no_model(folder, capsys):
    """Of a policy with one model, too, which is meant where there is no name."""
    assert infer(folder, "--prompt", "x", "--model", "") == 2
    assert "the policy has no model ''" in capsys.readouterr().err


def test_a_file_that_is_not_there(folder, capsys, tmp_path):
    """It is said where it is looked for."""
    assert main(["infer", str(folder / "policy.hcl"), "--models", str(tmp_path), "--prompt", "x"]) == 2
    said = capsys.readouterr().err
    assert f"error[model-unreadable]: model tiny: {folder}/tiny.gguf: No such file or directory; it is looked" in said
    assert "--models DIR" in said


def test_the_pin_holds(folder, capsys):
    """A model with another hash is not run."""
    assert infer(folder, "--prompt", "x", policy="pinned.hcl") == 2
    assert "error[model-pin-mismatch]" in capsys.readouterr().err


def test_an_invalid_policy_has_findings(folder, capsys):
    """A policy with errors gives exit code 1 and its findings."""
    (folder / "bad.hcl").write_text((folder / "policy.hcl").read_text().replace("prompt_tokens ", "promt_tokens "))
    assert infer(folder, "--prompt", "x", policy="bad.hcl") == 1
    assert "promt_tokens" in capsys.readouterr().err


@pytest.mark.parametrize(("prompt", "twice"), [("hello", False), ("<s>hello", True)])
def test_a_raw_prompt_that_brings_its_own_bos(folder, capsys, prompt, twice):
    """The token is there twice, as in llama.cpp, and a warning says so; in a chat the name is text."""
    arguments = ["--prompt", prompt, "--max-tokens", "1", "--json"]
    assert 0 == infer(folder, "--raw", *arguments)
    output = capsys.readouterr()
    found = json.loads(output.out)
    assert twice == (found["prompt_tokens"][:2] == [1, 1]) == bool(found["warnings"])
    assert twice == output.err.startswith("warning: the prompt begins with '<s>', which is added anyway")
    assert 0 == infer(folder, *arguments)
    assert [] == json.loads(capsys.readouterr().out)["warnings"]


SET = [word for setting in (
    "typical_p=0.9", "mirostat=2", "mirostat_tau=3", "dry_multiplier=0.8", 'dry_sequence_breakers=["a", "\\n"]',
    "samplers=dry;penalties;temperature", "presence_penalty=0.5") for word in ("--set", setting)]


def test_every_parameter_may_be_set(folder, capsys):
    """The JSON has all of them, and the plain engine chooses the same tokens by it."""
    write_second(folder)
    assert infer(folder, "--prompt", "aa bb aa bb", "--raw", "--seed", "5", "--json", *SET, policy="second.hcl") == 0
    answer = json.loads(capsys.readouterr().out)
    chosen = answer["sampling"]
    assert ["dry", "penalties", "temperature"] == chosen["samplers"]
    assert (0.9, 2, 3.0, 0.8, 0.5) == tuple(chosen[name] for name in (
        "typical_p", "mirostat", "mirostat_tau", "dry_multiplier", "presence_penalty"))
    assert chosen["dry_breakers"]
    (folder / "answer.json").write_text(json.dumps(answer))
    assert plain_engine.main([str(folder / "models" / "tiny.gguf"), str(folder / "answer.json")]) == 0


@pytest.mark.parametrize("more", [[], ["--raw"]])
def test_guidance_is_replayed(folder, capsys, more):
    """The JSON has the negative prompt's tokens; the plain engine reads them, too, and needs them."""
    write_second(folder)
    words = ["--set", "guidance_scale=3", "--set", "negative_prompt=bb a"]
    assert infer(folder, "--prompt", "aa bb", "--seed", "5", "--json", *more, *words, policy="second.hcl") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["negative_tokens"] not in ([], answer["prompt_tokens"])
    (folder / "answer.json").write_text(json.dumps(answer))
    assert plain_engine.main([str(folder / "models" / "tiny.gguf"), str(folder / "answer.json")]) == 0
    (folder / "answer.json").write_text(json.dumps({**answer, "negative_tokens": answer["prompt_tokens"]}))
    assert plain_engine.main([str(folder / "models" / "tiny.gguf"), str(folder / "answer.json")]) == 1


def test_healing_is_replayed(folder, capsys):
    """The JSON has the prompt without its end, and the masks of the tokens that write it again; only with --raw."""
    write_second(folder)
    words = ["--prompt", "aa bb aa", "--seed", "5", "--json", "--set", "token_healing=2"]
    assert infer(folder, *words, "--raw", policy="second.hcl") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["masks"][0]
    assert answer["masks"][-1] is None
    (folder / "answer.json").write_text(json.dumps(answer))
    assert plain_engine.main([str(folder / "models" / "tiny.gguf"), str(folder / "answer.json")]) == 0
    assert infer(folder, *words, policy="second.hcl") == 2
    assert "token_healing: only texts that go on freely can have it" in capsys.readouterr().err


@pytest.mark.parametrize(("setting", "words"), [
    ("top_a=1", "expected samplers, dry_sequence_breakers, negative_prompt, or one"),
    ("top_p", "expected a number from 0 to 1"),
    ("mirostat=3", "a whole number from 0 to 2"), ("dry_sequence_breakers=x", "expected a list of texts as JSON")])
def test_what_cannot_be_set(folder, capsys, setting, words):
    """Exit code 2, and what is expected."""
    with pytest.raises(SystemExit) as caught:
        infer(folder, "--prompt", "aa", "--raw", "--set", setting)
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_settings_stay_within_the_policy(folder, capsys):
    """One of schema 1 has none of the newer samplers."""
    assert infer(folder, "--prompt", "aa", "--raw", "--set", "typical_p=0.5") == 2
    assert "typical_p: the policy allows no value but 1 or null" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "said"), [
    ('{"properties": {"a": {"contains": {}}}}', "properties.a.contains"), ("{", "is not read"),
    ("[]", "neither an object"),
    ('{"a": 1, "a": 2}', "a key stands twice"), (None, "No such file"),
    ('{"oneOf": [{"pattern": "a"}, {"pattern": "b"}]}', "oneOf.0.pattern")])
def test_schemas_that_are_not_enforced_are_refused(folder, tmp_path, capsys, text, said):
    """By file and place, with what is allowed; exit code 2."""
    path = tmp_path / "schema.json"
    if text is not None:
        path.write_text(text)
    code = main(["infer", str(folder / "policy.hcl"), "--prompt", "x", "--models", str(folder / "models"), "--schema",
                 str(path)])
    printed = capsys.readouterr().err
    assert 2 == code
    assert str(path) in printed
    assert said in printed
    assert "hint: " in printed


def test_an_answer_meets_its_schema(folder, tmp_path, capsys):
    """As JSON, with a mask for each token."""
    (tmp_path / "schema.json").write_text('{"enum": ["yes", "no"]}')
    code = main(["infer", str(folder / "policy.hcl"), "--prompt", "x", "--models", str(folder / "models"), "--schema",
                 str(tmp_path / "schema.json"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (0, "stop") == (code, found["finish_reason"])
    assert json.loads(found["text"]) in ("yes", "no")
    assert len(found["tokens"]) == len(found["masks"])
