"""Somebody who follows a page of the documentation to the letter: each of its commands in its turn, in one folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support import guides, waiting


class Script:
    """The commands of a page, of which each is taken once. `left` are those that nobody took yet."""

    def __init__(self, page: str) -> None:
        self.left = guides.commands(page)

    def next(self, beginning: str) -> str:
        """The page's next command, which begins so."""
        found = self.left.pop(0)
        assert found.startswith(beginning), f"the page goes on with: {found}"
        return found

    def until(self, beginning: str) -> list[str]:
        """The commands before the one that begins so."""
        found = []
        while not self.left[0].startswith(beginning):
            found.append(self.left.pop(0))
        return found

    def early(self, beginning: str) -> str:
        """The one command that begins so, before its turn: where another chapter needs what it makes."""
        [found] = [each for each in self.left if each.startswith(beginning)]
        self.left.remove(found)
        return found


class Reader:
    """A folder, in which somebody types what a page says. `places`: texts of the page that are others here. `added`:
    by the beginning of a command, what it has besides."""

    def __init__(self, folder: Path, places: Mapping[str, str] | None = None, *, first: Sequence[Path] = ()) -> None:
        self.folder, self.places, self.added = folder, dict(places or {}), dict[str, str]()
        found = [*map(str, first), str(Path(sys.executable).parent), os.environ["PATH"]]
        self.environment = {**os.environ, "PATH": os.pathsep.join(found)}

    def here(self, text: str) -> str:
        """A command of the page, with the places of this machine, and what is added."""
        more = "".join(f" {words}" for beginning, words in self.added.items() if text.startswith(beginning))
        for there, here in self.places.items():
            text = text.replace(there, here)
        return text + more

    def types(self, text: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(["bash", "-c", self.here(text)], cwd=self.folder, env=self.environment,
                              capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)

    def ends(self, text: str, code: int, *words: str) -> str:
        """The same: it ends with that exit code, and says these words. What it said."""
        done = self.types(text)
        said = done.stdout + done.stderr
        assert code == done.returncode, f"{self.here(text)}\n{said}"
        assert [] == [each for each in words if each not in said], said
        return said

    @contextmanager
    def keeps(self, text: str, until: str | Path) -> Iterator[Path]:
        """Run a command in a shell of its own, once it has written a word, or made a file; what it wrote. It is ended
        afterwards."""
        said = self.folder / f"{abs(hash(text))}.txt"
        with said.open("wb") as out:
            process = subprocess.Popen(["bash", "-c", f"exec {self.here(text)}"], cwd=self.folder,
                                       env=self.environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

        def ready() -> bool:
            there = until.exists() if isinstance(until, Path) else until in said.read_text(errors="replace")
            return there or process.poll() is not None

        try:
            waiting.until(ready, str(until), lambda: (said.stat().st_size, waiting.time_of_all(process.pid)))
            assert process.poll() is None, said.read_text(errors="replace")
            yield said
        finally:
            process.terminate()
            process.wait()
