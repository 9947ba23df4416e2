"""The boot sequence: policy, self-test, models, attestation, service."""
