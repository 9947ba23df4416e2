"""The audit log: closed-schema JSON lines without content."""
