"""`appliance completions`: each shell offers the verbs, actions, options and values that the parsers have; manual pages
are in order by groff's and mandoc's own word."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from appliance.cli.main import VERBS, main
from tests.support.require import absent

# the words so far, the last one begun; what is offered
CASES = (
    (("ch",), {"check"}), (("image", "bo"), {"boot"}), (("image", "boot", "--acc"), {"--accelerator"}),
    (("image", "boot", "--accelerator", ""), {"auto", "kvm", "tcg"}), (("init", "x", "--platform", "s"),
                                                                         {"sev-snp", "simulated"}),
    (("model", "tpm"), {"tpm-seal"}), (("check", "--contr"), {"--controls"}))


def _script(shell: str, capsys: pytest.CaptureFixture[str], folder: Path) -> Path:
    assert 0 == main(["completions", shell])
    path = folder / {"bash": "appliance", "zsh": "_appliance", "fish": "appliance.fish"}[shell]
    path.write_text(capsys.readouterr().out)
    return path


def _bash(script: Path, words: tuple[str, ...]) -> set[str]:
    asked = ('source "$1"; shift; COMP_WORDS=(appliance "$@"); COMP_CWORD=$#; _appliance; printf "%s\\n" '
             '"${COMPREPLY[@]}"')
    done = subprocess.run(["bash", "-uc", asked, "bash", str(script), *words], capture_output=True,
                          text=True, check=False)
    return set(done.stdout.split())


def test_bash_offers_what_may_stand_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked as readline asks it."""
    script = _script("bash", capsys, tmp_path)
    for words, offered in CASES:
        assert offered == _bash(script, words), words
    assert set(VERBS) <= _bash(script, ("",))


def test_bash_offers_files_where_one_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of an option that takes a file, a folder, and of an argument."""
    script = _script("bash", capsys, tmp_path)
    (tmp_path / "policy.hcl").write_text("")
    (tmp_path / "pool").mkdir()
    place = f"{tmp_path}/po"
    assert {f"{place}licy.hcl", f"{place}ol"} == _bash(script, ("check", place))
    assert {f"{place}ol"} == _bash(script, ("check", "x.hcl", "--models", place))
    assert {f"{place}licy.hcl", f"{place}ol"} == _bash(script, ("verify", "URL", "--policy", place))


def test_fish_offers_what_may_stand_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its own `complete --do-complete`."""
    if shutil.which("fish") is None:
        absent("fish")
    script = _script("fish", capsys, tmp_path)
    for words, offered in CASES:
        line = " ".join(["appliance", *words])
        done = subprocess.run(["fish", "-N", "-c", 'source $argv[1]; complete -C $argv[2]', str(script), line],
                              capture_output=True, text=True, check=True)
        assert offered <= {each.split("\t")[0] for each in done.stdout.splitlines()}, words


def test_zsh_takes_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It parses, and has a function for each verb."""
    if shutil.which("zsh") is None:
        absent("zsh")
    script = _script("zsh", capsys, tmp_path)
    done = subprocess.run(["zsh", "-n", str(script)], capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_option_is_in_each_script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the table, which is the parsers'."""
    text = _script(shell, capsys, tmp_path).read_text()
    assert 0 == main(["completions", shell, "--json"])
    table = json.loads(capsys.readouterr().out)
    assert {each["words"][0] for each in table if each["words"]} == set(VERBS)
    options = {name for each in table for name in each["options"] if name.startswith("--")}
    assert len(options) > 100
    assert [] == [name for name in options if (name if shell != "fish" else f"-l {name[2:]}") not in text]


def test_manual_pages_are_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One for each verb; groff warns of nothing, and a page shows an action's option."""
    if shutil.which("groff") is None:
        absent("groff")
    assert 0 == main(["completions", "man", "-o", str(tmp_path)])
    assert {f"appliance-{verb}.1" for verb in VERBS} | {"appliance.1"} == {each.name for each in tmp_path.iterdir()}
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", *sorted(map(str, tmp_path.iterdir()))],
                          capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)
    assert "--accelerator" in done.stdout
    assert "APPLIANCE-DOCTOR(1)" in done.stdout
    capsys.readouterr()
    assert 2 == main(["completions", "man"])
    assert "appliance completions man -o" in capsys.readouterr().err
