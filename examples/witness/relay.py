"""`python -m examples.witness.relay URL`: carry one round between an appliance, its witnesses and
its timestamp authority.

The key of an auditor is read from the environment variable APPLIANCE_KEY.

The relay proves nothing and can forge nothing. Point URL at `appliance connect`, which verifies the
appliance, and run it from a timer. A peer that does not answer, or answers something else, is
passed over: the others are asked.

Exit codes: 0 everybody was asked and answered, 1 somebody did not, 2 the appliance was not asked.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import json
import os
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from http import HTTPStatus
from typing import Any

SECONDS = 30.0         # for a whole answer, from the connection on
MOST_BYTES = 1 << 20   # of an answer
DONE = ("cosigned", "nothing", "dated", "no authority")  # how outcomes begin that need nobody's attention


class FailedError(Exception):
    """Somebody refused, did not answer, or answered something else."""


def relay(url: str, key: str, elsewhere: str | None = None) -> dict[str, str]:
    """Carry one round, and return the outcome of each witness's request. `elsewhere`: a URL in
    place of the policy's. Raises FailedError if the appliance does not say whom to ask."""
    asked = _members(_call(f"{url}/v1/audit/witnesses", key))["witnesses"]
    try:
        named = [(str(each["name"]), str(each["url"]), each["request"]) for each in asked]
    except (LookupError, TypeError):
        raise FailedError("the appliance's list of witnesses is not in form") from None
    return {name: _cosigned(url, key, name, elsewhere or place, body) for name, place, body in named}


def _cosigned(url: str, key: str, name: str, place: str, body: Any) -> str:
    """Carry the request to one witness, and return its outcome."""
    if body is None:
        return "nothing to cosign"
    try:
        lines = _call(f"{place}/add-checkpoint", None, str(body).encode())
        said = _members(_call(f"{url}/v1/audit/witnesses/{urllib.parse.quote(name, safe='')}", key, lines))
        return f"cosigned {said['size']}"
    except FailedError as error:
        return str(error)


def stamp(url: str, key: str, elsewhere: str | None = None) -> str:
    """Carry one request to the timestamp authority and its response back, and return the
    outcome."""
    try:
        asked = _members(_call(f"{url}/v1/audit/timestamp", key, absent=b"{}"))
        if not asked:
            return "no authority"
        if asked["request"] is None:
            return "nothing to date"
        response = _call(elsewhere or str(asked["url"]), None, base64.b64decode(str(asked["request"])),
                         kind="application/timestamp-query")
        found = _members(_call(f"{url}/v1/audit/timestamp/response", key, response))
        return f"dated {found['size']}: {found['time']}"
    except FailedError as error:
        return str(error)
    except ValueError:
        return "failed: the appliance's request is not in form"


class _Members(dict[str, Any]):
    """A JSON object. FailedError for a member that it has not."""

    def __missing__(self, name: str) -> Any:
        raise FailedError(f"failed: an answer without {name}")


def _members(data: bytes) -> _Members:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise FailedError("failed: an answer that is not a JSON object")
    return _Members(found)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follow nobody elsewhere: the key would go along."""

    def redirect_request(self, *_: Any) -> None:
        """Leave the answer as it is, an error."""


_OPENER = urllib.request.build_opener(_NoRedirect)


def _reason(error: urllib.error.HTTPError) -> str:
    """The first bytes of a refusal's body, if they come."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return error.read(200).decode(errors="replace").strip()
    return ""


def _call(url: str, key: str | None, body: bytes | None = None, kind: str = "text/plain", *,
          absent: bytes | None = None) -> bytes:
    """The body of an answer; `absent` in place of one with status 404. FailedError.

    A thread of its own asks, so that one bound holds for the whole answer, however slowly it comes.
    """
    headers = {"content-type": kind} | ({} if key is None else {"authorization": f"Bearer {key}"})
    found: list[bytes | str] = []

    def ask() -> None:
        try:
            request = urllib.request.Request(url, body, headers)  # noqa: S310 - of the operator and the policy
            with _OPENER.open(request, timeout=SECONDS) as answer:
                data = answer.read(MOST_BYTES + 1)
            found.append(data if len(data) <= MOST_BYTES else f"failed: an answer of more than {MOST_BYTES} bytes")
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND and absent is not None:
                found.append(absent)
            else:
                found.append(f"refused: {error.code} {_reason(error)}".strip())
        except (OSError, http.client.HTTPException, ValueError) as error:
            found.append(f"failed: {getattr(error, 'reason', None) or error or type(error).__name__}")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS)
    answer = found[0] if found else f"failed: no whole answer within {SECONDS:g} s"
    if isinstance(answer, str):
        raise FailedError(answer)
    return answer


def main() -> int:
    """Carry one round, and print what became of it."""
    parser = argparse.ArgumentParser(prog="python -m examples.witness.relay", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", metavar="URL")
    place, secret = parser.parse_args().url.rstrip("/"), os.environ.get("APPLIANCE_KEY", "")
    if not secret:
        parser.error("the environment variable APPLIANCE_KEY has no auditor's key")
    told, code = {}, 0
    try:
        told = relay(place, secret)
    except FailedError as error:
        print(f"error: the appliance was not asked: {error}", file=sys.stderr)
        code = 2
    told["timestamp"] = stamp(place, secret)
    print(json.dumps(told, indent=2))
    return code or int(not all(outcome.startswith(DONE) for outcome in told.values()))


if __name__ == "__main__":
    sys.exit(main())
