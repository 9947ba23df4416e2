"""The deployment policy: HCL text to a validated, frozen document, and its digest.

    loaded = load(path)          # PolicyError, which carries `.diagnostics`, where there is anything wrong
    checked = check(text, name)  # never raises on account of the text: findings, and the policy where there are none

The policy is data: nothing in it is computed, nothing unknown is skipped, and what this version
does not enforce is named by `unenforced`, for the boot to refuse.
"""

from __future__ import annotations

from appliance.codec.canonical import canonical
from appliance.policy.digest import host_data, policy_digest
from appliance.policy.enforcement import unenforced
from appliance.policy.hcl.diagnostics import Diagnostic, Position, render
from appliance.policy.loading import Checked, InvalidPolicyError, Loaded, check, check_bytes, check_file, load
from appliance.policy.redacted import without_tenants
from appliance.policy.schema import Policy

__all__ = [
    "Checked", "Diagnostic", "InvalidPolicyError", "Loaded", "Policy", "Position",
    "apikey", "bind", "bounds", "canonical", "check", "check_bytes", "check_file", "digest",
    "enforcement", "host_data", "inputfile", "load", "loading", "policy_digest", "render",
    "rules", "unenforced", "without_tenants",
]
