"""The rules of a NitroTPM that no other platform has, in words."""

from __future__ import annotations

from appliance.attestation.case.rule import Rule

AWS_TRUSTED = "aws-trusted"
RULES = (Rule(AWS_TRUSTED, "nobody who runs the machine can read it", "runtime-opaque"),)
