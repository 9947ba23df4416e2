"""The samplers that keep some of the candidates: one file each, and a row of `table`."""

__all__ = ["table"]
