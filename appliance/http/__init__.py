"""Bytes on connections: listeners, TLS, framing, bodies, the end of the process."""

__all__ = ["body", "framing", "listen", "loop", "protocol", "tls", "uncached", "watchdog"]
