"""Python to LLVM, at build time."""
