"""The worst texts of every pattern of the package that repeats without a bound, and how each is used.

Each row: the pattern's name (`tests.support.patterns`), its use, and texts as (before, unit, after), of which the unit
comes any number of times. A pattern that reads what the project itself writes has a reason in the place of texts.
"""

# ruff: noqa: E501  a pattern is on one line, as it stands in its source

from __future__ import annotations

Texts = tuple[tuple[str, str, str], ...]


def _t(*texts: tuple[str, str, str]) -> Texts:
    return texts


_SPACES = ("", " ", "x")
_LETTERS = ("", "a", "!")
_DIGITS = ("", "1", "x")

WORST: dict[str, tuple[str, Texts]] = {
    "attestation/binding.py:_HEX": ("fullmatch", _t(("", "ab", "x"), ("", "AB", "a"))),
    "attestation/binding.py:_BASE64URL": ("fullmatch", _t(_LETTERS)),
    "attestation/x509/judging/collateral.py:_HEX": ("fullmatch", _t(_SPACES, ("", "30", "x"), ("30ab", " ", "x"))),
    "attestation/x509/pem.py:_BEGIN": ("all", _t(
        ("-----BEGIN CERTIFICATE-----", " ", "x"), ("", "-----BEGIN CERTIFICATE-----  x\n", ""))),
    "attestation/x509/judging/dice.py:_PEM": ("all", _t(
        ("", "-----BEGIN CERTIFICATE-----\nAA\n", ""), ("-----BEGIN CERTIFICATE-----", "A", "!"))),
    "attestation/x509/judging/pcs_answer.py:_NAME": ("match", _t(_SPACES, ('{"tcbInfo"', " ", "x"), ("{", " ", "x"))),
    "auditor/archive/members.py:_STRANGE": ("all", _t(("", "!", "a"), ("", "!a", ""))),
    "auditor/receipts.py:_REST": ("fullmatch", _t(("\n:", " ", "x"))),
    "keys/release/kbs.py:_COOKIE": ("fullmatch", _t(("kbs-session-id=a;", "b", "\n"))),
    "boot/placement/launchdisk.py:_OCTAL": ("fullmatch", _t(_SPACES, ("7", " ", "x"), ("7", "\0", "x"))),
    "sandbox/hardening.py:INJECTING": ("fullmatch", _t(("LD_", "A", "!"), ("PYTHON", "A", "!"))),
    "cli/numbers.py:_DECIMAL": ("fullmatch", _t(_DIGITS, ("1.", "1", "x"), (".", "1", "e"))),
    "client/judge.py:_DIGITS": ("all", _t(("found ", "a", "x"), ("", "found " + "a" * 31 + "x", ""))),
    "mistakes/files.py:_BARE_KEY": ("fullmatch", _t(_SPACES, ("a" * 64, " ", "x"))),
    "mistakes/files.py:_PEM": ("match", _t(_SPACES)),
    "mistakes/files.py:_JSON": ("match", _t(_SPACES, ("{", " ", "x"), ("[", "\n", "x"))),
    "mistakes/files.py:_FORMAT": ("search", _t(('"format"', " ", "x"), ("", '"format" ', ""), ("", '"format": ', ""))),
    "mistakes/files.py:_BLOCK": ("search", _t(
        ("", "\n", "x"), ("model", "\n", "x"), ("", "model\n", ""), ('model "', "a", ""), ("", 'model ""\n', ""))),
    "mistakes/files.py:_JSON_OF_NAMES": ("match", _t(("{", " ", "x"), ("{", "a", "!"), ("{a", " ", "x"))),
    "mistakes/files.py:_TOML": ("match", _t(("[", "a", "!"), ("[[", "a", "!"))),
    "mistakes/files.py:_YAML": ("match", _t(_LETTERS, ("a:", " ", "{"), ("a:", " ", ""))),
    "mistakes/weights.py:_HTML": ("match", _t(_SPACES, ("<!--", "-->", ""), ("<!-- -->", " ", "x"), ("<!doctype", " ", "x"))),
    "mistakes/weights.py:_XML": ("match", _t(_SPACES)),
    "mistakes/weights.py:_JSON": ("match", _t(_SPACES, ("{", " ", "x"), ("[", "\n", "x"))),
    'mistakes/weights.py: b\'\\\\{\\\\s*"(?:error|errors|message|detail|msg|statusCode|status)"\\\\s*:\'': ("search", _t(
        ("{", " ", "x"), ("", "{ ", ""), ('{"error"', " ", "x"), ("", '{"error" ', ""))),
    'mistakes/weights.py: b\'"weight_map"\\\\s*:\'': ("search", _t(('"weight_map"', " ", "x"), ("", '"weight_map" ', ""))),
    'mistakes/weights.py: b\'"peft_type"\\\\s*:\'': ("search", _t(('"peft_type"', " ", "x"), ("", '"peft_type" ', ""))),
    'mistakes/weights.py: b\'"(?:architectures|model_type|transformers_version)"\\\\s*:\'': ("search", _t(
        ('"model_type"', " ", "x"), ("", '"model_type" ', ""))),
    "constraint/gbnf.py:_TOKEN": ("scan", _t(
        ('"', '\\"', ""), ("[", "\\]", ""), ("{1,", " ", "x"), ("{1", " ", "x"), ("{", " ", "x"), ("", "{1,  ", ""), _SPACES,
        ("#", "a", ""), ("", "a", "\x00"), ("", '"a"{1,  }', ""), ("", "[[", ""))),
    "constraint/lark.py:_TOKEN": ("scan", _t(
        ('"', '\\"', ""), ("/", "\\/", ""), ("/", "[", "/"), ("/", "[", ""), ("<", "a", ""), ("", "<a", ""), ("%", "a", ""),
        ("", "a", "\x00"), ("", "_", ""), ("", "1", "a"), _SPACES, ("", "!?", "!"), ("#", "a", ""), ("", "\r", ""))),
    "constraint/lark.py:_RULE": ("fullmatch", _t(("", "a", "A"), ("", "A", "a"), ("", "_", ""))),
    "constraint/lark.py:_BLANKS": ("match", _t(_SPACES)),
    "constraint/lark.py:_REST": ("match", _t(("", "a", "\n"), ("", " ", ""))),
    "constraint/common.py:_NAME": ("fullmatch", _t(("", "A", "a"), ("", "_", ""), ("", "0", ""))),
    "constraint/size.py:_ATOM": ("all", _t(
        ("", "[", ""), ("", "[\\]", ""), ("", "[", "\\"), ("\\x{", "1", ""), ("", "\\x{1", ""), ("{1", ",", ""), ("", "{1,", ""),
        ("{", "1", ""))),
    "families/nearest.py:_LAYER": ("all", _t(("blk.", "1", "x"), ("", "blk.1", ""))),
    "kernels/runtime/signature.py:_FORM": ("fullmatch", _t(_LETTERS, ("a(", "a", "!"))),
    "text/calls/own/harmony.py:_RECIPIENT": ("search", _t(("", "to=", ""), ("", " to=!", ""), ("", "a", ""))),
    "text/calls/own/harmony.py:_NAME": ("match", _t(("", " ", ""), _SPACES)),
    "text/calls/own/harmony.py:_HEADER": ("match", _t(_LETTERS)),
    "text/calls/own/notation.py:_KEY": ("match", _t(("", "a", ":"))),
    "text/calls/own/notation.py:_SCALAR": ("match", _t(("", "a", ","))),
    "text/calls/reading/heads.py: '[\\\\w.\\\\-/]*'": ("match", _t(_LETTERS)),
    'text/calls/reading/heads.py: \'[^\\\\"<>\\\\n]*\'': ("match", _t(("", "a", "<"))),
    "text/calls/reading/heads.py: '\\\\w*'": ("match", _t(_LETTERS)),
    "text/calls/reading/heads.py: '[0-9]*'": ("match", _t(_DIGITS)),
    "text/calls/reading/heads.py: '[\\\\w.\\\\-:]*'": ("match", _t(_LETTERS)),
    "text/calls/reading/tape.py:_SPACE": ("match", _t(_SPACES)),
    "text/calls/reading/tape.py:_IN_STRING": ("match", _t(("", "a", '"'))),
    "text/calls/reading/tape.py:_OUT_OF_STRING": ("match", _t(("", "a", '"'))),
    "text/calls/reading/tape.py:_SCALAR": ("match", _t(("", "a", ","))),
    "text/jinja/filters.py:_WORD": ("all", _t(("", "(", "a"), ("", "(a", ""))),
    "text/jinja/lexer.py:_RAW": ("match", _t(_SPACES, ("raw", " ", "x"), ("raw-%}", " ", "x"))),
    "text/jinja/lexer.py:_ENDRAW": ("search", _t(
        ("{%", " ", "x"), ("", "{% ", ""), ("{%endraw", " ", "x"), ("", "{% endraw ", ""))),
    "text/jinja/lexer.py: '-\\\\}\\\\}\\\\s*|\\\\}\\\\}'": ("search", _t(("", "-", ""), ("-}}", " ", "x"))),
    "text/jinja/lexer.py: '\\\\+%\\\\}|-%\\\\}\\\\s*|%\\\\}\\\\n?'": ("search", _t(("", "-", ""), ("-%}", " ", "x"))),
    "text/jinja/lexer.py:_COMMENT_END": ("search", _t(("", "-#", ""), ("-#}", " ", "x"))),
    "text/jinja/lexer.py:_INNER": ("scan", _t(
        ("'", "\\'", ""), ('"', '\\"', ""), ("'", "a", ""), _DIGITS, ("", "1_", ""), ("1.", "1", "e"), _LETTERS, _SPACES)),
    "text/tokenizer/splitting.py:_LINE": ("fullmatch", _t(("00L", " 00L", "!"))),
    "text/tokenizer/tokenizer.py:_MARKED_WORD": ("all", _t(("", "\u2581", ""), ("", "\u2581a", ""), ("", "\u2581", "a"))),
    "imaging/disk/linux.py: b'(?<=\\\\0)(depends|softdep)=([^\\\\0]*)(?=\\\\0)'": ("all", _t(
        ("\0depends=", "a", ""), ("", "\0depends=", ""))),
    "imaging/packages/debian.py: '^Date: (.+)$'": ("search", _t(("Date: ", "a", "\n"), ("", "Date:\n", ""))),
    "imaging/packages/debian.py: f'^ ([0-9a-f]{{64}})\\\\s+\\\\d+ main/binary-{architecture}/Packages\\\\.xz$'": ("search", _t(
        (" " + "a" * 64, " ", "x"), (" " + "a" * 64 + " ", "1", "x"), ("", " " + "a" * 64 + "\n", ""))),
    "imaging/packages/debian.py: '^([A-Za-z0-9-]+): (.*)$'": ("all", _t(_LETTERS, ("", "a\n", ""), ("a: ", "a", "\n"))),
    "imaging/packages/lockfile.py: '# epoch (\\\\d+)'": ("fullmatch", _t(("# epoch ", "1", "x"))),
    "imaging/packages/mirrors.py: '\\\\n\\\\s*\\\\n'": ("all", _t(("", "\n", ""), ("\n", " ", "x"), ("", "\n ", "x"))),
    "imaging/packages/mirrors.py: '^([A-Za-z-]+):[ \\\\t]*(.*(?:\\\\n[ \\\\t].*)*)'": ("all", _t(
        _LETTERS, ("a:", " ", "x"), ("a:", "\n b", ""), ("", "a\n", ""))),
    "imaging/packages/mirrors.py: '^deb[ \\\\t]++(?:\\\\[[^\\\\]\\\\n]*+\\\\][ \\\\t]++)?(\\\\S++)'": ("all", _t(
        ("deb", " ", "\n"), ("deb [", "a", ""), ("", "deb [\n", ""), ("", "deb [a] \n", ""))),
    "imaging/packages/wheels.py: '^([^\\\\s;]++) ?;[^\\\\n]*python(?:_full)?_version'": ("search", _t(
        ("", "a", ""), ("a", ";", ""), ("", "a;\n", ""), ("a;", "python", ""))),
    "imaging/packages/wheels.py: '[^/]+\\\\.data/(?:purelib|platlib)/(.+)'": ("fullmatch", _t(("", "a", ""), ("", ".data", ""))),
    "imaging/packages/wheels.py: '[^/]+\\\\.data/'": ("match", _t(("", "a", ""), ("", ".data", ""))),
    "imaging/predict/uki.py: b'[ -~]+'": ("fullmatch", _t(("", "a", "\n"))),
    "imaging/qemu/run.py:_ENDED": ("search", _t(("init", " ", "x"), ("init ", "1", "x"), ("", "init ", ""), ("", "init 1", ""))),
    "models/file/shards.py:_NAME": ("fullmatch", _t(("", "a", ""), ("", "-00001-of-", ""))),
    "policy/hcl/diagnostics.py:_SECRET": ("all", _t(("", "sk-", ""), ("", "sk-a!", ""), ("", "hvs.", ""), ("", "AGE-SECRET-KEY-", ""))),
    "policy/hcl/layout.py: '[ \\\\t]*='": ("match", _t(_SPACES)),
    "policy/hcl/tokens.py:NUMBERLIKE": ("match", _t(_DIGITS, ("", "1e", "+"), ("1", "e", ""))),
    "policy/hcl/tokens.py:NUMBER": ("fullmatch", _t(_DIGITS, ("1.", "1", "x"), ("1e", "1", "x"))),
    "policy/hcl/tokens.py:HEREDOC": ("match", _t(("<<a", " ", "x"), ("<<", "a", "!"))),
    "policy/explaining/lexer.py:_ALMOST_HEREDOC": ("match", _t(("<<", " ", ""), ("<<", "a", ""), ("<< a", " ", ""), ("<<", "a ", ""))),
    "policy/explaining/lexer.py: '[0-9]+[A-Za-z]+'": ("fullmatch", _t(("", "1", "!"), ("1", "a", "!"))),
    "policy/explaining/lexer.py: '-?0[0-9]+'": ("fullmatch", _t(("", "0", "x"))),
    "policy/explaining/lexer.py: '-?[0-9.]+[eE][+-]?'": ("fullmatch", _t(("", "1", "x"), ("", ".", "e1"))),
    "policy/schema/identifiers.py:_SECRET": ("match", _t(_SPACES)),
    "policy/schema/identifiers.py: '[0-9a-fA-F]+'": ("fullmatch", _t(("", "a", "!"))),
    "policy/schema/identifiers.py: '[0-9A-Fa-f]*'": ("fullmatch", _t(("", "a", "!"))),
    "policy/schema/identifiers.py: '[!-~]+'": ("fullmatch", _t(("", "a", " "))),
    "service/admission/chats.py:_SHORT_IDS": ("search", _t(
        ("|", " ", "x"), ("", "| ", ""), ("|length", " ", "x"), ("", "|length ", ""), ("", "|length!= ", ""))),
    "service/answering/respond.py:_STREAM": ("search", _t(
        ('"stream"', " ", "x"), ('"stream":', "\n", "f"), ("", '"stream" ', ""), ("", '"stream": ', ""))),
    "service/parts/exchange.py:_URL": ("fullmatch", _t(("http://", "a", "@"), ("http://a/", "b", "\n"))),
    "api/document.py:_WHOLE_CHARACTERS": ("match", _t(("", "a", "\\u"), ("", "\\a", ""), ("", "\\ud800", ""), ("", "\\\\", ""))),
    "api/document.py:_NO_CONSTANT": ("match", _t(("", "a", "N"), ('"', '\\"', ""), ("", '""', "N"), ("", "-", "I"))),
    "api/document.py:_NO_LONG_NUMBER": ("match", _t(
        ("", "a", ""), ('"', '\\"', ""), _DIGITS, ("", "1 ", ""), ("1.", "1", ""), ("", "1e", ""))),
    "api/document.py:_TOKEN": ("all", _t(('"', '\\"', ""), ("", '"', ""), ("", "[", ""), ("", '"\\"', ""), ("", '""', '"'))),
    "http/framing.py:_REQUEST_LINE": ("fullmatch", _t(("", "A", ""), ("A ", "a", ""), ("A ", "a", " HTTP/1."))),
    "http/framing.py:_FIELD": ("fullmatch", _t(("", "A", ""), ("A:", "b", "\0"))),
    "http/framing.py:_SIZE_LINE": ("fullmatch", _t(
        ("1", " ", "x"), ("1;a", " ", "!"), ("1", ";a", "!"), ("1;", "a", "!"), ('1;a="', "b", ""), ('1;a="', '\\"', ""), ("1", ";a=b", "!"),
        ("1", " ; a", "!"))),
    "attestation/judge/buried.py:_HEX": ("all", _t(("", "aa", "!"), ("0x", "a", "!"), ("", "0x", ""))),
    "attestation/judge/buried.py:_LINE": ("all", _t(("", "a", "!"), ("a", " ", "x"), ("", "a\n", ""), ("", " ", "!"))),
    "attestation/judge/buried.py:_RUN": ("all", _t(("", "a", "!"), ("", "a!", ""))),
    "drills/evidence.py:_FLOOR": ("all", _t(
        ("", "min_tcb {", ""), ("min_tcb", " ", "x"), ("min_tcb {", " snp", ""), ("min_tcb { snp =", " ", "x"), ("min_tcb { snp", " ", "x"))),
    "fleet/ruling.py:_BELOW": ("all", _t(_LETTERS, ("a ", "1", "x"), ("", "a 1 ", ""), ("a 1 is below ", "1", "x"))),
    "imaging/papers/fleet.py:_HOST": ("fullmatch", _t(_LETTERS, ("", "a.", ""), ("", "a-", "."), ("", "a", "."))),
    "transparency/reading.py:_NAME": ("fullmatch", _t(("", "a", " "), ("", "a", "+"))),
    "transparency/note.py:_LINE": ("fullmatch", _t(("\u2014 ", "a", ""), ("\u2014 a ", "A", "!"))),
}

_OURS = "reads tables, names and documents of the project alone"
ELSEWHERE: dict[str, str] = {
    "attestation/x509/pem.py: b'^-----END ' + kind + b'-----'": "repeats nothing",
    "detectors/stream.py: first.opening": "parts of one character, one after the other, each at most once; see test_time_is_linear_in_the_text",
    "detectors/stream.py: '|'.join(map(re.escape, sorted(heads))) or '(?!)'": "repeats nothing: words, one beside the other",
    "audit/fields.py: self.regex": "a text has its own bound, which is looked at first",
    "matching/characters.py: f'{text}+'": "reads all characters once, for a pattern of the policy",
    "text/calls/reading/grammar.py: f\"({'|'.join(map(re.escape, texts))})\" if texts else '((?!))'":
        "repeats nothing: texts of control tokens, one after the other",
    "text/calls/reading/marks.py: whole[0]": "repeats nothing: marks, one after the other; see test_marks_are_found_in_linear_time",
    "text/calls/reading/marks.py: f\"(?P<whole>{'|'.join(first)})|{waits}\"": "as the one before",
    "text/tokenizer/splitting.py: pattern": "see test_every_pre_tokenizer_is_linear",
    "models/file/disk.py: f'(?<!\\\\w){re.escape(str(path))}(?!\\\\w)'": "repeats nothing",
    "policy/language/reference.py: '\\\\n{3,}'": _OURS,
    "policy/schema/identifiers.py: f'{self.algorithm}:[0-9a-f]{{{2 * self.nbytes}}}'": "repeats nothing without a bound",
    "policy/schema/identifiers.py: self.pattern": "see test_no_pattern_of_the_schema_repeats_without_a_bound",
    "policy/schema/patterns.py: tests[entry]": _OURS,
    "api/adapter.py: f'{pattern}(?![A-Za-z_])'": "reads paths of parameters, which the service writes, in refusals",
    "service/openapi.py: '\\\\W+'": _OURS,
    "signed/releases.py: pattern": "rows of FIELDS, of a fixed length each",
}
