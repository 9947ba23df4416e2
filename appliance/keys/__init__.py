"""The providers of keys of models and disks, by the policy."""

__all__ = ["document", "policy_keys", "providers"]
