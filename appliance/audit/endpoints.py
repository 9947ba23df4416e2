"""The paths of the API: one row each. A request for anything else is recorded as `other`."""

from __future__ import annotations

from dataclasses import dataclass

OTHER = "other"
READ = "GET, HEAD"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path, as routes and records have it. `{...}` stands for one name."""

    path: str
    methods: str = READ  # as an `Allow` header has them
    inference: bool = False  # a model answers: it is held to the timing grid, and recorded as a request for text
    always: bool = False  # answered also where nothing can be recorded: it tells the operator so

    def matches(self, path: str) -> bool:
        """Whether a request's path is this one."""
        head, _, last = self.path.rpartition("/")
        if not last.startswith("{"):
            return path == self.path
        found, _, name = path.rpartition("/")
        return found == head and bool(name)


ENDPOINTS = (
    Endpoint("/"),
    Endpoint("/detokenize", "POST", inference=True),
    Endpoint("/health", always=True),
    Endpoint("/metrics", always=True),
    Endpoint("/openapi.json"),
    Endpoint("/tokenize", "POST", inference=True),
    Endpoint("/tokenizer_info"),
    Endpoint("/v1/admin/models", "GET, HEAD, POST"),
    Endpoint("/v1/admin/tenants", "POST"),
    Endpoint("/v1/attestation"),
    Endpoint("/v1/attestation/activation"),
    Endpoint("/v1/audit/checkpoint"),
    Endpoint("/v1/audit/log", always=True),  # a full disk is read, too
    Endpoint("/v1/audit/timestamp"),
    Endpoint("/v1/audit/timestamp/response", "POST"),
    Endpoint("/v1/audit/witnesses"),
    Endpoint("/v1/audit/witnesses/{witness}", "POST"),
    Endpoint("/v1/chat/completions", "POST", inference=True),
    Endpoint("/v1/completions", "POST", inference=True),
    Endpoint("/v1/messages", "POST", inference=True),
    Endpoint("/v1/messages/count_tokens", "POST", inference=True),
    Endpoint("/v1/models"),
    Endpoint("/v1/models/{model}"),
    Endpoint("/v1/responses", "POST", inference=True),
    Endpoint("/v1/usage"),
)
INFERENCE = tuple(each.path for each in ENDPOINTS if each.inference)
ALWAYS = tuple(each.path for each in ENDPOINTS if each.always)
NAMES = (*(each.path for each in ENDPOINTS), OTHER)


def name_of(path: str) -> str:
    """The row's path that a request's path belongs to, or `other`."""
    return next((each.path for each in ENDPOINTS if each.matches(path)), OTHER)


def methods(name: str) -> str:
    """The methods of an endpoint that has this name, as an `Allow` header has them."""
    return next((each.methods for each in ENDPOINTS if each.path == name), READ)
