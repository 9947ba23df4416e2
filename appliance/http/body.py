"""Reading a request's body: bounded in bytes before it is held, and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from litestar import Request
from litestar.types import Receive

from appliance.api.problems import RequestError
from appliance.http.framing import Framing

BODY_SECONDS = 60.0
JSON = "application/json"
OTHER_MEDIA = frozenset({  # clients and libraries send these by mistake; the first is curl's, by -d
    "application/x-www-form-urlencoded", "multipart/form-data", "text/plain", "text/json", "application/jsonlines",
    "application/x-ndjson", "application/octet-stream", "application/x-json", "text/html", "application/xml"})
CODINGS = frozenset({"br", "compress", "deflate", "gzip", "x-gzip", "zstd"})
T = TypeVar("T")


async def read_json(request: Request[Any, Any, Any], limit: int) -> bytes:
    """Return the body of a JSON request of at most `limit` bytes. Raises RequestError before
    it holds more."""
    check_kind(request.headers.get("content-type", ""), request.headers.get("content-encoding", ""))
    return await read_body(request, limit)


async def read_body(request: Request[Any, Any, Any], limit: int) -> bytes:
    """Return the body of a request, of whatever kind, as `read_json` reads one."""
    declared = request.headers.get("content-length", "0")
    if not declared.isascii() or not declared.isdigit() or int(declared[:20]) > limit:
        raise RequestError("body_too_large", f"the body is larger than {limit} bytes")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _read(request.receive, limit, request.scope["state"].get("framing"))
    except TimeoutError:
        raise RequestError("request_timeout") from None


def check_kind(content_type: str, coding: str) -> None:
    """Raise RequestError for a body that its headers call other than plain JSON. It names the usual
    kinds, and quotes nothing."""
    media = content_type.partition(";")[0].strip().lower()
    if media != JSON:
        kind = media if media in OTHER_MEDIA else "another" if media else "none"
        raise RequestError("unsupported_media_type", f"Content-Type: allowed: {JSON}; found: {kind}")
    coding = coding.strip().lower()
    if coding not in ("", "identity"):
        kind = coding if coding in CODINGS else "another"
        raise RequestError("unsupported_media_type", f"Content-Encoding: allowed: none (the body is not compressed); "
                                                     f"found: {kind}")


async def _read(receive: Receive, limit: int, framing: Framing | None) -> bytes:
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if framing is not None and framing.error is not None:
            raise framing.error
        if message["type"] != "http.request":
            raise RequestError("client_closed_request")
        parts.append(message["body"])
        size, more = size + len(message["body"]), message["more_body"]
        if size > limit:
            raise RequestError("body_too_large", f"the body is larger than {limit} bytes")
    return b"".join(parts)


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """Return the result of `work`. Raises RequestError as soon as the client closes the connection.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RequestError("client_closed_request")
        return task.result()
    finally:
        for waiting in (task, gone):
            waiting.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
