"""`appliance completions bash|zsh|fish|man`: completions for a shell, or manual pages, from the table
of verbs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from appliance.attestation import keyfile
from appliance.codec.printable import quantity
from appliance.errors import PolicyError
from appliance.manual import pages, shells, verbs
from appliance.manual.verbs import Command

_MAN = "man"
_WHERE = {
    "bash": "appliance completions bash > ~/.local/share/bash-completion/completions/appliance",
    "zsh": "appliance completions zsh > DIR/_appliance, with DIR in $fpath",
    "fish": "appliance completions fish > ~/.config/fish/completions/appliance.fish",
    _MAN: "appliance completions man -o ~/.local/share/man/man1"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("shell", choices=(*shells.SHELLS, _MAN), help="the shell; man: manual pages")
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="with man: the folder for the pages")
    parser.add_argument("--json", action="store_true", help="print all verbs, actions and options as JSON")
    parser.epilog = "\n".join(["where they go:", *(f"  {each}" for each in _WHERE.values()),
                               "exit codes: 0 printed or written, 2 cannot run"])


def run(args: argparse.Namespace) -> int:
    """Print the completions, or write the pages."""
    commands = known()
    if args.json:
        print(json.dumps([{"words": each.words, "summary": each.summary,
                           "options": [name for option in each.options for name in option.names]}
                          for each in commands], indent=2))
        return 0
    if args.shell != _MAN:
        print(shells.SHELLS[args.shell](commands), end="")
        return 0
    if args.output is None:
        raise PolicyError("the manual is a page for each verb: it needs a folder", code="usage",
                          hint=f"write them: {_WHERE[_MAN]}")
    return _write(args.output, commands)


def known() -> list[Command]:
    """Return all commands, by the parsers of all verbs."""
    from appliance.cli.main import VERBS, parser_of  # it imports this module

    program = parser_of(None)
    found = [next(verbs.commands(program))]
    for verb, summary in VERBS.items():
        parser = parser_of(verb)
        child = next(action.choices[verb] for action in parser._actions
                     if isinstance(action, argparse._SubParsersAction))
        found += verbs.commands(child, (verb,), summary)
    return found


def _write(folder: Path, commands: list[Command]) -> int:
    made = pages.pages(commands)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PolicyError(f"{folder} cannot be made: {error.strerror}", code="file-unwritable",
                          hint=f"name a folder: {_WHERE[_MAN]}") from None
    for name, text in made.items():
        keyfile.write_whole(folder / name, text.encode())
    print(f"{folder}: {quantity(len(made), 'page')}; read one: man {folder / 'appliance.1'}")
    return 0
