"""The boot sequence: policy, self-test, models, attestation, service."""

import appliance.sandbox  # noqa: F401 - it must be there before numpy is

__all__ = ["booted", "checks", "identity", "oneshot", "report", "sequence"]
