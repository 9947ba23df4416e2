"""`python -m examples.witness.relay URL`: carry one round between an appliance, its witnesses and
its timestamp authority.

The key of an auditor is read from the environment variable APPLIANCE_KEY.

The relay proves nothing and can forge nothing. Point URL at `appliance connect`, which verifies the
appliance, and run it from a timer.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import urllib.error
import urllib.request
from http import HTTPStatus

from appliance.bounded import Plain, Secured

SECONDS, MAX_BYTES = 30.0, 1 << 20  # of a whole answer


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


def stamp(url: str, key: str, elsewhere: str | None = None) -> str:
    """Carry one request to the timestamp authority and its response back; what became of it."""
    try:
        asked = json.loads(_call(f"{url}/v1/audit/timestamp", key))
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.NOT_FOUND:
            return "no authority"
        raise
    if asked["request"] is None:
        return "nothing to date"
    try:
        response = _call(elsewhere or asked["url"], None, base64.b64decode(asked["request"]),
                         kind="application/timestamp-query")
        found = json.loads(_call(f"{url}/v1/audit/timestamp/response", key, response))
    except urllib.error.HTTPError as error:
        return f"refused: {error.code} {error.read(200).decode(errors='replace').strip()}"
    return f"dated {found['size']}: {found['time']}"


def _call(url: str, key: str | None, body: bytes | None = None, kind: str = "text/plain") -> bytes:
    headers = {"content-type": kind} | ({} if key is None else {"authorization": f"Bearer {key}"})
    asked = urllib.request.Request(url, body, headers)  # noqa: S310 - of the operator and the policy
    opener = urllib.request.build_opener(Plain(MAX_BYTES), Secured(MAX_BYTES))
    with opener.open(asked, timeout=SECONDS) as answer:
        found: bytes = answer.read(MAX_BYTES)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.witness.relay", description=__doc__)
    parser.add_argument("url", metavar="URL")
    place, secret = parser.parse_args().url, os.environ["APPLIANCE_KEY"]
    print(json.dumps({**relay(place, secret), "timestamp": stamp(place, secret)}, indent=2), file=sys.stdout)
