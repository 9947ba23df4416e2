"""Who delivers the keys of models and disks, by the policy."""
