"""The deployment policy: HCL source, schema, diagnostics and digest."""
