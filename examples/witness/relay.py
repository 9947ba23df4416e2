"""`python -m examples.witness.relay URL`: carry one round between an appliance and its witnesses.

The key of an auditor is read from the environment variable APPLIANCE_KEY.

The relay proves nothing and can forge nothing. Point URL at `appliance connect`, which verifies the
appliance, and run it from a timer.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.request

SECONDS = 30.0


def relay(url: str, key: str, elsewhere: str | None = None) -> dict[str, str]:
    """Carry one round; what became of each witness's request. `elsewhere`: in place of the policy's
    URLs."""
    done = {}
    for each in json.loads(_call(f"{url}/v1/audit/witnesses", key))["witnesses"]:
        if each["request"] is None:
            done[each["name"]] = "nothing to cosign"
            continue
        try:
            lines = _call(f"{elsewhere or each['url']}/add-checkpoint", None, each["request"].encode())
            size = json.loads(_call(f"{url}/v1/audit/witnesses/{each['name']}", key, lines))["size"]
            done[each["name"]] = f"cosigned {size}"
        except urllib.error.HTTPError as error:
            done[each["name"]] = f"refused: {error.code} {error.read(200).decode(errors='replace').strip()}"
    return done


def _call(url: str, key: str | None, body: bytes | None = None) -> bytes:
    headers = {"content-type": "text/plain"} | ({} if key is None else {"authorization": f"Bearer {key}"})
    asked = urllib.request.Request(url, body, headers)  # noqa: S310 - of the operator and the policy
    with urllib.request.urlopen(asked, timeout=SECONDS) as answer:  # noqa: S310 - as above
        found: bytes = answer.read()
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.witness.relay", description=__doc__)
    parser.add_argument("url", metavar="URL")
    print(json.dumps(relay(parser.parse_args().url, os.environ["APPLIANCE_KEY"]), indent=2), file=sys.stdout)
