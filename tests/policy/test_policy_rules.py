"""Findings on fields and between them: each at its line and column, with what is allowed and the fix."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from appliance.errors import PolicyError
from appliance.policy import load
from appliance.policy.enforcement import places
from appliance.policy.explaining import checking
from appliance.policy.explaining.checking import check
from tests.support.policies import BASE, PUBLIC, hardware, in_schema, marked, valid, with_lines

HASH = "5e0d9c8b7a6f5e4d3c2b1a0998877665544332211ffeeddccbbaa99887766554"
HASH2 = "8a1d5f2f6e0c4f7c1b3a9d0e2c4b6a8f7e5d3c1b0a9f8e7d6c5b4a3928170615"
ACME = "2b1d8a7f6e5c4b3a29180716253443526170a8b9c0d1e2f3a4b5c6d7e8f90a1b"
PUBLIC2 = "ed25519:8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c"
HARDWARE = hardware()
KEY = 'key {\n provider = "file"\n path = "/key"\n}'
SEALED = f'sealed_header_sha256 = "{HASH}"\n'

# block that gets the lines; the lines, « where the finding must point; its code; words of it
FIELDS = [
    ("limits", "prompt_tokens = «0", "value", "nearest allowed number is 1"),
    ("limits", "prompt_tokens = «16777217", "value", "nearest allowed number is 16777216"),
    ("limits", 'prompt_tokens = «"2048"', "value", "write 2048 without quotes"),
    ("limits", "prompt_tokens = «2048.5", "value", "not a whole number"),
    ("limits", "prompt_tokens = «true", "value", "is a boolean"),
    ("limits", "prompt_tokens = «[1]", "value", "is a list"),
    ("limits", "prompt_tokens = «{ a = 1 }", "value", "is an object"),
    ("limits", "«promt_tokens = 1", "unknown-key", "did you mean prompt_tokens?"),
    ("limits", "«context_length = 1", "unknown-key", "move it to model"),
    ("limits", "«zzzz {}", "unknown-key", "delete it"),
    ("", "«limitz {}", "unknown-key", "did you mean limits?"),
    ("limits", "«prompt_tokens {}", "wrong-shape", "is an attribute, not a block"),
    ("tee", "«evidence = { debug = false }", "wrong-shape", "write evidence { ... }, without ="),
    ("", "«limits {}", "duplicate", "first stands on line 14"),
    ("", '«model {\n file = "a"\n sha256 = "' + HASH + '"\n}', "label", 'model "name"'),
    ("limits", "«prompt_tokens", "syntax", "neither an attribute nor a block"),
    ("tee", 'evidence «"x" {}', "label", "takes no label"),
    ("limits", 'first_token_timeout = «"30"', "value", "a unit (ms, s, m, h, d)"),
    ("limits", 'first_token_timeout = «"30sec"', "value", 'did you mean "30s"?'),
    ("limits", "first_token_timeout = «30", "value", "put it in quotes, with a unit"),
    ("limits", 'first_token_timeout = «"99ms"', "value", 'nearest allowed is "100ms"'),
    ("limits", 'first_token_timeout = «"61m"', "value", 'nearest allowed is "1h"'),
    ("limits", 'request_size = «"1MB"', "value", 'did you mean "1MiB"?'),
    ("limits", 'request_size = «"65MiB"', "value", 'nearest allowed is "64MiB"'),
    ("limits", 'request_size = «"1.5MiB"', "value", "digits and a unit"),
    ("tee", 'memory_budget = «"-1GiB"', "value", "digits and a unit"),
    ("model", 'kv_cache = «"f15"', "value", 'did you mean "f16"?'),
    ("model", 'kv_cache = «"F16"', "value", 'did you mean "f16"?'),
    ("model", 'streaming_decrypt = «"true"', "value", "write true without quotes"),
    ("model", "streaming_decrypt = «1", "value", 'true, false, "auto"'),
    ("model", 'context_shift = «"false"', "value", "write false without quotes"),
    ("model", "context_shift = «0", "value", "not a boolean"),
    ("model", 'sealed_header_sha256 = «"' + HASH.upper() + '"', "value", HASH),
    ("model", 'sealed_header_sha256 = «"' + HASH[1:] + '"', "value", "has 63 characters"),
    ("model", 'sealed_header_sha256 = «"' + HASH[1:] + 'g"', "value", 'has "g" in it'),
    ("model", 'sealed_header_sha256 = «"' + "0" * 64 + '"', "value", "place-holder"),
    ("model", 'sealed_header_sha256 = «"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"', "value",
     "hash of nothing"),
    ("tee", 'evidence { sev_snp { id_key_sha384 = «"' + HASH + '" } }', "value", "no SHA-384"),
    ("model", 'draft_model = «"a b"', "value", "letters, digits"),
    ("model", 'chat_template = «""', "value", "has 0 characters"),
    ("model", "sampling { temperature { max = «5.1 } }", "value", "nearest allowed number is 5"),
    ("model", "sampling { temperature { max = «-0.1 } }", "value", "nearest allowed number is 0"),
    ("model", 'sampling { temperature { max = «"1" } }', "value", "not a number"),
    ("model", "sampling { temperature { max = «true } }", "value", "not a number"),
    ("service", "operator_may_set = [«\"listen_adress\"]", "value", 'did you mean "listen_address"?'),
    ("service", 'operator_may_set = «["log_sink", "log_sink"]', "value", 'has "log_sink" twice'),
    ("service", 'operator_may_set = «"log_sink"', "value", "a list, such as"),
    ("tee", "evidence { sev_snp { products = «[] } }", "value", "has 0 items"),
    ("tee", "evidence { tpm { pcrs = [1, «24] } }", "value", "nearest allowed number is 23"),
    ("tee", 'evidence { tdx { accepted_advisories = [«"SA-1"] } }', "value", "INTEL-SA-00837"),
    ("", 'approvals {\n required = 1\n approver "a" { public_key = «"' + PUBLIC[:-1] + '" }\n}', "value",
     "64 lower-case"),
    ("", 'approvals {\n required = 1\n approver "a" { public_key = «"ed25519:' + "0" * 64 + '" }\n}', "value",
     "small order"),
    ("", 'approvals {\n required = 1\n approver "a" { public_key = «"ed25519:01' + "0" * 60 + '80" }\n}', "value",
     "small order"),
    ("privacy", 'auditor_key = «"x25519:' + "0" * 64 + '"', "value", "small order"),
    ("privacy", 'auditor_key = «"AGE-SECRET-KEY-1QQQQ"', "secret", "looks like a secret"),
    ("", "state {\n device = «\"/tmp/x\"\n " + KEY + "\n}", "value", "/dev/vdb"),
    ("", 'state {\n device = "/dev/vdb"\n key {\n provider = "file"\n path = «"key"\n}\n}', "value", "relative path"),
    ("", 'state {\n device = "/dev/vdb"\n key {\n provider = "file"\n path = «"/run//key"\n}\n}', "value",
     "empty part"),
    ("service", 'listen "b" {\n kind = "tcp"\n port = 1\n address = «"localhost"\n}', "value", 'write "127.0.0.1"'),
    ("service", 'listen "b" {\n kind = "tcp"\n port = 1\n address = «"a.example"\n}', "value", "not an IP address"),
    ("service", 'listen "b" {\n kind = "tcp"\n port = 1\n address = «"::1%lo"\n}', "value", 'write "::1"'),
    ("service", 'listen "b" {\n kind = "tcp"\n port = 1\n address = «"::1%\\u001b[2J"\n}', "value", "names a zone"),
    ("service", 'listen "b" {\n kind = "tcp"\n port = 1\n address = «"::ffff:127.0.0.1"\n}', "value",
     'write "127.0.0.1"'),
    ("service", 'listen "b" {\n kind = "ra-tls"\n port = 1\n names = [«"A.example"]\n}', "value", "DNS name"),
    ("audit", f'timestamp_authority {{\n url = «"http://a.example/x"\n root_sha256 = "{HASH}"\n}}', "value",
     '"https://a.example/x"'),
    ("audit", f'timestamp_authority {{\n url = «"https://u:p@a.example"\n root_sha256 = "{HASH}"\n}}', "secret",
     "no secret stands in a policy"),
    ("audit", f'timestamp_authority {{\n url = «"https://a.example?x"\n root_sha256 = "{HASH}"\n}}', "value",
     '"https://a.example"'),
    ("audit", f'timestamp_authority {{\n url = «"a.example"\n root_sha256 = "{HASH}"\n}}', "value", "not an https URL"),
    ("audit", f'timestamp_authority {{\n url = «"https://[x"\n root_sha256 = "{HASH}"\n}}', "value",
     "not an https URL"),
    ("audit", 'timestamp_authority {\n url = «"https://a.example:99999"\n root_sha256 = "' + HASH + '"\n}', "value",
     "not an https URL"),
    ("audit", "«timestamp_authority {\n root_sha256 = \"" + HASH + '"\n}', "missing", "add url = ..."),
    ("privacy", 'redaction { fields = [«"a b"] }', "value", "metadata.user_id"),
    ("privacy", 'redaction { pattern "x" { regex = «"a+" } }', "value", "{1,64}"),
    ("", 'model «"a b" {\n file = "a"\n sha256 = "' + HASH + '"\n}', "value", "the label is"),
    ("", '«model "demo" {\n file = "a"\n sha256 = "' + HASH + '"\n}', "duplicate", "line 8"),
]

TLS = 'kind = "tls"\n port = 8080\n certificate = "/c"\n private_key = "/k"\n '

RULES = [
    ("tee", "plaintext_budget = «\"128MiB\"\nmemory_budget = \"64MiB\"", "plaintext_budget is larger"),
    ("", "approvals {\n required = «1\n}", "1 approval required of 0 approvers"),
    ("", f'approvals {{\n required = «2\n approver "a" {{ public_key = "{PUBLIC}" }}\n}}', "2 approvals required"),
    ("", f'approvals {{\n required = 1\n approver "a" {{ public_key = "{PUBLIC}" }}\n'
     f'approver "b" {{ public_key = «"{PUBLIC}" }}\n}}', "key of a too"),
    ("model", "session_persistence = «true", "no state disk"),
    ("audit", 'sink = «"state"', "no state disk"),
    ("privacy", 'retention { audit = «"30d" }', "not kept"),
    ("privacy", 'retention { sessions = «"30d" }', "no model keeps sessions"),
    ("privacy", 'redaction { fields = «["messages", "user"] }', '"messages" cannot be dropped'),
    ("privacy", 'redaction { fields = «["messages.role"] }', '"messages.role" cannot be dropped'),
    ("privacy", 'redaction { fields = «["messages.content"] }', '"messages.content" cannot be dropped'),
    ("privacy", 'redaction { fields = «["messages.content.text"] }', '"messages.content.text" cannot be dropped'),
    ("limits", "tokens_per_minute = «2559", "2560 tokens"),
    ("limits", "tokens_per_day = «2559", "2560 tokens"),
    ("tenants", "min_version = «1", "there is none"),
    ("«tenants", f'authority = "{PUBLIC}"\nlist = "x.json"', "authority and tenant stand together"),
    ("«tenants", f'commitment = "sha384:{HASH}{HASH[:32]}"', "tenant and commitment stand together"),
    ("tenants", 'list = «"x.json"', "list stands without authority"),
    ("tenants", f'tenant "b" {{\n models = ["demo"]\n api_key_sha256 = «["{ACME}"]\n}}',
     "also one of acme"),
    ("tenants", f'tenant "b" {{\n models = «["demu"]\n api_key_sha256 = ["{HASH}"]\n}}', 'did you mean "demo"?'),
    ("tenants", f'«tenant "b" {{\n api_key_sha256 = ["{HASH}"]\n}}', "may ask no model"),
    ("model", 'draft_model = «"demo"', "cannot be its own draft"),
    ("model", 'draft_model = «"other"', 'there is no model "other"'),
    ("", f'model "a" {{\n file = "a"\n sha256 = "{HASH}"\n draft_model = «"b"\n}}\nmodel "b" {{\n file = "b"\n '
     f'sha256 = "{HASH}"\n draft_model = "demo"\n}}', "has a draft model itself"),
    ("model", SEALED.replace('"', '«"', 1), "sealed model has no key"),
    ("model", "«" + KEY, "the model is not sealed"),
    ("model", SEALED.replace(HASH, "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53").replace(
        '"', '«"', 1) + KEY, "same hash as sha256"),
    ("model", SEALED + 'key {\n provider = «"ephemeral"\n}', "ephemeral key cannot open a model"),
    ("model", SEALED + 'key {\n provider = «"file"\n}', "needs path"),
    ("model", SEALED + 'key {\n provider = "environment"\n variable = "A"\n path = «"/key"\n}', "path means nothing"),
    ("model", SEALED + 'key {\n provider = «"broker"\n}', "needs broker"),
    ("model", f'«publisher {{\n public_key = "{PUBLIC}"\n}}', "either signature or bundle"),
    ("model", f'«publisher {{\n public_key = "{PUBLIC}"\n bundle = "x"\n signature = "ed25519:{"ab" * 64}"\n}}',
     "either signature or bundle"),
    ("model", "sampling { top_p { min = «0.5\n max = 0.4 } }", "min 0.5 is above max 0.4"),
    ("model", "sampling { top_p { default = «0.5\n max = 0.4 } }", "write default = 0.4"),
    ("model", "sampling { «top_k { max = 20 } }", "write default = 20"),
    ("model", "sampling { presence_penalty { default = «-1\n min = -0.5 } }", "write default = -0.5"),
    ("service", 'listen "b" {\n kind = «"tcp"\n}', "needs port"),
    ("service", 'listen "b" {\n kind = "tcp"\n port = 1\n address = «"0.0.0.0"\n}', "can be read on the network"),
    ("service", 'listen "b" {\n kind = "tcp"\n port = 1\n address = «"::"\n}', "can be read on the network"),
    ("service", 'listen "b" {\n kind = "tcp"\n port = «65536\n}', "no TCP port"),
    ("service", 'listen "b" {\n kind = "unix"\n path = "/a"\n port = «1\n}', "port means nothing"),
    ("service", 'listen "b" {\n kind = «"unix"\n}', "needs path"),
    ("service", f'listen "b" {{\n kind = "unix"\n path = «"/{"a" * 107}"\n}}', "at most 107 bytes"),
    ("service", f'listen "b" {{\n kind = "unix"\n path = «"/{"é" * 54}"\n}}', "at most 107 bytes"),
    ("service", 'listen "b" {\n kind = «"tls"\n port = 1\n private_key = "/k"\n}', "needs certificate"),
    ("service", 'listen "b" {\n kind = «"vsock"\n}', "needs port"),
    ("service", 'listen "b" {\n kind = "vsock"\n port = 1\n rotation = «"1h"\n}', "rotation means nothing"),
    ("service", 'listen "b" {\n kind = "ra-tls"\n port = 1\n transport = "vsock"\n address = «"::1"\n}',
     "no IP address"),
    ("service", '«listen "b" {\n kind = "tcp"\n port = 8080\n}', 'port 8080 of 127.0.0.1 is where "api" listens'),
    ("service", f'«listen "b" {{\n{TLS}address = "0.0.0.0"\n}}', 'where "api" listens'),
    ("service", f'listen "b" {{\n{TLS}address = "::"\n}}\n«listen "c" {{\n{TLS}address = "::1"\n}}',
     'where "b" listens'),
    ("service", 'listen "b" {\n kind = "unix"\n path = "/a"\n}\n«listen "c" {\n kind = "unix"\n path = "/a"\n}',
     'where "b" listens'),
]

ON_HARDWARE = [
    ("model", SEALED + 'key {\n provider = «"file"\n path = "/key"\n}', "hands the key to the operator"),
    ("model", SEALED + 'key {\n provider = «"environment"\n variable = "K"\n}', "hands the key to the operator"),
    ("model", SEALED + 'key {\n provider = «"systemd-credential"\n credential = "k"\n}',
     "hands the key to the operator"),
    ("model", SEALED + 'key {\n provider = «"tpm"\n pcrs = [11]\n}', "belongs to the operator"),
    ("", 'state {\n device = "/dev/vdb"\n key {\n provider = «"file"\n path = "/key"\n}\n}', "hands the key"),
    ("service", 'listen "b" {\n kind = «"tcp"\n port = 1\n}', "open to the operator"),
    ("service", 'listen "b" {\n kind = «"unix"\n path = "/a"\n}', "open to the operator"),
    ("service", 'listen "b" {\n kind = «"vsock"\n port = 1\n}', "open to the operator"),
    ("service", 'listen "b" {\n kind = «"tls"\n port = 1\n certificate = "/c"\n private_key = "/k"\n}',
     "open to the operator"),
]


def only_finding(text: str, code: str, words: str) -> None:
    """The marked text has one error, there, with that code and these words, and a fix."""
    clean, place = marked(text)
    errors = [d for d in check(clean).diagnostics if d.severity == "error"]
    assert [(code, place)] == [(d.code, (d.line, d.column)) for d in errors], "\n".join(map(str, errors))
    assert words in str(errors[0])
    assert errors[0].fix


@pytest.mark.parametrize(("block", "lines", "code", "words"), FIELDS)
def test_wrong_field(block: str, lines: str, code: str, words: str) -> None:
    """A wrong field is one finding, where it stands."""
    only_finding(with_lines(block, lines), code, words)


@pytest.mark.parametrize(("block", "lines", "words"), RULES)
def test_rule_between_fields(block: str, lines: str, words: str) -> None:
    """Fields that do not fit together are one finding, at the field to change."""
    text = with_lines(block.removeprefix("«"), lines)
    if block.startswith("«"):
        text = text.replace("\n" + block[1:], "\n" + block)
    only_finding(text, "rule", words)


@pytest.mark.parametrize(("block", "lines", "words"), ON_HARDWARE)
def test_rule_on_hardware(block: str, lines: str, words: str) -> None:
    """What only a simulated policy may do is refused on hardware, and accepted on the simulated platform."""
    only_finding(with_lines(block, lines, HARDWARE), "rule", words)
    valid(with_lines(block, lines.replace("«", "")))


@pytest.mark.parametrize(("old", "new", "words"), [
    ('«["simulated"]', '«["simulated", "sev-snp"]', '"simulated" stands beside other platforms'),
    ('«["simulated"]', '«["sev-snp", "tpm"]', '"tpm" stands beside other platforms'),
])
def test_platforms_do_not_mix(old: str, new: str, words: str) -> None:
    """A weaker platform cannot stand beside a stronger one."""
    base = HARDWARE.replace('"sev-snp"', '"simulated"')
    only_finding(base.replace(old.replace("«", ""), new), "rule", words)


def test_no_fix_names_a_provider_that_does_not_boot() -> None:
    """Whoever follows the fix of a key on hardware has a policy that this version takes."""
    for block, lines, words in ON_HARDWARE:
        for found in check(with_lines(block, lines, HARDWARE).replace("«", "")).diagnostics:
            of_a_key = "provider" in lines and ".key" in found.path
            named = set(re.findall(r'"([a-z-]+)"', found.fix or "")) if of_a_key else set()
            assert named <= set(places()["model.key.provider"].enforced.values("model.key.provider")), words


def test_hardware_policy_is_valid() -> None:
    """The hardware variant of the base policy, two platforms together, and the TPM alone are valid."""
    for platforms in ('["sev-snp"]', '["sev-snp", "tdx"]', '["tpm"]'):
        valid(HARDWARE.replace('["sev-snp"]', platforms))


def test_inline_tenants_are_for_development() -> None:
    """Tenants in the policy, or their commitment, are refused on hardware."""
    start = HARDWARE.index("tenants {")
    end = HARDWARE.index("service {")
    inline = BASE[BASE.index("tenants {"):BASE.index("service {")]
    only_finding(HARDWARE[:start] + inline.replace("tenant ", "«tenant ") + HARDWARE[end:], "rule", "need platforms")
    commitment = f'tenants {{\n  commitment = «"sha384:{HASH}{HASH[:32]}"\n}}\n'
    only_finding(HARDWARE[:start] + commitment + HARDWARE[end:], "rule", "need platforms")
    valid(BASE[:BASE.index("tenants {")] + commitment.replace("«", "") + BASE[BASE.index("service {"):])


@pytest.mark.parametrize(("cut", "words"), [
    ('appliance {\n  name   = "demo"\n  schema = 1\n}\n', "add appliance { ... }"),
    ('  name   = "demo"\n', "add name = ..."), ("  schema = 1\n", "add schema = ..."),
    ('  platforms = ["simulated"]\n', "add platforms = ..."), ('  file   = "demo.gguf"\n', "add file = ..."),
    ('tee {\n  platforms = ["simulated"]\n}\n', "add tee { ... }"), ('    kind = "tcp"\n', "add kind = ..."),
    ('service {\n  listen "api" {\n    kind = "tcp"\n    port = 8080\n  }\n}\n', "add service { ... }"),
    ('  listen "api" {\n    kind = "tcp"\n    port = 8080\n  }\n', "there is no listener"),
    (BASE[BASE.index("tenants {"):BASE.index("service {")], "add tenants { ... }"),
    (BASE[BASE.index('  tenant "acme"'):BASE.index("}\nservice {")], "there are no tenants"),
])
def test_missing(cut: str, words: str) -> None:
    """What is required and left out is a finding with a fix; it brings no other findings with it."""
    assert cut in BASE
    errors = [d for d in check(BASE.replace(cut, "")).diagnostics if d.severity == "error"]
    assert 1 == len(errors), errors
    assert words in str(errors[0])


@pytest.mark.parametrize(("model", "words"), [
    ('speculation = «"hidden"', "there is no cadence"),
    ('speculation = "heads"\n draft_model = «"draft"', 'a draft model makes guesses, and speculation is "heads"'),
    ('speculation = "off"\n draft_model = «"draft"', 'a draft model makes guesses, and speculation is "off"')])
def test_guesses_that_cannot_be_hidden(model: str, words: str) -> None:
    """Guesses are hidden by a cadence, and those of a draft model by nothing."""
    draft = f'model "draft" {{\n file = "d"\n sha256 = "{HASH}"\n}}\n'
    only_finding(in_schema(2, with_lines("model", model) + draft), "rule", words)
    valid(with_lines("privacy", CLASSES, in_schema(2, with_lines("model", 'speculation = "hidden"'))))


def test_no_model() -> None:
    """A policy without models serves nothing."""
    text = BASE[:BASE.index("model ")] + BASE[BASE.index("privacy {"):]
    assert ["there is no model", 'there is no model "demo"'] == sorted(
        d.summary for d in check(text).diagnostics)


@pytest.mark.parametrize(("lines", "words"), [
    ("context_length = «2048", "leaves no room for an answer")])
def test_warnings_leave_a_policy_valid(lines: str, words: str) -> None:
    """A doubtful but possible setting is a warning."""
    clean, place = marked(with_lines("model", lines))
    checked = check(clean)
    assert checked.policy is not None
    assert [("warning", place)] == [(d.severity, (d.line, d.column)) for d in checked.diagnostics]
    assert words in checked.diagnostics[0].summary


def test_an_auditors_models_are_warned_of() -> None:
    """A field that has no effect is told: an auditor asks nothing."""
    checked = check(with_lines("tenants", 'tenant "watch" {\n role = "auditor"\n models = ["demo"]\n '
                               f'api_key_sha256 = ["{"ab12" * 16}"]\n}}'))
    assert checked.policy is not None
    assert ['tenants.tenant "watch".models'] == [d.path for d in checked.diagnostics if d.severity == "warning"]


def test_warnings_on_hardware() -> None:
    """Evidence that accepts a debugged guest gets a word. Bulletins are the desk tools' (test_bulletins)."""
    checked = check(with_lines("tee", "evidence { debug = true }", HARDWARE))
    assert checked.policy is not None
    warned = [d.summary for d in checked.diagnostics if d.severity == "warning"]
    assert ["debug = true accepts", "evidence is bound to"] == sorted(
        " ".join(summary.split()[:4]) for summary in warned)


BROKER = f"""sealed_header_sha256 = "{"ab" * 32}"
  key {{
    provider = "broker"
    broker {{
      url         = "https://keys.example"
      root_sha256 = "{"cd" * 32}"
      resource    = "default/key/demo"
    }}
  }}"""


@pytest.mark.parametrize(("version", "service", "broker", "warned"), [
    (1, "", "", ['model "demo".key.broker', "service"]), (2, "", "", []),
    (2, 'session_binding = "required"', 'session_binding = "required"', []),
    (2, 'session_binding = "key"', "", ["service.session_binding"]),
    (2, "", 'session_binding = "key"', ['model "demo".key.broker.session_binding'])])
def test_evidence_that_can_be_relayed_is_warned_of(version: int, service: str, broker: str, warned: list[str]) -> None:
    """Evidence that is of a key and of no connection, as under schema 1: for clients, and for a key broker."""
    text = with_lines("service", service, with_lines("model", BROKER.replace(
        "      resource", f"      {broker}\n      resource"), in_schema(version, HARDWARE)))
    checked = check(text)
    assert checked.policy is not None, checked.diagnostics
    assert warned == sorted(d.path or "" for d in checked.diagnostics if d.severity == "warning" and (
        "relay it" in d.summary or "pass it on" in d.summary))


@pytest.mark.parametrize(("version", "lines", "said"), [
    (1, "streaming_decrypt = true", 'is "oblivious", which schema 2 allows'),
    (2, "", "models that are decrypted anew in each pass"),
    (2, "streaming_decrypt = false", "models that are decrypted anew in each pass"),
    (2, "streaming_decrypt = true", "")])
def test_oblivious_is_for_what_is_streamed(version: int, lines: str, said: str) -> None:
    """From schema 2 on, and of a model of which nothing stays decrypted; the fix is named."""
    text = with_lines("model", f'access_pattern = "oblivious"\n{lines}', in_schema(version))
    errors = [d for d in check(text).diagnostics if d.severity == "error"]
    assert [said in f"{d.summary} {d.detail}" for d in errors] == [True] * bool(said), errors
    if said and version == 2:
        assert "write streaming_decrypt = true" in errors[0].fix


@pytest.mark.parametrize(("pattern", "said"), [("hidden", True), ("leaks", True), ("oblivious", False)])
def test_oblivious_memory_asks_for_oblivious_embeddings(pattern: str, said: bool) -> None:
    """A lookup of one row would show the token that the tokenizer hides; the fix is named."""
    text = with_lines("model", f'access_pattern = "{pattern}"\nstreaming_decrypt = true', in_schema(2))
    text = with_lines("privacy", 'memory_access = "oblivious"', text)
    errors = [d for d in check(text).diagnostics if d.severity == "error"]
    assert [True] * said == ["would show tokens" in f"{d.summary} {d.detail}" for d in errors], errors
    if said:
        assert 'write access_pattern = "oblivious"' in errors[0].fix


def test_a_listener_without_tls_has_no_evidence_to_relay() -> None:
    """Schema 1, plain TCP: nothing is warned of, as nothing protects it."""
    assert [] == [d for d in check(BASE).diagnostics if d.severity == "warning"]


@pytest.mark.parametrize(("lines", "warned"), [
    ("min_guest_svn = 3", True), ("min_guest_svn = 0", False),
    *((f'min_guest_svn = 3\n{name} = "{bytes(range(48)).hex()}"', False)
      for name in ("id_key_sha384", "author_key_sha384"))])
def test_a_security_version_that_anybody_may_sign_is_warned_of(lines: str, warned: bool) -> None:
    """The guest's security version is in an ID block: without a pinned key above that, it is the operator's word."""
    checked = check(with_lines("tee", f"evidence {{\n sev_snp {{\n {lines}\n }}\n }}", HARDWARE))
    assert checked.policy is not None
    assert warned == any(d.path == "tee.evidence.sev_snp.min_guest_svn" and d.severity == "warning"
                         for d in checked.diagnostics)


def test_a_tpm_is_warned_of() -> None:
    """Measured boot protects nothing from the host, and the checker says so; other platforms get no such word."""
    warned = [found.summary for found in check(HARDWARE.replace('"sev-snp"', '"tpm"')).diagnostics
              if found.severity == "warning"]
    assert 1 == len([words for words in warned if "protects nothing from the host" in words])
    assert not any("TPM" in found.summary for found in check(HARDWARE).diagnostics)


TPM_STATE = 'state {{\n device = "/dev/vdb"\n key {{\n provider = "tpm"\n pcrs = {pcrs}\n}}\n {more}\n}}'
SUCCESSOR = f'successor {{\n authority = "{PUBLIC}"\n}}'


@pytest.mark.parametrize(("pcrs", "more", "warned"), [
    ("[4, 9, 11, 15]", SUCCESSOR, []), ("[11, 15]", SUCCESSOR, []), ("[15]", SUCCESSOR, ["tells the image"]),
    ("[4]", SUCCESSOR, ["tells the policy"]), ("[0, 7]", "", ["tells the image", "tells the policy", "no image can"])])
def test_a_state_key_in_a_tpm(pcrs: str, more: str, warned: list[str]) -> None:
    """The checker warns where any image or any policy gets the key, and where no image can follow."""
    measured = HARDWARE.replace('"sev-snp"', '"tpm"')
    text = with_lines("", TPM_STATE.format(pcrs=pcrs, more=more), measured)
    found = [d for d in check(in_schema(2, text)).diagnostics if d.path.startswith("state")]
    assert len(warned) == len(found), found
    for words in warned:
        assert any(words in each.summary and each.severity == "warning" and each.fix for each in found), words


KEY_BODIES = {
    "tpm": 'provider = "tpm"\n pcrs = [4, 9, 11, 15]',
    "broker": f'provider = "broker"\n broker {{\n url = "https://a.b"\n root_sha256 = "{HASH}"\n resource = "a"\n}}'}


@pytest.mark.parametrize(("block", "before", "behind"), [
    ("", 'state {\n device = "/dev/vdb"\n key {\n', "\n}\n}"), ("model", SEALED + "key {\n", "\n}")])
def test_a_key_that_the_operator_reads_has_a_fix_that_works(block: str, before: str, behind: str) -> None:
    """On a machine with a TPM, each provider that the fix names is accepted in the same place, and enforced."""
    measured = HARDWARE.replace('"sev-snp"', '"tpm"')
    refused = check(with_lines(block, before + 'provider = "file"\n path = "/key"' + behind, measured)).diagnostics
    fix = next(str(d.fix) for d in refused if d.severity == "error")
    assert ["broker", "tpm"] == sorted(name for name in re.findall(r'"([a-z-]+)"', fix.replace('["tpm"]', "")))
    for body in KEY_BODIES.values():
        found = check(with_lines(block, before + body + behind, measured)).diagnostics
        assert [] == [d for d in found if d.severity == "error" or d.code == "unenforced"]


def test_a_successor_without_a_key_in_a_tpm() -> None:
    """It means nothing, and is refused by name."""
    only_finding(in_schema(2, with_lines(
        "", f'state {{\n device = "/dev/vdb"\n key {{\n provider = "ephemeral"\n}}\n «{SUCCESSOR}\n}}')), "rule",
        'means nothing to provider "ephemeral"')


def test_edges_are_allowed() -> None:
    """The last allowed value on each side is accepted and has its meaning."""
    policy = valid(with_lines("limits", 'prompt_tokens = 1\ngeneration_tokens = 1\nrequest_size = "1KiB"\n'
                              'first_token_timeout = "1h"\ntokens_per_minute = 2'))
    assert (1, 1024, 3_600_000, 2) == (policy.limits.prompt_tokens, policy.limits.request_size_bytes,
                                       policy.limits.first_token_timeout_ms, policy.limits.tokens_per_minute)
    policy = valid(with_lines("service", 'listen "b" {\n kind = "unix"\n path = "/a"\n}'))
    assert (["api", "b"], "127.0.0.1") == ([x.name for x in policy.service.listeners], policy.service.listeners[0].host)
    assert 2.0 == valid(with_lines("model", "sampling { temperature { default = 2 } }")
                        ).models[0].sampling.temperature.default


def test_defaults() -> None:
    """The defaults that the mission fixes."""
    policy = valid(BASE)
    limits, model = policy.limits, policy.models[0]
    assert (2048, 512, 32, 30_000) == (limits.prompt_tokens, limits.generation_tokens, limits.concurrent_requests,
                                       limits.first_token_timeout_ms)
    assert (32_768, "f16", "auto", "hidden", "refuse") == (
        model.context_length, model.kv_cache, model.streaming_decrypt, model.access_pattern,
        model.chat_template_fallback)
    assert (False, False, 8 << 20) == (
        model.context_shift, model.session_persistence, policy.tee.plaintext_budget_bytes)
    evidence = policy.tee.evidence
    assert (False, False, False, 0) == (evidence.debug, evidence.migration, evidence.smt, evidence.vmpl)
    assert policy.simulated


def test_policy_is_frozen() -> None:
    """No code can change a policy once it is checked."""
    policy = valid(BASE)
    with pytest.raises(ValueError, match="frozen"):
        policy.limits.prompt_tokens = 5  # type: ignore[misc]
    assert isinstance(policy.models, tuple)


TEN = """\
appliance {
  name   = «"demo
  schema = 1
}
tee {
  platforms = [«"simulatd"]
}
model "demo" {
  file   = «"/models/demo.gguf"
  sha256 = «"B179C9523D0E6A0F98A330C7562B682750A6F8C8C15E5BC70EA373728110DB53"
  «kv_cahce = "f16"
  context_length = «var.context
}
limits {
  first_token_timeout = «"30 seconds"
  generation_tokens   = 256
  «generation_tokens   = 512
}
tenants {
  tenant "acme" {
    models         = «["demo", "dmo"]
    api_key_sha256 = [«"sk-appliance-0123456789abcdef"]
  }
}
service {
  listen "api" {
    kind    = "tcp"
    port    = 8080
    address = «"0.0.0.0"
  }
}
"""


def test_ten_mistakes_are_all_reported(tmp_path: Path) -> None:
    """A file with eleven different mistakes, a syntax error among them, reports each with line, column and fix."""
    places, text = [], TEN
    while "«" in text:
        text, place = marked(text)
        places.append(place)
    findings = check(text).diagnostics
    assert 11 == len(places)
    assert places == [(d.line, d.column) for d in findings], "\n".join(map(str, findings))
    assert ["syntax", "value", "value", "value", "unknown-key", "expression", "value", "duplicate", "rule", "secret",
            "rule"] == [d.code for d in findings]
    assert all(d.fix and d.source and d.marker.strip() for d in findings)
    path = tmp_path / "ten.hcl"
    path.write_text(text)
    with pytest.raises(PolicyError) as caught:
        checking.load(path)
    assert 11 == len(caught.value.diagnostics)  # type: ignore[attr-defined]
    assert "11 errors" in str(caught.value)


@pytest.mark.parametrize("make", ["missing", "folder", "fifo"])
def test_load_refuses_what_is_no_file(tmp_path: Path, make: str) -> None:
    """A path without a regular file behind it is our own error, at once."""
    path = tmp_path / make
    if make == "folder":
        path.mkdir()
    elif make == "fifo":
        __import__("os").mkfifo(path)
    with pytest.raises(PolicyError) as caught:
        load(path)
    assert "policy-unreadable" == caught.value.code


@pytest.mark.parametrize(("lines", "words"), [
    ('receipt_position = «"later"', "there are no receipts"),
    ('receipts = true\nreceipt_position = «"later"', "without checkpoint_interval"),
    ('receipts = true\ncheckpoint_interval = "1m"\nreceipt_position = "later"', None)])
def test_places_that_are_told_later(lines: str, words: str | None) -> None:
    """They need receipts, and a checkpoint that comes later."""
    text = in_schema(2, with_lines("audit", lines))
    if words is None:
        assert [] == [d for d in check(text).diagnostics if d.severity == "error"]
    else:
        only_finding(text, "rule", words)


CLASSES = ('timing_padding {\nfirst_token = "200ms"\ntotal = "10s"\ncadence = "50ms"\n}\nsize_padding = "4KiB"')
LATER = 'receipts = true\ncheckpoint_interval = "1m"\nreceipt_position = "later"\n'


@pytest.mark.parametrize(("privacy", "lines", "words"), [
    ("", 'outcomes = «"hidden"', "without length classes"),
    ('timing_padding {\nfirst_token = "200ms"\n}\nsize_padding = "4KiB"', 'outcomes = «"hidden"',
     "without length classes"),
    (CLASSES, 'receipts = true\noutcomes = «"hidden"', 'write receipt_position = "later"'),
    (CLASSES, 'outcomes = "hidden"', None),
    (CLASSES, LATER + 'outcomes = "hidden"', None)])
def test_ends_are_hidden_where_nothing_else_tells_them(privacy: str, lines: str, words: str | None) -> None:
    """They need length classes, and receipts without a checkpoint of their moment."""
    text = in_schema(2, with_lines("privacy", privacy, with_lines("audit", lines)))
    if words is None:
        assert [] == [each for each in check(text).diagnostics if each.severity == "error"]
    else:
        only_finding(text, "rule", words)


TIMES = 'first_token = "200ms"\ntotal = "10s"'


@pytest.mark.parametrize(("times", "size", "words"), [
    ('total = "10s"\n«cadence = "50ms"', 'size_padding = "4KiB"', "add first_token"),
    ('first_token = "200ms"\n«cadence = "50ms"', 'size_padding = "4KiB"', "add total"),
    (f'{TIMES}\n«cadence = "50ms"', "", 'add size_padding = "4KiB" to privacy'),
    (f'{TIMES}\ncadence = "50ms"', 'size_padding = «"1008B"', 'write size_padding = "1KiB" or more'),
    ('first_token = "300ms"\ntotal = «"10s"\ncadence = "50ms"', 'size_padding = "4KiB"', 'write total = "10200ms"'),
    (f'{TIMES}\ncadence = "50ms"', 'size_padding = "1KiB"', None)])
def test_a_cadence_needs_answers_whose_times_and_sizes_tell_nothing(times: str, size: str, words: str | None) -> None:
    """Both grids and a size: else they tell what the passes hide. The error says what to add. Under schema 1, where no
    boot takes it, such a file stays valid."""
    times = times.replace("«cadence = ", 'cadence = «')
    text = in_schema(2, with_lines("privacy", f"timing_padding {{\n{times}\n}}\n{size}"))
    if words is None:
        valid(text)
    else:
        only_finding(text, "rule", words)
    valid(text.replace("schema = 2", "schema = 1").replace("«", ""))


def test_a_lone_cadence_needs_all_three() -> None:
    """It would hide from the disk what the network sees. Each finding says what to add."""
    clean, place = marked(in_schema(2, with_lines("privacy", 'timing_padding { cadence = «"50ms" }')))
    found = [each for each in check(clean).diagnostics if each.severity == "error"]
    assert ["add first_token to timing_padding", "add total to timing_padding",
            'add size_padding = "4KiB" to privacy'] == [each.fix for each in found]
    assert {place[0]} == {each.line for each in found}
    valid(clean.replace("schema = 2", "schema = 1"))


SESSIONS = {
    "model": 'session_persistence = «true\n prefix_cache { size = "8MiB" }',
    "privacy": 'retention { sessions = "8h" }',
    "": 'state {\n device = "/dev/vdb"\n key {\n provider = "file"\n path = "/key"\n}\n}',
}


@pytest.mark.parametrize(("block", "found", "new", "words"), [
    ("model", 'prefix_cache { size = "8MiB" }', "", "no pages are kept in memory"),
    ("privacy", 'retention { sessions = "8h" }', "", "deleted at once"),
    ("", 'provider = "file"\n path = "/key"', 'provider = "ephemeral"', "outlives a restart"),
])
def test_sessions(block: str, found: str, new: str, words: str) -> None:
    """Without a prefix cache, a retention or a key that lasts nothing is kept, which is told. Under schema 1 nobody
    says so, since such a file was valid there and has to be after an upgrade."""
    for lines in (SESSIONS, {**SESSIONS, block: SESSIONS[block].replace(found, new)}):
        text = in_schema(2)
        for name, each in lines.items():
            text = with_lines(name, each, text)
        clean, place = marked(text)
        told = [d for d in check(clean).diagnostics if d.severity != "note"]
        if lines is SESSIONS:
            assert [] == told
            continue
        assert [("warning", place)] == [(d.severity, (d.line, d.column)) for d in told]
        assert words in str(told[0])
