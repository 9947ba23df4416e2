"""Views of a running appliance: verdicts on a schedule, its load in a terminal, a page. All of them
ask from outside, as a verified client."""

__all__ = ["asking", "console", "listening", "load", "top", "watching"]
