"""The API's own document: complete, current, and true of what the service takes and says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from appliance.api.adapters import parameters
from appliance.api.adapters.table import ADAPTERS
from appliance.audit.endpoints import ENDPOINTS, INFERENCE
from appliance.service import openapi
from appliance.service.routes import HANDLERS
from tests.support.server import Server

ROOT = Path(__file__).parents[2]
METHODS = {"get", "post"}


def _judge(reference: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator({**reference, "components": openapi.document()["components"]})


def _body(path: str) -> Draft202012Validator:
    operation = openapi.document()["paths"][path]["post"]
    return _judge(operation["requestBody"]["content"]["application/json"]["schema"])


def _said(path: str, method: str, media: str = "application/json", status: str = "200") -> Draft202012Validator:
    operation = openapi.document()["paths"][path][method]
    return _judge(operation["responses"][status]["content"][media]["schema"])


def test_it_has_every_endpoint() -> None:
    """The audit log's table, the handlers, the table of adapters and the document have the same paths."""
    paths = openapi.document()["paths"]
    assert sorted(each.path for each in ENDPOINTS) == sorted(paths)
    handled = (path for each in HANDLERS for path in each.paths)
    assert sorted({path.replace("{name:str}", "{model}").replace(":str}", "}") for path in handled}) == sorted(paths)
    assert sorted(INFERENCE) == sorted(row.path for row in ADAPTERS)
    for each in ENDPOINTS:
        assert METHODS >= paths[each.path].keys() == set(each.methods.lower().split(", ")) - {"head"}
    routed = defaultdict[str, set[str]](set)
    for handler in HANDLERS:
        for path in handler.paths:
            routed[path.replace("{name:str}", "{model}").replace(":str}", "}")] |= set(handler.http_methods)
    assert {each.path: set(each.methods.split(", ")) - {"HEAD"} for each in ENDPOINTS} == routed


def test_its_schemas_are_schemas() -> None:
    """Each is one of JSON Schema 2020-12, each reference leads somewhere, and each name stands once."""
    described = openapi.document()
    schemas = described["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    text = json.dumps(described)
    assert {name.split('"')[0] for name in text.split("#/components/schemas/")[1:]} <= schemas.keys()
    assert "appliance__" not in text
    assert "3.1.0" == described["openapi"]


def test_the_pages_are_current() -> None:
    """What `make reference` writes is what stands in the documentation."""
    code = ("import json, runpy; print(json.dumps(runpy.run_path('docs/site/endpoints.py')['written']()))")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    for name, text in json.loads(done.stdout).items():
        assert text == (ROOT / "docs/reference" / name).read_text("utf-8"), f"{name}: make reference"


def test_it_is_served(service: Server) -> None:
    """To everybody, as JSON, without an address of anybody else."""
    with service.http(None) as http:
        answer = http.get("/openapi.json")
        assert ("application/json", openapi.document()) == (answer.headers["content-type"], answer.json())
        assert "://" not in answer.text
        for path, method in (("/health", "get"), ("/v1/models", "get")):
            said = http.get(path, headers={"x-api-key": "sk-test-user"}).json()
            _said(path, method).validate(said)


TURNS = [{"role": "user", "content": "hello"}]
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": TURNS, "max_tokens": 3, "stop": "x", "n": 1, "user": "me", "top_k": 4}),
    ("/v1/chat/completions", {"messages": TURNS, "max_completion_tokens": 3, "logprobs": True, "top_logprobs": 2}),
    ("/v1/completions", {"prompt": "abc", "max_tokens": 3, "echo": False, "logprobs": 1}),
    ("/v1/completions", {"prompt": [1, 2], "max_tokens": 3}),
    ("/v1/responses", {"input": "hello", "max_output_tokens": 3, "store": False}),
    ("/v1/responses", {"input": TURNS, "max_output_tokens": 3, "instructions": "x"}),
    ("/v1/messages", {"messages": TURNS, "max_tokens": 3, "system": [{"type": "text", "text": "x"}]}),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]})]


@pytest.mark.parametrize(("path", "body"), BODIES, ids=range(len(BODIES)))
def test_it_is_true_of_requests_and_answers(service: Server, path: str, body: dict[str, Any]) -> None:
    """Requests that are taken, their answers, their events and their refusals are as it says."""
    asked = {"model": "tiny", **body}
    _body(path).validate(asked)
    with service.http() as http:
        answer = http.post(path, json=asked)
        assert 200 == answer.status_code
        _said(path, "post").validate(answer.json())
        if not path.endswith("count_tokens"):
            events = http.post(path, json={**asked, "stream": True}).text
            for line in events.splitlines():
                if line.startswith("data: {"):
                    _said(path, "post", "text/event-stream").validate(json.loads(line[6:]))
        wished = http.post(path, json={**asked, "made_up": 1})
        refused = http.post(path, json={**asked, "model": 7})
    assert _body(path).is_valid({**asked, "made_up": 1})
    assert (200, "made_up") == (wished.status_code, wished.headers["appliance-ignored"].split(", ")[-1])
    assert not _body(path).is_valid({**asked, "model": 7})
    assert 400 == refused.status_code
    _said(path, "post", status="default").validate(refused.json())


def test_parameters_of_every_shape_are_known() -> None:
    """The audit log may name them; what a client made up it may not."""
    for name in ("input", "max_output_tokens", "previous_response_id", "text.format.schema", "thinking.budget_tokens",
                 "stop_sequences", "mcp_servers", "messages.content", "output_config.format.schema"):
        assert name == parameters.known(name)
    assert "tools.input_schema" == parameters.known("tools.3.input_schema.properties.secret")
    assert parameters.known("secret_name") is None
