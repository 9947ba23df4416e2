"""Rules for a change without downtime: those of today end at a time, and the same rules for another
policy or image stand beside them.

The file keeps its comments and its order. It is replaced at once, and only by a file that a broker
would start with.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from appliance.attestation import keyfile
from examples.broker.config import read
from examples.broker.rules import ConfigError

_RELEASE = re.compile(r"^[ \t]*\[\[[ \t]*release[ \t]*\]\]", re.MULTILINE)
_TABLE = re.compile(r"^[ \t]*\[", re.MULTILINE)


def add(config: Path, until: datetime, resource: str | None, policy: Path | None, measurements: Path | None) -> str:
    """Rewrite the file; say what was done. Raises ConfigError, and leaves the file as it is, for
    rules that no broker starts with."""
    if until.tzinfo is None or until <= datetime.now(UTC):
        raise ConfigError(f"--until is {until}", hint="a time to come, with its offset: 2026-12-24T18:00:00Z")
    if policy is None and measurements is None:
        raise ConfigError("nothing follows the rules of today", hint="name --policy, --measurements or both")
    rules = read(config)
    text = config.read_text(encoding="utf-8")
    head, blocks = _split(text)
    changed, made = [], []
    for rule, block in zip(rules.rules, blocks, strict=True):
        if rule.until is None and resource in (None, rule.resource):
            changed.append(_ended(block, until))
            made.append(_following(block, config.parent, policy, measurements))
        else:
            changed.append(block)
    if not made:
        raise ConfigError("no rule of today has no end" + (f" and the name {resource!r}" if resource else ""),
                          hint="python -m examples.broker check lists the rules")
    _replace(config, "".join([head, *changed, *(f"\n{each.strip()}\n" for each in made)]))
    return (f"{config}: {len(made)} rules end at {until.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}, and as many stand beside "
            "them; a running broker takes them at SIGHUP")


def _split(text: str) -> tuple[str, list[str]]:
    """The text before the rules, and that of each rule. A table of another kind behind a rule
    would be copied with it, so none may stand there."""
    places = [found.start() for found in _RELEASE.finditer(text)]
    blocks = [text[start:end] for start, end in zip(places, [*places[1:], len(text)], strict=True)]
    for block in blocks:
        if len(_TABLE.findall(block)) > 1:
            raise ConfigError("a table stands behind the rules", hint="move [[release]] tables to the end of the file")
    return text[:places[0]] if places else text, blocks


def _ended(block: str, until: datetime) -> str:
    head, _, rest = block.partition("\n")
    return f"{head}\nuntil        = {until.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}\n{rest}"


def _following(block: str, folder: Path, policy: Path | None, measurements: Path | None) -> str:
    for name, path in (("policy", policy), ("measurements", measurements)):
        if path is not None:
            found = re.search(rf"^[ \t]*{name}[ \t]*=(.*)$", block, re.MULTILINE)
            if found is None:
                raise ConfigError(f"a rule without {name}", hint="write the rule that follows by hand")
            block = f'{block[:found.start(1)]} "{_relative(path, folder)}"{block[found.end(1):]}'
    return block


def _relative(path: Path, folder: Path) -> str:
    """A path as the file names it: relative to its own folder."""
    return os.path.relpath(path.absolute(), folder.absolute()).replace("\\", "\\\\").replace('"', '\\"')


def _replace(config: Path, text: str) -> None:
    """Put a text in the file's place, once a broker would start with it."""
    handle, name = tempfile.mkstemp(dir=config.parent, prefix=f".{config.name}.")
    tried = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        shutil.copymode(config, tried)
        try:
            read(tried)
        except ConfigError as error:
            raise ConfigError(str(error).replace(name, str(config))) from None
    finally:
        tried.unlink(missing_ok=True)
    keyfile.write_whole(config, text.encode(), mode=config.stat().st_mode & 0o777)
