"""The client: verify an appliance before a word is said to it. Pure Python on `cryptography`; no engine, no server.

    from appliance.client import Verifier, transport

    verifier = Verifier.from_files("deployment.hcl", "measurements.json", builder_key="ed25519:…")
    print(verifier.verify("https://10.0.0.7:8443"))

    client = OpenAI(base_url="https://10.0.0.7:8443/v1", api_key=…,
                    http_client=httpx.Client(transport=transport(verifier)))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from appliance.client.channel import Channel
from appliance.client.reference import Reference
from appliance.client.verdict import Verdict
from appliance.client.verifier import Verifier

if TYPE_CHECKING:
    import httpx

__all__ = ["Channel", "Reference", "Verdict", "Verifier", "async_transport", "transport"]


def transport(verifier: Verifier, **options: Any) -> httpx.BaseTransport:
    """A transport for `httpx.Client` that talks only to appliances that `verifier` has just verified.

    Options are those of `Channel`. Needs the httpx package, which the official OpenAI client brings.
    """
    from appliance.client.httpx_transport import Transport

    return Transport(verifier, **options)


def async_transport(verifier: Verifier, **options: Any) -> httpx.AsyncBaseTransport:
    """The same for `httpx.AsyncClient`, on threads of its own, up to 128."""
    from appliance.client.httpx_transport import AsyncTransport

    return AsyncTransport(verifier, **options)
