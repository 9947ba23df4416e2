"""The files that `connect` watches."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from appliance.cli import verifying
from tests.support import fake_appliance as fake
from tests.support.machine_lists import DEMAND


def _parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    verifying.add_reference(parser)
    verifying.add_overlap(parser)
    return parser.parse_args(words)


def test_lists_of_machines_and_the_feed_are_watched(tmp_path: Path) -> None:
    """Those beside both policies: a machine that is taken out counts without a restart."""
    policies = []
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        path = fake.write_policy(tmp_path / name, "sev-snp", evidence=DEMAND)
        path.write_text(re.sub(r"schema( *)= 1", r"schema\1= 2", path.read_text()))
        policies.append(str(path))
    found = verifying.files(_parsed("--policy", policies[0], "--next", policies[1], "--feed", "feed.json"))
    assert {tmp_path / "old/machines.json", tmp_path / "new/machines.json", Path("feed.json")} <= set(found)
