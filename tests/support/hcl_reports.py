"""Texts of the kinds that people have reported to parsers of HCL: where one parser read another value than HashiCorp's,
or refused what that takes. Each text is our own; its row names reports of its kind.

A text in `LISTED` is read in another way here: by the row of docs/supply-chain.md that it names.
"""

# ruff: noqa: E501  a text is on one line

from __future__ import annotations

REPORTS: dict[str, list[str]] = {
    # python-hcl2 315, pyhcl 25, terraform 4069: files as Windows ends their lines
    "carriage returns": [
        "a = 1\r\nb = 2\r\n", "a = 1\nb = 2\r\nc = 3\n", "a = [\r\n 1,\r\n 2\r\n]\r\n", 'b "l" {\r\n a = "x"\r\n}\r\n',
        "# c\r\na = 1 // d\r\n", "/* c\r\n */\r\na = 1\r\n", 'a = "x\r\n"\n', "a = 1\rb = 2\n", 'a = "x\ry"\n',
        "a = <<E\nx\nE\r\n", "a = <<E\r\nE\r\n", "a = {\r\n b = 1\r\n}\r\n"],
    # terraform 18618 and 19715: a mark that editors put before a text
    "byte-order marks": [
        "\ufeffa = 1\n", "\ufeff\r\na = 1\r\n", "\ufeff# c\na = 1\n", "\ufeff", "\ufeff\ufeffa = 1\n", "a = 1 \ufeff\n"],
    # hcl 41, python-hcl2 144 and 226, hcl2 86
    "numbers": [
        "a = 1e3\n", "a = 1E3\n", "a = 1e+3\n", "a = 1e-3\n", "a = 1.0\n", "a = 10e-1\n", "a = 1.5e1\n", "a = -1e3\n",
        "a = 0e0\n", "a = -0\n", "a = -0.0\n", "a = 12e-1\n", "a = 120e-1\n", "a = 0.5\n", "a = -2.50e+2\n", "a = 1e\n",
        "a = 1e+\n", "a = .5\n", "a = 1.\n", "a = +1\n", "a = 0x10\n", "a = 0b1\n", "a = 1_000\n", "a = 1,000\n",
        "a = 1e3.5\n", "a = 1.2.3\n", "a = 512MiB\n", "a = - 1\n", "a = --1\n", "a = Infinity\n", "a = 1e05\n",
        "a = 9007199254740991\n", "a = 5e-324\n", "a = 1e-400\n", "a = 0.30000000000000004\n",
        "a = 1.0000000000000000001\n", "a = [1, -1, 2e2]\n"],
    # python-hcl2 101, 141, 166, 190, 326, 330 and 343; hcl 497; terraform 4079, 4835 and 31450; hcl2 21; pyhcl 36
    "heredocs": [
        "a = <<E\nE\n", "a = <<E\nx\nE  \nb = 1\n", "a = <<E\nx\n  E\nb = 1\n", "a = <<E\nx E\nE\n", "a = <<E\nE x\nE\n",
        "a = <<E\nFAKE_E_HERE\nE\n", "a = <<E\nxE\n", "a = <<E\nE,\nE\n", "a = <<E1\nx\nE1\n", "a = <<__E__\nx\n__E__\n",
        "a = <<E-F\nx\nE-F\n", "a = <<eof\nx\neof\n", "a = <<1E\nx\n1E\n", "a = << E\nx\nE\n", "a = <<- E\nx\nE\n",
        "a = <<E # c\nx\nE\n", "a = <<E x\nE\n", 'a = <<"E"\nx\nE\n', "a = <<'E'\nx\nE\n", "a = <E\nx\nE\n", "a = <<<E\nx\nE\n",
        "a = <<E\nx\nE}\n", "a = <<E\nx\n", "a = <<E\nsay \"a\n'b' # no // c /* d\nE\n", 'a = <<E\n{"k": [1, 2]}\nE\n',
        "a = <<E\nfirst \\\nsecond\nE\n", "a = <<E\n<<F\nF\nE\n", "a = [<<E\nx\nE\n, 1]\n", "a = [\n<<E\nx\nE\n,\n]\n",
        "a = {\n b = <<E\nx\nE\n c = 1\n}\n", "b {\n a = <<E\nx\nE\n}\n", "a = <<E\nx\nE\nb = <<E\ny\nE\n",
        "b {\n for = <<E\nx\nE\n}\n"],
    # hcl 9 and 258, pyhcl 31, hcl-rs 11 and 13, python-hcl2 335
    "indented heredocs": [
        "a = <<-E\n\tx\n\t\ty\n\tE\n", "a = <<-E\n    a\n\n    b\n    E\n", "a = <<-E\n    a\n      \n    b\n    E\n",
        "a = <<-E\n  a\n b\n  E\n", "a = <<-E\na\n  b\n  E\n", "a = <<-E\n \ta\n \tb\n E\n", "a = <<-E\n\ta\n  b\nE\n",
        "a = <<-E\n \n\n   x\n E\n", "a = <<-E\n\u00a0a\n\u00a0b\n E\n", "a = <<-E\n\u3000a\n\u3000b\nE\n", "a = <<-E\n  E\n",
        "a = <<-E\n  a  \n  b\t\n  E\n", "a = <<E\n\tx\n\tE\n", "a = <<E\nx\n\u00a0E\n", "a = <<E\nx\nE\u00a0\n",
        "a = <<E\nx\n\u3000E\n"],
    # hcl-rs 350, Sublime's Terraform 43, hcl 690, hcl2 19, alecthomas/hcl 40
    "names": [
        "a = <<ÄÖ\nx\nÄÖ\n", "a = <<é\nx\né\n", "a = <<中文\nx\n中文\n", "a = <<-é\n  x\n  é\n", "a = <<e\u0301\nx\ne\u0301\n",
        "a = <<E²\nx\nE²\n", "a-b = 1\n", "a_b = 1\n", "_a = 1\n", "-a = 1\n", "a- = 1\n", "a--b-- = 1\n", "a1 = 1\n", "1a = 1\n",
        "a.b = 1\n", "a$ = 1\n", "A = 1\na = 2\n", '"a" = 1\n', "'a' = 1\n"],
    # python-hcl2 82, 166 and 168; checkov 781; rewrite 6473
    "words of the language as names": [
        "for = 1\n", "in = 1\n", "if = 1\n", "null = 1\n", "true = 1\n", "for_each = []\n", "endif = 1\n", "null {\n}\n",
        'if "x" {}\n', "a = { in = 1, if = 2 }\n", "a = { null = 1 }\n", "a = { true = 1, false = 2 }\n", "a = null\n",
        "a = True\n", "a = yes\n", "a = string\n"],
    # python-hcl2 171 and 308, hcl2 6, hcl 129, hil 48, pyhcl 79, hcl4j 3
    "escapes": [
        r'a = "\ud83d"' "\n", r'a = "\ud83d\ude00"' "\n", r'a = "\udc00"' "\n", r'a = "\U0001F600"' "\n",
        r'a = "\U00110000"' "\n", r'a = "\u12"' "\n", r'a = "\u"' "\n", r'a = "\U0001F60"' "\n", r'a = "\u00e9"' "\n",
        r'a = "\uffff"' "\n", r'a = "\u202e"' "\n", r'a = "\x41"' "\n", r'a = "\400n"' "\n", r'a = "\0"' "\n", r'a = "\a"' "\n",
        r'a = "\$"' "\n", r'a = "\/"' "\n", r'a = "\n\r\t\"\\"' "\n", r'a = "x\\"' "\n", r'a = "x\"' "\n",
        r'a = "C:\\dir"' "\n", r'a = "C:\dir"' "\n", r'a = "\\\\"' "\n", r'a = "\\n"' "\n", r'b "a\u00e9" {}' "\n"],
    # python-hcl2 201 and 336; hcl-rs 242, 248 and 256; hcl2json 96; hcl 341
    "dollars and per cents": [
        'a = "$${x}"\n', 'a = "%%{x}"\n', 'a = "$$${x}"\n', 'a = "$$$${x}"\n', 'a = "$$$"\n', 'a = "$ {x}"\n', 'a = "50%%"\n',
        'a = "$${aws:username}"\n', 'a = "$${"\n', 'a = "%$${x}"\n', 'a = "$%{x}"\n', 'a = "${x}"\n', 'a = "${"\n',
        'a = "%{if true}x%{endif}"\n', "a = <<E\n$${x} %%{y}\nE\n", "a = <<E\n$ % $$ %% $$$\nE\n", "a = <<E\n${x}\nE\n",
        "a = <<E\n\\n\\t\\\"\\\\ \\u00e9\nE\n", "a = <<E\n$\nE\n", 'b "$${x}" {}\n', 'b "${x}" {}\n'],
    # python-hcl2 83, 95 and 96; hcl2 18 and 89; pyhcl 15, 23 and 24; terraform 31375 and 3249
    "comments": [
        "# c", "// c", "/* c */", "a = 1", "/* c", "a = 1 /* c */\n", "/* c */ a = 1\n", "a /* c */ = 1\n", "a = /* c */ 1\n",
        "/* /* */ */\n", "/***/\n", "/*/ a = 1\n", "a = [ # c\n 1, # d\n 2 # e\n]\n", "a = [ /* 1, */ 2 ]\n",
        "a = [\n /* 1,\n 2 */\n]\n", 'a = [\n "x",\n "y", # c\n]\n', "a = {\n # c\n b = 1 # d\n}\n", "b { # c\n}\n",
        "b {\n} # c\n", 'b "l" /* c */ "m" {\n}\n', '# it\'s "open\na = 1\n', '/* "open */\na = 1\n', "-- c\na = 1\n",
        'a = 1 # "\nb = 2\n', "#!/bin/sh\na = 1\n"],
    # hcl 12, pyhcl 81, OctopusDeploy 7736, hcl-rs 222
    "lists": [
        "a = []\n", "a = [1,]\n", "a = [,]\n", "a = [1,,2]\n", "a = [1 2]\n", "a = [1\n2]\n", "a = [1,\n2]\n", "a = [1\n,2]\n",
        'a = ["x", 1]\n', 'a = ["x", true]\n', 'a = [["x", "y"]]\n', "a = [{b = 1}, {b = 2}]\n", "a = [{\n b = 1\n}, {\n b = 2\n}]\n",
        "a = [1;2]\n", "a = [1\n", "a = 1]\n", "a = [for]\n"],
    # python-hcl2 27, 46, 211, 236 and 249; dependabot 3225
    "objects": [
        "a = {b : 1}\n", "a = {b: 1, c: 2}\n", 'a = {"b" = 1}\n', 'a = {"b c" = 1}\n', 'a = {"" = 1}\n', 'a = {"john/doe" = {}}\n',
        'a = {"1" = 2}\n', "a = {1 = 2}\n", "a = {(b) = 1}\n", "a = {b.c = 1}\n", "a = {b-c = 1}\n", "a = {b = 1, c = 2,}\n",
        "a = {\n b = 1,\n c = 2\n}\n", "a = {b = 1\n c = 2}\n", "a = {b => 1}\n", "a = {b = }\n", "a = {b}\n", "a = {b = 1; c = 2}\n",
        "a = {\n\n b = 1\n\n\n}\n", 'a = {"$${b}" = 1}\n'],
    # terraform 5372, 5929 and 25039; hcl 88, 492 and 828; python-hcl2 34; terraform-config-inspect 5
    "blocks": [
        "b {}\n", "b { a = 1 }\n", "b { a = [\n1\n] }\n", "b\n{\n}\n", 'b "l"\n{\n}\n', 'b "l"{}\n', 'b"a""c"{}\n', "b 'l' {}\n",
        "b 1 {}\n", "b l.m {}\n", "b = {}\n", 'b "l" = {}\n', "b {\n a = 1\n", "b {\n a = 1\n\nb {\n}\n", "}\n", "b {{}}\n", '"b" {}\n',
        'b {\n c "x"\n}\n', "b { a = 1, c = 2 }\n", "b { a = 1; c = 2 }\n", 'b "" {}\n', 'b "é" {}\n', "b {}\nb {}\n", "b {}\nb = 1\n",
        "a = 1\na = 2\n", "a = 1,\nb = 2\n", "a: 1\n", "a == 1\n", "a = 1 +\n1\n", "a = (1)\n", "a = 1 + 1\n"],
    # conftest 208, aws2tf 34, oci 1061, python-hcl2 76: what comes with pasted texts
    "characters that are pasted": [
        "a =\u00a01\n", "\u00a0a = 1\n", "a\u00a0= 1\n", "a = 1\u00a0\n", "a =\u30001\n", "a = 1 \u200b\n", "\u200ba = 1\n",
        "a = [1,\u00a02]\n", "b\u00a0{}\n", 'a = "x\u00a0y"\n', 'a = "\u200b"\n', "a = \u201cx\u201d\n", "a = \u2018x\u2019\n",
        "a = 'x'\n", "a = `x`\n", "a = \u00abx\u00bb\n", "a = 1;\n", 'a = "x\ny"\n', 'a = "x\n', 'a = """\nx\n"""\n', "a = \"it's\"\n",
        'a = "😀👨\u200d👩\u200d👧"\n', "a = \uff11\n"],
}
LISTED: dict[str, str] = {
    "a = <<E\r\nx\r\ny\r\nE\r\n": "CRLF in a heredoc", "a = <<-E\r\n  x\r\n\r\n  y\r\n  E\r\n": "CRLF in a heredoc",
    "a = <<E\nx\r\ny\nE\n": "CRLF in a heredoc", 'a = "e\u0301"\n': "composed form (NFC)", 'a = "\u2126"\n': "composed form (NFC)",
    r'a = "e\u0301"' "\n": "composed form (NFC)", "a = <<E\ne\u0301\nE\n": "composed form (NFC)",
    "a = 007\n": "leading zeros", "a = 00\n": "leading zeros", "a = -00.5\n": "leading zeros",
    "a = 1.e3\n": "a point without digits behind it", "a = 9007199254740992\n": "numbers beyond 2^53 - 1",
    "a = 123456789012345678901234567890\n": "numbers beyond 2^53 - 1", "a = 1e400\n": "numbers beyond 2^53 - 1",
    "a = 3.141592653589793238462643383279502884197169399\n": "numbers of more than 40 characters",
    'a = "\x1b[31m"\n': "control characters", 'a = "\x7f"\n': "control characters", 'a = "\u2028"\n': "control characters",
    'a = "\u0085"\n': "control characters", "# \x07\n": "control characters",
    'a = "\u202e"\n': "marks of direction", "# \u202e\na = 1\n": "marks of direction", 'a = "\u200f"\n': "marks of direction",
    'a = "\ufeff"\n': "a byte-order mark within the text", "a = 1 # \ufeff\n": "a byte-order mark within the text",
    r'a = "\u0000"' "\n": "NUL", 'a = "\x00"\n': "NUL",
    "é = 1\n": "names beyond ASCII", "aé = 1\n": "names beyond ASCII", "a = {é = 1}\n": "names beyond ASCII",
    "é {}\n": "names beyond ASCII", "b l {}\n": "labels without quotes", 'b "l" m {}\n': "labels without quotes",
    "b null {}\n": "labels without quotes", "a = {b = 1, b = 2}\n": "a field of an object twice",
    'a = {"b" = 1, b = 2}\n': "a field of an object twice", 'a = "x${1}y"\n': "templates of a literal",
    "a = 1 b = 2\n": "several things in a line", "b {} c {}\n": "several things in a line",
    "b {\n a = 1 }\n": "several things in a line", "b { a = 1\n}\n": "several things in a line",
    "b { c {} }\n": "several things in a line", "b { a = 1 c = 2 }\n": "several things in a line",
    "a = 1 /* c\n */ b = 2\n": "several things in a line", "b { a = <<E\nx\nE\n}\n": "several things in a line",
    "a = <<E \nx\nE\n": "blanks behind the start of a heredoc", "a = <<E\t\nx\nE\n": "blanks behind the start of a heredoc",
    "a = <<E\nx\nE": "a heredoc that ends the file", "a = <<E\nx\nE ": "a heredoc that ends the file",
    "a = {b = 1 c = 2}\n": "fields of an object without commas", "a = {\n b = 1\n, c = 2\n}\n": "fields of an object without commas",
    "a = {for = 1}\n": "a field of an object that is called for", "a = {\n for : 1\n}\n": "a field of an object that is called for",
}
