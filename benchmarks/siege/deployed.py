"""The appliance under siege: its tenants, its limits, and a state disk in memory."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from appliance.auditor.statedisk import examine
from appliance.keys.providers import Secret
from appliance.state.frames import AUDIT
from benchmarks.siege import lists
from benchmarks.siege.cases import CROWD, LONGEST
from benchmarks.siege.clients import ADMIN, AUDITOR, HOSTILE
from benchmarks.siege.watch import NEIGHBOUR
from benchmarks.tenants.served import Deployment

PLACES, PROMPT, CONTEXT = 16, 1000, 2048
DISK_BYTES, PREFIX = 192 << 20, "32MiB"
_SECRET = bytes(range(9, 41))
_STATE = """audit {{ sink = "state" }}
state {{
  device = {device}
  key {{
    provider = "file"
    path     = {key}
  }}
}}
"""


@contextlib.contextmanager
def disk() -> Iterator[Path]:
    """A blank disk; policies name devices below /dev."""
    path = Path(f"/dev/shm/bench-siege-{os.getpid()}")  # noqa: S108
    path.write_bytes(b"")
    os.truncate(path, DISK_BYTES)
    try:
        yield path
    finally:
        path.unlink()


def deployment(model: Path, folder: Path, device: Path) -> Deployment:
    """A policy with a key for the disk in a folder."""
    key = folder / "state.key"
    key.write_text(_SECRET.hex())
    key.chmod(0o600)
    crowd = [f"crowd{number}" for number in range(CROWD)]
    roles = {AUDITOR: "auditor", ADMIN: "admin"}
    rows = [lists.row(name, roles.get(name, "user")) for name in (NEIGHBOUR, HOSTILE, AUDITOR, ADMIN, *crowd)]
    return Deployment(
        model, {}, authority=f"ed25519:{lists.AUTHORITY.public_key().public_bytes_raw().hex()}",
        listed=lists.signed(rows),
        model_block=f"  context_length = {CONTEXT}\n  session_persistence = true\n"
                    f'  prefix_cache {{\n    size = "{PREFIX}"\n  }}\n  sampling {{\n    max_logprobs = 5\n  }}',
        privacy='  retention {\n    sessions = "1h"\n  }',
        limits=f"  concurrent_requests = {PLACES}\n  queued_requests = 256\n  prompt_tokens = {PROMPT}\n"
               f"  generation_tokens = {LONGEST}\n  choices = 32\n  first_token_timeout = \"5m\"\n"
               '  request_size = "1MiB"',
        more=_STATE.format(device=json.dumps(str(device)), key=json.dumps(str(key))))


def records(device: Path) -> list[dict[str, Any]]:
    """The audit log on a disk whose appliance has ended."""
    frames = examine(device, Secret(bytearray(_SECRET)))[2]
    return [json.loads(frame.payload) for frame in frames if frame.kind == AUDIT]
