"""Bytes on connections: listeners, TLS, framing, bodies, the end of the process."""
