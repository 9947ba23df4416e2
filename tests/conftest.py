"""Fixtures that many tests share: models in files, and servers that are booted once for a whole run."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tests.support import require
from tests.support.costs import COSTS, MEASURED, THOROUGH, UNMEASURED
from tests.support.environment import children_unmeasured, untraced
from tests.support.times import Times

if TYPE_CHECKING:  # what many tests do without is imported by the fixtures that need it
    from tests.support import server


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--quick`, for `make quick`; `--shuffle`, to find tests that depend on the order."""
    parser.addoption("--quick", action="store_true",
                     help="leave out the files that take long, by tests/support/costs.json")
    parser.addoption("--shuffle", type=int, metavar="SEED", help="draw the order of files, and of tests in each")


def pytest_configure(config: pytest.Config) -> None:
    """The times of all tests are part of a run. No example of a property has a deadline: on a busy machine it takes as
    long as it does."""
    hypothesis.settings.register_profile("suite", deadline=None)
    hypothesis.settings.load_profile("suite")
    if not config.option.collectonly:
        config.pluginmanager.register(Times(quick=config.getoption("--quick")), "times")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Nothing of what is collected is garbage: looking for that again and again takes a quarter of the time. Nor is
    any of it looked at while tests run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--quick`, files that take long are not even imported."""
    if not config.getoption("--quick") or collection_path.suffix != ".py":
        return None
    return collection_path.relative_to(config.rootpath).as_posix() in THOROUGH or None


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a small llama-architecture model with random weights."""
    from tests.support import synthetic

    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    path.write_bytes(synthetic.model(synthetic.VARIANTS["Q8_0"]))
    return path


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[server.Server]:
    """A server with one small model and nothing that holds answers back."""
    from tests.support import server

    policy = server.write_policy(
        tmp_path_factory.mktemp("service"), {"tiny": tiny_model}, model="sampling { max_logprobs = 5 }",
        limits='request_size = "64KiB"')
    running = server.Server(policy, [tiny_model]).wait_ready()
    yield running
    running.stop()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """What takes longest comes first, so that workers end at about one time; or files, and tests in each, are drawn.
    Tests of the session's image are `guests`."""
    for item in items:
        if isinstance(item, pytest.Function) and any(
                each.scope == "session" for each in item._fixtureinfo.name2fixturedefs.get("image", ())[-1:]):
            item.add_marker(pytest.mark.guests)
    items.sort(key=lambda item: -COSTS.get(item.path.relative_to(config.rootpath).as_posix(), 0))
    if (seed := config.getoption("--shuffle")) is not None:
        drawn = random.Random(seed)
        files = {path: drawn.random() for path in sorted({item.path for item in items})}
        items.sort(key=lambda item: (files[item.path], drawn.random()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Coverage of dear files is not measured but where they alone reach much, nor is that of any other's
    children: it would take more time than all else, and can only make the figure larger."""
    require.running(guests=any(item.get_closest_marker(name) for name in ("guests", "soak")))
    with contextlib.ExitStack() as stack:
        file = item.path.relative_to(item.config.rootpath).as_posix()
        if file not in MEASURED:
            stack.enter_context(children_unmeasured())
            if file in UNMEASURED:
                stack.enter_context(untraced())
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several workers (`pytest -n`), a file is one worker's, as its fixtures are made once for all its tests."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log)


STRICT_PRIVACY = """
  timing_padding {
    first_token = "50ms"
    total       = "400ms"
    jitter      = "5ms"
  }
  token_count_rounding = 16
  size_padding = "512B"
  redaction {
    fields = ["metadata.id", "tools"]
    pattern "pair" {
      regex       = "[a-m][a-z]"
      replacement = "*"
    }
  }
"""
STRICT_LIMITS = """
  prompt_tokens       = 200
  generation_tokens   = 64
  concurrent_requests = 2
  requests_per_minute = 40
  tokens_per_minute   = 2000
"""


@pytest.fixture(scope="session")
def strict_service(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[server.Server]:
    """A server whose policy pads times, rounds counts, redacts and limits."""
    from tests.support import server

    policy = server.write_policy(tmp_path_factory.mktemp("strict"), {"tiny": tiny_model}, privacy=STRICT_PRIVACY,
                                 limits=STRICT_LIMITS)
    running = server.Server(policy, [tiny_model]).wait_ready()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A VM image with the demo policy, built once; packages come from the machine's mirrors or the user's cache. Of
    several workers one builds it, and the others wait."""
    from tests.support import images

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # its folder is one of many in that of the run
        folder = folder.parent
    with (folder / "image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = folder / "image"
        return made if made.exists() else images.make(made)
