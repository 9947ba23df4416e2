"""Machines, accepted or not."""
