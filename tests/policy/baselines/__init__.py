"""Baselines: their form, and each rule of ours on a policy that meets it and on one that breaks it."""
