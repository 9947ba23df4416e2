"""Where each field lies in the tables that kernels read."""

__all__ = ["attention", "blind", "fetch", "pack", "search", "shapes", "step", "tables"]
