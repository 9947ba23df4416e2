"""`appliance check --upgrade`: an old policy in the newest schema, with the same meaning, comments and layout."""

from __future__ import annotations

import json
import os
import random
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.cli.main import main
from appliance.policy import load, policy_digest, rules
from appliance.policy.explaining.checking import check, check_bytes
from appliance.policy.explaining.parser import parse_text
from appliance.policy.hcl.diagnostics import InvalidPolicyError
from appliance.policy.language.redacted import without_tenants
from appliance.policy.language.upgrade import upgrade
from appliance.policy.rules import Breach
from appliance.policy.schema import Policy, frozen
from appliance.policy.schema.base import Block, every_field
from appliance.policy.schema.platform import Requirements
from tests.policy.test_policy_versions import VAULT
from tests.support import extent, hcl_judge
from tests.support.policies import BASE, PUBLIC, in_schema, with_lines
from tests.support.rendering import another, crowded, render

ROOT = Path(__file__).parents[2]
OLD = sorted(ROOT.glob("tests/goldens/schema_1/*.hcl"))


@pytest.fixture(scope="module")
def judge() -> Iterator[hcl_judge.Judge]:
    """HashiCorp's own parser."""
    made = hcl_judge.Judge()
    yield made
    made.close()


PLATFORMS = {"sev-snp": "sev_snp", "tdx": "tdx", "tpm": "tpm"}  # the blocks of `tee.evidence` that are a platform's
BOTH = {"smt", "debug", "migration", "smt_of_either"}  # of SEV-SNP and TDX


def idle(policy: Policy) -> set[str]:
    """The attributes of `evidence` that nothing reads under a policy's platforms."""
    there = set(policy.tee.platforms)
    none = BOTH if not there & {"sev-snp", "tdx"} else set()
    return none | {block for name, block in PLATFORMS.items() if name not in there} | (
        {"vmpl"} if "sev-snp" not in there else set()) | ({"max_collateral_age_ms"} if "tdx" not in there else set())


def meaning(block: Block, without: set[str] | None = None) -> dict[str, Any]:
    """Return a bound block as the program reads it: every attribute that the latest version has, but the version.

    `queued_requests` alone reads otherwise: schema 1 has no queue beside its places, which schema 2 writes as 0. What
    only platforms ask for that the policy does not accept is left out.
    """
    found: dict[str, Any] = {}
    without = idle(block) if isinstance(block, Policy) else without or set()
    for shape in every_field(type(block)):
        if isinstance(block, Requirements) and shape.attribute in without:
            continue
        value = getattr(block, shape.attribute)
        if not shape.stands_in(frozen.LATEST):
            continue  # the program reads what came in its place
        if isinstance(value, Block):
            found[shape.attribute] = meaning(value, without)
        elif shape.labelled:
            found[shape.attribute] = {getattr(item, item.LABEL): meaning(item) for item in value}
        elif shape.attribute == "queued_requests":
            found[shape.attribute] = value or 0
        elif shape.attribute != "schema_version":
            found[shape.attribute] = value
    return found


@pytest.fixture
def same_defaults(monkeypatch: pytest.MonkeyPatch) -> dict[int, dict[str, frozen.Entry]]:
    """Let schema 2 have the defaults of schema 1 where both have the field, so that `queued_requests` alone is new."""
    tables = {version: dict(frozen.table(version)) for version in frozen.VERSIONS}
    tables[2] |= {path: entry for path, entry in tables[1].items() if "default" in entry and path in tables[2]}
    tables[2] |= {"model.sampling.extended": {"default": False}, "limits.choices": {"default": 1},
                  "limits.oversized_max_tokens": {"default": "refuse"}, "service.session_binding": {"default": "key"}}
    monkeypatch.setattr(frozen, "table", tables.__getitem__)
    return tables


def upgraded(text: str) -> str:
    """Return a valid text after an upgrade that decides nothing, having checked that it means the same."""
    before = check(text)
    done = upgrade(text.encode())
    assert done.data is not None, done.decisions
    after = check_bytes(done.data)
    assert before.policy is not None
    assert after.policy is not None, after.diagnostics
    assert frozen.LATEST == after.policy.appliance.schema_version
    assert meaning(before.policy) == meaning(after.policy)
    assert upgrade(done.data).data == done.data
    return done.data.decode()


def test_a_cadence_that_shows_needs_a_decision() -> None:
    """Schema 2 refuses a cadence whose answers tell what it hides, as a warning of schema 1 says. The upgrade decides
    nothing about it."""
    text = with_lines(
        "privacy", 'timing_padding {\n cadence = "100ms"\n first_token = "50ms"\n total = "1s"\n}')
    warned = [found.summary for found in check(text).diagnostics if found.code == "rule"]
    done = upgrade(text.encode())
    assert done.data is None
    assert warned == [found.summary for found in done.decisions]
    assert any(summary.startswith("cadence stands without size_padding") for summary in warned)


def is_kept(old: str, new: str) -> bool:
    """Whether every character of the old text but the version's number stands in the new one, in its order.

    Blanks behind the beginning of a heredoc are nobody's text.
    """
    old = re.sub(r"(<<-?\w+)[ \t]+\n", r"\1\n", old)
    rest = iter(new)
    appliance = next(block.body for block in parse_text(old).blocks if block.type == "appliance")
    span = appliance.attributes["schema"].value.span
    return all(char in rest for char in old[:span.start] + old[span.end:])


@settings(max_examples=extent.examples(3, 15), deadline=None)
@given(st.randoms(use_true_random=False))
@pytest.mark.parametrize("path", OLD, ids=lambda path: path.name)
def test_any_policy_keeps_its_meaning(path: Path, rng: random.Random) -> None:
    """Any valid policy of schema 1, in any layout, becomes one of schema 2 that the program reads alike."""
    text = another(path.read_text(), rng, steps=8, strict="privacy")
    text = render(parse_text(text), rng) if rng.random() < 0.7 else text
    assert check(text).valid
    assert is_kept(text, upgraded(text))


@pytest.mark.usefixtures("same_defaults")
@pytest.mark.parametrize("path", [path for path in OLD if "min_tcb" not in path.read_text()],
                         ids=lambda path: path.name)
def test_an_example_changes_by_two_lines(path: Path) -> None:
    """The version's line of an example changes, and one line is new, below the last one of its block. Bounds on
    sampling have become those of a map."""
    moved = re.sub(r"^( +)(temperature|top_p|top_k) {", r'\1bound "\2" {', path.read_text(), flags=re.MULTILINE)
    old, new = moved.splitlines(), upgraded(path.read_text()).splitlines()
    assert [line.strip() for line in old if line not in new] == ["schema = 1"]
    assert [line for line in new if line not in old] == ["  schema = 2", "  queued_requests     = 0"]
    at = new.index("  queued_requests     = 0")
    assert "}" == new[at + 1]


CHANGED: dict[str, Any] = {  # defaults that differ, in blocks of every kind
    "tee.evidence.sev_snp.products": ["genoa", "turin"], "tee.evidence.tdx.min_evaluation_number": 5,
    "tee.plaintext_budget": 2**24,
    "model.kv_cache": "q8", "model.streaming_decrypt": True,
    "privacy.redaction.pattern.replacement": "\"${x}\"\n", "privacy.timing_padding.jitter": 7, "audit.receipts": True,
    "limits.request_size": 2**21, "service.listen.names": ["a.example"], "state.key.version": 3,
}


@pytest.fixture
def other_defaults(same_defaults: dict[int, dict[str, frozen.Entry]]) -> None:
    """Let schema 2 have other defaults than schema 1 all over."""
    for path, default in CHANGED.items():
        assert "default" in same_defaults[2][path]
        same_defaults[2][path] = {"default": default}
    place = "model.sampling.bound.default"
    same_defaults[2][place] = {"default": {**same_defaults[2][place]["default"], "temperature": 0.75}}


@pytest.mark.parametrize("seed", range(extent.examples(2, 12)))
@pytest.mark.parametrize("path", OLD, ids=lambda path: path.name)
def test_changed_defaults_are_written_out(path: Path, seed: int, judge: hcl_judge.Judge, other_defaults: None) -> None:
    """Where schema 2 has another default, the old one is written in every block that leaves it out.

    `state.key.version` alone cannot be: no value says that the field is absent, so such a file needs a decision.
    """
    rng = random.Random(seed)
    text = another(path.read_text(), rng, steps=8, strict="privacy") if seed else path.read_text()
    text = render(parse_text(text), rng) if seed % 2 else text
    policy = check(text).policy
    assert policy is not None
    if policy.state is not None and policy.state.key.version is None:
        done = upgrade(text.encode())
        assert None is done.data
        assert ["state.key.version means something else in schema 2"] == [found.summary for found in done.decisions]
        return
    assert is_kept(text, upgraded(text))
    assert judge.read(upgraded(text)).literal


@pytest.mark.parametrize("seed", range(extent.examples(3, 30)))
@pytest.mark.parametrize("path", OLD, ids=lambda path: path.name)
def test_hashicorp_takes_whatever_an_upgrade_writes(path: Path, seed: int, judge: hcl_judge.Judge) -> None:
    """Also of a file that it would refuse: with several things in a line, and blanks behind a heredoc's beginning."""
    rng = random.Random(seed)
    text = another(path.read_text(), rng, steps=8, strict="privacy")
    text = crowded(parse_text(text), rng)
    assert check(text).valid
    if seed == 0:
        assert not judge.read(text).accepted
    new = upgraded(text)
    assert judge.read(new).literal, judge.read(new).error
    assert judge.read(upgraded(f"{text}\n# a comment\n").replace("\n", "\r\n")).accepted


TPM_ALONE = (ROOT / "tests/goldens/schema_1/vm.hcl").read_text()


def test_no_platform_s_defaults_where_it_is_none() -> None:
    """A policy for a TPM alone gets nothing of SEV-SNP and TDX: Milan's trust did not move into it."""
    new = upgraded(TPM_ALONE)
    assert "sev_snp" not in new
    assert "milan" not in new
    assert "smt" not in new
    assert "milan" in upgraded((ROOT / "tests/goldens/schema_1/sev-snp-production.hcl").read_text())


def test_a_floor_of_no_platform_is_labelled_once() -> None:
    """Where a block has to have a label now and no platform reads it, it gets one label, and none of Milan's."""
    text = TPM_ALONE.replace('platforms = ["tpm"]',
                             'platforms = ["tpm"]\n  evidence { sev_snp { min_tcb { snp = 7 } } }')
    new = upgraded(text)
    assert 1 == new.count("min_tcb")
    assert "milan" not in new


def test_lines_in_blocks_that_do_not_stand_in_the_file(other_defaults: None) -> None:
    """Nested blocks are made where they are missing, and each labelled block gets its own lines."""
    text = BASE.replace("audit {\n}\n", "").replace('  platforms = ["simulated"]\n',
                                                      '  platforms = ["sev-snp", "tdx"]\n  evidence { smt = true }\n')
    tenants = BASE[BASE.index("  tenant "):BASE.index("}\nservice")]
    text = text.replace('kind = "tcp"', 'kind = "ra-tls"').replace(
        tenants, f'  authority = "{PUBLIC}"\n  list = "t.json"\n')
    new = upgraded(text)
    assert """\
  evidence {
    smt = true
    sev_snp {
      products = ["genoa", "milan", "turin"]
    }
    tdx {
      min_evaluation_number = 0
    }
  }
""" in new
    assert """\
  streaming_decrypt = "auto"
  kv_cache = "f16"
  sampling {
    bound "temperature" {
      default = 0.8
    }
  }
}
""" in new
    assert new.endswith("\n\naudit {\n  receipts = false\n}\n")
    assert "names" in new


LAYOUTS = [
    ("limits {\n}\n", "limits {\n  queued_requests = 0\n}\n"), ("limits {}\n", "limits {\n  queued_requests = 0\n}\n"),
    ("limits { prompt_tokens = 9 }\n", "limits {\n  prompt_tokens = 9\n  queued_requests = 0\n}\n"),
    ("limits { prompt_tokens = 9 request_size = \"2MiB\" }\n",
     "limits {\n  prompt_tokens = 9\n  request_size = \"2MiB\"\n  queued_requests = 0\n}\n"),
    ("limits { /* c */ prompt_tokens = 9 # d\n}\n",
     "limits { /* c */\n  prompt_tokens = 9 # d\n  queued_requests = 0\n}\n"),
    ("limits {\n\tprompt_tokens = 9 # c\n\t# the end\n}\n",
     "limits {\n\tprompt_tokens = 9 # c\n\t# the end\n\tqueued_requests = 0\n}\n"),
    ("limits {\n    prompt_tokens             = 9\n    }\n",
     "limits {\n    prompt_tokens             = 9\n    queued_requests           = 0\n    }\n"),
    ("limits { /* } */ }\n", "limits { /* } */\n  queued_requests = 0\n}\n"),
    ("", ""),
]


@pytest.mark.usefixtures("same_defaults")
@pytest.mark.parametrize(("old", "new"), LAYOUTS)
def test_a_line_is_added_as_the_block_is_written(old: str, new: str, judge: hcl_judge.Judge) -> None:
    """A new line follows the layout of its block; a block that is not there is added at the end of the file."""
    text = BASE.replace("limits {\n}\n", old)
    expected = in_schema(2, BASE.replace("limits {\n}\n", new))
    assert expected + ("" if old else "\nlimits {\n  queued_requests = 0\n}\n") == upgraded(text)
    assert judge.read(upgraded(text)).literal


@pytest.mark.usefixtures("same_defaults")
@pytest.mark.parametrize("end", ["# the last line", "# the last line\n", "", "\n\n"])
def test_the_end_of_a_file_is_kept(end: str) -> None:
    """A block is added behind whatever the file ends with, on lines of its own."""
    text = BASE.replace("limits {\n}\n", "") + end
    assert upgraded(text).startswith(in_schema(2, text))
    assert upgraded(text).endswith("\n\nlimits {\n  queued_requests = 0\n}\n")


@pytest.mark.usefixtures("same_defaults")
def test_line_ends_stay_what_they_are() -> None:
    """A file with CRLF keeps it, also in new lines; one line of the other kind stays as well."""
    text = BASE.replace("\n", "\r\n").replace('"demo.gguf"\r\n', '"demo.gguf"\n').encode()
    done = upgrade(text)
    assert done.data is not None
    expected = in_schema(2, BASE.replace("limits {\n", "limits {\n  queued_requests = 0\n")).replace("\n", "\r\n")
    assert expected.replace('"demo.gguf"\r\n', '"demo.gguf"\n').encode() == done.data


def test_what_is_written_stays() -> None:
    """A value that stands in the file is not written again, whatever the defaults are."""
    text = in_schema(2, with_lines("limits", "queued_requests = 7"))
    assert upgrade(text.encode()).data == text.encode()


@pytest.mark.parametrize("lines", [
    "queued_requests = 9", 'answer_timeout = "1m"', 'queued_requests = 9 answer_timeout = "1m" # both'])
def test_a_file_may_use_the_new_fields_already(lines: str, judge: hcl_judge.Judge) -> None:
    """A file that declares schema 1 and has fields of schema 2 is not valid, but its upgrade is, as errors advise."""
    text = with_lines("limits", lines)
    assert not check(text).valid
    data = upgrade(text.encode()).data
    assert data is not None
    assert is_kept(text, data.decode())
    policy = check_bytes(data).policy
    assert policy is not None
    assert (9 if "queued" in lines else 0, 60_000 if "answer" in lines else None) == (
        policy.limits.queued_requests, policy.limits.answer_timeout_ms)
    with pytest.raises(InvalidPolicyError):
        upgrade(with_lines("limits", lines + "\nprompt_tokens = 0").encode())


def test_new_refusals_are_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What schema 1 only warns of, and schema 2 refuses, is left to a person."""
    def rule(policy: Any) -> Any:
        yield Breach(("tee", "platforms"), "this came later", "mend it", since=2)

    monkeypatch.setattr(rules, "POLICY_RULES", (*rules.POLICY_RULES, rule))
    done = upgrade(BASE.encode())
    assert (None, [("this came later", 6)]) == (done.data, [(found.summary, found.line) for found in done.decisions])


def test_a_copy_without_tenants_has_the_upgrade_s_digest(tmp_path: Path) -> None:
    """A copy that was made before the upgrade is upgraded to one with the digest of the upgraded policy."""
    path = tmp_path / "p.hcl"
    path.write_text(BASE)
    copy, whole = upgrade(without_tenants(load(path)).encode()).after.policy, upgrade(BASE.encode()).after.policy
    assert copy is not None
    assert whole is not None
    assert policy_digest(copy) == policy_digest(whole)


def test_what_ended_is_left_to_a_person() -> None:
    """Each use of what ended is a decision at its place in the old file; no text is made."""
    text = with_lines("model", VAULT)
    done = upgrade(text.encode(), "old.hcl")
    assert None is done.data
    assert ['provider is "vault", which ended with schema 1', "vault ended with schema 1"] == [
        found.summary for found in done.decisions]
    assert [text[:text.index(mark)].count("\n") + 1 for mark in ('"vault"', "vault {")] == [
        found.line for found in done.decisions]
    assert all("broker" in found.fix for found in done.decisions)


def test_an_invalid_file_is_not_upgraded() -> None:
    """A file that is not valid in its own version has findings, not an upgrade."""
    with pytest.raises(InvalidPolicyError):
        upgrade(with_lines("limits", "prompt_tokens = 0").encode())


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A policy file of schema 1."""
    path = tmp_path / "old.hcl"
    path.write_text(BASE)
    return path


def test_standard_output_has_the_text_alone(old: Path) -> None:
    """The new file goes to standard output as its bytes are, what a person should know to standard error."""
    old.write_text(BASE + "# naïve ☃\n")
    done = subprocess.run([sys.executable, "-m", "appliance", "check", "--upgrade", old], capture_output=True,
                          env={**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}, timeout=600)
    assert (0, upgraded(old.read_text()).encode()) == (done.returncode, done.stdout)
    told = done.stderr.decode()
    assert "limits.queued_requests = 0: written, to keep the meaning; the default of schema 2 is 256" in told
    assert "schema 1 to 2" in told
    assert [old] == list(old.parent.iterdir())


def test_the_changed_meaning_of_a_written_field_is_told(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A field that stands in the file and means something else now is named."""
    old.write_text(with_lines("limits", "concurrent_requests = 4"))
    assert 0 == main(["check", "--upgrade", str(old), "--in-place"])
    assert "limits.concurrent_requests: now requests in progress, over all tenants" in capsys.readouterr().err


def test_a_file_is_made_and_never_replaced(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """-o makes a file; one that is there stays as it is, and so does a link that leads nowhere."""
    new = old.with_name("new.hcl")
    assert 0 == main(["check", "--upgrade", str(old), "-o", str(new)])
    assert upgraded(BASE) == new.read_text()
    assert "" == capsys.readouterr().out
    new.write_text("mine")
    link = old.with_name("link.hcl")
    link.symlink_to("nowhere")
    for target in (new, link):
        assert 2 == main(["check", "--upgrade", str(old), "--output", str(target)])
        assert "error[file-exists]" in capsys.readouterr().err
    assert ("mine", BASE) == (new.read_text(), old.read_text())
    assert {"old.hcl", "new.hcl", "link.hcl"} == {path.name for path in old.parent.iterdir()}


@pytest.mark.parametrize("words", [["--in-place"], ["-o", "old.hcl"], ["-o", "./old.hcl"], ["-o", "link.hcl"]])
def test_the_file_itself_is_replaced_on_demand(words: list[str], old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is replaced whole where that is asked for; its mode and a link to it stay, and a second run rests."""
    monkeypatch.chdir(old.parent)
    old.chmod(0o600)
    Path("link.hcl").symlink_to("old.hcl")
    assert 0 == main(["check", "--upgrade", "link.hcl" if "--in-place" in words else "old.hcl", *words])
    assert upgraded(BASE) == old.read_text()
    assert (0o600, True) == (stat.S_IMODE(old.stat().st_mode), Path("link.hcl").is_symlink())
    before = old.stat()
    assert 0 == main(["check", "--upgrade", "old.hcl", *words])
    assert (before.st_ino, before.st_mtime_ns) == (old.stat().st_ino, old.stat().st_mtime_ns)
    assert {"old.hcl", "link.hcl"} == set(os.listdir())  # noqa: PTH208 - names


def test_nothing_is_written_where_something_is_to_be_decided(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An upgrade that needs a person ends with 1, says what and where, and leaves files and standard output alone."""
    text = with_lines("model", VAULT)
    old.write_text(text)
    for words in (["--in-place"], ["-o", str(old.with_name("new.hcl"))], []):
        assert 1 == main(["check", "--upgrade", str(old), *words])
        captured = capsys.readouterr()
        assert "" == captured.out
        assert f'{old}:10:16: error[value]: provider is "vault", which ended with schema 1' in captured.err
        assert "not upgraded: 2 things to decide first; nothing was written" in captured.err
    assert (text, [old]) == (old.read_text(), list(old.parent.iterdir()))


def test_findings_of_an_invalid_file(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is not valid is checked as without --upgrade: its findings, and 1."""
    old.write_text(with_lines("limits", "prompt_tokens = 0"))
    assert 1 == main(["check", "--upgrade", str(old), "--in-place"])
    assert "not valid (1 error)" in capsys.readouterr().out


@pytest.mark.usefixtures("same_defaults")
def test_upgrade_as_json(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON has the new text, what was written to keep the meaning, or what is to be decided."""
    assert 0 == main(["check", "--upgrade", "--json", str(old)])
    found = json.loads(capsys.readouterr().out)
    assert (True, True, 1, 2, None, upgraded(BASE)) == tuple(
        found[key] for key in ("upgraded", "valid", "from_schema", "schema", "file", "text"))
    assert [{"path": "limits.queued_requests", "value": "0", "default": "256"}] == found["kept"]
    assert 0 == main(["check", "--upgrade", "--json", str(old), "-o", str(old.with_name("new.hcl"))])
    found = json.loads(capsys.readouterr().out)
    assert (str(old.with_name("new.hcl")), None) == (found["file"], found["text"])
    old.write_text(with_lines("model", VAULT))
    assert 1 == main(["check", "--upgrade", "--json", str(old)])
    found = json.loads(capsys.readouterr().out)
    assert (False, 1, None, 2) == (found["upgraded"], found["schema"], found["text"], len(found["decisions"]))


@pytest.mark.parametrize("words", [["-o", "x.hcl"], ["--in-place"]])
def test_a_place_needs_an_upgrade(words: list[str], old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where to write means nothing without --upgrade."""
    assert 2 == main(["check", str(old), *words])
    assert "error[output-unused]" in capsys.readouterr().err


def test_requests_may_not_more_than_before() -> None:
    """Samplers that schema 1 does not have stay closed to requests: one line says so."""
    new = upgraded(BASE)
    assert "extended = false" in new
    after = check(new).policy
    assert after is not None
    assert [False] == [model.sampling.extended for model in after.models]
