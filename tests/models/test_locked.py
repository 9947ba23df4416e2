"""Memory for secrets: locked, kept out of dumps and forked children, and told of where a limit forbids that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.secure.locked import LockedBuffer, anonymous, discard
from appliance.secure.locked import address as address_of
from tests.support.engines import running
from tests.support.environment import unmeasured


def _flags(address: int) -> set[str]:
    """VmFlags of the mapping that holds an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="ascii").splitlines():
        first, _, rest = line.partition("-")
        if rest and " " not in first:
            inside = int(first, 16) <= address < int(rest.split()[0], 16)
        elif inside and line.startswith("VmFlags"):
            return set(line.split()[1:])
    return set()


def test_locked_buffer() -> None:
    """A buffer is whole pages, locked, left out of core dumps, wiped in children; closing it twice does nothing."""
    buffer = LockedBuffer(5000)
    assert (8192, 0) == (buffer.nbytes, buffer.address % 4096)
    assert {"lo", "dd", "wf"} <= _flags(buffer.address)
    buffer.view[:3] = b"abc"
    child = os.fork()
    if child == 0:
        os._exit(int(bytes(buffer.view[:3]) != bytes(3)))
    assert 0 == os.waitpid(child, 0)[1]
    buffer.close()
    buffer.close()


def test_a_view_that_is_still_held() -> None:
    """A view that outlives its buffer, as in a traceback, shows zeros: the pages are given back, and unlocked. Closing
    it again does nothing."""
    buffer = LockedBuffer(5000)
    held = buffer.view[:3]
    held[:] = b"abc"
    buffer.close()
    assert (bytes(3), set()) == (bytes(held), {"lo"} & _flags(buffer.address))
    buffer.close()


def test_weights_and_content_are_protected() -> None:
    """Decrypted weights, activations, logits and the cache of keys and values are locked and never dumped."""
    pages = anonymous(1 << 20, "weights", secret=True)
    pages[5:8] = b"abc"
    assert {"lo", "dd", "wf"} <= _flags(address_of(pages))
    discard(pages, secret=True)
    with running("tied") as engine:
        cache, forward = engine._cache, engine._forward
        for address in (cache.keys, forward._logits.address, forward._rows["RESIDUAL"][0]):
            assert {"lo", "dd"} <= _flags(address)


LIMITED = """
import ctypes, os, resource
from appliance.boot.running import load as models
from appliance.errors import BootError
from appliance.secure import locked
resource.setrlimit(resource.RLIMIT_MEMLOCK, (8192, 8192))
os.setresuid(65534, 65534, 65534)
small = locked.LockedBuffer(64, "keys")
assert locked.shortfall() is None
large = locked.LockedBuffer(1 << 20, "decrypted tiles")
print(locked.shortfall())
print(models.description({}, {}, tolerant=True))
try:
    models.description({}, {}, tolerant=False)
except BootError as error:
    print(error.code, error.hint)
large.view[:1] = b"x"
large.close()
locked.forget()
assert models.description({}, {}, tolerant=False) == ""
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give rights up")
def test_a_limit_that_is_too_small() -> None:
    """What RLIMIT_MEMLOCK does not let be locked is told with figures; a boot refuses to go on, unless it is
    tolerated."""
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=False,
                          env=unmeasured())
    lines = done.stdout.splitlines()
    assert "" == done.stderr
    assert lines[0] == lines[1]
    assert "1052672 bytes of decrypted tiles cannot be locked" in lines[0]
    assert "RLIMIT_MEMLOCK: 8192 bytes" in lines[0]
    assert lines[2].startswith("memory-lock raise RLIMIT_MEMLOCK")
