"""The formats of tool calls, one row each, in order of recognition."""

from __future__ import annotations

from appliance.text.calls.named import deepseek, functionary, kimi, mistral_args, solar
from appliance.text.calls.objects import command, generic, granite, hermes, llama, marked, mistral, phi
from appliance.text.calls.own import gemma, harmony, lfm
from appliance.text.calls.tagged import glm, invoke, minicpm, qwen

FORMATS = (
    harmony.FORMAT,
    gemma.FOUR,
    gemma.FUNCTION,
    lfm.FORMAT,
    mistral_args.FORMAT,
    mistral.FORMAT,
    kimi.FORMAT,
    solar.FORMAT,
    deepseek.FENCED,
    deepseek.PLAIN,
    invoke.DEEPSEEK_V4,
    invoke.DEEPSEEK_V3_2,
    invoke.MINIMAX,
    command.ACTION,
    command.FENCE,
    granite.FORMAT,
    phi.FORMAT,
    qwen.SEED,
    qwen.CODER,
    glm.LINES,
    glm.PLAIN,
    minicpm.FORMAT,
    functionary.FORMAT,
    marked.NEMOTRON,
    marked.FIREFUNCTION,
    marked.GIGACHAT_3_1,
    marked.GIGACHAT_3,
    marked.MINIMAX_M1,
    marked.APRIEL,
    hermes.FORMAT,
    llama.FORMAT,
)
"""The first row that recognises a template is the model's."""

GENERIC = generic.FORMAT
"""The format of templates without tools: the system text of `generic` explains it to the model."""
