"""The paths of the API: one row each. A request for anything else is recorded as `other`."""

from __future__ import annotations

from dataclasses import dataclass

OTHER = "other"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path, as routes and records have it. `{...}` stands for one name."""

    path: str
    inference: bool = False  # a model answers: it is held to the timing grid, and recorded as a request for text

    def matches(self, path: str) -> bool:
        """Whether a request's path is this one."""
        head, _, last = self.path.rpartition("/")
        if not last.startswith("{"):
            return path == self.path
        found, _, name = path.rpartition("/")
        return found == head and bool(name)


ENDPOINTS = (
    Endpoint("/detokenize", inference=True),
    Endpoint("/health"),
    Endpoint("/metrics"),
    Endpoint("/openapi.json"),
    Endpoint("/tokenize", inference=True),
    Endpoint("/v1/admin/models"),
    Endpoint("/v1/attestation"),
    Endpoint("/v1/attestation/activation"),
    Endpoint("/v1/audit/checkpoint"),
    Endpoint("/v1/audit/timestamp"),
    Endpoint("/v1/audit/timestamp/response"),
    Endpoint("/v1/audit/witnesses"),
    Endpoint("/v1/audit/witnesses/{witness}"),
    Endpoint("/v1/chat/completions", inference=True),
    Endpoint("/v1/completions", inference=True),
    Endpoint("/v1/messages", inference=True),
    Endpoint("/v1/messages/count_tokens", inference=True),
    Endpoint("/v1/models"),
    Endpoint("/v1/models/{model}"),
    Endpoint("/v1/responses", inference=True),
    Endpoint("/v1/usage"),
)
INFERENCE = tuple(each.path for each in ENDPOINTS if each.inference)
NAMES = (*(each.path for each in ENDPOINTS), OTHER)


def named(path: str) -> str:
    """The row's path that a request's path belongs to, or `other`."""
    return next((each.path for each in ENDPOINTS if each.matches(path)), OTHER)
