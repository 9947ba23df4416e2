"""The compiled step: one pass, all layers."""
