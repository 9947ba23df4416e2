"""An example witness of audit logs, after C2SP tlog-witness, and a relay for it."""
