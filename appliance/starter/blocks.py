"""The blocks of a first policy that depend on one choice: platform, model and key, privacy."""

from __future__ import annotations

import json
from collections.abc import Mapping

from appliance.starter.choices import MODEL, Choices
from appliance.starter.facts import KeyFacts, ModelFacts

CONTEXT = 4096  # tokens, where the model has as many
PCRS = (4, 9, 11, 15)  # the image's, and the register that measures the policy

_SNP = """# Evidence must show what a patched machine shows: docs/guides/sev-snp.md, docs/attacks.md.
tee {
  platforms        = ["sev-snp"]
  plaintext_budget = "8MiB" # the most of the weights that is ever in the clear, in protected memory

  evidence {
    debug     = false # a guest in debug mode can be read
    migration = false

    sev_snp {
      products             = ["genoa", "turin"]
      signing_keys         = ["vcek"] # a cloud may sign by a VLEK: add "vlek", and its name in csp_ids
      min_report_version   = 5        # older reports show no mitigations
      min_api              = "1.55"
      committed_is_current = true
      alias_check          = true
      ecc                  = true

      min_tcb "genoa" {
        bootloader          = 10
        snp                 = 27
        microcode           = 81
        launch_mitigations  = "0xb"
        current_mitigations = "0xb"
      }
      min_tcb "turin" {
        fmc                 = 1
        bootloader          = 1
        tee                 = 1
        snp                 = 4
        microcode           = 81
        launch_mitigations  = "0x3f"
        current_mitigations = "0x3f"
      }
    }
  }
}
"""
_TDX = """# Intel judges each platform by documents that it signs: docs/guides/tdx.md, docs/attacks.md.
tee {
  platforms        = ["tdx"]
  plaintext_budget = "8MiB" # the most of the weights that is ever in the clear, in protected memory

  evidence {
    debug              = false # a guest in debug mode can be read
    migration          = false
    max_collateral_age = "30d"

    tdx {
      tcb_status            = ["UpToDate"]
      min_evaluation_number = 20 # raise it with each TCB recovery of Intel's
    }
  }
}
"""
_TPM = """# A TPM proves what was started to whoever trusts the host. It hides nothing from the host.
tee {
  platforms = ["tpm"]
}
"""
_SIMULATED = """# No hardware stands behind the evidence. Clients must say `--accept simulated`.
tee {
  platforms = ["simulated"]
}
"""
_TEES: Mapping[str, str] = {"sev-snp": _SNP, "tdx": _TDX, "tpm": _TPM, "simulated": _SIMULATED}

_GUARDED = """# Answer times and token counts on a grid, so that the network sees little of what was computed.
privacy {
  timing_padding {
    first_token = "100ms"
    total       = "500ms"
    jitter      = "20ms"
  }

  token_count_rounding = 16

  redaction {
    fields    = ["user", "metadata"] # dropped on arrival
    detectors = ["credit-card", "secret"]
  }
}
"""
_STRICT = """# What the network and the operator may learn: times, sizes and counts on a coarse grid.
privacy {
  timing_padding {
    first_token = "500ms"
    total       = "2s"
    jitter      = "50ms"
    # cadence   = "500ms" # a pass at each multiple, with or without work: `appliance plan-memory` says its price
  }

  size_padding         = "4KiB"
  token_count_rounding = 64

  redaction {
    fields    = ["user", "metadata"] # dropped on arrival
    detectors = ["credit-card", "email", "iban", "ip-address", "national-id", "phone", "secret"]
  }
}
"""
_PRIVACY: Mapping[str, str] = {
    "open": "# Nothing is padded, rounded or redacted: `appliance explain privacy`.\nprivacy {}\n",
    "guarded": _GUARDED, "strict": _STRICT}


def tee(platform: str) -> str:
    """Return the block on the hardware."""
    return _TEES[platform]


def privacy(level: str) -> str:
    """Return the block on what may be learnt from answers."""
    return _PRIVACY[level]


def context(own: int | None) -> int:
    """Return the context in tokens, by what the model's file says of its own."""
    return min(CONTEXT, own or CONTEXT)


def model(choices: Choices, found: ModelFacts, keys: KeyFacts) -> str:
    """Return the model's block, with its key."""
    lines = [f"  file   = {_quoted(found.file)}", f'  sha256 = "{found.sha256}"']
    if found.shards:
        lines += ["  shards = [", *(f'    "{each}",' for each in found.shards), "  ]"]
    if found.header_sha256 is not None:
        lines = [f"  file                 = {_quoted(found.file)}", f'  sha256               = "{found.sha256}"',
                 f'  sealed_header_sha256 = "{found.header_sha256}"']
    lines += ["", f"  context_length = {context(found.context)}"]
    if choices.privacy == "strict":
        lines.append('  speculation    = "off" # guesses show in times; with a cadence: "hidden"')
    if not found.template:
        lines.append('  chat_template_fallback = "chatml" # the file has no template of its own')
    how = "encrypted at rest, and opened only by its key" if choices.sealed else "not encrypted"
    return (f'# The model, {how}. A boot with other bytes than these stops.\nmodel "{MODEL}" {{\n'
            + "\n".join(lines) + "\n" + _key(choices, keys) + found.sampling + "}\n")


def _key(choices: Choices, keys: KeyFacts) -> str:
    if choices.key == "file":
        return ('\n  key {\n    provider = "file" # the operator can read it: for the simulated platform only\n'
                f"    path     = {_quoted(keys.model_key)}\n  }}\n")
    if choices.key == "tpm":
        return ("\n  # The TPM gives the key to this image under this policy: `appliance model tpm-seal`.\n"
                f'  key {{\n    provider = "tpm"\n    version  = 1\n    pcrs     = {[*PCRS]}\n  }}\n')
    if choices.key == "broker":
        return ("\n  # The broker gives the key to an appliance that proves image and policy.\n"
                '  key {\n    provider = "broker"\n    version  = 1\n\n    broker {\n'
                f'      url         = "https://{choices.broker}"\n      root_sha256 = "{keys.root_sha256}"\n'
                f'      resource    = "default/key/{MODEL}"\n    }}\n  }}\n')
    return ""


def _quoted(text: str) -> str:
    return json.dumps(text).replace("${", "$${").replace("%{", "%%{")
