"""Versions of the policy language: frozen tables, differences, upgrade."""
