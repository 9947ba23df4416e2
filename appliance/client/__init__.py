"""Verification for clients. Never in the image."""
