"""HCL text to a tree of literals with positions. A policy is data: nothing is computed.

The grammar, the post-lexer and the parse table are python-hcl2's, over Lark. A text goes through
three stages, and the first mistake ends it:

1. `tokens`: the grammar's terminals, bounded in number;
2. `reading`: Lark's parser, bounded in depth;
3. `values`: the tree to literals; whatever has to be computed is refused.

These decide whether a text is in form. `explaining` reads one that is not once more, gets
past each mistake, and reports them all; it does not ship.

A text has the value that HashiCorp's own parser gives it, or is refused. docs/supply-chain.md lists
where the two differ, such as several attributes that share a line.
"""

from __future__ import annotations

from appliance.policy.hcl.diagnostics import SourceText, Span
from appliance.policy.hcl.tree import Body

MAX_BYTES = 2**20  # of a policy file
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # which editors of Windows put before a text; HashiCorp's parser passes over it


def decode(data: bytes, nbytes: int | None = None) -> tuple[str, str | None, Span]:
    """Return the text of a policy file, line ends as newlines, and what is wrong with its encoding,
    and where. A byte-order mark at the beginning is left out.

    `nbytes` is the file's length if `data` is only its beginning. A text that is too long or UTF-16
    comes back empty; one with wrong bytes has replacement characters in it.
    """
    if len(data) > MAX_BYTES:
        return "", f"the file has {nbytes or len(data)} bytes, more than the {MAX_BYTES} bytes allowed", Span(0, 0)
    data = data.removeprefix(BYTE_ORDER_MARK)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "", "the file is UTF-16, not UTF-8", Span(0, 0)
    try:
        text, problem, at = data.decode("utf-8"), None, 0
    except UnicodeDecodeError as error:
        text = data.decode("utf-8", errors="replace")
        problem = f"byte 0x{data[error.start]:02x} at offset {error.start} is not UTF-8"
        at = len(data[:error.start].decode("utf-8").replace("\r\n", "\n"))
    return text.replace("\r\n", "\n"), problem, Span(at, at + 1)


def parse(text: SourceText) -> Body:
    """Parse a text. Raises InvalidPolicyError at its first mistake."""
    # Lark takes as long to import as a policy to read, and most commands read none.
    from appliance.policy.hcl import grammar, reading, tokens, values

    rules = grammar.load()
    tree = reading.tree(tokens.Lexer(rules, text).run(), rules, text)
    return values.Values(text).file(tree)
