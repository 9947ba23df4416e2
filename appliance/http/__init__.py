"""Bytes on connections: listeners, TLS, framing, bodies, the end of the process."""

__all__ = ["body", "departures", "framing", "listen", "loop", "protocol", "tls", "uncached", "watchdog", "windows"]
