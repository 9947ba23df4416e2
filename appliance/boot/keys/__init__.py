"""The providers of keys of models and disks, by the policy."""
