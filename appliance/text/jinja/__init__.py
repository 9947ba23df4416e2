"""A Jinja interpreter for chat templates that cannot run away and knows who wrote what.

    lexer, tokens, parser
                      source to a tree of nodes
    statements        what the tree does
    expressions
    operators, filters, tests, methods
                      what templates may call: tables, nothing else
    values            the values, and the budget of steps and characters
    standins          characters in the place of texts
    marks             strings that know which of their characters came from outside

Jinja2 has no bound on time or memory and a history of sandbox escapes. Engines with fuel bound the
number of instructions. But one instruction may double a string, or print a structure that contains
itself many times over, and their process then dies. Here every step is counted, and every character
before it is made. And only an interpreter of our own can follow a user's characters through `trim`,
`split` and `+`, so that they are never taken for control tokens. The package knows nothing of
chats: see `engine.template`.
"""

from appliance.text.jinja.template import Template

__all__ = ["Template", "marks", "standins", "values"]
