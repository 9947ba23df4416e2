"""Transports for httpx and httpx2, and so for the official OpenAI client, that talk to verified
appliances alone.

A refusal by the appliance or the verifier comes as an answer in OpenAI's error shape, as from the
local proxy. The client then raises its own error with the reason in it, and does not try again
where that is useless.

Neither package is imported here: an answer is made of the classes of the one whose request it
answers. (The OpenAI client brings httpx2 since its version 3, and httpx before.)
"""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

from appliance.client import exchange
from appliance.client.channel import Channel
from appliance.client.exchange import Answer, Refusal, Way
from appliance.client.target import Endpoint, endpoint
from appliance.client.verifier import Verifier

if TYPE_CHECKING:
    import httpx  # below, its types stand for those of httpx2 as well

THREADS = 128
"""Requests that an asynchronous client may have on their way at once, each on a thread that waits for the appliance;
more wait for one of these. (The threads of the event loop itself are few, and others need them, too.)"""


class _Channels:
    """One channel for each endpoint."""

    def __init__(self, verifier: Verifier, options: dict[str, Any]) -> None:
        self._verifier, self._options = verifier, options
        self._lock = threading.Lock()
        self._open: dict[Endpoint, Channel] = {}

    def of(self, url: httpx.URL) -> Channel:
        """The channel of a URL. Raises PolicyError for one that no appliance can have."""
        found = endpoint(str(url.copy_with(path="/", query=None, fragment=None)))
        with self._lock:
            if found not in self._open:
                self._open[found] = Channel(self._verifier, found, **self._options)
            return self._open[found]

    def close(self) -> None:
        """Close all."""
        with self._lock:
            channels, self._open = list(self._open.values()), {}
        for channel in channels:
            channel.close()

    def send(self, request: httpx.Request, body: bytes, way: Way | None = None) -> Answer | Refusal:
        """One exchange."""
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw]
        seconds = request.extensions.get("timeout", {}).get("read")
        try:
            return exchange.send(self.of(request.url), request.method, request.url.raw_path.decode("ascii"), headers,
                                 body, seconds=seconds, way=way)
        except Refusal as refusal:
            return refusal


def _package(request: httpx.Request) -> Any:
    """httpx or httpx2: whose request it is."""
    return next(sys.modules[name] for kind in type(request).__mro__
                if (name := kind.__module__.partition(".")[0]) in ("httpx", "httpx2"))


@functools.cache
def _of(kind: type, base: type) -> Any:
    """`kind` as a subclass of a package's `base`, which its client insists on."""
    return type(kind.__name__, (kind, base), {})


def _read(read: Callable[[], bytes], request: httpx.Request) -> bytes:
    try:
        return read()
    except Refusal as refusal:
        raise _package(request).ReadError(refusal.message, request=request) from None


class _Stream:
    def __init__(self, answer: Answer, request: httpx.Request) -> None:
        self._answer, self._request = answer, request

    def __iter__(self) -> Iterator[bytes]:
        while piece := _read(self._answer.read, self._request):
            yield piece

    def close(self) -> None:
        self._answer.close()


class _AsyncStream:
    def __init__(self, answer: Answer, request: httpx.Request, threads: ThreadPoolExecutor) -> None:
        self._answer, self._request, self._threads = answer, request, threads

    async def __aiter__(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        while piece := await loop.run_in_executor(self._threads, _read, self._answer.read, self._request):
            yield piece

    async def aclose(self) -> None:
        await asyncio.to_thread(self._answer.close)


def _response(outcome: Answer | Refusal, request: httpx.Request, kind: type, base: str, *more: Any) -> Any:
    package = _package(request)
    if isinstance(outcome, Refusal):
        return package.Response(outcome.status, headers=outcome.headers(), content=outcome.body(), request=request)
    stream = _of(kind, getattr(package, base))(outcome, request, *more)
    return package.Response(outcome.status, headers=outcome.headers, stream=stream, request=request)


class Transport:
    """For `Client` of httpx or httpx2. `options` are those of `Channel`."""

    def __init__(self, verifier: Verifier, **options: Any) -> None:
        self._channels = _Channels(verifier, options)

    def handle_request(self, request: httpx.Request) -> Any:
        """Send a request to an appliance that is verified, or answer that it was not."""
        outcome = self._channels.send(request, request.read())
        return _response(outcome, request, _Stream, "SyncByteStream")

    def close(self) -> None:
        """Close idle connections."""
        self._channels.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncTransport:
    """For `AsyncClient` of httpx or httpx2: the same, on threads of its own."""

    def __init__(self, verifier: Verifier, **options: Any) -> None:
        self._channels = _Channels(verifier, options)
        self._threads = ThreadPoolExecutor(THREADS, "appliance-client")

    async def handle_async_request(self, request: httpx.Request) -> Any:
        """Send a request to an appliance that is verified, or answer that it was not."""
        body, way = await request.aread(), Way()
        sent = self._threads.submit(self._channels.send, request, body, way)
        try:
            outcome = await asyncio.wrap_future(sent)
        except asyncio.CancelledError:  # what waited for a thread is not sent at all
            way.leave()
            sent.add_done_callback(_abandon)
            raise
        return _response(outcome, request, _AsyncStream, "AsyncByteStream", self._threads)

    async def aclose(self) -> None:
        """Close idle connections."""
        self._threads.shutdown(wait=False)
        self._channels.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _abandon(sent: Future[Answer | Refusal]) -> None:
    """End an answer that came when nobody waited for it any more."""
    if not sent.cancelled() and sent.exception() is None and isinstance(answer := sent.result(), Answer):
        answer.close()
