"""A copy of a policy without its tenants, for clients: same digest, nobody's name or key hash."""

from __future__ import annotations

from appliance.errors import PolicyError
from appliance.policy.digest import document, policy_digest, tenants_commitment
from appliance.policy.explaining.checking import check
from appliance.policy.explaining.parser import parse_text
from appliance.policy.loading import Loaded


def without_tenants(loaded: Loaded) -> str:
    """Return the policy's text with a commitment in place of its `tenant` blocks.

    The whole `tenants` block is replaced, with the comments in it; all else stays as it is written.
    A policy with a signed list is returned unchanged: no tenant stands in it.
    """
    text = loaded.positions.text.text
    policy = loaded.policy
    if not policy.tenants.tenants:
        return text
    inline = document(policy, policy.appliance.schema_version)["tenants"]["tenant"]
    span = next(block.span for block in parse_text(text).blocks if block.type == "tenants")
    text = f'{text[:span.start]}tenants {{\n  commitment = "{tenants_commitment(inline)}"\n}}{text[span.end:]}'
    copy = check(text, str(loaded.path)).policy
    if copy is None or policy_digest(copy) != loaded.digest:
        raise PolicyError("the copy without tenants does not have the policy's digest", code="internal",
                          hint="report this, with the policy if you may show it")
    return text
