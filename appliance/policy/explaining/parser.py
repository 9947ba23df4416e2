"""A text that is not in form, read for all of its mistakes.

Each stage reports what it finds and hands on what is left: `lexer`; `brackets`, every bracket
closed; `repair`, Lark's parser, which gets past each mistake; `literals`.
"""

from __future__ import annotations

from collections.abc import Collection

from appliance.policy.explaining.report import FullReport
from appliance.policy.hcl import parser
from appliance.policy.hcl.diagnostics import SourceText, Span
from appliance.policy.hcl.tree import Body


def parse(report: FullReport, top_level: Collection[str] = ()) -> Body:
    """Parse the report's text; findings go to the report, in the order of the text.

    `top_level` names the blocks that begin at the margin, by which a brace that is not closed is
    found where it is missing. Of a text of too many words that is the only finding.
    """
    # Lark takes as long to import as a policy to read, and most commands read none.
    from appliance.policy.explaining import brackets, lexer, literals, repair
    from appliance.policy.hcl import grammar

    rules, marks = grammar.load(), lexer.Marks()
    words = lexer.LenientLexer(rules, report, marks).run()
    if words is None:
        report.full = True
        return Body(Span(0, 0))
    fit = brackets.Brackets(words, report, marks, top_level).run()
    body = literals.LenientValues(report, marks).file(repair.Repair(fit, rules, report, marks).tree())
    report.found.sort(key=lambda found: (found.line, found.column))
    return body


def parse_text(text: str, filename: str = "policy.hcl") -> Body:
    """Parse a text that is known to be valid."""
    return parser.parse(SourceText(text, filename))
