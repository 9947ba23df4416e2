"""Requests of all kinds, mixed: each endpoint, constraints, refusals, and clients that leave."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.siege.clients import ADMIN, AUDITOR, HOSTILE, Field, completion, tokens
from benchmarks.tenants.served import MODEL, Memory, Served

Body = dict[str, Any]
CLIENTS = 16
GROWTH, GROWTH_BYTES = 0.02, 16 << 20  # of memory that a flat course may have

_TOOL = {"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"place": {"type": "string", "maxLength": 8}}, "required": ["place"]}}}
_PERSON = {"type": "object", "additionalProperties": False, "required": ["name"],
           "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}}}


def _chat(number: int, **more: Any) -> Body:
    return {"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": f"Tell me of {number}."}], **more}


POSTS: Mapping[str, tuple[str, Callable[[int], Body]]] = {
    "completion": ("/v1/completions", lambda number: completion(prompt=f"{number} and")),
    "long prompt": ("/v1/completions", lambda number: completion(prompt=tokens(number, 400))),
    "choices": ("/v1/completions", lambda number: completion(prompt=[f"{number}", "and"], n=2)),
    "schema": ("/v1/completions", lambda number: completion(json_schema=_PERSON, max_tokens=24)),
    "own schema": ("/v1/completions", lambda number: completion(json_schema={"enum": [f"v{number}", "w"]})),
    "pattern": ("/v1/completions", lambda number: completion(regex=f"[a-f]{{2,4}}{number}")),
    "choice": ("/v1/completions", lambda number: completion(guided_choice=["yes", f"no {number}"])),
    "grammar": ("/v1/completions", lambda number: completion(grammar=f'root ::= [0-9]{{2}} "-{number}"?')),
    "logprobs": ("/v1/completions", lambda number: completion(logprobs=3)),
    "chat": ("/v1/chat/completions", _chat),
    "forced tool": ("/v1/chat/completions", lambda number: _chat(
        number, tools=[_TOOL], tool_choice="required", max_tokens=24)),
    "offered tool": ("/v1/chat/completions", lambda number: _chat(number, tools=[_TOOL])),
    "response": ("/v1/responses", lambda number: {
        "model": MODEL, "input": f"Tell me of {number}.", "max_output_tokens": 16}),
    "message": ("/v1/messages", _chat),
    "count": ("/v1/messages/count_tokens", lambda number: {
        key: value for key, value in _chat(number).items() if key != "max_tokens"}),
    "tokenize": ("/tokenize", lambda number: {"model": MODEL, "prompt": f"{number} words"}),
    "detokenize": ("/detokenize", lambda number: {"model": MODEL, "tokens": [300 + number % 600]}),
    "no model": ("/v1/completions", lambda number: completion() | {"model": f"none{number}"}),
    "unknown parameter": ("/v1/chat/completions", lambda number: _chat(number, **{f"what{number}": 1})),
    "bad schema": ("/v1/completions", lambda number: completion(json_schema={"not": {"type": f"t{number}"}})),
    "bad pattern": ("/v1/completions", lambda number: completion(regex=f"({number}")),
    "change": ("/v1/admin/models", lambda number: {"load": MODEL}),
    "list": ("/v1/admin/tenants", lambda number: {"format": "appliance/tenants/v1", "list": {"version": number},
                                                  "signature": ""}),
    "cosignature": ("/v1/audit/witnesses/none", lambda number: {"number": number}),
    "timestamp": ("/v1/audit/timestamp/response", lambda number: {"number": number}),
    "no page": ("/v1/no/page", lambda number: {}),
}
GETS = ("/", "/health", "/tokenizer_info", "/v1/models", f"/v1/models/{MODEL}", "/v1/models/none", "/v1/usage",
        "/v1/admin/models", "/metrics", "/v1/audit/log",
        "/openapi.json", "/v1/audit/checkpoint", "/v1/audit/witnesses", "/v1/audit/timestamp",
        "/v1/attestation?nonce=" + "00" * 32, "/v1/attestation/activation?challenge=00")
STREAMED = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
_KINDS = [*POSTS, *GETS]


async def one(field: Field, number: int) -> None:
    """One request, drawn by its number."""
    draw = random.Random(number)
    kind = _KINDS[number % len(_KINDS)]
    other = AUDITOR if kind in (*GETS, "cosignature", "timestamp") else ADMIN if kind in ("change", "list") else HOSTILE
    tenant = draw.choice([HOSTILE, f"crowd{draw.randrange(64)}", other, other])
    if kind in GETS:
        await field.ask(kind, tenant=tenant, method="GET")
        return
    path, make = POSTS[kind]
    body, manner = make(number), dict[str, Any]()
    if path in STREAMED and draw.random() < 0.5:
        body["stream"] = True
        manner = draw.choice([{}, {}, {"leave_after": 1}, {"leave_after": 3}])
    seconds = draw.choice([120.0] * 9 + [0.05])  # who leaves before it is answered
    await field.ask(path, body, tenant=tenant, seconds=seconds, **manner)


async def run(served: Served, field: Field, requests: int) -> dict[str, Any]:
    """Send so many; the memory in their first quarter, in which all becomes warm, and at the end.
    """
    numbers, memory, done, begun = iter(range(requests)), list[Memory](), 0, time.monotonic()

    async def client() -> None:
        nonlocal done
        for number in numbers:
            await one(field, number)
            done += 1
            if done % max(1, requests // 40) == 0:
                memory.append(served.memory)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    await asyncio.sleep(3)  # what is scrubbed and given back a second later
    memory.append(served.memory)
    quarter = max(1, len(memory) // 4)
    found: dict[str, Any] = {
        "memory_warm": max(each.other for each in memory[:quarter]), "memory_end": memory[-1].other,
        "memory_most": max(each.other for each in memory), "requests": done, "statuses": dict(field.statuses),
        "seconds": time.monotonic() - begun}
    flat = memory[-1].other <= found["memory_warm"] * (1 + GROWTH) + GROWTH_BYTES
    return {**found, "missed": [] if flat else ["flat"]}
