"""Manual pages: one for the program, one for each verb with its actions, in man(7)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from appliance import __version__
from appliance.manual.verbs import Command, Option


def pages(commands: Sequence[Command]) -> dict[str, str]:
    """Return the text of each page by its file name, such as `appliance-check.1`."""
    verbs = [each for each in commands if len(each.words) == 1]
    found = {"appliance.1": _main(next(each for each in commands if not each.words), verbs)}
    for verb in verbs:
        actions = [each for each in commands if each.words[:1] == verb.words and len(each.words) > 1]
        found[f"appliance-{verb.words[0]}.1"] = _page(verb, actions)
    return found


def _main(program: Command, verbs: Sequence[Command]) -> str:
    rows = "".join(f".TP\n.BR appliance\\-{_roff(each.words[0])} (1)\n{_roff(each.summary)}\n" for each in verbs)
    return (_head("appliance", program.description) + f".SH SYNOPSIS\n.B appliance\n.I VERB\n[\\fIARGUMENTS\\fR]\n"
            f".SH VERBS\n{rows}" + _exit(program.epilog)
            + ".SH SEE ALSO\nappliance explain FIELD|CODE; the folder docs of the checkout\n")


def _page(verb: Command, actions: Sequence[Command]) -> str:
    name = f"appliance-{verb.words[0]}"
    parts = [_head(name, verb.summary), f".SH SYNOPSIS\n.nf\n{_roff(verb.usage)}\n.fi\n"]
    if verb.description not in ("", verb.summary):
        parts.append(f".SH DESCRIPTION\n{_paragraphs(verb.description)}")
    parts.append(_options(verb))
    for action in actions:
        parts.append(f".SH {_roff(' '.join(action.words[1:]).upper())}\n.nf\n{_roff(action.usage)}\n.fi\n.PP\n"
                     f"{_paragraphs(action.description)}{_options(action, heading=False)}")
        if action.epilog:
            parts.append(f".PP\n{_paragraphs(action.epilog)}")
    parts.append(_exit(verb.epilog))
    return "".join(parts) + ".SH SEE ALSO\n.BR appliance (1)\n"


def _head(name: str, summary: str) -> str:
    return (f'.TH "{_roff(name.upper())}" "1" "" "appliance {__version__}" "User Commands"\n.SH NAME\n{_roff(name)} '
            f"\\- {_roff(' '.join(summary.split()))}\n")


def _options(command: Command, *, heading: bool = True) -> str:
    listed = [*command.arguments, *command.options]
    listed = [each for each in listed if each.help]
    if not listed:
        return ""
    return (".SH OPTIONS\n" if heading else "") + "".join(_row(each) for each in listed)


def _row(option: Option) -> str:
    names = ", ".join(f"\\fB{_roff(each)}\\fR" for each in option.names)
    value = f"\\fI{_roff(option.value)}\\fR" if option.value else ""
    return f".TP\n{' '.join(filter(None, (names, value)))}\n{_roff(option.help)}\n"


def _exit(epilog: str) -> str:
    return f".SH EXIT STATUS\n{_paragraphs(epilog or 'exit codes: 0 success, 1 findings or refused, 2 cannot run')}"


def _paragraphs(text: str) -> str:
    """Return text with its lines as they are."""
    return f".nf\n{_roff(text.strip())}\n.fi\n" if "\n" in text else f"{_roff(text)}\n"


def _roff(text: str) -> str:
    """Return text for man(7): dashes can be copied, and no line begins a request."""
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    ascii_only = "".join(each if each.isascii() else f"\\[u{ord(each):04X}]" for each in plain)
    return re.sub(r"^([.'])", r"\\&\1", ascii_only, flags=re.MULTILINE)
