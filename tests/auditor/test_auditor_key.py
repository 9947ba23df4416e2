"""The page on the auditor's key, to the letter: a policy takes what it makes, which opens the log's detail."""

from __future__ import annotations

import subprocess
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from appliance.audit import detail
from appliance.auditor import held, unsealing
from appliance.policy import load
from tests.support import shell_pages
from tests.support.server import write_policy

PAGE = Path(__file__).parents[2] / "docs/guides/audit.md"


def test_the_auditors_key_is_made_as_the_page_says(tmp_path: Path) -> None:
    """Its public half goes into the policy as it is printed, and its private half opens what is encrypted to that."""
    [block] = [each for each in shell_pages.blocks(PAGE) if "genpkey -algorithm x25519" in each]
    done = subprocess.run(["bash", "-e", "-c", block], cwd=tmp_path, check=True, capture_output=True, text=True)
    private = load_pem_private_key((tmp_path / "auditor-x25519.pem").read_bytes(), None)
    assert isinstance(private, X25519PrivateKey)
    public = private.public_key().public_bytes_raw()
    assert f"x25519:{public.hex()}\n" == done.stdout
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    policy = load(write_policy(tmp_path, {"tiny": tmp_path / "tiny.gguf"}, schema=2,
                               privacy=f'auditor_key = "{done.stdout.strip()}"'))
    assert policy.policy.privacy.auditor_key == done.stdout.strip()
    told = detail.Detail(1, 2, 3, 4, bytes(32))
    sealed = detail.seal(told, public, "req-" + "0a" * 16)
    assert told == unsealing.detail(sealed, held.auditor_key(tmp_path / "auditor-x25519.pem"), "req-" + "0a" * 16)
