"""Two client libraries and their examples in the guide, against the demo model; `make soak` tries them all."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients import pages, python_clients
from tests.support.demo_model import demo_model
from tests.support.server import KEY, Server, write_policy


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the demo model."""
    path = demo_model()
    policy = write_policy(tmp_path_factory.mktemp("demo"), {"demo": path}, limits="concurrent_requests = 8", schema=2)
    server = Server(policy, [path]).wait_ready()
    yield server
    server.stop()


@pytest.mark.parametrize("library", [python_clients.OpenAI, python_clients.PydanticAI])
def test_a_library_works_unchanged(demo: Server, library: Any) -> None:
    """Plain chats, streams, histories, forced calls and structured output, each by the library's own means."""
    found = asyncio.run(python_clients.check(library(f"{demo.url}/v1", KEY, "demo"), many=4))
    assert {} == {name: failure for name, failure in found.items() if failure}
    assert {"whole", "streamed", "history", "tools", "structured"} <= {name.partition(" (")[0] for name in found}


@pytest.mark.parametrize("title", ["OpenAI", "Pydantic AI"])
def test_an_example_of_the_guide_runs(demo: Server, tmp_path: Path, title: str) -> None:
    """As it stands in the guide, but for the address and the key."""
    assert "" == pages.run(title, [sys.executable], tmp_path, f"{demo.url}/v1", KEY)


def test_the_guide_has_an_example_for_each_library() -> None:
    """Each of at most twenty lines, and each is in a set of packages that `make soak` installs."""
    examples = pages.examples()
    assert pages.NEEDS.keys() == examples.keys()
    assert max(code.count("\n") for code in examples.values()) <= 20
    for name in {*pages.NEEDS.values()} - {"node"}:
        assert (Path(pages.__file__).parent / f"{name}.lock").is_file()
