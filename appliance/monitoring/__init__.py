"""What people look at while an appliance runs: verdicts on a schedule, its load in a terminal, a
page. All of it asks from outside, as a verified client."""

__all__ = ["asking", "console", "listening", "load", "top", "watching"]
