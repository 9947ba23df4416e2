"""Write tests/goldens/calls/llama_server.json: what llama.cpp's server reads in answers of models with calls.

    python -m tests.goldens.make_call_goldens

Needs xllamacpp, which has that server, and which the project itself does not use, and llama.cpp's templates. The model
gives a text, and the server reads it by its own parser. Where a call begins, the server may also force the text on by a
grammar of its own: so the text of each golden is what the model said in the end, by the server's log-probabilities.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from appliance.text.calls.history import fit
from appliance.text.calls.readers import native_of, opened, thinking_of
from appliance.text.calls.reading.pieces import Call, Piece, ToolSpec
from tests.support.answers import TOOLS, arguments_of, template_of
from tests.support.talking_models import model
from tests.support.vocabularies import template_source
from tests.text.calls.test_calls_round_trip import NATIVE, NOW, OFFERED, UNRENDERED, chat, written
from tests.text.calls.test_calls_vectors import VECTORS

FILE = Path(__file__).parent / "calls/llama_server.json"
THINKING = {"enable_thinking": True}  # what the server gives each template
MOST = 300  # tokens
TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "</s>", "<seed:eos>", "<|END_OF_TURN_TOKEN|>", "[e~[", "<sep>",
        "<｜end▁of▁sentence｜>", "<turn|>", "<|tool_response>", "<|end_of_text|>", "<|role_end|>", "</assistant>",
        "<end_of_sentence>", "<SPECIAL_12>", "<|message_sep|>", "<|end|>")


def answers(name: str) -> dict[str, tuple[str, tuple[ToolSpec, ...]]]:
    """Texts for a template by name, and the tools that the request offers: what the template writes, plain text, and
    documented answers in its format."""
    template = template_of(name)
    found = {"text": ("Hello there, no call.", TOOLS)}
    for count in (1, 2) if template.shows_several_calls else (1,):
        text = written(template, fit(template, chat(count)[:2]), THINKING)[1]
        end = min((place for mark in ENDS if (place := text.find(mark)) >= 0), default=len(text))
        found[f"{count} of the template"] = (text[:end].rstrip(), TOOLS)
    native = native_of(template)
    for place, (form, text, pieces) in enumerate(VECTORS):
        if native is not None and form == native.name and (tools := _tools(pieces)):
            found[f"vector {place}"] = (text, tools)
    return found


def _tools(pieces: list[Piece]) -> tuple[ToolSpec, ...]:
    found = {}
    for piece in pieces:
        if isinstance(piece, Call):
            try:
                values = json.loads(arguments_of(pieces, piece.index))
            except ValueError:
                return ()
            properties = {key: {"type": TYPES[type(value)]} for key, value in values.items() if value is not None}
            found[piece.name] = ToolSpec(piece.name, None, {"type": "object", "properties": properties})
    return tuple(found.values())


def ask(text: str, name: str, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """The server's answer to a request, by a model that says this text."""
    import xllamacpp  # type: ignore[import-not-found]
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(model(text, template_source(f"{name}.jinja")))
        file.flush()
        params = xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.n_parallel, params.use_jinja = file.name, 1 << 14, 1, True
        params.warmup = params.fit_params = False
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        found: dict[str, Any] = xllamacpp.Server(params).handle_chat_completions({
            "messages": chat(1)[:1], "tools": tools, "parallel_tool_calls": True, "temperature": 0, "max_tokens": MOST,
            "logprobs": True})
        return found


def golden(name: str, case: str, text: str, tools: tuple[ToolSpec, ...]) -> dict[str, Any] | None:
    """What the server makes of a text; None where it says that it cannot read it, or where the text has no end."""
    template = template_of(name)
    prompt = template.render(chat(1)[:1], tools=OFFERED, now=NOW, variables=THINKING)
    inside, thinking = opened(template, prompt), thinking_of(template)
    if inside and thinking is not None and thinking.close not in text:
        text = f"hm{thinking.close}{text}"
    functions = [{"type": "function", "function": {"name": tool.name, "description": "d",
                                                   "parameters": dict(tool.parameters)}} for tool in tools]
    try:
        answer = ask(text, name, functions)
    except Exception as error:  # noqa: BLE001 - it raises whatever it likes
        print(name, case, error)
        return None
    choice = answer["choices"][0]
    if choice["finish_reason"] == "length" or not choice.get("logprobs"):
        print(name, case, "has no end")
        return None
    said = b"".join(bytes(token["bytes"]) for token in choice["logprobs"]["content"]).decode("utf-8", "replace")
    message = choice["message"]
    return {"template": name, "case": case, "opened": inside, "text": said.removesuffix("</s>"), "tools": functions,
            "content": message.get("content") or "", "thought": message.get("reasoning_content") or "",
            "calls": [[call["function"]["name"], call["function"]["arguments"]]
                      for call in message.get("tool_calls") or ()]}


def main() -> None:
    """Ask about each text."""
    found = [golden(name, case, *given) for name in sorted(NATIVE) if name not in UNRENDERED
             for case, given in answers(name).items()]
    FILE.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in found if each is not None)
    FILE.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
