"""The parts of a running service, each of which knows one thing; and the exchange that passes
them."""

__all__ = ["exchange", "metrics", "models", "readiness", "refusals", "wiring"]
