"""Formats of tool calls, and thoughts."""
