"""The deployment policy: HCL text to a validated, frozen document, and its digest.

    loaded = load(path)  # InvalidPolicyError, which carries `.diagnostics`, at the first mistake

The policy is data: nothing in it is computed, nothing unknown is skipped, and what this version
does not enforce is named by `unenforced`, for the boot to refuse. The modules that ship decide, and
say why at the first mistake. `explaining` has all findings, with fixes and warnings, for desks.
"""

from __future__ import annotations

from appliance.codec.canonical import canonical
from appliance.policy.digest import host_data, policy_digest
from appliance.policy.enforcement import unenforced
from appliance.policy.hcl.diagnostics import Diagnostic, InvalidPolicyError, Position, render
from appliance.policy.loading import Loaded, load
from appliance.policy.schema import Policy

__all__ = [
    "Diagnostic", "InvalidPolicyError", "Loaded", "Policy", "Position",
    "apikey", "bind", "bounds", "canonical", "digest",
    "enforcement", "host_data", "inputfile", "load", "loading", "policy_digest", "render",
    "rules", "unenforced",
]
