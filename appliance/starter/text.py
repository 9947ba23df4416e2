"""The policy of a first deployment, with a comment at each decision."""

from __future__ import annotations

from appliance.starter import blocks
from appliance.starter.choices import MODEL, Choices
from appliance.starter.facts import KeyFacts, ModelFacts

_HEAD = """# {name}: {what}.
# Made by `appliance init`. It is yours: change it, then run `appliance check` on it.
# What a field means: `appliance explain FIELD`, such as `appliance explain tee.platforms`.

appliance {{
  name   = "{name}"
  schema = 2
}}
"""
_WHAT = {
    "simulated": "a deployment for a first look; the simulated platform protects nothing and proves nothing",
    "tpm": "a virtual machine whose boot a TPM measures; its host can still read it",
    "tdx": "a deployment on Intel TDX, whose operator cannot read it",
    "sev-snp": "a deployment on AMD SEV-SNP, whose operator cannot read it",
}


def policy(choices: Choices, model: ModelFacts, keys: KeyFacts) -> str:
    """Return the policy's text."""
    parts = [
        _HEAD.format(name=choices.name, what=_WHAT[choices.platform]), blocks.tee(choices.platform),
        blocks.model(choices, model, keys), blocks.privacy(choices.privacy), _limits(choices, model),
        _tenants(choices, keys), _service(choices),
        '# One line for each boot step, request and refusal, without content. "state": on a sealed disk, see `state`.\n'
        'audit {\n  sink = "stdout"\n}\n']
    return "\n".join(each for each in parts if each)


def _limits(choices: Choices, model: ModelFacts) -> str:
    context = blocks.context(model.context)
    patience = "30s" if choices.simulated else "10m"
    why = "" if choices.simulated else " # an emulated guest is slow; with KVM or a TEE, 30s will do"
    return ("# The most that one request, one API key and all together may ask for.\n"
            f"limits {{\n  prompt_tokens       = {context // 2}\n  generation_tokens   = {context // 4}\n"
            f'  concurrent_requests = 8\n  first_token_timeout = "{patience}"{why}\n}}\n')


def _tenants(choices: Choices, keys: KeyFacts) -> str:
    if not choices.simulated:
        return ("# Who may ask stands in a list beside this file. Its authority signs it, so that a new key changes\n"
                "# neither this policy nor what clients verify: docs/guides/tenants.md.\n"
                f'tenants {{\n  authority = "{keys.authority}"\n  list      = "tenants.json"\n}}\n')
    lines = []
    for each in choices.tenants:
        role = "" if each.role == "user" else f'    role           = "{each.role}"\n'
        models = f'    models         = ["{MODEL}"]\n' if each.chats else ""
        lines.append(f'  tenant "{each.name}" {{\n{role}{models}'
                     f'    api_key_sha256 = ["{keys.hashes[each.name]}"]\n  }}\n')
    return ("# Who may ask, by the SHA-256 of each API key. In production a signed list has them.\n"
            f"tenants {{\n{''.join(lines)}}}\n")


def _service(choices: Choices) -> str:
    if choices.simulated:
        return ("# On the loopback, without TLS: only a simulated policy may do that.\nservice {\n"
                f'  listen "api" {{\n    kind    = "tcp"\n    address = "127.0.0.1"\n    port    = {choices.port}\n'
                "  }\n}\n")
    return ("# The certificate is made inside, and its key is bound to the evidence that clients verify.\nservice {\n"
            '  listen "api" {\n    kind    = "ra-tls"\n    address = "0.0.0.0"\n    port    = 8443\n'
            '    names   = ["localhost"] # and the DNS name that your clients use\n  }\n}\n')
