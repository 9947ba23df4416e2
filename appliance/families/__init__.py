"""One card a model family, in one table; from it follow the check of headers and of tensors, and
refusals."""

__all__ = ["architecture", "extension", "header", "names", "program", "table", "tensors"]
