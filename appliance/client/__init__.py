"""The client: verify an appliance before a word is said to it. Pure Python on `cryptography`; no
engine, no server.

    from appliance.client import Verifier, transport

    verifier = Verifier.from_files("deployment.hcl", "measurements.json", builder_key="ed25519:…")
    print(verifier.verify("https://10.0.0.7:8443"))

    client = OpenAI(base_url="https://10.0.0.7:8443/v1", api_key=…,
                    http_client=DefaultHttpxClient(transport=transport(verifier)))   # both from openai
"""

from __future__ import annotations

from typing import Any

from appliance.client.channel import Channel
from appliance.client.reference import Reference
from appliance.client.verdict import Verdict
from appliance.client.verifier import Verifier

__all__ = [
    "Channel", "Reference", "Verdict", "Verifier", "async_transport", "channel", "connection", "ear", "exchange",
    "fetch", "needs", "proxy", "reference", "target", "transport", "verdict", "verifier",
]


def transport(verifier: Verifier, **options: Any) -> Any:
    """A transport for `Client` of httpx or httpx2 that talks only to appliances that `verifier` has
    just verified.

    Options are those of `Channel`. The official OpenAI client brings one of the two, as
    `DefaultHttpxClient`.
    """
    from appliance.client.httpx_transport import Transport

    return Transport(verifier, **options)


def async_transport(verifier: Verifier, **options: Any) -> Any:
    """The same for `AsyncClient` (`DefaultAsyncHttpxClient`), on threads of its own, up to 128."""
    from appliance.client.httpx_transport import AsyncTransport

    return AsyncTransport(verifier, **options)
