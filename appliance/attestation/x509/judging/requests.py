"""One request to a vendor's public service, told whole, so that a person or a program can make it.

Nothing here opens a connection: `kds` (AMD) and `pcs` (Intel) compute requests, and errors name
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

FETCH_DUE = "Fetch what is due: appliance collateral fetch EVIDENCE -o DIR --if-due"
Kind = Literal["certificates", "list", "json", "endorsement"]


@dataclass(frozen=True)
class Request:
    """A GET request: `url`, `why` it is needed, and the `file` that keeps its answer.

    `chain_headers`: the response header with the certificates above the answer, URL-encoded; its
    names, any of them.
    """

    url: str
    file: str
    why: str
    kind: Kind
    chain_headers: tuple[str, ...] = ()

    def curl(self) -> str:
        """The command that makes it; headers are kept where they hold certificates."""
        headers = f"-D '{self.file}.headers' " if self.chain_headers else ""
        return f"curl -fsS --retry 5 {headers}-o '{self.file}' '{self.url}'"


def told(requests: Iterable[Request], service: str, between: str = "; ") -> str:
    """The hint that names requests."""
    listed = between.join(f"GET {each.url}" + (f" (keep its header {each.chain_headers[0]} beside it)"
                                            if each.chain_headers else "") for each in requests)
    return f"{service} serves it: {listed}; or: appliance collateral fetch EVIDENCE -o DIR"
