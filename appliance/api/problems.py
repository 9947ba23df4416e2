"""Everything that can go wrong with a request, in one table: code -> HTTP status, OpenAI error
type, message.

A message here is fixed text, or text of ours that names a parameter, and may tell its caller the
caller's own number or word. Nothing of a request's messages or prompt goes into an error, and no
error text goes into a log: logs carry only the code.

Source of the shape: the OpenAI API reference, "Errors": `{"error": {"message", "type", "param",
"code"}}`.
"""

from __future__ import annotations

import json
import math
import traceback
from dataclasses import dataclass

from appliance import errors
from appliance.audit.sink import AUDIT_FULL

INVALID = "invalid_request_error"
SERVER = "server_error"
LIMIT = "rate_limit_error"
AUTH = "authentication_error"


@dataclass(frozen=True)
class Problem:
    """The answer that a caller sees for one code."""

    status: int
    type: str
    message: str
    retry_after: float | None = None  # seconds until another try makes sense; each 429 and 503 has some


PROBLEMS: dict[str, Problem] = {
    # 400: the request itself
    "malformed_json": Problem(400, INVALID, "the body is not valid JSON"),
    "malformed_request": Problem(400, INVALID, "the request is not valid HTTP"),
    "invalid_value": Problem(400, INVALID, "a parameter has a value that is not allowed"),
    "missing_required_parameter": Problem(400, INVALID, "a required parameter is missing"),
    "unknown_parameter": Problem(400, INVALID, "this service does not know this parameter"),
    "unsupported_parameter": Problem(400, INVALID, "this service does not support this parameter"),
    "unsupported_text": Problem(400, INVALID, "the text cannot be encoded for this model"),
    "no_chat_template": Problem(400, INVALID, "the model has no chat template; it continues prompts at "
                                "/v1/completions"),
    "template_refused": Problem(400, INVALID, "the model's chat template does not accept these messages"),
    "activation_refused": Problem(400, INVALID, "the TPM does not open the challenge: it is for another TPM or key"),
    "context_length_exceeded": Problem(400, INVALID, "the prompt is too long for this service"),
    "structure_stuck": Problem(400, INVALID, "the answer cannot go on within its structure, or costs more than this "
                               "service allows; a simpler schema, pattern or grammar may do"),
    "generation_length_exceeded": Problem(400, INVALID, "more tokens are asked for than this service allows"),
    "tenant_list_refused": Problem(400, INVALID, "the list of tenants is not accepted"),
    # 401 and 403: the caller
    "invalid_api_key": Problem(401, AUTH, "a valid API key is required: 'Authorization: Bearer KEY' or "
                               "'X-Api-Key: KEY'"),
    "api_key_expired": Problem(401, AUTH, "the API key has expired: ask who gave it to you for a new one"),
    "permission_denied": Problem(403, "permission_error", "this API key may not use this endpoint"),
    # 404 to 431: what is asked
    "model_not_found": Problem(404, INVALID, "the model does not exist or this API key may not use it"),
    "model_not_loaded": Problem(404, INVALID, "the model is not loaded at the moment"),
    "thread_not_found": Problem(404, INVALID, "this service stores no threads: send all messages"),
    "not_found": Problem(404, INVALID, "there is no such endpoint: those for models are "
                         "/v1/chat/completions, /v1/completions, /v1/responses, /v1/messages and /v1/models"),
    "method_not_allowed": Problem(405, INVALID, "this endpoint does not take this method"),
    "request_timeout": Problem(408, INVALID, "the request did not arrive in time"),
    "models_changing": Problem(409, INVALID, "another change of the models is under way: retry later"),
    "model_in_use": Problem(409, INVALID, "the change does not fit what is loaded"),
    "tenant_list_older": Problem(409, INVALID, "the list of tenants is not newer than the one in force"),
    "body_too_large": Problem(413, INVALID, "the body is larger than this service allows"),
    "unsupported_media_type": Problem(415, INVALID, "the body must be application/json, not compressed"),
    "headers_too_large": Problem(431, INVALID, "the request line and headers are larger than allowed"),
    # 429: how much is asked
    "rate_limit_exceeded": Problem(429, LIMIT, "too many requests or tokens: retry later", 1),
    "too_many_requests": Problem(429, LIMIT, "too many requests are in progress: retry later", 1),
    "insufficient_quota": Problem(429, LIMIT, "the quota of the day is used up", 60),
    # 499: the caller left (never sent; recorded)
    "client_closed_request": Problem(499, INVALID, "the client closed the connection"),
    # 500: us
    "internal_error": Problem(500, SERVER, "an internal error occurred"),
    "engine_error": Problem(500, SERVER, "inference failed"),
    "model_tampered": Problem(500, SERVER, "the model's file was altered: it answers no more until the next boot"),
    "model_unreadable": Problem(500, SERVER, "the model's file cannot be read: it answers no more until the next boot"),
    "model_load_failed": Problem(500, SERVER, "the model could not be loaded; what was loaded before answers on"),
    "attestation_failed": Problem(503, SERVER, "evidence cannot be made at the moment", 5),
    "audit_unavailable": Problem(503, SERVER, "requests cannot be recorded: the service refuses them all", 60),
    "state_full": Problem(503, SERVER, "the state disk is full: nothing more can be recorded until the operator makes "
                          "it larger", 60),
    "overloaded": Problem(503, SERVER, "the queue is full: retry later", 1),
    "structure_no_room": Problem(503, SERVER, "the service has no memory to constrain an answer at the moment", 5),
    "shutting_down": Problem(503, SERVER, "the service is shutting down", 5),
    "answer_timeout": Problem(504, SERVER, "the answer was not complete in the time that the policy allows"),
    "first_token_timeout": Problem(503, SERVER, "no token could be produced in the time that the policy allows", 5),
}

# Codes of lower layers -> code: the request may come again.
PRECISE = {AUDIT_FULL: "state_full", "queue-full": "overloaded", "slots-in-use": "overloaded",
           "engine-closed": "shutting_down", "constraint-no-room": "structure_no_room"}

# Errors of lower layers -> code; the most derived class that is listed wins.
CODES: dict[type, str] = {
    errors.TokenizerError: "unsupported_text",
    errors.TemplateError: "template_refused",
    errors.CapacityError: "context_length_exceeded",
    errors.EngineError: "engine_error",
    errors.TamperedError: "model_tampered",  # the disk of a streamed model lies
    errors.ModelError: "model_unreadable",  # the disk of a streamed model fails
    errors.AttestationError: "attestation_failed",
    errors.AuditError: "audit_unavailable",
}


FOLLOWED, LONGEST_MINUTE = 59, 61
"""Seconds: some clients follow no `Retry-After` of a minute or more and come at once, and a limit for a minute may ask
for that. A client that retries slightly early learns how long is left."""


class RequestError(errors.ServiceError):
    """A refusal that a caller sees: `code` (a key of PROBLEMS), own message, `param`, `retry_after`
    seconds (None: as the table has it; infinity: another try is of no use)."""

    def __init__(self, code: str, message: str | None = None, *, param: str | None = None,
                 retry_after: float | None = None) -> None:
        problem = PROBLEMS[code]
        super().__init__(message or problem.message, code=code)
        self.status = problem.status
        self.type = problem.type
        self.param = param
        self.retry_after = problem.retry_after if retry_after is None else retry_after

    @property
    def headers(self) -> dict[str, str]:
        """Response headers that this refusal brings."""
        headers = {}
        if self.retry_after is not None and math.isfinite(self.retry_after):
            seconds = max(1, math.ceil(self.retry_after))
            headers["retry-after"] = str(min(seconds, FOLLOWED) if seconds <= LONGEST_MINUTE else seconds)
        if self.status == 504:
            headers["x-should-retry"] = "false"  # to OpenAI's clients: the next try would take as long
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.status in {408, 413, 431} or self.code == "malformed_request":
            headers["connection"] = "close"  # the rest of the request is not read
        return headers

    def body(self) -> bytes:
        """Return the refusal in OpenAI's shape."""
        return json.dumps({"error": {"message": self.summary, "type": self.type, "param": self.param,
                                     "code": self.code}}).encode()


def invalid(param: str, words: str) -> RequestError:
    """Return the refusal of a parameter's value."""
    return RequestError("invalid_value", f"{param}: {words}", param=param)


def missing(param: str) -> RequestError:
    """Return the refusal of a request without a parameter."""
    return RequestError("missing_required_parameter", f"{param}: this parameter is required", param=param)


def unsupported(param: str, words: str) -> RequestError:
    """Return the refusal of a parameter that is known, but for this value of it."""
    return RequestError("unsupported_parameter", f"{param}: {words}", param=param)


def too_long(most: int, tokens: int | None = None, *, exact: bool = True) -> RequestError:
    """Return the refusal of a prompt, with its number of tokens where the caller may know it. Some
    clients read both numbers in these words, and then send less."""
    words = f"at most {most} tokens are allowed" if tokens is None else (
        f"{tokens} tokens{'' if exact else ' or more'} > {most} maximum")
    return RequestError("context_length_exceeded", f"prompt is too long: {words}")


def refusal(error: BaseException) -> RequestError:
    """Return any exception as a refusal. An unforeseen one tells the caller nothing but that it
    happened."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, errors.ApplianceError) and error.code in PRECISE:
        code = PRECISE[error.code]
        return RequestError(code, retry_after=None if code == "state_full" else 1)
    if isinstance(error, errors.ApplianceError) and error.code == "constraint-stuck":
        return RequestError("structure_stuck")
    if isinstance(error, errors.RefusedMessagesError):
        return RequestError("template_refused", error.summary)
    if isinstance(error, errors.TemplateError) and error.code == "template-exhausted":
        return RequestError("context_length_exceeded", "the prompt is too long for the model's chat template")
    code = next((CODES[cls] for cls in type(error).__mro__ if cls in CODES), "internal_error")
    return RequestError(code)


def let_go(error: BaseException) -> None:
    """Give back what the frames of a refused request hold, and what the error was made from. An
    exception is part of a cycle, as a rule: until somebody collects it, a request that was read
    would stay, at many times its size."""
    traceback.clear_frames(error.__traceback__)
    if error.__context__ is not None:
        let_go(error.__context__)
    error.__context__ = error.__cause__ = None
