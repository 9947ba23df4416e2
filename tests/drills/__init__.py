"""Incidents, rehearsed."""
