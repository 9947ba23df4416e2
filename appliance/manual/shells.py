"""Completions for shells. The scripts hold all words: nothing is run as a person types."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from appliance.manual.verbs import FILE, FOLDER, Command, Option


def bash(commands: Sequence[Command]) -> str:
    """Return the completions for bash: source them, or put them where bash-completion looks."""
    cases = "".join(_bash_case(each) for each in commands)
    values = "".join(f"    {shlex.quote(words)}) values={shlex.quote(value)} ;;\n"
                     for words, value in _values(commands))
    words = "|".join(dict.fromkeys(word for each in commands for word in each.words))
    text = Path(__file__).with_name("completions.bash").read_text()
    return text.replace("@WORDS@", words).replace("@CASES@\n", cases).replace("@VALUES@\n", values)


def _bash_case(command: Command) -> str:
    words = [*command.actions, *(name for each in command.options for name in each.names)]
    files = "yes" if any(each.takes in (FILE, FOLDER) for each in command.arguments) else ""
    path = "".join(f" {each}" for each in command.words)
    return f"    {shlex.quote(path)}) options={shlex.quote(' '.join(words))} files={shlex.quote(files)} ;;\n"


def _values(commands: Sequence[Command]) -> Iterator[tuple[str, str]]:
    """Yield the words before an option's value, with what the value may be."""
    for command in commands:
        path = "".join(f" {each}" for each in command.words)
        for option in command.options:
            value = " ".join(option.choices) or {FILE: "FILE", FOLDER: "FOLDER"}.get(option.takes, "")
            if value:
                for name in option.names:
                    yield f"{path} {name}", value


def zsh(commands: Sequence[Command]) -> str:
    """Return the completions for zsh: the file `_appliance` in a folder of $fpath."""
    functions = "".join(_zsh_function(each) for each in commands)
    return ("#compdef appliance\n# completions of `appliance` for zsh; made by: appliance completions zsh\n"
            f"{functions}_appliance \"$@\"\n")


def _zsh_function(command: Command) -> str:
    name = "_".join(["_appliance", *(each.replace("-", "_") for each in command.words)])
    lines = [f"{name}() {{"]
    specs = [spec for each in command.options for spec in _zsh_specs(each)]
    if command.actions:
        lines.append("  local state line\n  local -a actions")
        told = " ".join(shlex.quote(each) for each in command.actions)
        cases = "".join(f"      {each}) {name}_{each.replace('-', '_')} ;;\n" for each in command.actions)
        specs += ["'1: :->action'", "'*:: :->words'"]
        lines.append(f"  _arguments -C {' '.join(specs)}\n  case $state in\n    action) actions=({told}); "
                     f"_describe action actions ;;\n    words) case $line[1] in\n{cases}    esac ;;\n  esac")
    else:
        if command.arguments:
            specs.append("'*: :_files'")
        lines.append(f"  _arguments {' '.join(specs)}")
    return "\n".join([*lines, "}", ""])


def _zsh_specs(option: Option) -> Iterator[str]:
    told = option.help.replace("[", "(").replace("]", ")").replace(":", " -")[:100]
    action = f"({' '.join(option.choices)})" if option.choices else {FILE: "_files", FOLDER: "_files -/"}.get(
        option.takes, " ")
    for name in option.names:
        value = f":{option.value.replace(':', ' ')}:{action}" if option.value else ""
        yield shlex.quote(f"*{name}[{told}]{value}")


def fish(commands: Sequence[Command]) -> str:
    """Return the completions for fish: the file `appliance.fish` in its folder of completions."""
    lines = ["# completions of `appliance` for fish; made by: appliance completions fish", "complete -c appliance -f"]
    summaries = {each.words: each.summary for each in commands}
    for command in commands:
        seen = f"__appliance_at {' '.join(command.words)}".strip()
        for action in command.actions:
            lines.append(_fish(seen, f"-a {shlex.quote(action)}", summaries.get((*command.words, action), "")))
        if any(each.takes in (FILE, FOLDER) for each in command.arguments):
            lines.append(f"complete -c appliance -n {shlex.quote(seen)} -F")
        for option in command.options:
            lines.append(_fish(seen, _fish_option(option), option.help))
    return "\n".join([_FISH, *lines, ""])


_FISH = """function __appliance_at
    # whether the words before the cursor that are no options begin with these, and only these name actions
    set -l words (string match -v -- '-*' (commandline -opc)[2..])
    test (count $words) -ge (count $argv); or return 1
    for number in (seq (count $argv))
        test "$words[$number]" = "$argv[$number]"; or return 1
    end
end
"""


def _fish(seen: str, what: str, told: str) -> str:
    return f"complete -c appliance -n {shlex.quote(seen)} {what} -d {shlex.quote(told[:80])}"


def _fish_option(option: Option) -> str:
    names = " ".join(f"-l {each[2:]}" if each.startswith("--") else f"-s {each[1:]}" for each in option.names)
    if option.choices:
        return f"{names} -x -a {shlex.quote(' '.join(option.choices))}"
    return f"{names} -r{' -F' if option.takes in (FILE, FOLDER) else ''}" if option.value else names


SHELLS: Mapping[str, Callable[[Sequence[Command]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
