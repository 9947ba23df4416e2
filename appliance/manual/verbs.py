"""The verbs with their actions and options, as the command line's own parsers have them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

FILE, FOLDER, NONE = "file", "folder", "none"
_FOLDERS = ("DIR",)
_FILES = ("FILE", "POLICY", "LOG", "PACK", "PROOF", "ANSWER", "OUT", "TAR", "DISK", "MEASUREMENTS", "EVIDENCE", "CERT",
          "KEY", "SIGNATURE", "GGUF")


@dataclass(frozen=True, slots=True)
class Option:
    """An option or an argument. `names` is empty for an argument; `takes`: what its value is, if it
    has one."""

    names: tuple[str, ...]
    value: str  # as help shows it; empty for a switch
    help: str
    choices: tuple[str, ...] = ()
    takes: str = NONE


@dataclass(frozen=True, slots=True)
class Command:
    """A verb, or an action of one: its words behind the program's name."""

    words: tuple[str, ...]
    summary: str
    usage: str
    description: str
    epilog: str
    options: tuple[Option, ...]
    arguments: tuple[Option, ...]
    actions: tuple[str, ...] = ()


def commands(parser: argparse.ArgumentParser, words: tuple[str, ...] = (), summary: str = "") -> Iterator[Command]:
    """Yield a parser's command, and those of its actions, in their order."""
    actions = _actions(parser)
    options = [_option(each) for each in parser._actions if not isinstance(each, argparse._SubParsersAction)]
    yield Command(
        words, summary, parser.format_usage().removeprefix("usage: ").strip(), parser.description or summary,
        parser.epilog or "", tuple(each for each in options if each.names and each.help),
        tuple(each for each in options if not each.names), tuple(actions))
    for name, (child, text) in actions.items():
        yield from commands(child, (*words, name), text)


def _actions(parser: argparse.ArgumentParser) -> dict[str, tuple[argparse.ArgumentParser, str]]:
    """Return the parsers of a parser's actions, with their summaries."""
    found: dict[str, tuple[argparse.ArgumentParser, str]] = {}
    for each in parser._actions:
        if isinstance(each, argparse._SubParsersAction):
            told = {choice.dest: choice.help or "" for choice in each._choices_actions}
            found |= {name: (child, told.get(name, "")) for name, child in each.choices.items()}
    return found


def _option(action: argparse.Action) -> Option:
    switch = action.nargs == 0
    choices = tuple(map(str, action.choices)) if action.choices is not None else ()
    shown = action.metavar if isinstance(action.metavar, str) else "|".join(choices) if choices else action.dest.upper()
    text = "" if action.help in (None, argparse.SUPPRESS) else _help(action)
    return Option(tuple(action.option_strings), "" if switch else shown, text, choices,
                  NONE if switch or choices else _takes(shown))


def _help(action: argparse.Action) -> str:
    """Return an option's help, with its default put in."""
    values = {name: getattr(action, name, None) for name in ("default", "dest", "metavar", "choices", "type")}
    return " ".join(((action.help or "") % {**values, "prog": "appliance"}).split())


def _takes(shown: str) -> str:
    word = shown.partition(".")[0].split("|")[0].split("=")[-1]
    return FOLDER if word in _FOLDERS else FILE if word in _FILES else NONE
